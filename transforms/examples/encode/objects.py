"""Example keys of an image's objects, in lists or with an Example for each object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import MaskRole
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.encode.maps import encode_mask
from shardbeam.transforms.examples.features import (
    MAX_FLOAT32,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
    one_value,
    value_list,
)
from shardbeam.transforms.examples.geometry.boxes import Box
from shardbeam.transforms.examples.geometry.mask_crops import (
    MaskCrop,
    box_iou,
    crop_mask,
    overlap_area,
)
from shardbeam.transforms.examples.geometry.orientation import orient_pixels, orient_points
from shardbeam.transforms.examples.geometry.segmentation import has_segmentation
from shardbeam.transforms.images.mask_file import IndexMap, read_indices

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


# Masks of objects: makes a PNG for each object from polygons, run lengths or Pascal VOC's PNGs.
#
# Pascal VOC's devkit numbers the pixels of `SegmentationObject` in the order of the objects in the
# XML file, from 1; 0 is the background and 255 the border between objects. Nothing else links masks
# and objects, so the boxes must confirm the numbers. Where they do not, boxes decide.

_BORDER = 255
# An object's pixels mostly span a little less than its box, because the border is not part of it.
_MIN_SHARE_IN_BOX = 0.75
_MIN_IOU = 0.5


def _render_masks(subject: AnnotatedImage) -> tuple[list[bytes], list[int], list[Box]]:
    """Renders a mask for each object: a PNG of the stored image's size, one channel, 0 and 1.

    pycocotools draws the pixels in the annotated frame. If the image is turned or resized, so are
    the pixels, to the nearest neighbour. An object without a usable segmentation gets an empty
    mask: readers expect as many masks as boxes, and a filled box would look like a mask that an
    annotator drew.

    Returns:
        The masks, the number of pixels in each that are 1, and the box around these pixels.

    Raises:
        RejectedError: A mask file cannot be used.
    """
    frame, (width, height) = subject.frame, subject.size
    voc_crops: Sequence[MaskCrop | None] = [None] * len(subject.objects)
    if MaskRole.VOC_OBJECT in subject.masks:
        data = subject.masks[MaskRole.VOC_OBJECT]
        numbers = read_indices(
            data, size=subject.file_size, annotated=subject.scaled_size, voc_colours=True
        )
        voc_crops = _match_voc_objects(subject.turn_mask(numbers), subject=subject)
    encoded, areas, boxes = [], [], []
    for item, crop in zip(subject.objects, voc_crops, strict=True):
        if has_segmentation(item.annotation.segmentation):
            crop = subject.draw(item.annotation, unusable=Correction.MASK_EMPTY_BAD_SEGMENTATION)
            if crop is not None and frame.orientation != 1:
                whole = crop.whole(width=frame.width, height=frame.height)
                crop = crop_mask(orient_pixels(whole, orientation=frame.orientation))
        elif crop is None:
            subject.corrections.note(Correction.MASK_EMPTY_NO_SEGMENTATION, item.annotation.label)
        if crop is not None and frame.written_size != subject.size:
            old_width, old_height = frame.written_size
            whole = crop.whole(width=old_width, height=old_height)
            crop = crop_mask(subject.resize_pixels(whole, fill=0))
        encoded.append(encode_mask(crop, width=width, height=height))
        areas.append(0 if crop is None else int(np.count_nonzero(crop.pixels)))
        boxes.append((0, 0, 0, 0) if crop is None else crop.box)
    return encoded, areas, boxes


def _mask_group(spec: FeatureSpec, *, by_object: bool = False) -> FeatureGroup:
    """Declares a key of masks."""

    def values(subject: AnnotatedImage) -> Values:
        # Areas and boxes are only for the statistics.
        keys = spec.key, f"{spec.key}/area", f"{spec.key}/box"
        columns: Sequence[Sequence[Any]] = _render_masks(subject)
        return {
            key: [[each] for each in column] if by_object else column
            for key, column in zip(keys, columns, strict=True)
        }

    return FeatureGroup((spec,), values, by_object=by_object)


MASKS = _mask_group(value_list("image/object/mask", FeatureKind.BYTES, FeatureRole.MASK))
ANNOTATION_MASK = _mask_group(
    one_value("annotation/mask", FeatureKind.BYTES, FeatureRole.MASK), by_object=True
)


def _match_voc_objects(numbers: IndexMap, *, subject: AnnotatedImage) -> list[MaskCrop | None]:
    """Finds the mask of each object in Pascal VOC's map of objects, in the written frame.

    Object n of the XML file (its `annotation_id`, or its place among the objects) gets the pixels
    with number n if at least three quarters of the box around them lie in the object's box. The
    other objects get the unused number whose box fits theirs best, with an IoU of 0.5 or more.
    """
    objects = subject.objects
    crops = _crop_numbers(numbers)
    boxes = [item.placed_box for item in objects]
    matched: list[MaskCrop | None] = [None] * len(objects)
    for index, item in enumerate(objects):
        number = item.annotation.annotation_id or item.position + 1
        crop = crops.get(number)
        if crop is not None:
            share = overlap_area(crop.box, boxes[index]) / overlap_area(crop.box, crop.box)
            if share >= _MIN_SHARE_IN_BOX:
                matched[index] = crops.pop(number)
    candidates = sorted(
        (-box_iou(crop.box, boxes[index]), index, number)
        for index, crop_or_none in enumerate(matched)
        if crop_or_none is None
        for number, crop in crops.items()
    )
    for negative_iou, index, number in candidates:
        if -negative_iou >= _MIN_IOU and matched[index] is None and number in crops:
            matched[index] = crops.pop(number)
            expected = objects[index].annotation.annotation_id or objects[index].position + 1
            subject.corrections.note(Correction.MASK_MATCHED_BY_BOX, expected, number)
    return matched


def _crop_numbers(numbers: IndexMap) -> dict[int, MaskCrop]:
    crops = {}
    for number in np.flatnonzero(np.bincount(numbers.ravel())).tolist():
        if number not in (0, _BORDER):
            crop = crop_mask((numbers == number).view(np.uint8))
            if crop is not None:
                crops[number] = crop
    return crops
