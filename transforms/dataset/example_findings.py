"""The findings in an Example: annotations that are rarely meant as they are.

None of it is necessarily an error, so an Example with findings is written like any other. A change
to a kind or to its threshold increases `STATISTICS_VERSION`. Findings of pictures are measures
(`images.measures`). docs/reference/statistics.md lists the kinds.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

LARGE_BOX = "large_box"
TINY_BOX = "tiny_box"
THIN_BOX = "thin_box"
DUPLICATE_BOX = "duplicate_box"
SAME_BOX = "same_box"
SPARSE_MASK = "sparse_mask"
BOX_OFF_MASK = "box_off_mask"
MANY_OBJECTS = "many_objects"
NO_OBJECTS = "no_objects"

# A box that covers more of its image.
_LARGE_SHARE = 0.9
# A box of at most this many pixels² of the stored image.
_TINY_PX2 = 16.0
# A box whose longer side is more than this many times the shorter one, in pixels.
_THIN_RATIO = 20.0
# Two boxes whose intersection is more than this part of their union. Objects of two classes may be
# nearly as close, such as a rider and a bicycle.
_DUPLICATE_IOU, _SAME_IOU = 0.8, 0.95
# Pairs of boxes of larger images are compared only if the boxes are equal.
_MOST_COMPARED = 500
# A mask that covers less of its box, but has pixels.
_SPARSE_SHARE = 0.02
# A box whose intersection with the box around its mask is less than this part of their union. It
# must also differ by more than a pixel, because masks end at whole pixels.
_MASK_IOU, _MASK_PIXELS = 0.7, 1.0
# More objects than this many times the median, and than that many times the 99th percentile, of the
# images of the split that have objects.
_MANY_MEDIANS, _MANY_PERCENTILES = 6, 3
# If more of the images of a split have no objects, they are meant to have none.
_EMPTY_SHARE = 0.01

_THOUSAND, _MILLION = 1_000, 1_000_000

# Keys of the class, of whether it is a crowd, of the mask's pixels, and of the box around these.
_OBJECT_KEYS = (
    *("image/object/class/text", "image/object/is_crowd"),
    *("image/object/mask/area", "image/object/mask/box"),
)
_ANNOTATION_KEYS = (
    *("annotation/class/text", "annotation/is_crowd"),
    *("annotation/mask/area", "annotation/mask/box"),
)

# `{default key: values}`, like `examples.encode.annotated.Values`.
_Values: TypeAlias = Mapping[str, Sequence[Any]]
_Floats: TypeAlias = npt.NDArray[np.float64]
_Integers: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]


class Finding(NamedTuple):
    """A finding of an Example, or of one of its objects.

    Attributes:
        kind: Its stable name.
        strength: How far it is from usual; greater is odder, and only findings of one kind can be
            compared. The unit is the kind's (docs/reference/statistics.md).
        name: The object's class; empty for findings of the whole image.
        other: The class of the other box, if there are two boxes of different classes.
        objects: The numbers of the objects, from 0; none for findings of the whole image.
    """

    kind: str
    strength: int
    name: bytes = b""
    other: bytes = b""
    objects: tuple[int, ...] = ()


def find_in_example(values: _Values) -> list[Finding]:
    """Finds odd objects of one Example.

    Args:
        values: `{default key: values}`, as in an `Item` of the collectors.
    """
    columns = ObjectColumns()
    columns.add(0, values)
    found = [finding for _, finding in columns.find()]
    return sorted(found, key=lambda finding: (len(finding.objects), finding.objects))


class ObjectColumns:
    """The objects of many Examples in columns, so that all of them are looked at together.

    Coordinates are rounded to the 32-bit floats that Examples hold, so that an Example and the
    values that it was made of have the same findings.
    """

    def __init__(self) -> None:
        # Of each object: corners in fractions of the image, or x, y, width and height in pixels.
        self._boxes = (array("f"), array("f"), array("f"), array("f"))
        self._names: list[bytes] = []
        # The places of boxes in pixels, those of crowds, and those of masks with their pixels and
        # the boxes around them.
        self._in_pixels: list[int] = []
        self._crowds: list[int] = []
        self._masks: list[tuple[int, int, tuple[float, float, float, float]]] = []
        # Of each Example.
        self._numbers: list[int] = []
        self._lengths: list[int] = []
        self._sizes: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._names)

    def add(self, number: int, values: _Values) -> bool:
        """Adds the objects of an Example.

        Args:
            number: The Example's number, which `find` gives back.
            values: `{default key: values}`, as in an `Item` of the collectors.

        Returns:
            Whether it has boxes that can be used; otherwise nothing is added.
        """
        # It runs for each Example, so it calls as few functions as possible.
        get = values.get
        if (lefts := get("image/object/bbox/xmin")) is None:
            return self._add_in_pixels(number, values)
        tops, rights = get("image/object/bbox/ymin", ()), get("image/object/bbox/xmax", ())
        bottoms = get("image/object/bbox/ymax", ())
        length = len(lefts)
        if not length or not length == len(tops) == len(rights) == len(bottoms):
            return False
        xmin, ymin, xmax, ymax = self._boxes
        xmin.extend(lefts)
        ymin.extend(tops)
        xmax.extend(rights)
        ymax.extend(bottoms)
        self._add_facts(number, values, length=length, keys=_OBJECT_KEYS)
        return True

    def _add_in_pixels(self, number: int, values: _Values) -> bool:
        box = values.get("annotation/bbox", ())
        if len(box) != len(self._boxes) or min(_image_size(values)) <= 0:
            return False
        for column, side in zip(self._boxes, box, strict=True):
            column.append(side)
        self._in_pixels.append(len(self._names))
        self._add_facts(number, values, length=1, keys=_ANNOTATION_KEYS)
        return True

    def _add_facts(
        self, number: int, values: _Values, *, length: int, keys: tuple[str, ...]
    ) -> None:
        class_key, crowd_key, mask_key, around_key = keys
        names, crowds = values.get(class_key, ()), values.get(crowd_key, ())
        masks = values.get(mask_key, ())
        place = len(self._names)
        if any(crowds) and len(crowds) == length:
            self._crowds += (number for number, crowd in enumerate(crowds, place) if crowd)
        around = values.get(around_key, ())
        if masks and length == len(masks) == len(around):
            self._masks += zip(itertools.count(place), masks, around, strict=False)
        self._names += names if len(names) == length else [b""] * length
        self._numbers.append(number)
        self._lengths.append(length)
        self._sizes.append(_image_size(values))

    def read(self) -> tuple[Boxes, list[bytes]]:
        """Returns the boxes, and the class of each."""
        boxes, _, _ = self._read()
        return boxes, self._names

    def shares(self, boxes: Boxes) -> _Floats:
        """Returns the shares of their images that the boxes in fractions cover.

        Args:
            boxes: All boxes, as `read` returns them.
        """
        return np.delete(boxes.shares(), self._in_pixels)

    def find(self) -> Iterator[tuple[int, Finding]]:
        """Yields the findings, each with the number of its Example, in any order."""
        if not self:
            return
        boxes, width, height = self._read()
        owners = np.repeat(np.arange(len(self._lengths)), self._lengths)
        first = np.cumsum(self._lengths) - self._lengths
        masks = np.zeros(len(self))
        drawn = [each for each in self._masks if each[1]]
        for place, area, _ in drawn:
            masks[place] = area
        found = _check_boxes(boxes, width=width, height=height, masks=masks)
        if drawn:
            around = np.full((len(self), 4), np.nan)
            for place, _, box in drawn:
                around[place] = box
            found += _compare_with_masks(boxes, width=width, height=height, around=around)
        for kind, is_found, strengths in found:
            for place in np.flatnonzero(is_found).tolist():
                owner = owners[place]
                yield (
                    self._numbers[owner],
                    Finding(
                        kind,
                        _whole(strengths[place]),
                        self._names[place],
                        objects=(int(place - first[owner]),),
                    ),
                )
        for one, other, overlap in _find_pairs(boxes, owners=owners, crowds=self._crowds):
            owner = owners[one]
            name, second = sorted((self._names[one], self._names[other]))
            is_one_class = name == second
            if overlap <= _SAME_IOU * _MILLION and not is_one_class:
                continue
            yield (
                self._numbers[owner],
                Finding(
                    DUPLICATE_BOX if is_one_class else SAME_BOX,
                    overlap,
                    name,
                    b"" if is_one_class else second,
                    objects=(int(one - first[owner]), int(other - first[owner])),
                ),
            )

    @np.errstate(all="ignore")
    def _read(self) -> tuple[Boxes, _Floats, _Floats]:
        """Returns the boxes, and the width and the height of each one's image in pixels."""
        sizes = np.array(self._sizes, np.float64).reshape(-1, 2)
        width, height = np.repeat(np.maximum(sizes, 0), self._lengths, axis=0).T
        columns = [np.frombuffer(each, np.float32).astype(np.float64) for each in self._boxes]
        boxes = Boxes(*columns)
        if places := self._in_pixels:
            x, y, across, down = boxes.take(places)
            wide, high = width[places], height[places]
            boxes.xmin[places], boxes.xmax[places] = x / wide, (x + across) / wide
            boxes.ymin[places], boxes.ymax[places] = y / high, (y + down) / high
        return boxes, width, height


class Boxes(NamedTuple):
    """The corners of boxes in fractions of their images."""

    xmin: _Floats
    ymin: _Floats
    xmax: _Floats
    ymax: _Floats

    def take(self, places: _Integers | list[int]) -> Boxes:
        """Returns some of the boxes."""
        return Boxes(*(corner[places] for corner in self))

    @np.errstate(all="ignore")
    def shares(self) -> _Floats:
        """Returns the share of its image that each box covers."""
        return (self.xmax - self.xmin) * (self.ymax - self.ymin)


@np.errstate(all="ignore")
def _check_boxes(
    boxes: Boxes, *, width: _Floats, height: _Floats, masks: _Floats
) -> list[tuple[str, _Bools, _Floats]]:
    """Checks each box alone.

    Args:
        boxes: The boxes.
        width: The width of each one's image in pixels; 0 if it is not known.
        height: The height.
        masks: The pixels of each one's mask; 0 without a mask.

    Returns:
        For each kind: its name, which boxes have it, and what its strength is for each box.
    """
    across, down = boxes.xmax - boxes.xmin, boxes.ymax - boxes.ymin
    # False for NaN, and for boxes that end before they begin.
    is_box = (across > 0) & (down > 0)
    share, pixels = across * down, width * height
    is_known = is_box & (pixels > 0)
    wide, high, area = across * width, down * height, share * pixels
    is_thin = (wide > _THIN_RATIO * high) | (high > _THIN_RATIO * wide)
    ratio = _THOUSAND * np.maximum(wide, high) / np.minimum(wide, high)
    is_sparse = (masks > 0) & (masks < _SPARSE_SHARE * area)
    return [
        (LARGE_BOX, is_box & (share > _LARGE_SHARE), share * _MILLION),
        # Thousandths of how often it fits into the largest tiny box.
        (TINY_BOX, is_known & (area <= _TINY_PX2), _THOUSAND * _TINY_PX2 / area),
        (THIN_BOX, is_known & is_thin, ratio),
        (SPARSE_MASK, is_known & is_sparse, _THOUSAND * area / masks),
    ]


@np.errstate(all="ignore")
def _compare_with_masks(
    boxes: Boxes, *, width: _Floats, height: _Floats, around: _Floats
) -> list[tuple[str, _Bools, _Floats]]:
    """Compares each box with the box around its mask; like `_check_boxes`.

    Args:
        boxes: The boxes.
        width: The width of each one's image in pixels; 0 if it is not known.
        height: The height.
        around: The corners of the box around each one's mask in pixels; NaN without a mask.
    """
    sizes = np.stack([width, height, width, height], axis=1)
    off = np.abs(np.stack(boxes, axis=1) * sizes - around).max(axis=1, initial=0)
    overlap = _ious(boxes, Boxes(*(around / sizes).T))
    is_off = (overlap < _MASK_IOU) & (off > _MASK_PIXELS)
    return [(BOX_OFF_MASK, is_off, (1 - overlap) * _MILLION)]


def _find_pairs(
    boxes: Boxes, *, owners: _Integers, crowds: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Yields pairs of boxes that overlap by `_DUPLICATE_IOU`, with their IoU in millionths.

    Args:
        boxes: The boxes.
        owners: The number of each one's Example, ascending.
        crowds: The places of crowds, which are not compared.
    """
    shares = boxes.shares()
    is_compared = (boxes.xmax > boxes.xmin) & (shares > 0) & (shares < np.inf)
    is_compared[crowds] = False
    are_many = np.bincount(owners)[owners] > _MOST_COMPARED
    yield from _equal_pairs(
        boxes, owners=owners, places=np.flatnonzero(is_compared & are_many).tolist()
    )
    places = np.flatnonzero(is_compared & ~are_many)
    places = places[np.lexsort((boxes.xmin[places], owners[places]))]
    for one, other, overlaps in _overlapping_pairs(boxes.take(places), owners=owners[places]):
        yield from zip(places[one].tolist(), places[other].tolist(), overlaps, strict=True)


def _overlapping_pairs(
    boxes: Boxes, *, owners: _Integers
) -> Iterator[tuple[_Integers, _Integers, list[int]]]:
    """Yields pairs of boxes of an Example that overlap by `_DUPLICATE_IOU`.

    Two such boxes begin at nearly the same x: each box is compared only with those that begin at
    most a fifth of its width later.

    Args:
        boxes: The boxes, by Example and xmin.
        owners: The number of each one's Example.

    Yields:
        The places of the first boxes of some pairs, those of the second ones, and the IoUs in
        millionths.
    """
    last = boxes.xmin + (1 - _DUPLICATE_IOU) * (boxes.xmax - boxes.xmin)
    one = np.arange(len(owners))
    for distance in itertools.count(1):
        one = one[one < len(owners) - distance]
        other = one + distance
        # A box that does not reach the next one does not reach those behind that.
        is_near = (owners[one] == owners[other]) & (boxes.xmin[other] <= last[one])
        one, other = one[is_near], other[is_near]
        if not one.size:
            return
        overlaps = _ious(boxes.take(one), boxes.take(other))
        are_same = overlaps > _DUPLICATE_IOU
        yield (
            one[are_same],
            other[are_same],
            [_whole(overlap * _MILLION) for overlap in overlaps[are_same].tolist()],
        )


@np.errstate(all="ignore")
def _ious(one: Boxes, other: Boxes) -> _Floats:
    """Returns the IoUs of pairs of boxes that have an area."""
    across = np.minimum(one.xmax, other.xmax) - np.maximum(one.xmin, other.xmin)
    down = np.minimum(one.ymax, other.ymax) - np.maximum(one.ymin, other.ymin)
    shared = np.maximum(across, 0) * np.maximum(down, 0)
    return shared / (one.shares() + other.shares() - shared)


def _equal_pairs(
    boxes: Boxes, *, owners: _Integers, places: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    seen: dict[tuple[float, ...], int] = {}
    for place in places:
        box = (owners[place], *(corner[place] for corner in boxes))
        first = seen.setdefault(box, place)
        if first != place:
            yield first, place, _MILLION


def _image_size(values: _Values) -> tuple[int, int]:
    """Returns width and height; 0 for what is not known."""
    width, height = values.get("image/width"), values.get("image/height")
    return width[0] if width else 0, height[0] if height else 0


def _whole(value: float) -> int:
    """Rounds down; what no 64-bit integer can hold becomes the greatest one."""
    return int(min(value, 2.0**62)) if value == value else 0


class ObjectLimits(NamedTuple):
    """Which numbers of objects are findings in a split.

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
    """Decides which numbers of objects are findings.

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
