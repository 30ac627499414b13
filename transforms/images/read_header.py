"""Reads the format and the header of an image."""

from __future__ import annotations

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.images.header import FileFormat, ImageHeader, sniff_format
from shardbeam.transforms.images.jpeg import scan_jpeg
from shardbeam.transforms.images.png import scan_png

_SCANS = {FileFormat.JPEG: scan_jpeg, FileFormat.PNG: scan_png}


def recognize_image(data: bytes) -> tuple[FileFormat, ImageHeader | None] | None:
    """Describes an image by its first bytes; None if the data is not an image.

    Returns:
        Its format and its header; the header is None for formats other than JPEG and PNG, and if
        it cannot be read.
    """
    file_format = sniff_format(data)
    if file_format is None:
        return None
    scan = _SCANS.get(file_format)
    try:
        return file_format, scan and scan(data, complete=False)
    except RejectedError:
        return file_format, None
