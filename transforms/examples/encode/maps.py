"""Maps of classes: each pixel is a class id, or 255 for pixels that readers should ignore."""

from __future__ import annotations

import functools
import struct
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import BACKGROUND_NAMES, LabelMap
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    MAX_BLURRED_SHARE,
    NO_VALUE,
    OBJECT_VALUE,
    ImageAnnotations,
    ImageRef,
    MaskRole,
    MaskValues,
    masks_of,
)
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.features import CLASS_MAP, FeatureKind, FeatureRole, one_value
from shardbeam.transforms.examples.geometry.mask_crops import MaskCrop
from shardbeam.transforms.examples.geometry.orientation import orient_pixels
from shardbeam.transforms.images.mask_file import (
    IndexMap,
    read_any_colours,
    read_any_indices,
    read_colours,
    read_indices,
)

# Writes masks of objects, and maps, as PNG files of one channel, faster than Pillow.
#
# For a mask of 640 x 480 whose object covers a tenth of the image or more, Pillow takes 6 times
# as long; for smaller objects the difference is greater. zlib only looks for runs of one byte
# (`Z_RLE`): no other strategy was clearly faster for masks and maps, and zlib's default makes
# larger files. The rows of a mask above and below its object are not compressed each time: the
# DEFLATE streams of zeros are cached.
#
# Equal pixels give equal bytes for a given version of zlib.
#
# Source: W3C Portable Network Graphics (PNG) Specification (Third Edition); RFC 1950, RFC 1951.

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_IHDR = struct.Struct(">IIBBBBB")
_LENGTH = struct.Struct(">I")
_GRAY = 0
# Filter type 1 (9.2) turns a run of equal pixels into a run of zeros, also with 16 bits.
_DIFFERENCE_TO_THE_LEFT = 1
# A zlib stream's header: DEFLATE with a window of 32 KB, compressed fast (RFC 1950, 2.2).
_ZLIB_HEADER = b"\x78\x01"
_ADLER_BASE = 65_521
_MEMORY_LEVEL = 9


def encode_mask(crop: MaskCrop | None, *, width: int, height: int) -> bytes:
    """Encodes an object's mask: 8 bits, 0 and 1.

    Args:
        crop: The part that is not 0; None for an empty mask.
        width: Width of the whole mask in pixels.
        height: Its height in pixels.
    """
    stride = width + 1
    rows: bytes | memoryview
    if crop is None:
        before, rows, after = height * stride, b"", 0
    else:
        crop_height, crop_width = crop.pixels.shape
        # Each row begins with the number of its filter: 0, none.
        framed = np.zeros((crop_height, stride), np.uint8)
        framed[:, crop.left + 1 : crop.left + 1 + crop_width] = crop.pixels
        rows = framed.data.cast("B")
        before = crop.top * stride
        after = (height - crop.top - crop_height) * stride
    stream = [_ZLIB_HEADER]
    if before:
        stream.append(_deflated_zeros(before))
    if rows:
        deflater = _deflater()
        stream += [deflater.compress(rows), deflater.flush(zlib.Z_SYNC_FLUSH)]
    if after:
        stream.append(_deflated_zeros(after))
    stream.append(_END_OF_STREAM)
    checksum = _adler_of_zeros(before, adler=1)
    checksum = _adler_of_zeros(after, adler=zlib.adler32(rows, checksum))
    stream.append(_LENGTH.pack(checksum))
    return _png(b"".join(stream), width=width, height=height, bit_depth=8)


def encode_map(pixels: IndexMap) -> bytes:
    """Encodes a map, (height, width), in as many bits as its pixels have."""
    height, width = pixels.shape
    big_endian = pixels.astype(pixels.dtype.newbyteorder(">"), copy=False)
    samples = np.ascontiguousarray(big_endian).view(np.uint8).reshape(height, -1)
    step = pixels.dtype.itemsize
    rows = np.empty((height, samples.shape[1] + 1), np.uint8)
    rows[:, 0] = _DIFFERENCE_TO_THE_LEFT
    rows[:, 1 : 1 + step] = samples[:, :step]
    np.subtract(samples[:, step:], samples[:, :-step], out=rows[:, 1 + step :])
    deflater = _deflater()
    data = rows.data.cast("B")
    stream = (
        _ZLIB_HEADER + deflater.compress(data) + deflater.flush() + _LENGTH.pack(zlib.adler32(data))
    )
    return _png(stream, width=width, height=height, bit_depth=8 * step)


def _deflater() -> zlib._Compress:
    # The level does not matter for run-length compression.
    return zlib.compressobj(
        level=1,
        wbits=-zlib.MAX_WBITS,
        memLevel=_MEMORY_LEVEL,
        strategy=zlib.Z_RLE,
    )


# An empty last block with fixed Huffman codes.
_END_OF_STREAM = zlib.compressobj(wbits=-zlib.MAX_WBITS).flush()


@functools.lru_cache(maxsize=4096)
def _deflated_zeros(count: int) -> bytes:
    deflater = _deflater()
    # The stream ends at a whole byte, so that more can follow, and needs no data before it.
    return deflater.compress(bytes(count)) + deflater.flush(zlib.Z_SYNC_FLUSH)


def _adler_of_zeros(count: int, *, adler: int) -> int:
    """Continues an Adler-32 checksum over `count` zeros (RFC 1950, 9)."""
    low, high = adler & 0xFFFF, adler >> 16
    return ((high + count * low) % _ADLER_BASE) << 16 | low


def _png(stream: bytes, *, width: int, height: int, bit_depth: int) -> bytes:
    header = _IHDR.pack(width, height, bit_depth, _GRAY, 0, 0, 0)
    return b"".join(
        (_SIGNATURE, *_chunk(b"IHDR", header), *_chunk(b"IDAT", stream), *_chunk(b"IEND", b""))
    )


def _chunk(kind: bytes, content: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return _LENGTH.pack(len(content)), kind, content, _LENGTH.pack(checksum)


# A key that is never written: `(id, number of pixels)` of each class, for statistics and the index.
PIXELS = "image/segmentation/class/pixels"
# Names of counts in `AnnotatedImage.readings`: the pixels of maps that are 255, which is ignored
# because nothing says what it means, and those of classes.
IGNORED_PIXELS, CLASS_PIXELS = "ignored_pixels", "class_pixels"
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
        if files := masks_of(subject.masks, role=role):
            values = _join(_read_ids(data, role=role, subject=subject) for data in files)
            if len(files) > 1:
                subject.corrections.note(Correction.MASKS_JOINED, len(files), 1)
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


def find_classes(
    annotations: ImageAnnotations,
    *,
    masks: Mapping[ImageRef, bytes | RejectedError],
    label_map: LabelMap,
) -> set[str]:
    """Finds the classes of an image whose picture cannot be used.

    Args:
        annotations: The image's annotations.
        masks: The files that annotate it, as far as they were read.
        label_map: The labels.

    Returns:
        The written names of its labels, objects, segments and regions, and of the classes that its
        map shows, if the map can be read.
    """
    objects = (*annotations.objects, *annotations.stuff)
    found = {*annotations.labels, *annotations.lost, *(each.label for each in objects)}
    found |= {segment.label for segment in annotations.segments}
    for role in (MaskRole.SEMANTIC, MaskRole.VOC_CLASS):
        for data in map(masks.get, masks_of(annotations.masks, role=role)):
            if isinstance(data, bytes):
                ids = _find_ids(data, meaning=annotations.mask_values, role=role)
                of_ids = label_map.source_ids.items()
                found |= {name for name, own in of_ids if not ids.isdisjoint(own)}
    # A class whose objects are all lost may have no written name.
    found -= {*label_map.left_out}
    names = {label_map.names.get(name) or name * (name in annotations.lost) for name in found}
    return names - {""}


def _find_ids(data: bytes, *, meaning: MaskValues, role: MaskRole) -> set[int]:
    """Finds the source's class ids that a mask of any size shows; none if it cannot be read."""
    try:
        if meaning.are_colours:
            ids = dict(meaning.ids)
            colours = read_any_colours(data).colours
            return {number for each in colours if (number := ids.get(each)) is not None}
        voc_colours = role is MaskRole.VOC_CLASS and not meaning.ids
        values = read_any_indices(data, voc_colours=voc_colours).values
        found = _class_ids(values, meaning=meaning) if meaning.ids else values
    except RejectedError:
        return set()
    return {*np.unique(found).tolist()}


SEMANTIC = FeatureGroup(
    (
        one_value(CLASS_MAP, FeatureKind.BYTES, FeatureRole.MASK),
        one_value("image/segmentation/class/format", FeatureKind.BYTES, FeatureRole.TEXT),
    ),
    _semantic_values,
)


def _join(masks: Iterable[IndexMap]) -> IndexMap:
    """Joins the masks of an image, which show one class: a pixel has it if a mask shows it there.

    Raises:
        RejectedError: The masks have several sizes or show several classes.
    """
    joined: IndexMap | None = None
    shown: set[int] = set()
    for values in masks:
        if joined is None:
            joined = values
            continue
        for each in (joined, values):
            shown.update(np.flatnonzero(np.bincount(each.ravel())).tolist())
        if joined.shape != values.shape or len(shown - {_BACKGROUND}) > 1:
            raise RejectedError(
                Reason.AMBIGUOUS_STEM,
                "its masks cannot be joined: they need one size and one value beside 0, and have "
                f"the values {', '.join(map(str, sorted(shown)))}"
                + (" and several sizes" if joined.shape != values.shape else ""),
            )
        joined = np.maximum(joined, values)
    assert joined is not None
    return joined


def _read_ids(data: bytes, *, role: MaskRole, subject: AnnotatedImage) -> IndexMap:
    """Reads the source's class ids from a mask.

    Raises:
        RejectedError: The mask cannot be read, or has a value of unknown meaning.
    """
    meaning = subject.annotations.mask_values
    size, annotated = subject.file_size, subject.scaled_size
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
    if meaning.are_ranges:
        starts, of_starts = zip(*meaning.ids, strict=True)
        places = np.searchsorted(starts, present, side="right") - 1
        ids = {
            value: of_starts[place] for value, place in zip(present, places.tolist(), strict=True)
        }
    unknown = [value for value in present if ids.get(value, NO_VALUE) == NO_VALUE]
    if unknown:
        number = int(counts[unknown].sum())
        known = ", ".join(str(value) for value, each in meaning.ids if each != NO_VALUE)
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
    counts = np.bincount(values.ravel(), minlength=_IGNORE + 1)
    present = np.flatnonzero(counts).tolist()
    if not subject.annotations.mask_values.ids:
        is_class = any(name.casefold() not in BACKGROUND_NAMES for name in names[_BACKGROUND])
        of_classes = counts[:_IGNORE].sum() - (0 if is_class else counts[_BACKGROUND])
        subject.readings.update(
            {IGNORED_PIXELS: int(counts[_IGNORE]), CLASS_PIXELS: int(of_classes)}
        )
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
