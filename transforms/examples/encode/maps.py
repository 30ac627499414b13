"""Maps of classes: each pixel is a class id, or 255 for pixels that readers should ignore."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import MAX_BLURRED_SHARE, OBJECT_VALUE, MaskRole, MaskValues
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.encode.mask_png import encode_map
from shardbeam.transforms.examples.features import CLASS_MAP, FeatureKind, FeatureRole, one_value
from shardbeam.transforms.examples.geometry.boxes import orient_pixels
from shardbeam.transforms.images.mask_file import IndexMap, read_colours, read_indices

# A key that is never written: `(id, number of pixels)` of each class, for statistics and the index.
PIXELS = "image/segmentation/class/pixels"
_IGNORE = 255
_BACKGROUND = 0
# Pixels of blurred borders belong to the object from this value on.
_CUT = 128


def _semantic_values(subject: AnnotatedImage) -> Values:
    """Renders a map of classes.

    The map comes from the mask file, if there is one. Otherwise the regions of `annotations.stuff`
    are drawn, later ones over earlier ones. An image with neither gets a map of 255 everywhere.

    A mask's values mean what `annotations.mask_values` says: mostly, they are the source's class
    ids. These become the written ids. 255 stays, and so does 0
    if no class has it (the background). Classes that are left out, and values of no class, become
    255. If the source declares no ids at all, values stay as they are.

    Raises:
        RejectedError: The mask cannot be read, or does not fit this image.
    """
    for role in (MaskRole.SEMANTIC, MaskRole.VOC_CLASS):
        if role in subject.masks:
            values = _read_ids(subject, role=role)
            pixels = _written_ids(subject.turn_mask(values), subject=subject)
            break
    else:
        pixels = orient_pixels(_draw_stuff(subject), orientation=subject.frame.orientation)
        if not subject.annotations.stuff:
            subject.corrections.note(Correction.MAP_MISSING_LEFT_VOID)
    pixels = subject.resize_pixels(pixels, fill=_IGNORE)
    return {
        CLASS_MAP: [encode_map(pixels)],
        "image/segmentation/class/format": [b"png"],
        PIXELS: _count_pixels(pixels),
    }


def _count_pixels(pixels: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
    # Pillow's histogram takes two fifths of the time of NumPy's.
    counts = Image.fromarray(pixels).histogram()
    return [(value, count) for value, count in enumerate(counts) if count]


def list_map_classes(
    values: Mapping[str, Sequence[Any]], *, names: Collection[int]
) -> tuple[int, ...] | None:
    """Lists the ids of the classes that an Example's map shows, each once, in order.

    The values 0 and 255 are no classes, unless a class has that id.

    Args:
        values: `{default key: values}`, with `PIXELS` if there is a map.
        names: The ids of the dataset's classes, as far as they are known.

    Returns:
        The ids; None if the Example has no map, or none that can be read.
    """
    found = {number for number, _ in values.get(PIXELS, ())}
    if not found:
        return None
    no_classes = {each for each in (_BACKGROUND, _IGNORE) if each not in names}
    return tuple(sorted(found - no_classes))


SEMANTIC = FeatureGroup(
    (
        one_value(CLASS_MAP, FeatureKind.BYTES, FeatureRole.MASK),
        one_value("image/segmentation/class/format", FeatureKind.BYTES, FeatureRole.TEXT),
    ),
    _semantic_values,
)


def _read_ids(subject: AnnotatedImage, *, role: MaskRole) -> IndexMap:
    """Reads the source's class ids from a mask.

    Raises:
        RejectedError: The mask cannot be read, or has a value of unknown meaning.
    """
    meaning = subject.annotations.mask_values
    data, size, annotated = subject.masks[role], subject.file_size, subject.scaled_size
    if meaning.are_colours:
        colours = [colour for colour, _ in meaning.ids]
        found = read_colours(data, size=size, annotated=annotated, colours=colours)
        ids = [_IGNORE if class_id is None else class_id for _, class_id in meaning.ids]
        return np.array(ids, np.uint8)[found]
    voc_colours = role is MaskRole.VOC_CLASS and not meaning.ids
    values = read_indices(data, size=size, annotated=annotated, voc_colours=voc_colours)
    return _class_ids(values, meaning=meaning) if meaning.ids else values


def _class_ids(values: IndexMap, *, meaning: MaskValues) -> npt.NDArray[np.uint8]:
    """Turns a mask's values into the source's class ids.

    Raises:
        RejectedError: The mask has a value of unknown meaning.
    """
    counts = np.bincount(values.ravel(), minlength=OBJECT_VALUE + 1)
    present = np.flatnonzero(counts).tolist()
    ids = dict(meaning.ids)
    if meaning.is_cut and present[-1] <= OBJECT_VALUE:
        blurred, objects = counts[1:OBJECT_VALUE].sum(), counts[OBJECT_VALUE]
        is_border = blurred < MAX_BLURRED_SHARE * values.size or blurred <= objects
        if not blurred or (is_border and present[-1] >= _CUT):
            ids = {value: ids[OBJECT_VALUE if value >= _CUT else _BACKGROUND] for value in present}
    unknown = [value for value in present if value not in ids]
    if unknown:
        number = int(counts[unknown].sum())
        known = ", ".join(str(value) for value, _ in meaning.ids)
        raise RejectedError(
            Reason.MASK_VALUE_UNKNOWN,
            f"{number:,} of its pixels have other values than {known}, such as {unknown[0]}; if "
            "they are classes, or to be ignored, say so with mask_values",
        )
    table = np.full(present[-1] + 1, _IGNORE, np.uint8)
    for value in present:
        class_id = ids[value]
        table[value] = _IGNORE if class_id is None else class_id
    found: npt.NDArray[np.uint8] = table[values]
    return found


def _written_ids(values: IndexMap, *, subject: AnnotatedImage) -> npt.NDArray[np.uint8]:
    """Maps a mask's values to the written ids."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, ids in subject.label_map.source_ids.items():
        for source_id in ids:
            names[source_id].append(name)
    present = np.flatnonzero(np.bincount(values.ravel())).tolist()
    written = np.full(max(present) + 1, _IGNORE, np.uint8)
    for value in present:
        written[value] = _written_id(value, names=names.get(value, ()), subject=subject)
    mapped: npt.NDArray[np.uint8] = written[values]
    return mapped


def _written_id(value: int, *, names: Sequence[str], subject: AnnotatedImage) -> int:
    label_map = subject.label_map
    if value == _IGNORE:
        return value
    if not names:
        stays = not label_map.source_ids or (
            value == _BACKGROUND and value not in label_map.ids.values()
        )
        if stays and value < _IGNORE:
            return value
        subject.corrections.note(Correction.REGION_OF_UNKNOWN_CLASS_VOID, value, _IGNORE)
        return _IGNORE
    found = {label_map.written.get(name) for name in names}
    if len(found) > 1:
        raise RejectedError(
            Reason.MASK_MISMATCH,
            f"its pixels have the class id {value}, which is {' and '.join(map(repr, names))} in "
            "different sources; give these one name with labels.merge",
        )
    (label,) = found
    if label is None:
        subject.corrections.note(Correction.REGION_OF_EXCLUDED_LABEL_VOID, names[0], _IGNORE)
        return _IGNORE
    return label.id


def _draw_stuff(subject: AnnotatedImage) -> npt.NDArray[np.uint8]:
    """Draws the regions of `annotations.stuff` in the annotated frame."""
    frame = subject.frame
    pixels = np.full((frame.height, frame.width), _IGNORE, np.uint8)
    for region in subject.annotations.stuff:
        label = subject.label_map.written.get(region.label)
        if label is None:
            subject.corrections.note(
                Correction.REGION_OF_EXCLUDED_LABEL_VOID, region.label, _IGNORE
            )
            continue
        crop = subject.draw(region, unusable=Correction.REGION_UNUSABLE_DROPPED)
        if crop is not None:
            height, width = crop.pixels.shape
            window = pixels[crop.top : crop.top + height, crop.left : crop.left + width]
            window[crop.pixels != 0] = label.id
    return pixels
