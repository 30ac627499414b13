"""An image's format, by its first bytes and by its name, and its header in one form."""

from __future__ import annotations

import enum
import posixpath
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason


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


# Reads the header of PNG files, chunk by chunk.
#
# Source: W3C Portable Network Graphics (PNG) Specification (Third Edition).

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
