"""The objects of an image, as they are written, and their keypoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.examples.annotated import AnnotatedImage
from shardbeam.transforms.examples.boxes import Box, clip_box, orient_points
from shardbeam.transforms.examples.schema import MAX_FLOAT32

# Values of a keypoint: x, y and visibility.
_VALUES = 3
_HIDDEN, _VISIBLE = 1, 2


class WrittenObject(NamedTuple):
    """An object that is written.

    Attributes:
        annotation: What the source says, in pixels of the annotated frame.
        label: The written name of its class.
        label_id: The id of its class.
        box: `(xmin, ymin, xmax, ymax)`, clipped, in fractions of the image.
        area: In pixels² of the stored image.
        position: Its place among all annotated objects of the image, from 0.
    """

    annotation: ObjectAnnotation
    label: str
    label_id: int
    box: Box
    area: float
    position: int = 0


def write_objects(subject: AnnotatedImage) -> Iterator[WrittenObject]:
    """Yields the objects whose class is written and whose box has an area, each box clipped.

    Boxes, keypoints and areas come in pixels, whatever the source has; segmentations stay as they
    are, and are scaled once they are read.
    """
    frame, image = subject.frame, subject.image
    objects: Iterable[ObjectAnnotation] = subject.annotations.objects
    if subject.annotations.normalized:
        objects = [_scaled(item, width=frame.width, height=frame.height) for item in objects]
    width, height = frame.written_size
    area_scale = (image.width * image.height) / (width * height)
    for position, item in enumerate(objects):
        found = subject.label_map.lookup(item.label)
        if found is None:
            subject.count(Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED)
            continue
        placed = clip_box(frame.place(item.bbox), width=width, height=height)
        if placed is None:
            subject.count(Correction.BOX_WITHOUT_AREA_DROPPED)
            continue
        (xmin, ymin, xmax, ymax), clipped = placed
        if clipped:
            subject.count(Correction.BOX_CLIPPED)
        area = item.area if 0 <= item.area <= MAX_FLOAT32 else (xmax - xmin) * (ymax - ymin)
        label, label_id = found
        yield WrittenObject(
            annotation=item,
            label=label,
            label_id=label_id,
            box=(xmin / width, ymin / height, xmax / width, ymax / height),
            area=area * area_scale,
            position=position,
        )


def _scaled(item: ObjectAnnotation, *, width: int, height: int) -> ObjectAnnotation:
    xmin, ymin, xmax, ymax = item.bbox
    scales = (width, height, 1.0)
    return msgspec.structs.replace(
        item,
        bbox=(xmin * width, ymin * height, xmax * width, ymax * height),
        area=item.area * width * height if item.area > 0 else item.area,
        keypoints=tuple(value * scales[index % 3] for index, value in enumerate(item.keypoints)),
    )


def keypoint_features(
    objects: Sequence[WrittenObject], *, subject: AnnotatedImage
) -> dict[str, list[Any]]:
    """Renders the keypoints of an image's objects: `{default key: values}`.

    Every object has the same keypoints, in the same order, as the TF Object Detection API and the
    Model Garden read them: those that all categories declare, each name once. What an object's
    category does not have, or its annotation does not give, is written as zeros.

    Coordinates are in fractions of the image, objects x keypoints flattened; keypoints beyond
    the image's border stay where they are. An image that is mirrored to be upright keeps the
    names of left and right: they are those of the upright picture, as the annotators saw it.
    """
    frame, label_map = subject.frame, subject.label_map
    names = label_map.keypoints
    width, height = frame.written_size
    xs: list[float] = []
    ys: list[float] = []
    visibilities: list[int] = []
    numbers: list[int] = []
    for item in objects:
        x, y, visibility = ([0.0] * len(names), [0.0] * len(names), [0] * len(names))
        columns = label_map.keypoint_columns.get(item.annotation.label, ())
        values = item.annotation.keypoints
        points = orient_points(
            zip(values[0::_VALUES], values[1::_VALUES], strict=False),
            width=frame.width,
            height=frame.height,
            orientation=frame.orientation,
        )
        number = 0
        for column, (px, py), visible in zip(columns, points, values[2::_VALUES], strict=False):
            # What does not fit into an Example's float is nowhere.
            if visible > 0 and abs(px) <= MAX_FLOAT32 and abs(py) <= MAX_FLOAT32:
                x[column], y[column] = px / width, py / height
                visibility[column] = _HIDDEN if visible < _VISIBLE else _VISIBLE
                number += 1
        xs += x
        ys += y
        visibilities += visibility
        numbers.append(number)
    return {
        "image/object/keypoint/x": xs,
        "image/object/keypoint/y": ys,
        "image/object/keypoint/visibility": visibilities,
        "image/object/keypoint/num": numbers,
        "image/object/keypoint/text": [name.encode() for name in names] * len(objects),
    }
