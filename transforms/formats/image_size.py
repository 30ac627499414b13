"""Reads the size of an image from its header."""

from __future__ import annotations

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.formats.parsing.root_files import find_file
from shardbeam.transforms.images.jpeg import scan_jpeg
from shardbeam.transforms.images.png import scan_png
from shardbeam.transforms.images.sniff import FileFormat, sniff_format
from shardbeam.transforms.storage.image_bytes import read_bytes

_SCANS = {FileFormat.JPEG: scan_jpeg, FileFormat.PNG: scan_png}
# A longer file is not read for its size.
_MAX_BYTES = 64 << 20


def stored_sizes(uri: str) -> list[tuple[int, int]]:
    """Returns the sizes of a JPEG or PNG file in pixels, `(width, height)`.

    A photo that has to be turned has two sizes: as it is stored, and upright. Empty if the file is
    missing, cannot be read or has another format.
    """
    try:
        file = find_file(uri)
        data = b"" if file is None else read_bytes(file, max_bytes=_MAX_BYTES)
        file_format = sniff_format(data)
        scan = None if file_format is None else _SCANS.get(file_format)
        if scan is None:
            return []
        header = scan(data, complete=False)
    except (InputError, RejectedError):
        return []
    size = header.width, header.height
    return [size, size[::-1]] if header.is_sideways else [size]
