"""Masks of objects: from polygons, run lengths and Pascal VOC's PNGs to one PNG an object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import MaskRole
from shardbeam.transforms.examples.annotating_image import pixels_in_written_frame
from shardbeam.transforms.examples.boxes import AnnotatedFrame, Size, orient_pixels
from shardbeam.transforms.examples.mask_png import encode_mask
from shardbeam.transforms.examples.objects import WrittenObject
from shardbeam.transforms.examples.patches import Patch, find_patch, resize_nearest
from shardbeam.transforms.examples.segmentation import draw_segmentation, has_segmentation
from shardbeam.transforms.examples.voc_objects import match_voc_objects
from shardbeam.transforms.images.check import StoredImage
from shardbeam.transforms.images.mask_file import read_indices


def instance_masks(
    objects: Sequence[WrittenObject],
    *,
    frame: AnnotatedFrame,
    image: StoredImage,
    normalized: bool,
    masks: Mapping[MaskRole, bytes],
    corrections: Counter[str],
) -> list[bytes]:
    """Renders a mask for each object: a PNG of the whole stored image, one channel, 0 and 1.

    The pixels are those that pycocotools draws in the annotated frame; those of an image that is
    turned or resized are turned along, and resized to the nearest neighbour. An object without a
    segmentation, or with one that nothing can be made of, gets an empty mask: readers want as
    many masks as boxes, and can tell an empty one from what somebody drew, which the filled box
    would be taken for.

    Args:
        objects: The objects.
        frame: The frame that they refer to.
        image: The image as it is stored.
        normalized: Whether polygons are in fractions of the frame, not pixels.
        masks: The files that annotate the image, by what their pixels mean.
        corrections: What is changed or left out is counted here.

    Raises:
        RejectedError: A mask file cannot be used.
    """
    size = (image.width, image.height)
    voc_patches = _voc_patches(
        objects, frame=frame, image=image, masks=masks, corrections=corrections
    )
    encoded = []
    for item, voc_patch in zip(objects, voc_patches, strict=True):
        if has_segmentation(item.annotation.segmentation):
            patch = _draw(item, frame=frame, normalized=normalized, corrections=corrections)
            patch = _turn(patch, frame=frame)
        else:
            patch = voc_patch
            if patch is None:
                corrections[Correction.MASK_EMPTY_NO_SEGMENTATION.value] += 1
        patch = _resize(patch, old=frame.written_size, new=size)
        encoded.append(encode_mask(patch, width=image.width, height=image.height))
    return encoded


def _draw(
    item: WrittenObject, *, frame: AnnotatedFrame, normalized: bool, corrections: Counter[str]
) -> Patch | None:
    """Draws an object's mask in the annotated frame."""
    try:
        return draw_segmentation(
            item.annotation.segmentation,
            frame=(frame.width, frame.height),
            box=item.annotation.bbox,
            normalized=normalized,
            corrections=corrections,
        )
    except ValueError:
        corrections[Correction.MASK_EMPTY_BAD_SEGMENTATION.value] += 1
        return None


def _voc_patches(
    objects: Sequence[WrittenObject],
    *,
    frame: AnnotatedFrame,
    image: StoredImage,
    masks: Mapping[MaskRole, bytes],
    corrections: Counter[str],
) -> Sequence[Patch | None]:
    """Finds the objects in Pascal VOC's map of objects, in the written frame."""
    data = masks.get(MaskRole.VOC_OBJECT)
    if data is None:
        return [None] * len(objects)
    numbers = pixels_in_written_frame(
        read_indices(data, size=(image.file_width, image.file_height), voc_colours=True),
        frame=frame,
        image=image,
    )
    return match_voc_objects(numbers, objects=objects, corrections=corrections)


def _turn(patch: Patch | None, *, frame: AnnotatedFrame) -> Patch | None:
    if patch is None or frame.orientation == 1:
        return patch
    whole = patch.whole(width=frame.width, height=frame.height)
    return find_patch(orient_pixels(whole, orientation=frame.orientation))


def _resize(patch: Patch | None, *, old: Size, new: Size) -> Patch | None:
    if patch is None or old == new:
        return patch
    return find_patch(resize_nearest(patch.whole(width=old[0], height=old[1]), size=new))
