"""SummarizeListing: how much was listed, counted from the listing itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms import combiners

from transforms.coders import register_coders
from transforms.global_window import in_global_window
from transforms.output.listing import (
    ListingSummary,
    add_images,
    summarize_image,
    summarize_listing,
    summarize_member,
    summarize_other,
    summarize_reject,
)
from transforms.records import ImageRef, ListedImage, Reject
from transforms.sharding import SplitAssignment

register_coders()

# A split, and a count with a fingerprint, which is too large for the coder of an `int`.
_Counted = tuple[str, Any]


@dataclasses.dataclass(eq=False, kw_only=True)
class SummarizeListing(beam.PTransform[Any, PCollection[ListingSummary]]):
    """Counts and fingerprints all that was listed: one `ListingSummary`.

    Args:
        splits: Which split a key belongs to.
        contained: `((source, join), ListedImage)` for each image inside a container.
    """

    splits: SplitAssignment
    contained: PCollection[tuple[tuple[str, str], ListedImage]] | None = None

    def expand(
        self,
        inputs: tuple[
            PCollection[tuple[tuple[str, str], ListedImage]],
            PCollection[ImageRef],
            PCollection[Reject],
        ],
    ) -> PCollection[ListingSummary]:
        """Adds the step: `(images, others, rejects) | SummarizeListing(...)`, of `ListImages`."""
        images, others, rejects = inputs
        image = functools.partial(summarize_image, splits=self.splits)
        member = functools.partial(summarize_member, splits=self.splits)
        parts = [
            images | "SummarizeImages" >> beam.ParDo(_SumFn(image)),
            others | "SummarizeOthers" >> beam.ParDo(_SumFn(summarize_other)),
            rejects | "SummarizeRejects" >> beam.ParDo(_SumFn(summarize_reject)),
        ]
        if self.contained is not None:
            parts.append(self.contained | "SummarizeContained" >> beam.ParDo(_SumFn(member)))
        return (
            parts
            | beam.Flatten()
            | "Add" >> beam.CombinePerKey(add_images)
            | "ToDict" >> combiners.ToDict()
            | "Total" >> beam.Map(summarize_listing)
        )


@beam.typehints.with_output_types(_Counted)
class _SumFn(beam.DoFn):
    """Counts elements, and gives one sum a split and bundle.

    Some runners keep what is flattened in memory: here that is not an element for each file.
    """

    def __init__(self, summarize: Callable[[Any], tuple[str, tuple[int, int]]]) -> None:
        self._summarize = summarize

    def start_bundle(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}

    def process(self, element: object) -> None:
        split, counted = self._summarize(element)
        self._sums[split] = add_images((self._sums.get(split, (0, 0)), counted))

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(in_global_window, self._sums.items())
