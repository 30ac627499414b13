"""The histograms of a dataset's statistics, as people read them."""

from __future__ import annotations

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
        bound: Writes the bound of a bin.
    """

    field: str
    heading: str
    bound: Callable[[int], str] = "{:,}".format

    def bins(self, found: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yields the keys of `found` in their order, each with what it says."""
        bounds = BINS.get(self.field)
        if bounds is None:
            order = _AREAS if set(found) <= set(_AREAS) else sorted(found)
            yield from ((key, key) for key in order if key in found)
            return
        for place, lower in enumerate(bounds):
            if str(lower) in found:
                first = self.bound(lower)
                if place + 1 == len(bounds):
                    yield str(lower), f"{first} and more"
                elif bounds[place + 1] == lower + 1:
                    yield str(lower), first
                else:
                    yield str(lower), f"{first} to {self.bound(bounds[place + 1])}"


HISTOGRAMS = (
    Histogram("formats", "format"),
    Histogram("widths", "width in px"),
    Histogram("heights", "height in px"),
    Histogram("aspects", "width / height", lambda bound: f"{bound / 1000:g}"),
    Histogram("example_bytes", "bytes of an Example", decimal),
    Histogram("objects_per_image", "objects of an image"),
    Histogram("object_areas", "object's size (COCO)"),
    Histogram("relative_areas", "box in the image's area", _percent),
    Histogram("mask_areas", "mask in the image's area", _percent),
    Histogram("caption_words", "words of a caption"),
    Histogram("caption_characters", "characters of a caption"),
)
