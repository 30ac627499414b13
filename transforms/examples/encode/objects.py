"""Example keys of an image's objects, in lists or with an Example for each object."""

from __future__ import annotations

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.features import (
    MAX_FLOAT32,
    FeatureKind,
    FeatureRole,
    one_value,
    value_list,
)
from shardbeam.transforms.examples.geometry.boxes import orient_points

# Values of a keypoint: x, y and visibility.
_VALUES = 3
_HIDDEN, _VISIBLE = 1, 2


def _object_values(subject: AnnotatedImage) -> Values:
    objects = subject.objects
    boxes = [item.box for item in objects]
    xmins, ymins, xmaxs, ymaxs = zip(*boxes, strict=True) if boxes else ((), (), (), ())
    return {
        "image/object/bbox/xmin": xmins,
        "image/object/bbox/ymin": ymins,
        "image/object/bbox/xmax": xmaxs,
        "image/object/bbox/ymax": ymaxs,
        "image/object/class/label": [item.label.id for item in objects],
        "image/object/class/text": [item.label.text for item in objects],
        "image/object/is_crowd": [int(item.annotation.is_crowd) for item in objects],
        "image/object/area": [item.area for item in objects],
    }


OBJECTS = FeatureGroup(
    (
        value_list("image/object/bbox/xmin", FeatureKind.FLOAT),
        value_list("image/object/bbox/xmax", FeatureKind.FLOAT),
        value_list("image/object/bbox/ymin", FeatureKind.FLOAT),
        value_list("image/object/bbox/ymax", FeatureKind.FLOAT),
        value_list("image/object/class/label", FeatureKind.INT64, FeatureRole.LABEL),
        value_list("image/object/class/text", FeatureKind.BYTES, FeatureRole.LABEL_TEXT),
        value_list("image/object/is_crowd", FeatureKind.INT64),
        value_list("image/object/area", FeatureKind.FLOAT),
    ),
    _object_values,
)


def _annotation_values(subject: AnnotatedImage) -> Values:
    width, height = subject.size
    objects = subject.objects
    return {
        "annotation/id": [[item.annotation.annotation_id] for item in objects],
        "annotation/bbox": [
            [xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height]
            for xmin, ymin, xmax, ymax in (item.box for item in objects)
        ],
        "annotation/area": [[item.area] for item in objects],
        "annotation/is_crowd": [[int(item.annotation.is_crowd)] for item in objects],
        "annotation/class/label": [[item.label.id] for item in objects],
        "annotation/class/text": [[item.label.text] for item in objects],
    }


ANNOTATION = FeatureGroup(
    (
        one_value("annotation/id", FeatureKind.INT64),
        one_value("annotation/bbox", FeatureKind.FLOAT, length=4),
        one_value("annotation/area", FeatureKind.FLOAT),
        one_value("annotation/is_crowd", FeatureKind.INT64),
        one_value("annotation/class/label", FeatureKind.INT64, FeatureRole.LABEL),
        one_value("annotation/class/text", FeatureKind.BYTES, FeatureRole.LABEL_TEXT),
    ),
    _annotation_values,
    by_object=True,
)


def _image_id_values(subject: AnnotatedImage) -> Values:
    image_id = subject.annotations.image_id
    try:
        return {"annotation/image_id": [int(image_id)]}
    except ValueError as error:
        raise RejectedError(
            Reason.ANNOTATION_MALFORMED,
            f"the image's id {image_id!r} is not an integer, which annotation/image_id needs; "
            "set source_id: number, or drop that key with features.drop",
        ) from error


ANNOTATION_IMAGE_ID = FeatureGroup(
    (one_value("annotation/image_id", FeatureKind.INT64),), _image_id_values
)


def _keypoint_values(subject: AnnotatedImage) -> Values:
    """Renders the keypoints of an image's objects.

    Every object has the keypoints of all categories, each name once, in the same order, as the TF
    Object Detection API and the Model Garden expect. Keypoints that an object's category
    does not have, or that its annotation does not give, are written as zeros.

    Coordinates are fractions of the image, in a flattened list of objects x keypoints; keypoints
    beyond the image's border, or that of a crop, stay there. If an image is mirrored to be upright,
    left and right keep their names, because the annotators named them in the upright picture.
    """
    frame, label_map = subject.frame, subject.label_map
    names = label_map.keypoints
    width, height = frame.written_size
    placement = subject.image.placement
    xs: list[float] = []
    ys: list[float] = []
    visibilities: list[int] = []
    numbers: list[int] = []
    for item in subject.objects:
        x, y, visibility = ([0.0] * len(names), [0.0] * len(names), [0] * len(names))
        columns = label_map.keypoint_columns.get(item.annotation.label, ())
        values = item.annotation.keypoints
        points = orient_points(
            frame.scale_points(zip(values[0::_VALUES], values[1::_VALUES], strict=False)),
            width=frame.width,
            height=frame.height,
            orientation=frame.orientation,
        )
        number = 0
        for column, (px, py), visible in zip(columns, points, values[2::_VALUES], strict=False):
            # A place that does not fit into an Example's float counts as not labelled.
            if visible > 0 and abs(px) <= MAX_FLOAT32 and abs(py) <= MAX_FLOAT32:
                x[column], y[column] = (
                    (px / width, py / height)
                    if placement is None
                    else placement.to_fractions(px, py)
                )
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
        "image/object/keypoint/text": [name.encode() for name in names] * len(subject.objects),
    }


KEYPOINTS = FeatureGroup(
    (
        value_list("image/object/keypoint/x", FeatureKind.FLOAT),
        value_list("image/object/keypoint/y", FeatureKind.FLOAT),
        value_list("image/object/keypoint/visibility", FeatureKind.INT64),
        value_list("image/object/keypoint/num", FeatureKind.INT64),
        value_list("image/object/keypoint/text", FeatureKind.BYTES, FeatureRole.TEXT),
    ),
    _keypoint_values,
)
