"""Reads from the middle of gzip files, which each process first unpacks into a temporary file."""

from __future__ import annotations

import functools
import gzip
import threading
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.buffered_reader import StorageReader
from shardbeam.transforms.storage.disk_file import write_copy
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import read_at

GZIP_MAGIC = b"\x1f\x8b"
_GZIP_PART_BYTES = 1 << 20
# Copies that a process keeps; they have no names, and end with the process.
_COPIES = 4
# Threads wait for the first one that unpacks a file.
_lock = threading.Lock()


def read_head(file: ImageRef, *, size_bytes: int) -> bytes:
    """Reads the first bytes of a gzip file's content.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    return next(_unpack_parts(file, part_bytes=size_bytes), b"")


def read_unpacked(file: ImageRef, *, offset: int, size_bytes: int) -> bytes:
    """Reads a range of a gzip file's content.

    Args:
        file: The gzip file, or a range of its content. `decoded_bytes` is the content's length.
        offset: The first byte.
        size_bytes: How many bytes to read.

    Raises:
        InputError: The file cannot be read, is damaged, or holds more or fewer bytes; or the folder
            of temporary files has no room for them.
    """
    with _lock:
        copy = _unpack(file.uri, file.version, file.decoded_bytes)
    return read_at(copy.fileno(), offset, size_bytes)


@functools.lru_cache(maxsize=_COPIES)
def _unpack(uri: str, version: str, size_bytes: int) -> BinaryIO:
    if size_bytes > limits.GZIP_BYTES:
        raise InputError(
            uri=uri,
            problem=f"holds {size_bytes:,} bytes, and more than {limits.GZIP_BYTES:,} are not "
            "unpacked on the way: decompress it first: gunzip",
        )
    stored = storage_for(uri).find(uri)
    file = ImageRef(uri=uri, size_bytes=stored.size_bytes, version=version)
    content = msgspec.structs.replace(stored, size_bytes=size_bytes)
    return write_copy(content, _check_length(file, size_bytes=size_bytes))


def _check_length(file: ImageRef, *, size_bytes: int) -> Iterator[bytes]:
    found = 0
    for part in _unpack_parts(file):
        found += len(part)
        # A file that announces less than it holds could fill the disk.
        if found > size_bytes:
            break
        yield part
    if found != size_bytes:
        raise InputError(
            uri=file.uri,
            problem=f"its header announces {size_bytes:,} bytes, but it holds "
            f"{'more' if found > size_bytes else f'{found:,}'}: the file is damaged",
        )


def _unpack_parts(file: ImageRef, *, part_bytes: int = _GZIP_PART_BYTES) -> Iterator[bytes]:
    """Yields the content of a gzip file, and checks its checksum at the end."""
    try:
        with gzip.GzipFile(fileobj=cast(BinaryIO, StorageReader(file))) as unpacked:
            while part := unpacked.read(part_bytes):
                yield part
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            uri=file.uri, problem=f"cannot be decompressed: {error}; download it again"
        ) from error
