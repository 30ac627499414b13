"""Counting what a step gets, by split: one sum a bundle, and one of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam

from shardbeam.transforms.global_window import in_global_window


# The second of a sum's numbers may be one of digests, too large for Beam's coder of an `int`.
@beam.typehints.with_output_types(dict[str, tuple[int, Any]])
class SumBySplit(beam.DoFn):
    """Measures elements, and gives one `{split: (int, int)}` a bundle.

    What is summed up here is not an element for each file: some runners would keep that in memory.

    Args:
        measure: Tells an element's split, and two numbers to add up.

    Attributes:
        sums: `{split: (int, int)}` of the bundle so far.
    """

    def __init__(self, measure: Callable[[Any], tuple[str, tuple[int, int]]]) -> None:
        self._measure = measure

    def start_bundle(self) -> None:
        """Begins with nothing."""
        self.sums: dict[str, tuple[int, int]] = {}

    def process(self, element: object) -> None:
        """Adds one element."""
        split, (number, size) = self._measure(element)
        numbers, sizes = self.sums.get(split, (0, 0))
        self.sums[split] = numbers + number, sizes + size

    def finish_bundle(self) -> Iterator[Any]:
        """Gives the sums."""
        yield in_global_window(self.sums)


def merge_sums(several: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Adds up what `SumBySplit` gave, in any order."""
    merged: dict[str, tuple[int, int]] = {}
    for sums in several:
        for split, (number, size) in sums.items():
            numbers, sizes = merged.get(split, (0, 0))
            merged[split] = numbers + number, sizes + size
    return merged
