"""Reads the header of PNG files, chunk by chunk.

Source: W3C Portable Network Graphics (PNG) Specification (Third Edition).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.header import ImageHeader, exif_orientation

_SIGNATURE_BYTES = 8
_CHUNK = struct.Struct(">I4s")
# Pillow stops reading at a chunk of any other type.
_PILLOW_KIND = re.compile(rb"\w{4}")
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
# Bit depths of each colour type.
_BIT_DEPTHS = {
    _GRAY: (1, 2, 4, 8, 16),
    _RGB: (8, 16),
    _PALETTE: (1, 2, 4, 8),
    _GRAY_ALPHA: (8, 16),
    _RGB_ALPHA: (8, 16),
}

_SHAPE = struct.Struct(">IIBBBBB")


class _Shape(NamedTuple):
    """The fields of the IHDR chunk, in their order."""

    width: int
    height: int
    bit_depth: int
    color_type: int
    compression: int
    filtering: int
    interlacing: int


def scan_png(data: bytes, *, complete: bool) -> ImageHeader:
    """Reads the header of a PNG file.

    Gray and RGB files with up to 8 bits, without transparency and animation, are storable.

    Args:
        data: The file, which begins with the PNG signature.
        complete: Whether all chunks up to the last one must be there.

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
        shape.bit_depth not in _BIT_DEPTHS.get(shape.color_type, ())
        or shape.compression
        or shape.filtering
        or shape.interlacing > 1
    ):
        values = ", ".join(f"{name} {value}" for name, value in shape._asdict().items())
        raise RejectedError(Reason.CORRUPT, f"PNG: the header holds impossible values: {values}")
    return shape
