"""Reads PNG files whose pixels are classes, objects or segments of another image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.decode import pillow_errors_as_rejects, verify_png
from shardbeam.transforms.images.header import FileFormat, scan_png, sniff_format

# 8 or 16 bits, (height, width).
IndexMap: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

_BIT_DEPTH_OFFSET = 24
_COLOURS = 256
# The most pixels of a map that is decoded without knowing its image's size.
_MAX_PIXELS = 1 << 26
# A map with more colours than these is a photo.
_MAX_COLOURS = 1 << 16


def read_indices(
    data: bytes,
    *,
    size: tuple[int, int],
    annotated: tuple[int, int] | None = None,
    voc_colours: bool = False,
) -> IndexMap:
    """Reads a map of small numbers, (height, width).

    The numbers are the values of a gray image, the indices (not the colours) of a palette image, or
    the value that all channels of a colour image share. Such an image may also be gray if other
    colours would be Pascal VOC's.

    Args:
        data: The PNG file.
        size: Width and height of the annotated image in pixels; the map may have them exchanged,
            because the image may be turned.
        annotated: Another width and height that the map may have.
        voc_colours: Whether a colour image shows the numbers in Pascal VOC's colours.

    Raises:
        RejectedError: The file cannot be read, has another size, or is not such a map.
    """
    image = _decode(data, size=size, annotated=annotated)
    return _indices(image, data, voc_colours=voc_colours).values


class FoundIndices(NamedTuple):
    """A map of small numbers.

    Attributes:
        values: The numbers, (height, width).
        in_gray: Whether a colour image has shades of gray that are not Pascal VOC's colours.
    """

    values: IndexMap
    in_gray: bool = False


def read_any_indices(data: bytes, *, voc_colours: bool) -> FoundIndices:
    """Reads a map of any size up to 67,108,864 pixels, like `read_indices`.

    Raises:
        RejectedError: The file cannot be read, is larger, or is not such a map.
    """
    return _indices(_decode(data, size=None, annotated=None), data, voc_colours=voc_colours)


def _indices(image: Image.Image, data: bytes, *, voc_colours: bool) -> FoundIndices:
    if image.mode in ("1", "L", "P"):
        pixels = np.asarray(image, np.uint8)
        bit_depth = data[_BIT_DEPTH_OFFSET]
        # Pillow spreads gray values of fewer bits over all 8.
        if image.mode == "L" and bit_depth < 8:
            pixels = pixels // np.uint8(255 // (2**bit_depth - 1))
        return FoundIndices(pixels)
    if image.mode.startswith("I;16"):
        return FoundIndices(np.asarray(image).astype(np.uint16))
    if image.mode in ("RGB", "RGBA"):
        channels = np.asarray(image)[..., :3]
        unknown: RejectedError | None = None
        if voc_colours:
            try:
                return FoundIndices(_indices_of_voc_colours(channels))
            except RejectedError as error:
                unknown = error
        if np.array_equal(channels[..., 0], channels[..., 1]) and np.array_equal(
            channels[..., 0], channels[..., 2]
        ):
            return FoundIndices(channels[..., 0], in_gray=unknown is not None)
        raise unknown or RejectedError(
            Reason.MASK_UNREADABLE,
            "its pixels are colours, not class ids; expected one channel, or a palette",
        )
    raise RejectedError(Reason.MASK_UNREADABLE, f"pixels of mode {image.mode} are not class ids")


def read_colours(
    data: bytes,
    *,
    size: tuple[int, int],
    annotated: tuple[int, int] | None = None,
    colours: Sequence[int],
) -> npt.NDArray[np.intp]:
    """Reads for each pixel, (height, width), which of some colours it has: the place in the list.

    Args:
        data: The PNG file; a palette image has the colours of its palette.
        size: Width and height of the annotated image in pixels, perhaps exchanged.
        annotated: Another width and height that the file may have.
        colours: The colours as R << 16 | G << 8 | B, in ascending order.

    Raises:
        RejectedError: The file cannot be read, has another size, or another colour.
    """
    return _find_colours(
        _pack(np.asarray(_in_rgb(_decode(data, size=size, annotated=annotated)))),
        colours=np.asarray(colours, np.uint32),
        reason=Reason.MASK_VALUE_UNKNOWN,
        expected="among those of the classes; add it to the file that names them",
    )


class FoundColours(NamedTuple):
    """The colours of a map.

    Attributes:
        colours: The colours as R << 16 | G << 8 | B.
        are_exact: Whether the file has no values beside the colours, such as indices of a palette.
    """

    colours: frozenset[int]
    are_exact: bool


def read_any_colours(data: bytes) -> FoundColours:
    """Reads the colours of a map of any size up to 67,108,864 pixels.

    Raises:
        RejectedError: The file cannot be read, is larger, or has no colours of 8 bits.
    """
    image = _decode(data, size=None, annotated=None)
    found = _in_rgb(image).getcolors(_MAX_COLOURS)
    if found is None:
        raise RejectedError(
            Reason.MASK_UNREADABLE, f"more than {_MAX_COLOURS:,} colours, as in a photo"
        )
    packed = _pack(np.array([colour for _, colour in found], np.uint8))
    return FoundColours(frozenset(packed.tolist()), image.mode in ("RGB", "RGBA"))


def _in_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        raise RejectedError(Reason.MASK_UNREADABLE, "pixels of 16 bits are no colours of classes")
    return image.convert("RGB")


def read_segment_ids(
    data: bytes, *, size: tuple[int, int], annotated: tuple[int, int] | None = None
) -> npt.NDArray[np.uint32]:
    """Reads the segment ids of a panoptic PNG, (height, width): R + 256 G + 65536 B.

    Args:
        data: The PNG file.
        size: Width and height of the annotated image in pixels, perhaps exchanged.
        annotated: Another width and height that the file may have.

    Raises:
        RejectedError: The file cannot be read, has another size, or has other pixels.
    """
    image = _decode(data, size=size, annotated=annotated)
    if image.mode not in ("RGB", "RGBA"):
        raise RejectedError(
            Reason.MASK_UNREADABLE,
            f"pixels of mode {image.mode} are not segment ids; expected 8-bit RGB",
        )
    # The four bytes of a pixel, the least significant first, are the id.
    ids = np.array(image.convert("RGBA"))
    ids[..., 3] = 0
    return ids.view("<u4")[..., 0].astype(np.uint32, copy=False)


def has_voc_colours(data: bytes) -> bool:
    """Returns whether a map shows its numbers in Pascal VOC's colours.

    A palette image does if its palette begins with these colours; the rest of the palette may be
    black. For a colour image this returns True, and `read_indices` refuses any other colours.

    Raises:
        RejectedError: It is not a PNG file.
    """
    if sniff_format(data) is not FileFormat.PNG:
        raise RejectedError(Reason.MASK_UNREADABLE, "not a PNG file")
    with pillow_errors_as_rejects(FileFormat.PNG):
        image = PngImagePlugin.PngImageFile(io.BytesIO(data))
    if image.mode != "P" or image.palette is None:
        return image.mode in ("RGB", "RGBA")
    # The header has the palette, so no pixel is decoded.
    _, palette = image.palette.getdata()
    colours = np.frombuffer(bytes(palette[: len(palette) // 3 * 3]), np.uint8).reshape(-1, 3)
    count = int(np.flatnonzero(colours.any(axis=1)).max(initial=-1)) + 1
    return count > 1 and np.array_equal(colours[:count], voc_colour_map()[:count])


def voc_colour_map() -> npt.NDArray[np.uint8]:
    """Returns Pascal VOC's colour of each number, (256, 3).

    Bit 3 j + i of a number is bit 7 - j of channel i (the devkit's `VOClabelcolormap.m`).
    """
    colours = np.zeros((_COLOURS, 3), np.uint8)
    numbers = np.arange(_COLOURS)
    for bit in range(8):
        colours[:, bit % 3] |= ((numbers >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


def _decode(
    data: bytes, *, size: tuple[int, int] | None, annotated: tuple[int, int] | None
) -> Image.Image:
    found = sniff_format(data)
    if found is FileFormat.JPEG:
        raise RejectedError(
            Reason.MASK_UNREADABLE,
            "a JPEG, whose pixels are not exactly those that were saved; expected a PNG that was "
            "never a JPEG",
        )
    if found is not FileFormat.PNG:
        raise RejectedError(Reason.MASK_UNREADABLE, "not a PNG file")
    try:
        header = scan_png(data, complete=True)
        # Checked before decoding, so that no larger mask is decoded.
        if size is None:
            if header.width * header.height > _MAX_PIXELS:
                raise RejectedError(Reason.DECOMPRESSION_BOMB, "more pixels than a map may have")
        elif (header.width, header.height) not in (size, size[::-1], annotated):
            raise RejectedError(
                Reason.MASK_MISMATCH,
                f"the mask is {header.width}x{header.height}, the image {size[0]}x{size[1]}",
            )
        verify_png(data)
        with pillow_errors_as_rejects(FileFormat.PNG):
            image = PngImagePlugin.PngImageFile(io.BytesIO(data))
            image.load()
    except RejectedError as error:
        if error.reason is Reason.MASK_MISMATCH:
            raise
        raise RejectedError(
            Reason.MASK_UNREADABLE, f"{error.reason.value}: {error.detail}"
        ) from error
    return image


def _pack(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    wide = colours.astype(np.uint32)
    return (wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]).astype(np.uint32)


_PACKED_VOC_COLOURS = _pack(voc_colour_map())
_VOC_ORDER = np.argsort(_PACKED_VOC_COLOURS).astype(np.uint8)
_SORTED_VOC_COLOURS = _PACKED_VOC_COLOURS[_VOC_ORDER]


def _indices_of_voc_colours(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    found = _find_colours(
        _pack(colours),
        colours=_SORTED_VOC_COLOURS,
        reason=Reason.MASK_UNREADABLE,
        expected="in Pascal VOC's colour map; expected colours of that map, or a palette",
    )
    indices: npt.NDArray[np.uint8] = _VOC_ORDER[found]
    return indices


def _find_colours(
    packed: npt.NDArray[np.uint32],
    *,
    colours: npt.NDArray[np.uint32],
    reason: Reason,
    expected: str,
) -> npt.NDArray[np.intp]:
    """Finds the place of each pixel's colour among sorted colours."""
    found = np.minimum(np.searchsorted(colours, packed), len(colours) - 1)
    unknown = packed[colours[found] != packed]
    if unknown.size:
        raise RejectedError(
            reason, f"the colour #{unknown[0]:06x} of {unknown.size} pixels is not {expected}"
        )
    return found
