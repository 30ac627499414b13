"""Maps of classes: a class id a pixel, 255 where readers are to ignore it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, MaskRole, ObjectAnnotation
from shardbeam.transforms.examples.annotating_image import pixels_in_written_frame
from shardbeam.transforms.examples.boxes import AnnotatedFrame, orient_pixels
from shardbeam.transforms.examples.mask_png import encode_map
from shardbeam.transforms.examples.patches import resize_nearest
from shardbeam.transforms.examples.segmentation import draw_segmentation
from shardbeam.transforms.images.check import StoredImage
from shardbeam.transforms.images.mask_file import IndexMap, read_indices

_IGNORE = 255
_BACKGROUND = 0


def semantic_features(
    annotations: ImageAnnotations,
    *,
    frame: AnnotatedFrame,
    image: StoredImage,
    masks: Mapping[MaskRole, bytes],
    label_map: LabelMap,
    corrections: Counter[str],
) -> dict[str, list[Any]]:
    """Renders a map of classes: `{default key: values}`.

    It comes from the mask file, if there is one, and from `annotations.stuff` otherwise, later
    regions over earlier ones. An image with neither gets a map that is to be ignored all over.

    A mask's values are ids of classes as the source declares them, and become those that are
    written; 255 stays, and so does 0 where no class has it (the background). Classes that are left
    out become 255, and so do values that no class has. Where the source declares no ids at all,
    values stay what they are.

    Args:
        annotations: What the source says about the image.
        frame: The frame that it refers to.
        image: The image as it is stored.
        masks: The files that annotate the image, by what their pixels mean.
        label_map: The classes.
        corrections: What is changed or left out is counted here.

    Raises:
        RejectedError: The mask cannot be read, or is not of this image.
    """
    for role in (MaskRole.SEMANTIC, MaskRole.VOC_CLASS):
        if role in masks:
            values = pixels_in_written_frame(
                read_indices(
                    masks[role],
                    size=(image.file_width, image.file_height),
                    voc_colours=role is MaskRole.VOC_CLASS,
                ),
                frame=frame,
                image=image,
            )
            pixels = _written_ids(values, label_map=label_map, corrections=corrections)
            break
    else:
        pixels = _draw_stuff(
            annotations.stuff,
            frame=frame,
            normalized=annotations.normalized,
            label_map=label_map,
            corrections=corrections,
        )
        pixels = orient_pixels(pixels, orientation=frame.orientation)
        if not annotations.stuff:
            corrections[Correction.MAP_MISSING_LEFT_VOID.value] += 1
    return {
        "image/segmentation/class/encoded": [
            encode_map(resize_nearest(pixels, size=(image.width, image.height)))
        ],
        "image/segmentation/class/format": [b"png"],
    }


def _written_ids(
    values: IndexMap, *, label_map: LabelMap, corrections: Counter[str]
) -> npt.NDArray[np.uint8]:
    """Maps a mask's values to the ids that are written."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, ids in label_map.source_ids.items():
        for source_id in ids:
            names[source_id].append(name)
    present = np.flatnonzero(np.bincount(values.ravel())).tolist()
    written = np.full(max(present) + 1, _IGNORE, np.uint8)
    for value in present:
        written[value] = _written_id(
            value, names=names.get(value, ()), label_map=label_map, corrections=corrections
        )
    mapped: npt.NDArray[np.uint8] = written[values]
    return mapped


def _written_id(
    value: int, *, names: Sequence[str], label_map: LabelMap, corrections: Counter[str]
) -> int:
    if value == _IGNORE:
        return value
    if not names:
        stays = not label_map.source_ids or (
            value == _BACKGROUND and value not in label_map.ids.values()
        )
        if stays and value < _IGNORE:
            return value
        corrections[Correction.REGION_OF_UNKNOWN_CLASS_VOID.value] += 1
        return _IGNORE
    found = {label_map.lookup(name) for name in names}
    if len(found) > 1:
        raise RejectedError(
            Reason.MASK_MISMATCH,
            f"the class id {value} of its pixels is that of {' and '.join(map(repr, names))} in "
            "different sources; give them one name with labels.merge",
        )
    (label,) = found
    if label is None:
        corrections[Correction.REGION_OF_EXCLUDED_LABEL_VOID.value] += 1
        return _IGNORE
    return label[1]


def _draw_stuff(
    regions: Sequence[ObjectAnnotation],
    *,
    frame: AnnotatedFrame,
    normalized: bool,
    label_map: LabelMap,
    corrections: Counter[str],
) -> npt.NDArray[np.uint8]:
    """Draws regions in the annotated frame."""
    pixels = np.full((frame.height, frame.width), _IGNORE, np.uint8)
    for region in regions:
        found = label_map.lookup(region.label)
        if found is None:
            corrections[Correction.REGION_OF_EXCLUDED_LABEL_VOID.value] += 1
            continue
        try:
            patch = draw_segmentation(
                region.segmentation,
                frame=(frame.width, frame.height),
                box=region.bbox,
                normalized=normalized,
                corrections=corrections,
            )
        except ValueError:
            corrections[Correction.REGION_UNUSABLE_DROPPED.value] += 1
            continue
        if patch is not None:
            height, width = patch.pixels.shape
            window = pixels[patch.top : patch.top + height, patch.left : patch.left + width]
            window[patch.pixels != 0] = found[1]
    return pixels
