"""Recognizes an image's format by its first bytes, and by its name."""

from __future__ import annotations

import enum
import posixpath
import re


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
