"""The ways to read the four numbers of a box, and which of them put boxes into their images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from shardbeam.transforms.core.box_formats import BOX_FORMATS, BoxFormat
from shardbeam.transforms.examples.geometry.boxes import Box
from shardbeam.transforms.examples.geometry.frame import AnnotatedFrame

_Numbers: TypeAlias = tuple[float, float, float, float]

# Names of counts of boxes, beside "xywh>xyxy" and so on: those that another reading than the first
# puts into their image.
BOXES, OUTSIDE, EXCHANGED, TRIED, TURNED = "boxes", "outside", "exchanged", "tried", "turned"


def _from_sides(x: float, y: float, width: float, height: float) -> Box:
    return x, y, x + width, y + height


def _from_corners(xmin: float, ymin: float, xmax: float, ymax: float) -> Box:
    return xmin, ymin, xmax, ymax


def _from_centre(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _from_rows_first(ymin: float, xmin: float, ymax: float, xmax: float) -> Box:
    return xmin, ymin, xmax, ymax


def _to_sides(xmin: float, ymin: float, xmax: float, ymax: float) -> _Numbers:
    return xmin, ymin, xmax - xmin, ymax - ymin


def _to_centre(xmin: float, ymin: float, xmax: float, ymax: float) -> _Numbers:
    return (xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin


# {format: makes (xmin, ymin, xmax, ymax) from the four numbers}, and the way back
CORNERS: Mapping[BoxFormat, Callable[[float, float, float, float], Box]] = {
    "xywh": _from_sides,
    "xyxy": _from_corners,
    "cxcywh": _from_centre,
    "yxyx": _from_rows_first,
}
_NUMBERS: Mapping[BoxFormat, Callable[[float, float, float, float], _Numbers]] = {
    "xywh": _to_sides,
    "xyxy": _from_corners,
    "cxcywh": _to_centre,
    # It is its own way back.
    "yxyx": _from_rows_first,
}


def other_reading(given: BoxFormat, other: BoxFormat) -> str:
    """Names the count of boxes that are read in one way, and would be in the image in another."""
    return f"{given}>{other}"


def try_readings(boxes: Iterable[Box], *, frame: AnnotatedFrame) -> Counter[str]:
    """Counts the boxes that each other reading of their numbers would put into the image.

    Each pair of readings is tried, because only the source's format knows how it has read them.

    Args:
        boxes: The annotated boxes of one image.
        frame: The frame that they refer to.
    """
    counts: Counter[str] = Counter()
    for box in boxes:
        if box[0] == box[2] or box[1] == box[3]:
            # Whatever it means, it has no area.
            continue
        counts[TRIED] += 1
        counts[TURNED] += frame.holds((box[1], box[0], box[3], box[2]))
        for given in BOX_FORMATS:
            numbers = _NUMBERS[given](*box)
            for other in BOX_FORMATS:
                if other != given:
                    name = other_reading(given, other)
                    counts[name] += frame.holds(CORNERS[other](*numbers))
    return counts
