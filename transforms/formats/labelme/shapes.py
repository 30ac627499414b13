"""Puts the shapes of a LabelMe file together as objects with outlines and keypoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.core.text import describe_base64
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.boxes import Box, Size, box_around
from shardbeam.transforms.examples.geometry.segmentation import (
    MAX_MASK_PIXELS,
    mask_object,
    outline_ellipse,
)
from shardbeam.transforms.images.header import scan_png
from shardbeam.transforms.images.mask_file import read_indices
from shardbeam.transforms.storage.image_bytes import decode_base64

# A line or a point has no area.
_WITHOUT_BOX = frozenset({"line", "linestrip", "point", "points"})
# LabelMe's own names that are not classes.
NO_CLASSES = frozenset({"__ignore__", "_background_"})
# X-AnyLabeling's turned rectangles, given by their corners.
_ROTATION = "rotation"
_CIRCLE_POINTS = 64
# An object's identity: its label and its group, or its position in the file.
_Identity: TypeAlias = tuple[object, ...]
_Point: TypeAlias = tuple[float, float]
_encoder = msgspec.json.Encoder()


class Shape(msgspec.Struct):
    """A shape of a file, as LabelMe writes it."""

    label: str
    points: list[tuple[float, float]]
    shape_type: str | None = None
    group_id: int | str | None = None
    mask: str | None = None


class Shapes:
    """Puts the shapes of one file together.

    Outlines with the same label and the same group are parts of one object. Points that are named
    like keypoints belong to the one object of their group or, without a group, to the one object
    that contains them.

    Attributes:
        corrections: What was left out.
    """

    def __init__(self, keypoints: Sequence[str]) -> None:
        self.corrections = Corrections()
        self._keypoints = keypoints
        self._objects: dict[_Identity, ObjectAnnotation] = {}
        self._outlines: dict[_Identity, list[list[float]]] = {}
        # {group: its objects}, in order
        self._groups: dict[object, dict[_Identity, None]] = {}
        # {group: {keypoint: where it is}}
        self._points: dict[object, dict[str, _Point]] = {}
        # The keypoints without a group, each with its label.
        self._loose: list[tuple[str, _Point]] = []

    def add(self, shape: Shape, *, index: int, size: Size) -> None:
        """Adds a shape: as a keypoint, as an object, or as a part of one.

        Raises:
            ValueError: The shape lacks what it needs, or repeats a keypoint of its group.
            RejectedError: Its mask cannot be read.
        """
        label = " ".join(shape.label.split())
        item, outline = _read_shape(shape, label=label, size=size)
        is_in_group = shape.group_id is not None
        if label in NO_CLASSES:
            self.corrections.note(Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED, label)
        elif shape.shape_type == "point" and label in self._keypoints:
            if is_in_group:
                self._add_keypoint(shape, label=label)
            else:
                self._loose += ((label, point) for point in shape.points)
        elif item is None:
            self.corrections.note_lost(label, shape.shape_type or "polygon")
        else:
            is_part = outline is not None and is_in_group
            identity: _Identity = (label, shape.group_id) if is_part else (index,)
            if identity in self._objects:
                box = _union(self._objects[identity].bbox, item.bbox)
                item = msgspec.structs.replace(item, bbox=box, area=-1.0)
            if outline is not None:
                self._outlines.setdefault(identity, []).append(outline)
            if shape.shape_type == _ROTATION:
                self.corrections.note(Correction.BOX_TURNED, outline, item.bbox)
            self._objects[identity] = item
            self._groups.setdefault(shape.group_id, {})[identity] = None

    def _add_keypoint(self, shape: Shape, *, label: str) -> None:
        known = self._points.setdefault(shape.group_id, {})
        if label in known or len(shape.points) > 1:
            raise ValueError(f"{label!r} occurs twice in group {shape.group_id!r}")
        known[label] = shape.points[0]

    def objects(self) -> list[ObjectAnnotation]:
        """Returns the objects with their outlines and keypoints.

        Raises:
            ValueError: A group has keypoints and several objects.
        """
        found = dict(self._objects)
        for identity, outlines in self._outlines.items():
            segmentation = _encoder.encode(outlines)
            found[identity] = msgspec.structs.replace(found[identity], segmentation=segmentation)
        for identity, points in self._attached_points().items():
            keypoints = self._keypoint_values(points)
            found[identity] = msgspec.structs.replace(found[identity], keypoints=keypoints)
        return list(found.values())

    def _attached_points(self) -> dict[_Identity, dict[str, _Point]]:
        """Finds the keypoints of each object, and counts those that belong to none."""
        attached: dict[_Identity, dict[str, _Point]] = {}
        for group, points in self._points.items():
            owners = list(self._groups.get(group, ()))
            if len(owners) > 1:
                raise ValueError(
                    f"group {group!r} has keypoints and {len(owners)} objects, expected one"
                )
            attached |= dict.fromkeys(owners, points)
            for name in () if owners else points:
                self.corrections.note(Correction.KEYPOINT_IN_NO_OBJECT_DROPPED, name)
        found: dict[tuple[_Identity, str], list[_Point]] = {}
        for name, point in self._loose:
            owners = self._owners(point)
            if len(owners) == 1:
                found.setdefault((owners[0], name), []).append(point)
            elif owners:
                self.corrections.note(Correction.KEYPOINT_IN_SEVERAL_OBJECTS_DROPPED, name)
            else:
                self.corrections.note(Correction.KEYPOINT_IN_NO_OBJECT_DROPPED, name)
        for (identity, name), places in found.items():
            if len(places) == 1 and name not in attached.get(identity, ()):
                attached.setdefault(identity, {})[name] = places[0]
                continue
            for _ in places:
                self.corrections.note(Correction.KEYPOINT_REPEATED_DROPPED, name)
        return attached

    def _owners(self, point: _Point) -> list[_Identity]:
        """Returns the objects whose boxes contain a point; of several, those whose outlines do."""
        owners = [each for each, item in self._objects.items() if _is_in_box(point, item.bbox)]
        if len(owners) > 1:
            owners = [
                each
                for each in owners
                if each not in self._outlines
                or any(_is_inside(point, outline) for outline in self._outlines[each])
            ]
        return owners

    def _keypoint_values(self, points: Mapping[str, _Point]) -> tuple[float, ...]:
        """Returns `x, y, visibility` of each keypoint; LabelMe has no hidden keypoints."""
        return tuple(
            value
            for name in self._keypoints
            for value in ((*points[name], 2.0) if name in points else (0.0, 0.0, 0.0))
        )


def _read_shape(
    shape: Shape, *, label: str, size: Size
) -> tuple[ObjectAnnotation | None, list[float] | None]:
    """Reads a shape; returns its object, if it has a box, and its outline, if it has one."""
    kind = shape.shape_type or "polygon"
    points = shape.points
    if not label:
        raise ValueError("the label is empty")
    if not points or any(not abs(value) <= MAX_FLOAT32 for point in points for value in point):
        raise ValueError("points: expected [x, y] of each point")
    if kind in _WITHOUT_BOX:
        return None, None
    if kind in ("polygon", _ROTATION):
        outline = [value for point in points for value in point]
        return ObjectAnnotation(label=label, bbox=box_around(outline)), outline
    if kind not in ("rectangle", "circle", "mask"):
        raise ValueError(f"unknown shape_type {kind[:40]!r}")
    if len(points) < 2:
        raise ValueError(f"points: a {kind} has two, got {len(points)}")
    (x, y), (other_x, other_y) = points[:2]
    if kind == "rectangle":
        corners = [value for point in points for value in point]
        return ObjectAnnotation(label=label, bbox=box_around(corners)), None
    if kind == "circle":
        radius = math.hypot(other_x - x, other_y - y)
        circle = outline_ellipse((x, y), (radius, radius), corners=_CIRCLE_POINTS)
        outline = [value for point in circle for value in point]
        box = (x - radius, y - radius, x + radius, y + radius)
        return ObjectAnnotation(label=label, bbox=box, area=math.pi * radius**2), outline
    return _read_mask(shape, label=label, left=int(x), top=int(y), size=size), None


def _read_mask(
    shape: Shape, *, label: str, left: int, top: int, size: Size
) -> ObjectAnnotation | None:
    if not all(size):
        raise ValueError("a mask needs imageWidth and imageHeight")
    text = shape.mask or ""
    found = describe_base64(text) if text else "nothing (null)"
    if found not in ("", "a PNG as base64"):
        raise ValueError(f"mask: expected a PNG as base64, got {found}: draw the shape again")
    png = decode_base64(text.encode())
    header = scan_png(png, complete=True)
    if header.width * header.height > MAX_MASK_PIXELS:
        raise ValueError(f"mask: {header.width}x{header.height} pixels are too many")
    pixels = read_indices(png, size=(header.width, header.height))
    mask = (pixels != 0).view("uint8")
    return mask_object(mask, label=label, left=left, top=top, frame=size)


def _is_in_box(point: _Point, box: Box) -> bool:
    x, y = point
    xmin, ymin, xmax, ymax = box
    return xmin <= x <= xmax and ymin <= y <= ymax


def _is_inside(point: _Point, outline: Sequence[float]) -> bool:
    """Whether a ray from the point to the right crosses the outline an odd number of times."""
    x, y = point
    corners = list(zip(outline[0::2], outline[1::2], strict=True))
    return bool(
        sum(
            (one[1] > y) != (other[1] > y)
            and x < one[0] + (y - one[1]) * (other[0] - one[0]) / (other[1] - one[1])
            for one, other in zip(corners, corners[1:] + corners[:1], strict=True)
        )
        % 2
    )


def _union(box: Box, other: Box) -> Box:
    return (
        min(box[0], other[0]),
        min(box[1], other[1]),
        max(box[2], other[2]),
        max(box[3], other[3]),
    )
