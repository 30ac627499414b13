"""Reads the results of one annotation of Label Studio: regions of an image, and choices.

The format: https://labelstud.io/guide/task_format. Coordinates are percent of the image's sides.

The masks of its brush are the red, green, blue and opacity of each pixel, row by row, in the coding
of the JavaScript package rle-pack (https://github.com/thi-ng/umbrella, `packages/rle-pack`): a
stream of bits, the highest of each byte first. It begins with the number of values (32 bits), the
length of a value in bits - 1 (5 bits), and four lengths of counts in bits - 1 (4 bits each). Then
follow runs: a bit that says whether one value is repeated, the index of the count's length
(2 bits), the count - 1, and the value, or as many values as the count says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.boxes import Size, turn_points
from shardbeam.transforms.examples.geometry.segmentation import MAX_MASK_PIXELS, mask_object
from shardbeam.transforms.formats.annotation_file import ellipse_object, polygon_object

_ELLIPSE_POINTS = 36
# {a key of a region's coordinates: the region's shape}
_SHAPES = {"points": "polygon", "radiusX": "ellipse", "rle": "brush", "height": "rectangle"}
# Tags that draw regions; not all of their shapes are read.
_TAGS = (*_SHAPES.values(), "keypoint", "vector", "bitmask", "magicwand")


class Result(msgspec.Struct, rename={"parent": "parentID"}):
    """A result, as Label Studio writes it."""

    type: str
    value: dict[str, Any] = {}
    id: str | int | None = None
    from_name: str | None = None
    original_width: float | None = None
    original_height: float | None = None
    image_rotation: float | None = None
    parent: str | int | None = None


class _Region(msgspec.Struct):
    """A region, of which several results may give the shape, the class and more.

    Attributes:
        shape: Its shape.
        value: Its coordinates.
        tag: The tag that drew it.
        labels: Its classes.
        parent: The region that it belongs to.
    """

    shape: str
    value: Mapping[str, Any]
    tag: str
    labels: dict[str, None]
    parent: str | int | None = None


def read_results(
    results: Sequence[Result], *, keypoints: Sequence[str]
) -> tuple[ImageAnnotations, set[str]]:
    """Reads the results of one annotation.

    Args:
        results: The results.
        keypoints: Labels of points that are keypoints, in order.

    Returns:
        The annotations, and the names of the tags whose choices are the labels.

    Raises:
        ValueError: A result cannot be read.
    """
    corrections = Corrections()
    regions: dict[object, _Region] = {}
    labels: dict[str, None] = {}
    tags: set[str] = set()
    sizes: dict[Size, None] = {}
    others: list[Result] = []
    for number, result in enumerate(results):
        shape = _shape_of(result)
        names = [key for key in result.value if key.endswith("labels")]
        if not shape or not (names or result.type in _TAGS):
            others.append(result)
            continue
        if result.image_rotation:
            raise ValueError(
                f"image_rotation is {result.image_rotation:g}, and nothing says whether the "
                "coordinates are turned, too: turn the image back in Label Studio, and export again"
            )
        if size := _size_of(result):
            sizes[size] = None
        identity = (number,) if result.id is None else result.id
        region = regions.setdefault(
            identity, _Region(shape, result.value, result.type, {}, result.parent)
        )
        for name in names:
            region.labels |= dict.fromkeys(_texts(result.value[name], what=name))
    for result in others:
        if result.type == "choices" and result.id not in regions and not _shape_of(result):
            labels |= dict.fromkeys(_texts(result.value.get("choices"), what="choices"))
            tags.add(result.from_name or "")
        else:
            # A text, a rating, a relation, or what says more about a region.
            corrections.note(Correction.KEY_NOT_CARRIED_OVER, result.type)
    if results and not (regions or tags):
        # Without them, the image would look like one that shows nothing.
        kinds = ", ".join(dict.fromkeys(it.type for it in results))[:60]
        raise ValueError(f"none of the results is a region or a choice: {kinds!a}")
    if len(sizes) > 1:
        raise ValueError(f"regions of images of several sizes: {[*sizes][:2]}")
    size = next(iter(sizes), (0, 0))
    reader = _RegionReader(size, keypoints, corrections)
    objects = tuple(reader.read(regions))
    return (
        ImageAnnotations(
            image_id="",
            width=size[0],
            height=size[1],
            labels=tuple(labels),
            objects=objects,
            **corrections.fields(),
            normalized=not all(size),
        ),
        tags,
    )


class _RegionReader(msgspec.Struct):
    """Makes objects of regions.

    Attributes:
        size: The size of the annotated image; 0 if it is unknown: coordinates are fractions then.
        keypoints: Labels of points that are keypoints, in order.
        corrections: Counts what is left out.
    """

    size: Size
    keypoints: Sequence[str]
    corrections: Corrections

    def read(self, regions: Mapping[object, _Region]) -> Iterator[ObjectAnnotation]:
        """Yields the objects with their keypoints.

        Raises:
            ValueError: A region cannot be read.
        """
        items: dict[object, ObjectAnnotation] = {}
        points: list[tuple[_Region, str]] = []
        for identity, region in regions.items():
            if len(region.labels) > 1:
                raise ValueError(f"a region has several labels: {', '.join(region.labels)[:60]!a}")
            if not region.labels:
                unknown = Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED
                self.corrections.note(unknown, f"a {region.shape} without a label")
                continue
            (label,) = region.labels
            if region.shape == "keypoint" and label in self.keypoints:
                points.append((region, label))
            elif (item := self._read_shape(region, label)) is None:
                self.corrections.note_lost(label, region.shape)
            else:
                items[identity] = msgspec.structs.replace(item, label=label)
        found: dict[object, dict[str, list[float]]] = {}
        for region, label in points:
            there = found.setdefault(region.parent, {})
            if region.parent not in items:
                self.corrections.note(Correction.KEYPOINT_IN_NO_OBJECT_DROPPED, label)
            elif label in there:
                self.corrections.note(Correction.KEYPOINT_REPEATED_DROPPED, label)
            else:
                there[label] = [*self._point(region.value), 2.0]
        for identity, item in items.items():
            if identity in found:
                none = [0.0, 0.0, 0.0]
                values = [it for name in self.keypoints for it in found[identity].get(name, none)]
                item = msgspec.structs.replace(item, keypoints=tuple(values))
            yield item

    def _read_shape(self, region: _Region, label: str) -> ObjectAnnotation | None:
        value = region.value
        if region.shape == "brush":
            if not all(self.size):
                raise ValueError("a brush needs original_width and original_height")
            data = _bytes(value.get("rle"))
            if not data:
                return None
            mask = decode_brush(data, size=self.size)
            return mask_object(mask, label=label, left=0, top=0, frame=self.size)
        if region.shape == "rectangle":
            return self._read_rectangle(value)
        if region.shape == "ellipse":
            return self._read_ellipse(value)
        if region.shape == "polygon":
            points = value.get("points")
            if not isinstance(points, list):
                raise ValueError("points: expected a list of [x, y]")
            if len(points) < 3:
                return None
            return polygon_object([side for point in points for side in self._corner(point)])
        return None

    def _read_rectangle(self, value: Mapping[str, Any]) -> ObjectAnnotation:
        left, top = self._point(value)
        width, height = self._sides(value, "width", "height")
        box = (left, top, left + width, top + height)
        angle = self._angle(value)
        if not (angle and width and height):
            return ObjectAnnotation(label="", bbox=box)
        corners = [(left, top), (box[2], top), (box[2], box[3]), (left, box[3])]
        item = polygon_object(turn_points(corners, center=(left, top), angle=angle))
        self.corrections.note(Correction.BOX_TURNED, box, item.bbox)
        return msgspec.structs.replace(item, area=abs(width * height))

    def _read_ellipse(self, value: Mapping[str, Any]) -> ObjectAnnotation:
        center, radii = self._point(value), self._sides(value, "radiusX", "radiusY")
        return ellipse_object(center, radii, angle=self._angle(value), corners=_ELLIPSE_POINTS)

    def _point(self, value: Mapping[str, Any]) -> tuple[float, float]:
        return self._sides(value, "x", "y")

    def _corner(self, point: object) -> tuple[float, float]:
        if not isinstance(point, list) or len(point) != 2:
            raise ValueError("points: expected a list of [x, y]")
        return self._sides(dict(zip("xy", point, strict=True)), "x", "y")

    def _sides(self, value: Mapping[str, Any], across: str, down: str) -> tuple[float, float]:
        """Turns percent into pixels, or into fractions if the image's size is unknown."""
        width, height = self.size if all(self.size) else (1, 1)
        return _number(value, across) * width / 100, _number(value, down) * height / 100

    def _angle(self, value: Mapping[str, Any]) -> float:
        """Reads by how much a region is turned clockwise, in radians."""
        angle = math.radians(_number(value, "rotation") % 360) if value.get("rotation") else 0.0
        if angle and not all(self.size):
            raise ValueError("a turned region needs original_width and original_height")
        return angle


def _shape_of(result: Result) -> str:
    """Returns the shape of a result, by its type, or else by its coordinates; empty if it has none.

    Some programs write a height for keypoints, too.
    """
    tag = result.type.removesuffix("labels")
    if tag in _TAGS:
        return tag
    found = (shape for key, shape in _SHAPES.items() if key in result.value)
    return next(found, "keypoint" if "x" in result.value else "")


def _size_of(result: Result) -> Size | None:
    width, height = result.original_width, result.original_height
    if width is None or height is None:
        return None
    if not (1 <= width < 2**31 and 1 <= height < 2**31):
        raise ValueError(f"expected the size of an image, got {width:g}x{height:g}")
    return int(width), int(height)


def _number(value: Mapping[str, Any], key: str) -> float:
    number = value.get(key)
    if isinstance(number, str):
        try:
            number = float(number)
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise ValueError(f"{key}: expected a number")
    if not abs(number) <= MAX_FLOAT32:
        raise ValueError(f"{key}: too large a number")
    return number


def _texts(value: object, *, what: str) -> list[str]:
    """Reads the names of classes."""
    values = value if isinstance(value, list) else [value]
    names = [" ".join(it.split()) for it in values if isinstance(it, str)]
    if len(names) < len(values):
        raise ValueError(f"{what}: expected a list of texts")
    if any(not name or "\0" in name for name in names):
        raise ValueError(f"{what}: a name that is empty, or holds a NUL character")
    return names


def _bytes(numbers: object) -> bytes:
    try:
        # A whole number alone would be a number of zeros.
        return bytes(numbers if isinstance(numbers, list) else [None])  # type: ignore[list-item]
    except (TypeError, ValueError):
        raise ValueError("rle: expected a list of numbers from 0 to 255") from None


_CHANNELS = 4
_MAX_VALUE_BITS = 8
# More than any header, count or value takes.
_PADDING = bytes(8)


class _Bits:
    """A stream of bits."""

    def __init__(self, data: bytes) -> None:
        self._data = data + _PADDING
        self._all = np.unpackbits(np.frombuffer(data, np.uint8))
        self._at = 0

    def read(self, count: int) -> int:
        """Reads a number of at most 32 bits."""
        self._advance(count)
        first, end = self._at - count >> 3, self._at + 7 >> 3
        number = int.from_bytes(self._data[first:end], "big")
        return number >> (8 * end - self._at) & ((1 << count) - 1)

    def read_many(self, values: int, *, bits: int) -> npt.NDArray[np.uint8]:
        """Reads several numbers of at most 8 bits."""
        self._advance(values * bits)
        digits = self._all[self._at - values * bits : self._at].reshape(values, bits)
        weights = 1 << np.arange(bits - 1, -1, -1)
        return (digits @ weights).astype(np.uint8)

    def _advance(self, count: int) -> None:
        self._at += count
        if self._at > len(self._all):
            raise ValueError("rle: the mask ends in the middle")


def decode_brush(data: bytes, *, size: Size) -> npt.NDArray[np.uint8]:
    """Decodes a mask; a pixel is in it if it is not wholly transparent.

    Args:
        data: The numbers of `rle`.
        size: The image's width and height.

    Returns:
        A mask of 0 and 1, (height, width).

    Raises:
        ValueError: It is not such a mask, or one of an image of another size.
    """
    width, height = size
    bits = _Bits(data)
    count = bits.read(32)
    if width * height > MAX_MASK_PIXELS or count != _CHANNELS * width * height:
        raise ValueError(f"rle: {count:,} values are no mask of an image of {width}x{height}")
    value_bits = bits.read(5) + 1
    if value_bits > _MAX_VALUE_BITS:
        raise ValueError(f"rle: values of {value_bits} bits, expected at most {_MAX_VALUE_BITS}")
    count_bits = [bits.read(4) + 1 for _ in range(4)]
    values = np.zeros(count, np.uint8)
    at = 0
    while at < count:
        is_repeated = bits.read(1)
        run = bits.read(count_bits[bits.read(2)]) + 1
        if at + run > count:
            raise ValueError("rle: more values than it says")
        values[at : at + run] = (
            bits.read(value_bits) if is_repeated else bits.read_many(run, bits=value_bits)
        )
        at += run
    return (values.reshape(height, width, _CHANNELS)[:, :, -1] > 0).view(np.uint8)
