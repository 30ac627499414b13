"""Reads the size of an image from its header."""

from __future__ import annotations

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.formats.parsing.root_files import find_file
from shardbeam.transforms.images.read_header import recognize_image
from shardbeam.transforms.storage.image_bytes import read_bytes

# A longer file is not read for its size.
_MAX_BYTES = 64 << 20


def stored_sizes(uri: str) -> list[tuple[int, int]]:
    """Returns the sizes of a JPEG or PNG file; empty if the file is missing (`sizes_of`)."""
    try:
        file = find_file(uri)
    except InputError:
        return []
    return [] if file is None else sizes_of(file)


def sizes_of(file: ImageRef) -> list[tuple[int, int]]:
    """Returns the sizes of a JPEG or PNG image in pixels, `(width, height)`.

    A photo that has to be turned has two sizes: as it is stored, and upright. Empty if the image
    cannot be read or has another format.
    """
    try:
        data = read_bytes(file, max_bytes=_MAX_BYTES)
    except (InputError, RejectedError):
        return []
    _, header = recognize_image(data) or (None, None)
    if header is None:
        return []
    size = header.width, header.height
    return [size, size[::-1]] if header.is_sideways else [size]
