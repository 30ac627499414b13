"""Which pixels of Pascal VOC's map of objects are whose.

The devkit numbers the pixels of `SegmentationObject` like the objects of the XML file, from 1; 0 is
the background and 255 the border between objects. Nothing else links the two, so the boxes must
confirm it: a map that is numbered otherwise is matched by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.examples.boxes import Box
from shardbeam.transforms.examples.objects import WrittenObject
from shardbeam.transforms.examples.patches import Patch, box_iou, find_patch, overlap_area
from shardbeam.transforms.images.mask_file import IndexMap

_BORDER = 255
# The border, which belongs to nobody, leaves less than the box, rarely more.
_MIN_SHARE_IN_BOX = 0.75
_MIN_IOU = 0.5


def match_voc_objects(
    numbers: IndexMap,
    *,
    objects: Sequence[WrittenObject],
    corrections: Counter[str],
) -> list[Patch | None]:
    """Finds the mask of each object.

    Object n of the XML file (its `annotation_id`, or its place among the objects) gets the pixels
    of number n if at least three quarters of what they span lie in its box; otherwise those of the
    number that spans about the same as its box (IoU of 0.5 or more), if no object has got them.

    Args:
        numbers: The map of objects in the written frame, (height, width).
        objects: The objects.
        corrections: Matches by box are counted here.

    Returns:
        A mask for each object, None where there is none.
    """
    height, width = numbers.shape
    patches = _patches(numbers)
    boxes = [
        (item.box[0] * width, item.box[1] * height, item.box[2] * width, item.box[3] * height)
        for item in objects
    ]
    matched: list[Patch | None] = [None] * len(objects)
    for index, item in enumerate(objects):
        number = item.annotation.annotation_id or item.position + 1
        patch = patches.get(number)
        if patch is not None and _share_in_box(patch, boxes[index]) >= _MIN_SHARE_IN_BOX:
            matched[index] = patches.pop(number)
    candidates = sorted(
        (
            (-box_iou(patch.box, boxes[index]), index, number)
            for index, patch_or_none in enumerate(matched)
            if patch_or_none is None
            for number, patch in patches.items()
        ),
    )
    for negative_iou, index, number in candidates:
        if -negative_iou >= _MIN_IOU and matched[index] is None and number in patches:
            matched[index] = patches.pop(number)
            corrections[Correction.MASK_MATCHED_BY_BOX.value] += 1
    return matched


def _patches(numbers: IndexMap) -> dict[int, Patch]:
    patches = {}
    for number in np.flatnonzero(np.bincount(numbers.ravel())).tolist():
        if number not in (0, _BORDER):
            patch = find_patch((numbers == number).view(np.uint8))
            if patch is not None:
                patches[number] = patch
    return patches


def _share_in_box(patch: Patch, box: Box) -> float:
    return overlap_area(patch.box, box) / overlap_area(patch.box, patch.box)
