"""The header of an image file, in the same form for all formats."""

from __future__ import annotations

import struct

import msgspec

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason


class ImageHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of an image that are known without decoding it.

    Attributes:
        width: Width in pixels as stored in the file, before any orientation.
        height: Height in pixels as stored in the file, before any orientation.
        orientation: EXIF orientation, 1 to 8; 1 if it is missing or invalid.
        storable: Whether every reader understands the file's kind of pixels, so that its own
            bytes may be stored.
        gray: Whether a storable file has a single channel.
        coefficient_bytes: The bytes that decoders of a JPEG file in several scans keep until the
            last scan; 0 for other files.
    """

    width: int
    height: int
    orientation: int = 1
    storable: bool = False
    gray: bool = False
    coefficient_bytes: int = 0

    @property
    def is_sideways(self) -> bool:
        """Whether the orientation exchanges width and height."""
        return self.orientation >= _FIRST_QUARTER_TURN


_FIRST_QUARTER_TURN = 5
_ORIENTATION_TAG = 0x0112
_SHORT, _LONG = 3, 4


def exif_orientation(exif: bytes) -> int:
    r"""Reads the orientation from an EXIF block.

    XMP may hold an orientation too; browsers, TensorFlow and OpenCV ignore it, and so does this.
    Source: CIPA DC-008 (Exif 2.32), 4.6.4; TIFF 6.0, section 2.

    Args:
        exif: A TIFF header and its directories, with or without `Exif\0\0` before it.

    Returns:
        1 to 8; 1 if the orientation is missing or invalid.
    """
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, directory)
        for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind = struct.unpack_from(f"{order}HH", exif, entry)
            if tag == _ORIENTATION_TAG and kind in (_SHORT, _LONG):
                layout = "H" if kind == _SHORT else "I"
                (orientation,) = struct.unpack_from(f"{order}{layout}", exif, entry + 8)
                return valid_orientation(orientation)
    except struct.error:
        pass  # The block ends early, before an orientation.
    return 1


def valid_orientation(value: object) -> int:
    """Returns an orientation, or 1 if the value is not one."""
    return int(value) if isinstance(value, int) and 1 <= value <= 8 else 1


def check_pixel_count(width: int, height: int, *, max_pixels: int) -> None:
    """Refuses an image with more than `max_pixels` pixels.

    Raises:
        RejectedError: It has more.
    """
    if width * height > max_pixels:
        raise RejectedError(
            Reason.DECOMPRESSION_BOMB,
            f"{width} x {height} pixels are more than max_pixels, {max_pixels}",
        )
