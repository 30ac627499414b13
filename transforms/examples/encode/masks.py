"""Masks of objects: makes a PNG for each object from polygons, run lengths or Pascal VOC's PNGs.

Pascal VOC's devkit numbers the pixels of `SegmentationObject` in the order of the objects in the
XML file, from 1; 0 is the background and 255 the border between objects. Nothing else links masks
and objects, so the boxes must confirm the numbers. Where they do not, boxes decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import MaskRole
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.encode.mask_png import encode_mask
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, one_value, value_list
from shardbeam.transforms.examples.geometry.boxes import Box, orient_pixels
from shardbeam.transforms.examples.geometry.mask_crops import (
    MaskCrop,
    box_iou,
    crop_mask,
    overlap_area,
)
from shardbeam.transforms.examples.geometry.segmentation import has_segmentation
from shardbeam.transforms.images.mask_file import IndexMap, read_indices

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


def _mask_values(subject: AnnotatedImage) -> Values:
    masks, areas, boxes = _render_masks(subject)
    # Areas and boxes are only for the statistics.
    return {
        "image/object/mask": masks,
        "image/object/mask/area": areas,
        "image/object/mask/box": boxes,
    }


def _annotation_mask_values(subject: AnnotatedImage) -> Values:
    masks, areas, boxes = _render_masks(subject)
    return {
        "annotation/mask": [[mask] for mask in masks],
        "annotation/mask/area": [[area] for area in areas],
        "annotation/mask/box": [[box] for box in boxes],
    }


MASKS = FeatureGroup(
    (value_list("image/object/mask", FeatureKind.BYTES, FeatureRole.MASK),), _mask_values
)
ANNOTATION_MASK = FeatureGroup(
    (one_value("annotation/mask", FeatureKind.BYTES, FeatureRole.MASK),),
    _annotation_mask_values,
    by_object=True,
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
