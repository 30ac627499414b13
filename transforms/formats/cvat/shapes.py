"""Reads the shapes and tags of one image in a file of CVAT."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.boxes import Box, Size, box_around, turn_box
from shardbeam.transforms.examples.geometry.segmentation import MAX_MASK_PIXELS, mask_object
from shardbeam.transforms.formats.names import escape_key
from shardbeam.transforms.formats.outlines import ellipse_object, polygon_object
from shardbeam.transforms.formats.parsing.xml_file import XmlElement

OCCLUDED = "image/object/occluded"
TRACK = "image/object/track/label"
_ELLIPSE_POINTS = 36


class ImageReader(msgspec.Struct, frozen=True):
    """Reads the shapes and tags of one `image`.

    Attributes:
        image: The element.
        labels: The classes and their keypoints; None where the file declares none.
        wants_masks: Whether objects carry their segmentation.
        label_attribute: The attribute that is the class of a shape, if shapes have it.
        is_frame: Whether the shapes have their tracks.
    """

    image: XmlElement
    labels: Mapping[str, tuple[str, ...]] | None
    wants_masks: bool
    label_attribute: str | None = None
    is_frame: bool = False

    def read(self) -> ImageAnnotations:
        """Reads the image's annotations.

        Raises:
            InputError: A shape lacks an attribute, or has a value that is not a number.
        """
        width, height = (self.image.attribute_pixels(side) for side in ("width", "height"))
        shapes: Mapping[str, Callable[[XmlElement], ObjectAnnotation | None]] = {
            "box": _read_box,
            "polygon": _read_polygon,
            "ellipse": _read_ellipse,
            "mask": functools.partial(_read_mask, size=(width, height)),
            "skeleton": self._read_skeleton,
        }
        # Lines and points have no area, and a cuboid does not lie in the image's plane. Shapes that
        # nobody here knows are counted like them.
        without_box = ("polyline", "points", "cuboid")
        tags: dict[str, None] = {}
        objects: list[ObjectAnnotation] = []
        corrections = Corrections()
        for shape in self.image.children:
            is_known = shape.tag in (*shapes, *without_box, "tag")
            if not is_known and "label" not in shape.attributes:
                continue
            label = " ".join(shape.required("label").split())
            is_tag = shape.tag == "tag"
            name = self._class_of(shape, label=label)
            if not name or (self.labels is not None and label not in self.labels):
                unknown = Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED
                if is_tag:
                    unknown = Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED
                corrections.note(unknown, name or label)
            elif is_tag:
                tags[name] = None
            elif shape.tag not in shapes or (item := shapes[shape.tag](shape)) is None:
                corrections.note_lost(name, shape.tag)
            else:
                if shape.tag == "box" and item.segmentation:
                    corrections.note(Correction.BOX_TURNED, _given_box(shape), item.bbox)
                objects.append(
                    msgspec.structs.replace(
                        item,
                        label=name,
                        segmentation=item.segmentation if self.wants_masks else b"",
                        attributes=self._attributes(shape),
                    )
                )
        return ImageAnnotations(
            image_id=escape_key(self.image.attributes.get("id", "")),
            width=width,
            height=height,
            labels=tuple(tags),
            objects=tuple(objects),
            corrections=corrections.counts(),
            changes=corrections.changes,
            lost=corrections.lost,
        )

    def _class_of(self, shape: XmlElement, *, label: str) -> str:
        """Returns a shape's label, or the value of the attribute that is its class."""
        values = [
            it.text
            for it in shape.all("attribute")
            if it.attributes.get("name") == self.label_attribute
        ]
        # The keypoints of a skeleton are those of its label.
        return values[0] if values and shape.tag != "skeleton" else label

    def _attributes(self, shape: XmlElement) -> dict[str, int]:
        found = {OCCLUDED: 1} if _is_set(shape, "occluded") else {}
        return {**found, TRACK: shape.attribute_pixels("track")} if self.is_frame else found

    def _read_skeleton(self, shape: XmlElement) -> ObjectAnnotation | None:
        names = (self.labels or {}).get(" ".join(shape.attributes["label"].split()), ())
        keypoints = [0.0] * (3 * len(names))
        labelled: list[float] = []
        for point in shape.all("points"):
            name = " ".join(point.required("label").split())
            coordinates = _coordinates(point)
            if len(coordinates) != 2:
                raise point.error("expected one point, `x,y`, in each <points> of a <skeleton>")
            if name not in names:
                raise point.error(f"the label declares no keypoint {name[:40]!r}")
            if not _is_set(point, "outside"):
                labelled += coordinates
                visibility = 1.0 if _is_set(point, "occluded") else 2.0
                first = 3 * names.index(name)
                keypoints[first : first + 3] = (*coordinates, visibility)
        if not labelled:
            return None
        return ObjectAnnotation(label="", bbox=box_around(labelled), keypoints=tuple(keypoints))


def _is_set(element: XmlElement, name: str) -> bool:
    return element.attributes.get(name) == "1"


def _coordinate(shape: XmlElement, name: str, *, default: str | None = None) -> float:
    text = shape.required(name) if default is None else shape.attributes.get(name, default)
    return _limited(shape, text, what=name)


def _limited(shape: XmlElement, text: str, *, what: str) -> float:
    number = shape.parse_number(text.strip(), what=what)
    if abs(number) > MAX_FLOAT32:
        raise shape.error(f"{what}: too large a number")
    return number


def _coordinates(shape: XmlElement) -> list[float]:
    """Reads `x,y;x,y;…`."""
    points = [point.split(",") for point in shape.required("points").split(";")]
    if any(len(point) != 2 for point in points):
        raise shape.error("points: expected `x,y;x,y;…`")
    return [_limited(shape, value, what="points") for point in points for value in point]


def _angle(shape: XmlElement) -> float:
    """Reads by how much a shape is turned clockwise, in radians."""
    return math.radians(_coordinate(shape, "rotation", default="0") % 360)


def _given_box(shape: XmlElement) -> Box:
    xmin, ymin, xmax, ymax = (_coordinate(shape, name) for name in ("xtl", "ytl", "xbr", "ybr"))
    return xmin, ymin, xmax, ymax


def _read_box(shape: XmlElement) -> ObjectAnnotation:
    box = _given_box(shape)
    if not _angle(shape):
        return ObjectAnnotation(label="", bbox=box)
    xmin, ymin, xmax, ymax = box
    return msgspec.structs.replace(
        polygon_object(turn_box(box, angle=_angle(shape))),
        area=abs((xmax - xmin) * (ymax - ymin)),
    )


def _read_polygon(shape: XmlElement) -> ObjectAnnotation:
    return polygon_object(_coordinates(shape))


def _read_ellipse(shape: XmlElement) -> ObjectAnnotation:
    cx, cy, rx, ry = (_coordinate(shape, name) for name in ("cx", "cy", "rx", "ry"))
    return ellipse_object((cx, cy), (rx, ry), angle=_angle(shape), corners=_ELLIPSE_POINTS)


def _read_mask(shape: XmlElement, *, size: Size) -> ObjectAnnotation | None:
    """Reads a mask of a part of the image: the lengths of runs of 0 and 1 in turn, row by row."""
    left, top, width, height = (
        int(_coordinate(shape, name)) for name in ("left", "top", "width", "height")
    )
    if not all(size):
        raise shape.error("a mask needs the width and height of its <image>")
    if min(left, top) < 0 or min(width, height) < 1 or width * height > MAX_MASK_PIXELS:
        raise shape.error(
            "the mask's left, top, width and height do not describe a part of an image"
        )
    texts = shape.required("rle").replace(",", " ").split()
    counts = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 12]
    if len(counts) != len(texts) or sum(counts) != width * height:
        raise shape.error(f"rle: expected runs of {width * height} pixels in all")
    values = np.zeros(len(counts), np.uint8)
    values[1::2] = 1
    mask = np.repeat(values, counts).reshape(height, width)
    return mask_object(mask, label="", left=left, top=top, frame=size)
