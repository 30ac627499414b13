"""Reads PNG and GIF files whose pixels are classes, objects or segments of another image."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.decode import (
    ImageData,
    has_more_frames,
    open_image,
    pillow_errors_as_rejects,
    verify_png,
)
from shardbeam.transforms.images.header import FileFormat, sniff_format
from shardbeam.transforms.images.png import scan_png

# 8 or 16 bits, (height, width).
IndexMap: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

_BIT_DEPTH_OFFSET = 24
_COLOURS = 256
# The most pixels of a map that is decoded without knowing its image's size.
MAX_PIXELS = 1 << 26
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

    The numbers are the values of a gray image, the indices (not the colours) of a PNG's palette, or
    the value that all channels of a colour image share. Such an image may also be gray if other
    colours would be Pascal VOC's. A GIF is read by its colours, because programs change the order
    of its palette.

    Args:
        data: The PNG or GIF file.
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
        palette: The colours of the numbers from 0, (colours, 3); empty if they have none.
    """

    values: IndexMap
    in_gray: bool = False
    palette: npt.NDArray[np.uint8] = np.empty((0, 3), np.uint8)


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
        return FoundIndices(pixels, palette=_palette(image))
    if image.mode.startswith("I;16"):
        return FoundIndices(np.asarray(image).astype(np.uint16))
    _check_alpha(image)
    if image.mode == "LA":
        return FoundIndices(np.asarray(image)[..., 0])
    if image.mode in ("RGB", "RGBA"):
        channels = np.asarray(image)[..., :3]
        unknown: RejectedError | None = None
        if voc_colours:
            try:
                return FoundIndices(_indices_of_voc_colours(channels), palette=voc_colour_map())
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


def _check_alpha(image: Image.Image) -> None:
    """Refuses a picture of one colour whose transparency shows the objects.

    Raises:
        RejectedError: It is such a picture.
    """
    if image.mode not in ("LA", "RGBA"):
        return
    *colours, alpha = (image.getchannel(name).getextrema() for name in image.getbands())
    if alpha[0] != alpha[1] and all(low == high for low, high in colours):
        raise RejectedError(
            Reason.MASK_UNREADABLE,
            "the mask is in the alpha channel, and its colours are all the same; save that channel "
            "as a PNG of its own, in Python: Image.open(old).getchannel('A').save(new)",
        )


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
    image = _decode(data, size=size, annotated=annotated)
    _check_alpha(image)
    return _find_colours(
        _pack(np.asarray(_in_rgb(image))),
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
    colours = _palette(image)
    count = int(np.flatnonzero(colours.any(axis=1)).max(initial=-1)) + 1
    return count > 1 and np.array_equal(colours[:count], voc_colour_map()[:count])


def _palette(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Returns the colours of a palette image, (colours, 3); none of another image."""
    palette = b"" if image.palette is None or image.mode != "P" else image.palette.getdata()[1]
    return np.frombuffer(bytes(palette[: len(palette) // 3 * 3]), np.uint8).reshape(-1, 3)


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
    if found not in (FileFormat.PNG, FileFormat.GIF):
        raise RejectedError(Reason.MASK_UNREADABLE, "neither a PNG nor a GIF file")
    # Checked before decoding, so that no larger mask is decoded.
    check = functools.partial(_check_size, size=size, annotated=annotated)
    try:
        image = (_load_png if found is FileFormat.PNG else _load_gif)(data, check=check)
    except RejectedError as error:
        if error.reason is Reason.MASK_MISMATCH:
            raise
        raise RejectedError(
            Reason.MASK_UNREADABLE, f"{error.reason.value}: {error.detail}"
        ) from error
    return image


def _check_size(
    mask: tuple[int, int], *, size: tuple[int, int] | None, annotated: tuple[int, int] | None
) -> None:
    """Refuses a mask that is not of its image's size, or is too large if that is not known.

    Raises:
        RejectedError: The size is wrong.
    """
    if size is None:
        if mask[0] * mask[1] > MAX_PIXELS:
            raise RejectedError(Reason.DECOMPRESSION_BOMB, "more pixels than a map may have")
    elif mask not in (size, size[::-1], annotated):
        raise RejectedError(
            Reason.MASK_MISMATCH,
            f"the mask is {mask[0]}x{mask[1]}, the image {size[0]}x{size[1]}: resize the mask by "
            "nearest neighbour, which mixes no values",
        )


def _load_png(data: bytes, *, check: Callable[[tuple[int, int]], None]) -> Image.Image:
    header = scan_png(data, complete=True)
    check((header.width, header.height))
    verify_png(data)
    with pillow_errors_as_rejects(FileFormat.PNG):
        image = PngImagePlugin.PngImageFile(io.BytesIO(data))
        image.load()
    return image


def _load_gif(data: bytes, *, check: Callable[[tuple[int, int]], None]) -> Image.Image:
    opened = open_image(ImageData(data, FileFormat.GIF, ImageConfig()))
    check(opened.image.size)
    if has_more_frames(opened):
        raise RejectedError(Reason.UNSUPPORTED_IMAGE, "a GIF of several frames is no mask")
    with opened.decode() as decoded:
        return decoded.image.convert("RGB")


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
