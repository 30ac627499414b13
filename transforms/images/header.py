"""An image's format, by its first bytes and by its name, and its header in one form."""

from __future__ import annotations

import enum
import posixpath
import re
import struct

import msgspec

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason

_FIRST_QUARTER_TURN = 5
_ORIENTATION_TAG = 0x0112
_SHORT, _LONG = 3, 4


class FileFormat(str, enum.Enum):
    """The image formats that are recognized by their first bytes; not all of them can be read."""

    JPEG = "jpeg"
    PNG = "png"
    GIF = "gif"
    WEBP = "webp"
    BMP = "bmp"
    TIFF = "tiff"
    JPEG_2000 = "jpeg2000"
    AVIF = "avif"
    PNM = "pnm"
    ICO = "ico"
    HEIC = "heic"
    JPEG_XL = "jpegxl"
    PSD = "psd"


# {format: (how its files begin, the extensions that claim it)}. `.heif` is not here, because such
# a file may hold HEIC or AVIF.
_FORMATS: dict[FileFormat, tuple[bytes, str]] = {
    FileFormat.JPEG: (rb"\xff\xd8\xff", "jpg jpeg jpe jfif jfi jif pjpeg pjpg pjp mpo jps"),
    FileFormat.PNG: (rb"\x89PNG\r\n\x1a\n", "png apng"),
    FileFormat.GIF: (rb"GIF8[79]a", "gif"),
    FileFormat.WEBP: (rb"RIFF....WEBP", "webp"),
    # Texts may begin with "BM", too; a bitmap's header has a length below 256.
    FileFormat.BMP: (rb"BM.{13}\0\0\0", "bmp dib"),
    FileFormat.TIFF: (rb"II[*+]\0|MM\0[*+]", "tif tiff"),
    FileFormat.JPEG_2000: (
        rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
        "jp2 j2k j2c jpc jpf jpx",
    ),
    # `mif1` means "an image of any codec"; the compatible brands that follow name the codec.
    FileFormat.AVIF: (rb"....ftyp(avi[fs]|m[is]f1.{0,40}?avi[fs])", "avif avifs"),
    FileFormat.HEIC: (rb"....ftyp(he[iv][cxms]|m[is]f1)", "heic hif"),
    FileFormat.PNM: (rb"P[1-6][\s#]", "pnm pbm pgm ppm"),
    FileFormat.ICO: (rb"\x00\x00\x01\x00", "ico"),
    FileFormat.JPEG_XL: (rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    FileFormat.PSD: (rb"8BPS\x00[\x01\x02]", "psd"),
}
_SIGNATURES = [
    (re.compile(signature, re.DOTALL), file_format)
    for file_format, (signature, _) in _FORMATS.items()
]
_FORMATS_BY_EXTENSION = {
    f".{extension}": file_format
    for file_format, (_, extensions) in _FORMATS.items()
    for extension in extensions.split()
}


def sniff_format(data: bytes) -> FileFormat | None:
    """Returns the format of an image file by its first bytes; None if it is not a known one."""
    for signature, file_format in _SIGNATURES:
        if signature.match(data):
            return file_format
    return None


def claimed_format(name: str) -> FileFormat | None:
    """Returns the format that a file's extension claims; None if it claims none."""
    return _FORMATS_BY_EXTENSION.get(posixpath.splitext(name)[1].lower())


def usual_extension(file_format: FileFormat) -> str:
    """Returns the usual extension of a format's files, with its dot."""
    _, extensions = _FORMATS[file_format]
    return f".{extensions.split()[0]}"


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
