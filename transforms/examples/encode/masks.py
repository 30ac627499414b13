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
from shardbeam.transforms.examples.geometry.boxes import orient_pixels
from shardbeam.transforms.examples.geometry.mask_crops import (
    Patch,
    box_iou,
    find_patch,
    overlap_area,
)
from shardbeam.transforms.examples.geometry.segmentation import has_segmentation
from shardbeam.transforms.images.mask_file import IndexMap, read_indices

_BORDER = 255
# An object's pixels mostly span a little less than its box, because the border is not part of it.
_MIN_SHARE_IN_BOX = 0.75
_MIN_IOU = 0.5


def _render_masks(subject: AnnotatedImage) -> tuple[list[bytes], list[int]]:
    """Renders a mask for each object: a PNG of the stored image's size, one channel, 0 and 1.

    pycocotools draws the pixels in the annotated frame. If the image is turned or resized, so are
    the pixels, to the nearest neighbour. An object without a usable segmentation gets an empty
    mask: readers expect as many masks as boxes, and a filled box would look like a mask that an
    annotator drew.

    Returns:
        The masks, and the number of pixels in each that are 1.

    Raises:
        RejectedError: A mask file cannot be used.
    """
    frame, (width, height) = subject.frame, subject.size
    voc_patches: Sequence[Patch | None] = [None] * len(subject.objects)
    if MaskRole.VOC_OBJECT in subject.masks:
        data = subject.masks[MaskRole.VOC_OBJECT]
        numbers = read_indices(
            data, size=subject.file_size, annotated=subject.scaled_size, voc_colours=True
        )
        voc_patches = _match_voc_objects(subject.turn_mask(numbers), subject=subject)
    encoded, areas = [], []
    for item, patch in zip(subject.objects, voc_patches, strict=True):
        if has_segmentation(item.annotation.segmentation):
            patch = subject.draw(item.annotation, unusable=Correction.MASK_EMPTY_BAD_SEGMENTATION)
            if patch is not None and frame.orientation != 1:
                whole = patch.whole(width=frame.width, height=frame.height)
                patch = find_patch(orient_pixels(whole, orientation=frame.orientation))
        elif patch is None:
            subject.corrections.note(Correction.MASK_EMPTY_NO_SEGMENTATION, item.annotation.label)
        if patch is not None and frame.written_size != subject.size:
            old_width, old_height = frame.written_size
            whole = patch.whole(width=old_width, height=old_height)
            patch = find_patch(subject.resize_pixels(whole, fill=0))
        encoded.append(encode_mask(patch, width=width, height=height))
        areas.append(0 if patch is None else int(np.count_nonzero(patch.pixels)))
    return encoded, areas


def _mask_values(subject: AnnotatedImage) -> Values:
    masks, areas = _render_masks(subject)
    # The areas are only for the statistics.
    return {"image/object/mask": masks, "image/object/mask/area": areas}


def _annotation_mask_values(subject: AnnotatedImage) -> Values:
    masks, areas = _render_masks(subject)
    return {
        "annotation/mask": [[mask] for mask in masks],
        "annotation/mask/area": [[area] for area in areas],
    }


MASKS = FeatureGroup(
    (value_list("image/object/mask", FeatureKind.BYTES, FeatureRole.MASK),), _mask_values
)
ANNOTATION_MASK = FeatureGroup(
    (one_value("annotation/mask", FeatureKind.BYTES, FeatureRole.MASK),),
    _annotation_mask_values,
    by_object=True,
)


def _match_voc_objects(numbers: IndexMap, *, subject: AnnotatedImage) -> list[Patch | None]:
    """Finds the mask of each object in Pascal VOC's map of objects, in the written frame.

    Object n of the XML file (its `annotation_id`, or its place among the objects) gets the pixels
    with number n if at least three quarters of the box around them lie in the object's box. The
    other objects get the unused number whose box fits theirs best, with an IoU of 0.5 or more.
    """
    objects = subject.objects
    patches = _patches(numbers)
    boxes = [item.placed_box for item in objects]
    matched: list[Patch | None] = [None] * len(objects)
    for index, item in enumerate(objects):
        number = item.annotation.annotation_id or item.position + 1
        patch = patches.get(number)
        if patch is not None:
            share = overlap_area(patch.box, boxes[index]) / overlap_area(patch.box, patch.box)
            if share >= _MIN_SHARE_IN_BOX:
                matched[index] = patches.pop(number)
    candidates = sorted(
        (-box_iou(patch.box, boxes[index]), index, number)
        for index, patch_or_none in enumerate(matched)
        if patch_or_none is None
        for number, patch in patches.items()
    )
    for negative_iou, index, number in candidates:
        if -negative_iou >= _MIN_IOU and matched[index] is None and number in patches:
            matched[index] = patches.pop(number)
            expected = objects[index].annotation.annotation_id or objects[index].position + 1
            subject.corrections.note(Correction.MASK_MATCHED_BY_BOX, expected, number)
    return matched


def _patches(numbers: IndexMap) -> dict[int, Patch]:
    patches = {}
    for number in np.flatnonzero(np.bincount(numbers.ravel())).tolist():
        if number not in (0, _BORDER):
            patch = find_patch((numbers == number).view(np.uint8))
            if patch is not None:
                patches[number] = patch
    return patches
