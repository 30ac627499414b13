"""What is worth a look in an Example: annotations and pictures that are rarely meant as they are.

None of it is necessarily an error, so an Example with findings is written like any other. A change
to a kind or to its threshold increases `STATISTICS_VERSION`. docs/statistics.md lists the kinds.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

LARGE_BOX = "large_box"
TINY_BOX = "tiny_box"
THIN_BOX = "thin_box"
DUPLICATE_BOX = "duplicate_box"
SAME_BOX = "same_box"
SPARSE_MASK = "sparse_mask"
DARK_PICTURE = "dark_picture"
BRIGHT_PICTURE = "bright_picture"
LOW_CONTRAST = "low_contrast"
MANY_OBJECTS = "many_objects"
NO_OBJECTS = "no_objects"
# Kinds that only the decoded picture shows.
PICTURE_KINDS = (DARK_PICTURE, BRIGHT_PICTURE, LOW_CONTRAST)

# A box that covers more of its image.
_LARGE_SHARE = 0.9
# A box of at most this many pixels² of the stored image.
_TINY_PX2 = 16.0
# A box whose longer side is more than this many times the shorter one, in pixels.
_THIN_RATIO = 20.0
# Two boxes whose intersection is more than this part of their union.
_SAME_IOU = 0.95
# Pairs of boxes of larger images are compared only if the boxes are equal.
_MOST_COMPARED = 500
# A mask that covers less of its box, but has pixels.
_SPARSE_SHARE = 0.02
# Gray levels of 0 to 255: the first and the 99th of a hundred pixels, from dark to bright.
_DARK_BELOW, _BRIGHT_ABOVE, _CONTRAST_BELOW = 64, 200, 32
# More objects than this many times the median, and than that many times the 99th percentile, of the
# images of the split that have objects.
_MANY_MEDIANS, _MANY_PERCENTILES = 6, 3
# If more of the images of a split have no objects, they are meant to have none.
_EMPTY_SHARE = 0.01

_THOUSAND, _MILLION = 1_000, 1_000_000
_BOX_KEYS = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))

# `(xmin, ymin, xmax, ymax)` in fractions of the image.
_Box = tuple[float, float, float, float]


class Finding(NamedTuple):
    """A finding of an Example, or of one of its objects.

    Attributes:
        kind: Its stable name.
        strength: How far it is from usual; greater is odder, and only findings of one kind can be
            compared. The unit is the kind's (docs/statistics.md).
        name: The object's class; empty for findings of the whole image.
        other: The class of the other box, if there are two boxes of different classes.
        objects: The numbers of the objects, from 0; none for findings of the whole image.
    """

    kind: str
    strength: int
    name: bytes = b""
    other: bytes = b""
    objects: tuple[int, ...] = ()


def find_in_example(
    values: Mapping[str, Sequence[Any]], *, levels: tuple[int, int] | None = None
) -> list[Finding]:
    """Finds what is worth a look in one Example.

    Numbers are rounded to the 32-bit floats that Examples hold, so that the Example and the values
    that it was made of have the same findings.

    Args:
        values: `{default key: values}`, as `StatisticsCounter.add` takes them.
        levels: The gray levels of its picture (`images.difference_hash.gray_levels`); None if they
            are not known.
    """
    found: list[Finding] = []
    objects = _read_objects(values)
    if objects is not None:
        found += objects.findings()
    if levels is not None:
        found += find_in_picture(*levels)
    return found


def strongest(findings: Iterable[Finding]) -> dict[str, int]:
    """Returns the greatest strength of each kind, sorted by kind."""
    strengths: dict[str, int] = {}
    for finding in findings:
        if finding.strength > strengths.get(finding.kind, -1):
            strengths[finding.kind] = finding.strength
    return dict(sorted(strengths.items()))


class _Objects(NamedTuple):
    """The objects of one Example.

    Attributes:
        boxes: Their boxes.
        names: Their classes.
        crowds: Whether each is a crowd.
        masks: The pixels of each mask; empty if the objects have no masks.
        width: Width of the image in pixels; 0 if it is not known.
        height: Height of the image in pixels; 0 if it is not known.
    """

    boxes: Sequence[_Box]
    names: Sequence[bytes]
    crowds: Sequence[int]
    masks: Sequence[int]
    width: int
    height: int

    def findings(self) -> Iterator[Finding]:
        """Yields what is worth a look in the objects."""
        # It runs for each object of a dataset, so it calls no function for what is usual.
        boxes, crowds, masks = self.boxes, self.crowds, self.masks
        width, height = self.width, self.height
        pixels = width * height
        # The boxes that are compared with others: where each begins, and its number.
        compared: list[tuple[float, int]] = []
        for index, (xmin, ymin, xmax, ymax) in enumerate(boxes):
            across, down = xmax - xmin, ymax - ymin
            # `not >` also leaves out NaN, and boxes that end before they begin.
            if not (across > 0 and down > 0):
                continue
            share = across * down
            if 0 < share < math.inf and not crowds[index]:
                compared.append((xmin, index))
            if share > _LARGE_SHARE:
                yield self._found(LARGE_BOX, index, share * _MILLION)
            if not pixels:
                continue
            area = share * pixels
            if area <= _TINY_PX2:
                # Thousandths of how often it fits into the largest tiny box.
                yield self._found(TINY_BOX, index, _THOUSAND * _TINY_PX2 / area)
            wide, high = across * width, down * height
            if wide > _THIN_RATIO * high or high > _THIN_RATIO * wide:
                yield self._found(THIN_BOX, index, _THOUSAND * max(wide, high) / min(wide, high))
            if masks and 0 < masks[index] < _SPARSE_SHARE * area:
                yield self._found(SPARSE_MASK, index, _THOUSAND * area / masks[index])
        if len(compared) > 1:
            yield from self._find_pairs(compared)

    def _found(self, kind: str, index: int, strength: float) -> Finding:
        return Finding(kind, _whole(strength), self.names[index], objects=(index,))

    def _find_pairs(self, compared: list[tuple[float, int]]) -> Iterator[Finding]:
        if len(self.boxes) > _MOST_COMPARED:
            pairs = self._equal_pairs([index for _, index in compared])
        else:
            pairs = self._overlapping_pairs(sorted(compared))
        for one, other, overlap in pairs:
            name, second = sorted((self.names[one], self.names[other]))
            if name == second:
                yield Finding(DUPLICATE_BOX, overlap, name, objects=(one, other))
            else:
                yield Finding(SAME_BOX, overlap, name, second, objects=(one, other))

    def _overlapping_pairs(
        self, compared: Sequence[tuple[float, int]]
    ) -> Iterator[tuple[int, int, int]]:
        """Yields pairs of boxes that are nearly the same, with their IoU in millionths.

        Two such boxes begin at nearly the same x: of the boxes in the order of xmin, each is
        compared only with those before it that begin at most a twentieth of their width earlier.
        """
        boxes = self.boxes
        # The greatest xmin of a later box that can be nearly the same, and the box's number.
        active: list[tuple[float, int]] = []
        # The greatest of these xmin.
        reach = -math.inf
        for xmin, number in compared:
            box = boxes[number]
            active = [each for each in active if each[0] >= xmin] if xmin <= reach else []
            for _, other in active:
                overlap = _iou(boxes[other], box)
                if overlap > _SAME_IOU:
                    yield other, number, _whole(overlap * _MILLION)
            last = xmin + (1 - _SAME_IOU) * (box[2] - xmin)
            active.append((last, number))
            if last > reach:
                reach = last

    def _equal_pairs(self, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        seen: dict[_Box, int] = {}
        for number in numbers:
            first = seen.setdefault(self.boxes[number], number)
            if first != number:
                yield first, number, _MILLION


def _read_objects(values: Mapping[str, Sequence[Any]]) -> _Objects | None:
    """Reads the objects of an Example; None if it has none, or no usable boxes."""
    get = values.get
    width, height = _first(get("image/width")), _first(get("image/height"))
    if sides := get(_BOX_KEYS[0]):
        lefts, tops, rights, bottoms = sides, *(get(key, ()) for key in _BOX_KEYS[1:])
        count = len(lefts)
        if not count == len(tops) == len(rights) == len(bottoms):
            return None
        floats = array("f", [*lefts, *tops, *rights, *bottoms])
        corners = (floats[start : start + count] for start in range(0, 4 * count, count))
        boxes = list(zip(*corners, strict=True))
        names, crowds = get("image/object/class/text", ()), get("image/object/is_crowd", ())
        masks = get("image/object/mask/area", ())
    elif len(box := array("f", get("annotation/bbox", ()))) == 4 and width > 0 and height > 0:
        x, y, across, down = box
        boxes = [(x / width, y / height, (x + across) / width, (y + down) / height)]
        names, crowds = get("annotation/class/text", ()), get("annotation/is_crowd", ())
        masks = get("annotation/mask/area", ())
    else:
        return None
    count = len(boxes)
    return _Objects(
        boxes=boxes,
        names=names if len(names) == count else [b""] * count,
        crowds=crowds if len(crowds) == count else [0] * count,
        masks=masks if len(masks) == count else (),
        width=max(0, width),
        height=max(0, height),
    )


def _first(values: Sequence[int] | None) -> int:
    return values[0] if values else 0


def _whole(value: float) -> int:
    """Rounds down; what no 64-bit integer can hold becomes the greatest one."""
    return int(min(value, 2.0**62)) if value == value else 0


def _area(box: _Box) -> float:
    xmin, ymin, xmax, ymax = box
    return (xmax - xmin) * (ymax - ymin)


def _iou(one: _Box, other: _Box) -> float:
    """Returns the IoU of two boxes that have an area."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    if across <= 0 or down <= 0:
        return 0.0
    shared = across * down
    return shared / (_area(one) + _area(other) - shared)


def find_in_picture(low: int, high: int) -> Iterator[Finding]:
    """Yields what is worth a look in a picture with these `gray_levels`."""
    if high < _DARK_BELOW:
        yield Finding(DARK_PICTURE, 255 - high)
    if low > _BRIGHT_ABOVE:
        yield Finding(BRIGHT_PICTURE, low)
    if high - low < _CONTRAST_BELOW:
        yield Finding(LOW_CONTRAST, 255 - (high - low))


class ObjectLimits(NamedTuple):
    """Which numbers of objects are worth a look in a split.

    Attributes:
        most: An image with more objects is a finding; None if no number is too many.
        none: Whether an image without objects is a finding.
    """

    most: int | None = None
    none: bool = False

    def finding(self, objects: int) -> tuple[str, int] | None:
        """Returns the kind and the strength of an image with this many objects; None if usual."""
        if self.most is not None and objects > self.most:
            return MANY_OBJECTS, objects
        return (NO_OBJECTS, 0) if self.none and not objects else None


def limit_objects(images_by_objects: Mapping[int, int]) -> ObjectLimits:
    """Decides which numbers of objects are worth a look.

    Args:
        images_by_objects: `{objects: images that have as many}` of a split.
    """
    counts = sorted((objects, images) for objects, images in images_by_objects.items() if objects)
    annotated = sum(images for _, images in counts)
    if not annotated:
        return ObjectLimits()
    empty = images_by_objects.get(0, 0)
    most = max(
        _MANY_MEDIANS * _quantile(counts, annotated=annotated, percent=50),
        _MANY_PERCENTILES * _quantile(counts, annotated=annotated, percent=99),
    )
    return ObjectLimits(most, 0 < empty <= _EMPTY_SHARE * (annotated + empty))


def _quantile(counts: Sequence[tuple[int, int]], *, annotated: int, percent: int) -> int:
    """Returns the least number of objects that `percent` of the images do not exceed."""
    seen = 0
    for objects, images in counts:
        seen += images
        if 100 * seen >= percent * annotated:
            return objects
    raise AssertionError("no images")
