"""Pointer files: one line that names the folder of a dataset's latest version."""

from __future__ import annotations

import re

from shardbeam.transforms.core.errors import InputError, reading
from shardbeam.transforms.storage.base import StoredFile, is_uri
from shardbeam.transforms.storage.find import storage_for

_MAX_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def write_pointer(uri: str, *, folder: str) -> None:
    """Makes a pointer name a folder, in one step: readers see the old name or the new one.

    Args:
        uri: The pointer.
        folder: A committed dataset: an absolute path or a URI.
    """
    storage_for(uri).replace(uri, f"{folder}\n".encode(), scratch=f"{uri}.new")


def read_pointer(uri: str) -> str | None:
    """Returns the folder that a pointer names; None where there is no file.

    Raises:
        InputError: The file is not a pointer, or cannot be read.
    """
    with reading(uri):
        try:
            data = storage_for(uri).read(uri, size_bytes=_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
    folder = decode_pointer(data)
    if folder is None:
        raise InputError(
            uri=uri,
            problem="is not a pointer (one line with the absolute path or URI of a dataset's "
            "folder), and would be replaced by one; choose another path",
        )
    return folder


def pointed_folder(file: StoredFile) -> str | None:
    """Returns the folder that a pointer names; None for other files. Skips long files."""
    if not _may_be_pointer(file.size_bytes):
        return None
    return decode_pointer(storage_for(file.uri).read(file.uri, size_bytes=_MAX_BYTES + 1))


def _may_be_pointer(size_bytes: int) -> bool:
    return 0 < size_bytes <= _MAX_BYTES


def decode_pointer(data: bytes) -> str | None:
    """Returns the folder that the content of a pointer names; None if it is not a pointer."""
    if not _may_be_pointer(len(data)):
        return None
    try:
        # An editor on Windows may have added a carriage return.
        line = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        return None
    # A TFRecord begins with its length, which has a zero byte: it does not look like a pointer.
    if _CONTROL.search(line) or not (line.startswith("/") or is_uri(line)):
        return None
    return line
