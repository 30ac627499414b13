"""Keypoints of objects, as the TF Object Detection API and the Model Garden read them.

Every object has the same keypoints, in the same order: those that all categories declare, each
name once (`LabelMap.keypoints`). What an object's category does not have, or its annotation does
not give, is written as zeros (`create_coco_tf_record.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.examples.boxes import AnnotatedFrame, orient_points
from shardbeam.transforms.examples.objects import WrittenObject
from shardbeam.transforms.examples.schema import MAX_FLOAT32

_VALUES = 3
_HIDDEN, _VISIBLE = 1, 2


def keypoint_features(
    objects: Sequence[WrittenObject], *, frame: AnnotatedFrame, label_map: LabelMap
) -> dict[str, list[Any]]:
    """Renders the keypoints of an image's objects: `{default key: values}`.

    Coordinates are in fractions of the image, objects x keypoints flattened; keypoints beyond
    the image's border stay where they are. An image that is mirrored to be upright keeps the
    names of left and right: they are those of the upright picture, as the annotators saw it.

    Args:
        objects: The objects.
        frame: The frame that they refer to.
        label_map: Names the keypoints.
    """
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
