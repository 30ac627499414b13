"""Headings and bins of the histograms that `stats` and `report` show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from rich.filesize import decimal

from shardbeam.transforms.dataset.statistics import BINS

_MILLION = 1_000_000
_AREAS = ("small", "medium", "large")


def _percent(bound: int) -> str:
    return f"{bound * 100 / _MILLION:g} %"


class Histogram(NamedTuple):
    """A field of `Statistics` that is shown.

    Attributes:
        field: The field.
        heading: What its bins are.
        bound: Renders the bound of a bin; None for whole numbers, whose bins end right before the
            next bound.
    """

    field: str
    heading: str
    bound: Callable[[int], str] | None = None

    def bins(self, found: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yields the keys of `found` in order, each with its text."""
        bounds = BINS.get(self.field)
        if bounds is None:
            order = _AREAS if set(found) <= set(_AREAS) else sorted(found)
            yield from ((key, key) for key in order if key in found)
            return
        for lower, following in itertools.zip_longest(bounds, bounds[1:]):
            if str(lower) in found:
                yield str(lower), self._describe(lower, following)

    def _describe(self, lower: int, following: int | None) -> str:
        write = self.bound or "{:,}".format
        if following is None:
            return f"{write(lower)} and more"
        last = following if self.bound else following - 1
        return write(lower) if last == lower else f"{write(lower)} to {write(last)}"


HISTOGRAMS = (
    Histogram("formats", "format"),
    Histogram("widths", "width in px"),
    Histogram("heights", "height in px"),
    Histogram("aspects", "width / height", lambda bound: f"{bound / 1000:g}"),
    Histogram("example_bytes", "bytes of an Example", decimal),
    Histogram("objects_per_image", "objects of an image"),
    Histogram("object_areas", "object's size (COCO)"),
    Histogram("relative_areas", "box area / image area", _percent),
    Histogram("mask_areas", "mask area / image area", _percent),
    Histogram("caption_words", "words of a caption"),
    Histogram("caption_characters", "characters of a caption"),
)
