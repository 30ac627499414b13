"""Headings and bins of the histograms that `stats` and `report` show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from rich.filesize import decimal

from shardbeam.transforms.dataset.collectors.statistics import BINS, Statistics

_MILLION = 1_000_000
_AREAS = ("small", "medium", "large")


def _percent(bound: int) -> str:
    return f"{bound * 100 / _MILLION:g} %"


class Histogram(NamedTuple):
    """A field of `Statistics` that is shown.

    Attributes:
        field: The field.
        heading: What its bins are.
        title: What is counted, and by what: "Images by format".
        bound: Renders the bound of a bin; None for whole numbers, whose bins end right before the
            next bound.
    """

    field: str
    heading: str
    title: str
    bound: Callable[[int], str] | None = None

    @property
    def unit(self) -> str:
        """What is counted."""
        return self.title.partition(" by ")[0].lower()

    @property
    def is_ordered(self) -> bool:
        """Whether its bins are numbers, so that one of them is the median's."""
        return self.field in BINS

    def bins(self, found: Collection[str], *, gaps: bool = False) -> Iterator[tuple[str, str]]:
        """Yields the keys of `found` in order, each with its text.

        Args:
            found: Keys of the bins.
            gaps: Whether the bins between the first and the last one are there, too.
        """
        bounds = BINS.get(self.field)
        if bounds is None:
            order = _AREAS if set(found) <= set(_AREAS) else sorted(found)
            yield from ((key, key) for key in order if key in found)
            return
        places = [place for place, lower in enumerate(bounds) if str(lower) in found]
        for place in range(places[0], places[-1] + 1) if gaps and places else places:
            following = bounds[place + 1] if place + 1 < len(bounds) else None
            yield str(bounds[place]), self._describe(bounds[place], following)

    def _describe(self, lower: int, following: int | None) -> str:
        write = self.bound or "{:,}".format
        if following is None:
            return f"{write(lower)} and more"
        last = following if self.bound else following - 1
        return write(lower) if last == lower else f"{write(lower)} to {write(last)}"


HISTOGRAMS = (
    Histogram("formats", "format", "Images by format"),
    Histogram("widths", "width in px", "Images by width in px"),
    Histogram("heights", "height in px", "Images by height in px"),
    Histogram(
        "aspects", "width / height", "Images by width / height", lambda bound: f"{bound / 1000:g}"
    ),
    Histogram("example_bytes", "bytes of an Example", "Examples by bytes", decimal),
    Histogram("objects_per_image", "objects of an image", "Images by number of objects"),
    Histogram("object_areas", "object's size (COCO)", "Objects by size (COCO)"),
    Histogram("areas", "object area in px²", "Objects by area in px²"),
    Histogram("relative_areas", "box area / image area", "Boxes by share of the image", _percent),
    Histogram("mask_areas", "mask area / image area", "Masks by share of the image", _percent),
    Histogram("caption_words", "words of a caption", "Captions by words"),
    Histogram("caption_characters", "characters of a caption", "Captions by characters"),
)


def lift(statistics: Statistics, first: str, second: str) -> float:
    """Returns how often two classes occur together, against what chance would have.

    It is P(a, b) / (P(a) P(b)): 1 where classes occur independently of each other; 0 if unknown.

    Args:
        statistics: Of all splits.
        first: A class.
        second: The other one.
    """
    together = statistics.count_of_pairs.get(first, {}).get(second, 0)
    each = [statistics.images_by_class.get(name, 0) for name in (first, second)]
    return together * statistics.examples / (each[0] * each[1]) if all(each) else 0.0
