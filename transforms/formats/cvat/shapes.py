"""Reads the shapes and tags of one image in a file of CVAT."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
import numpy as np

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.boxes import Box, Size, box_around, turn_box
from shardbeam.transforms.examples.geometry.segmentation import MAX_MASK_PIXELS, mask_object
from shardbeam.transforms.formats.annotation_file import ellipse_object, polygon_object
from shardbeam.transforms.formats.names import escape_key
from shardbeam.transforms.formats.parsing.xml_file import XmlElement

OCCLUDED = "image/object/occluded"
TRACK = "image/object/track/label"
_ELLIPSE_POINTS = 36


class ImageReader(msgspec.Struct, frozen=True):
    """Reads the shapes and tags of one `image`.

    Attributes:
        image: The element.
        labels: The classes and their keypoints; None where the file declares none.
        label_attribute: The attribute that is the class of a shape, if shapes have it.
        is_frame: Whether the shapes have their tracks.
    """

    image: XmlElement
    labels: Mapping[str, tuple[str, ...]] | None
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
                        attributes=self._attributes(shape),
                    )
                )
        return ImageAnnotations(
            image_id=escape_key(self.image.attributes.get("id", "")),
            width=width,
            height=height,
            labels=tuple(tags),
            objects=tuple(objects),
            **corrections.fields(),
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
        # Of equal names, the first one.
        numbers = {name: number for number, name in reversed([*enumerate(names)])}
        keypoints = [0.0] * (3 * len(names))
        labelled: list[float] = []
        for point in shape.all("points"):
            name = " ".join(point.required("label").split())
            coordinates = _coordinates(point)
            if len(coordinates) != 2:
                raise point.error("expected one point, `x,y`, in each <points> of a <skeleton>")
            if name not in numbers:
                raise point.error(f"the label declares no keypoint {name[:40]!r}")
            if not _is_set(point, "outside"):
                labelled += coordinates
                visibility = 1.0 if _is_set(point, "occluded") else 2.0
                first = 3 * numbers[name]
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


# Frames of CVAT for video 1.1: an XML file of tracks, whose shapes name frames by their numbers.
#
# The format: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/ (version 1.1).

# As CVAT names the frames that it saves, or with the number alone.
_FRAME = re.compile(r"(?:frame_?)?([0-9]{1,9})", re.IGNORECASE)
_STEP = re.compile(r"step\s*=\s*([0-9]{1,9})")
# Elements of a track that are shapes.
_SHAPES = frozenset(
    {"box", "polygon", "ellipse", "mask", "skeleton", "polyline", "points", "cuboid"}
)
_FIX = "export the task as `CVAT for images 1.1`"


class Video(msgspec.Struct, frozen=True):
    """The video of a task.

    Attributes:
        start: Its first frame.
        stop: Its last frame; before `start` where the file does not say it.
        step: The distance of its frames.
        width: Their width; 0 if the file gives none.
        height: Their height.
    """

    start: int = 0
    stop: int = -1
    step: int = 1
    width: int = 0
    height: int = 0

    @property
    def frames(self) -> range:
        """The numbers of the frames that were annotated."""
        return range(self.start, self.stop + 1, self.step)

    def check_numbers(self, numbers: Collection[int], *, uri: str) -> None:
        """Checks that images are numbered like the frames.

        Raises:
            InputError: They are numbered otherwise, for example from 1.
        """
        found, frames = set(numbers), self.frames
        is_other = len(found) == len(frames) and found != set(frames)
        is_shifted = self.step == 1 and self.start not in found and self.stop + 1 in found
        if frames and found and (is_other or is_shifted):
            raise InputError(
                uri=uri,
                problem=f"the images have the numbers {min(found)} to {max(found)}, and the frames "
                f"{frames[0]} to {frames[-1]}, each {self.step}: name them as CVAT does "
                f"({frame_name(frames[0])}), or {_FIX}",
            )


def frame_name(number: int) -> str:
    """Returns the name that CVAT gives a frame."""
    return f"frame_{number:06}"


def frame_number(key: str) -> int | None:
    """Returns the number in the name of a frame's image; None for other names."""
    match = _FRAME.fullmatch(key.rpartition("/")[2].partition(".")[0])
    return int(match[1]) if match else None


def read_video(meta: XmlElement) -> Video:
    """Reads what `meta` says about the frames.

    Raises:
        InputError: The file is of images, or of several videos.
    """
    tasks = [*_find(meta, "task"), *_find(meta, "job")]
    if len(tasks) > 1:
        raise tasks[1].error(f"frames of several tasks have the same numbers: {_FIX}")
    found = {each.tag: each for task in tasks for each in task.children}
    if "mode" in found and found["mode"].text == "annotation":
        problem = "the task is of images, and tracks do not name them"
        raise found["mode"].error(f"{problem}: {_FIX}")
    step = _STEP.search(found["frame_filter"].text) if "frame_filter" in found else None
    start = found["start_frame"].pixels() if "start_frame" in found else 0
    each = max(1, int(step[1])) if step else 1
    stop = found["stop_frame"].pixels() if "stop_frame" in found else -1
    if stop < 0 and "size" in found:
        stop = start + (found["size"].pixels() - 1) * each
    sizes = [*_find(meta, "original_size")][:1]
    sides = [
        side.pixels() for size in sizes for name in ("width", "height") if (side := size.one(name))
    ]
    width, height = sides if len(sides) == 2 else (0, 0)
    return Video(start=start, stop=stop, step=each, width=width, height=height)


def read_frames(tracks: Iterable[XmlElement], *, video: Video, uri: str) -> Iterator[XmlElement]:
    """Yields an `image` for each frame with shapes, by number, with the tracks' shapes in it.

    The file lists a shape in each frame that shows it; where `outside` is set, it is gone.

    Raises:
        InputError: A shape has no frame, or the file lists keyframes alone.
    """
    frames: dict[int, list[XmlElement]] = {}
    tasks: set[str] = set()
    keyframes: Counter[str] = Counter()
    missing = 0
    for track in tracks:
        tasks.add(track.attributes.get("task_id", ""))
        if len(tasks) > 1:
            raise track.error(f"frames of several tasks have the same numbers: {_FIX}")
        own = {
            name: value
            for name, value in (
                ("label", track.attributes.get("label")),
                ("track", track.attributes.get("id")),
            )
            if value is not None
        }
        visible: int | None = None
        for shape in track.children:
            if "frame" not in shape.attributes:
                if shape.tag in _SHAPES:
                    shape.required("frame")
                continue
            number = shape.attribute_pixels("frame")
            keyframes[shape.attributes.get("keyframe", "1")] += 1
            missing += visible is not None and number - visible > video.step
            visible = None
            if all(each.attributes.get("outside") == "1" for each in _parts(shape)):
                continue
            visible = number
            placed = msgspec.structs.replace(shape, attributes={**shape.attributes, **own})
            frames.setdefault(number, []).append(placed)
    if missing and not keyframes["0"]:
        raise InputError(
            uri=uri,
            problem=f"only keyframes are listed ({keyframes['1']:,}, with {missing:,} gaps between "
            f"them), and nothing is computed here: {_FIX}, or export `CVAT for video 1.1` from "
            "CVAT, which lists each frame",
        )
    for number, shapes in sorted(frames.items()):
        yield XmlElement(
            "image",
            line=shapes[0].line,
            uri=uri,
            attributes={
                "id": str(number),
                "name": frame_name(number),
                "width": str(video.width),
                "height": str(video.height),
            },
            children=shapes,
        )


def _parts(shape: XmlElement) -> list[XmlElement]:
    """Returns what says whether a shape is gone: the points of a skeleton, or the shape."""
    return (shape.tag == "skeleton" and shape.all("points")) or [shape]


def _find(element: XmlElement, tag: str) -> Iterator[XmlElement]:
    for child in element.children:
        if child.tag == tag:
            yield child
        else:
            yield from _find(child, tag)
