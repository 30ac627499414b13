"""Reads PNG files chunk by chunk.

Source: W3C Portable Network Graphics (PNG) Specification (Third Edition).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.header import ImageHeader, exif_orientation

_SIGNATURE_BYTES = 8
_CHUNK = struct.Struct(">I4s")
_CHECKSUM = struct.Struct(">I")
# Pillow stops reading at a chunk of any other type.
_PILLOW_KIND = re.compile(rb"\w{4}")
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
# Channels and bit depths of each colour type.
_COLOR_TYPES = {
    _GRAY: (1, (1, 2, 4, 8, 16)),
    _RGB: (3, (8, 16)),
    _PALETTE: (1, (1, 2, 4, 8)),
    _GRAY_ALPHA: (2, (8, 16)),
    _RGB_ALPHA: (4, (8, 16)),
}
# First column, first row, column step and row step of each pass: in one pass, and Adam7.
_ONE_PASS = ((0, 0, 1, 1),)
_ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
# DEFLATE expands at most 1,032 times, so a step gives at most 4.2 MB.
_INFLATE_STEP_BYTES = 1 << 12


class _Shape(NamedTuple):
    """The fields of the IHDR chunk, in their order."""

    width: int
    height: int
    bit_depth: int
    color_type: int
    compression: int
    filtering: int
    interlacing: int


_SHAPE = struct.Struct(">IIBBBBB")


def scan_png(data: bytes, *, complete: bool) -> ImageHeader:
    """Reads the header of a PNG file.

    Gray and RGB files with up to 8 bits, without transparency and animation, are storable.

    Args:
        data: The file, which begins with the PNG signature.
        complete: Whether all chunks up to the last one must be valid.

    Raises:
        RejectedError: The header makes no sense, or the end is missing.
    """
    shape: _Shape | None = None
    kinds: set[bytes] = set()
    orientation = 1
    for kind, start, end in _chunks(data, complete=complete):
        if (kind == b"IHDR") == bool(kinds):
            raise RejectedError(Reason.CORRUPT, "PNG: the IHDR chunk is not first, or not alone")
        kinds.add(kind)
        if kind == b"IHDR":
            shape = _parse_shape(data[start:end])
        elif kind == b"eXIf":
            orientation = exif_orientation(data[start:end])
    if shape is None:
        raise RejectedError(Reason.TRUNCATED, "PNG: the file ends in its header")
    return ImageHeader(
        width=shape.width,
        height=shape.height,
        orientation=orientation,
        storable=(
            shape.color_type in (_GRAY, _RGB)
            and shape.bit_depth <= 8
            and kinds.isdisjoint((b"tRNS", b"acTL"))
        ),
        gray=shape.color_type == _GRAY,
    )


def verify_png(data: bytes) -> None:
    """Checks everything in a PNG file that can be checked without decoding it.

    These are the checksum of every chunk, and whether the pixel data inflates to the bytes that the
    size requires: Pillow leaves missing pixels black.

    Args:
        data: A file that `scan_png` accepts, with an acceptable size.

    Raises:
        RejectedError: The file is corrupt.
    """
    view = memoryview(data)
    expected_bytes = size_bytes = 0
    inflater = zlib.decompressobj()
    for kind, start, end in _chunks(data, complete=True):
        if zlib.crc32(view[start - 4 : end]) != _CHECKSUM.unpack_from(data, end)[0]:
            raise RejectedError(
                Reason.CORRUPT, f"PNG: wrong checksum of the {kind.decode()} chunk at {start - 8}"
            )
        if kind == b"IHDR":
            expected_bytes = _pixel_data_bytes(_parse_shape(data[start:end]))
        elif kind == b"IDAT":
            for position in range(start, end, _INFLATE_STEP_BYTES):
                # Decoders ignore data beyond the last row.
                if inflater.eof or size_bytes > expected_bytes:
                    break
                step = view[position : min(position + _INFLATE_STEP_BYTES, end)]
                try:
                    size_bytes += len(inflater.decompress(step))
                except zlib.error as error:
                    raise RejectedError(Reason.CORRUPT, f"PNG: pixel data: {error}") from error
    if size_bytes < expected_bytes:
        raise RejectedError(
            Reason.CORRUPT,
            f"PNG: the pixel data ends after {size_bytes} of {expected_bytes} bytes",
        )


def _chunks(data: bytes, *, complete: bool) -> Iterator[tuple[bytes, int, int]]:
    """Yields the type of each chunk up to IEND, and the start and end of its content."""
    position = _SIGNATURE_BYTES
    while position + 12 <= len(data):
        length, kind = _CHUNK.unpack_from(data, position)
        start, end = position + 8, position + 8 + length
        position = end + 4
        if complete and not kind.isalpha():
            raise RejectedError(Reason.CORRUPT, f"PNG: expected a chunk at byte {start - 8}")
        if not _PILLOW_KIND.fullmatch(kind):
            return
        if position > len(data):
            break
        yield kind, start, end
        if kind == b"IEND":
            return
    if complete:
        raise RejectedError(Reason.TRUNCATED, "PNG: the file ends before its last chunk ends")


def _parse_shape(content: bytes) -> _Shape:
    if len(content) != _SHAPE.size:
        raise RejectedError(Reason.CORRUPT, "PNG: the IHDR chunk has a wrong length")
    shape = _Shape._make(_SHAPE.unpack(content))
    if not shape.width or not shape.height:
        raise RejectedError(Reason.CORRUPT, "PNG: the header gives a size without pixels")
    if (
        shape.bit_depth not in _COLOR_TYPES.get(shape.color_type, (0, ()))[1]
        or shape.compression
        or shape.filtering
        or shape.interlacing > 1
    ):
        values = ", ".join(f"{name} {value}" for name, value in shape._asdict().items())
        raise RejectedError(Reason.CORRUPT, f"PNG: the header holds impossible values: {values}")
    return shape


def _pixel_data_bytes(shape: _Shape) -> int:
    """Returns the bytes of the filtered rows of all passes."""
    bits_per_pixel = shape.bit_depth * _COLOR_TYPES[shape.color_type][0]
    total = 0
    for left, top, column_step, row_step in _ADAM7 if shape.interlacing else _ONE_PASS:
        columns = -(-(shape.width - left) // column_step)
        rows = -(-(shape.height - top) // row_step)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits_per_pixel // 8))
    return total
