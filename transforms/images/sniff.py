"""Telling an image's format from its first bytes, and from its name."""

from __future__ import annotations

import enum
import posixpath
import re


class FileFormat(str, enum.Enum):
    """The image formats that are known by their first bytes, whether they can be read or not."""

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


_SIGNATURES = (
    (re.compile(rb"\xff\xd8\xff"), FileFormat.JPEG),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), FileFormat.PNG),
    (re.compile(rb"GIF8[79]a"), FileFormat.GIF),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), FileFormat.WEBP),
    # "BM" alone also begins texts: the header's length, below 256, tells them apart.
    (re.compile(rb"BM.{13}\0\0\0", re.DOTALL), FileFormat.BMP),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), FileFormat.TIFF),
    (re.compile(rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"), FileFormat.JPEG_2000),
    # `mif1` says only "an image of any codec"; the compatible brands that follow say which.
    (re.compile(rb"....ftyp(avi[fs]|m[is]f1.{0,40}?avi[fs])", re.DOTALL), FileFormat.AVIF),
    (re.compile(rb"....ftyp(he[iv][cxms]|m[is]f1)", re.DOTALL), FileFormat.HEIC),
    (re.compile(rb"P[1-6][\s#]"), FileFormat.PNM),
    (re.compile(rb"\x00\x00\x01\x00"), FileFormat.ICO),
    (re.compile(rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n"), FileFormat.JPEG_XL),
    (re.compile(rb"8BPS\x00[\x01\x02]"), FileFormat.PSD),
)

# `.heif` is not here: such a file may hold HEIC or AVIF.
_EXTENSIONS = {
    FileFormat.JPEG: "jpg jpeg jpe jfif jfi jif pjpeg pjpg pjp mpo jps",
    FileFormat.PNG: "png apng",
    FileFormat.GIF: "gif",
    FileFormat.WEBP: "webp",
    FileFormat.BMP: "bmp dib",
    FileFormat.TIFF: "tif tiff",
    FileFormat.JPEG_2000: "jp2 j2k j2c jpc jpf jpx",
    FileFormat.AVIF: "avif avifs",
    FileFormat.PNM: "pnm pbm pgm ppm",
    FileFormat.ICO: "ico",
    FileFormat.HEIC: "heic",
    FileFormat.JPEG_XL: "jxl",
    FileFormat.PSD: "psd",
}
_FORMATS_BY_EXTENSION = {
    f".{extension}": file_format
    for file_format, extensions in _EXTENSIONS.items()
    for extension in extensions.split()
}


def sniff_format(data: bytes) -> FileFormat | None:
    """Tells the format of an image file from its first bytes; None for no known image."""
    for signature, file_format in _SIGNATURES:
        if signature.match(data):
            return file_format
    return None


def claimed_format(name: str) -> FileFormat | None:
    """Tells which format a file's name claims; None where its extension claims none."""
    return _FORMATS_BY_EXTENSION.get(posixpath.splitext(name)[1].lower())
