"""What a stored value says of itself as an image, without decoding it."""

from __future__ import annotations

from typing import NamedTuple

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.images.header import ImageHeader
from shardbeam.transforms.images.jpeg import scan_jpeg
from shardbeam.transforms.images.png import scan_png
from shardbeam.transforms.images.sniff import FileFormat, sniff_format

_SCANS = {FileFormat.JPEG: scan_jpeg, FileFormat.PNG: scan_png}


class StoredImage(NamedTuple):
    """An image by its first bytes.

    Attributes:
        format: Its format.
        header: What its header says; None for formats other than JPEG and PNG, and where it
            cannot be read.
    """

    format: FileFormat
    header: ImageHeader | None


def recognize_image(data: bytes) -> StoredImage | None:
    """Describes an image; None for what is none."""
    file_format = sniff_format(data)
    if file_format is None:
        return None
    scan = _SCANS.get(file_format)
    try:
        return StoredImage(file_format, scan and scan(data, complete=False))
    except RejectedError:
        return StoredImage(file_format, None)
