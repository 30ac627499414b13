"""Reads the bytes that an `ImageRef` points to, and recognizes pointers of Git LFS among them."""

from __future__ import annotations

import base64
import errno
import io
import zlib

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.archives.zip import local_header_bytes
from shardbeam.transforms.storage.base import ChangedError
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.gzip_file import read_unpacked

# Errors of the worker, not of the file.
_WORKER_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

# Bytes that are decompressed at a time.
_PART_BYTES = 1 << 20

# Git LFS leaves pointers in place of files that were not fetched; those with the usual three lines
# have about 130 bytes, and hardly any image is as short. The format:
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
LFS_POINTER_BYTES = 200
LFS_POINTER = "it is a Git LFS pointer; `git lfs pull` in its repository fetches the file itself"
_LFS_BEGINNINGS = (
    b"version https://git-lfs.github.com/spec/",
    b"version https://hawser.github.com/spec/",
)


def is_lfs_pointer(data: bytes) -> bool:
    """Whether a file, or its beginning, is a pointer of Git LFS."""
    return data.startswith(_LFS_BEGINNINGS)


def read_bytes(
    file: ImageRef,
    *,
    unreadable: Reason = Reason.IMAGE_UNREADABLE,
    max_bytes: int | None = None,
) -> bytes:
    """Reads a file, or a member of a container, and decompresses it if necessary.

    Args:
        file: The place of its bytes.
        unreadable: The reason code if it cannot be read or decompressed.
        max_bytes: The most bytes that a file of this purpose can have; None for no limit.

    Raises:
        RejectedError: It is too long, has changed since it was listed, or cannot be read.
        OSError: The worker is out of file descriptors or memory.
    """
    if file.problem:
        raise RejectedError(unreadable, file.problem)
    size_bytes = file.most_bytes
    if max_bytes is not None and size_bytes > max_bytes:
        problem = f"has {size_bytes:,} bytes; a file of this purpose has at most {max_bytes:,}"
        raise RejectedError(unreadable, problem)
    try:
        return _read_checked(file, unreadable=unreadable)
    except RejectedError:
        # The network may have damaged the bytes: the archive's CRC is the only check of a ranged
        # read. So read them once more.
        if file.whole or not storage_for(file.uri).is_remote:
            raise
        return _read_checked(file, unreadable=unreadable)


def _read_checked(file: ImageRef, *, unreadable: Reason) -> bytes:
    try:
        data = _read_member(file, unreadable=unreadable) if file.header_bytes else _read_range(file)
    except ChangedError as error:
        raise RejectedError(Reason.CHANGED_SINCE_LISTING, str(error)) from error
    except OSError as error:
        if error.errno in _WORKER_ERRNOS:
            raise
        raise RejectedError(unreadable, error.strerror or str(error)) from error
    if len(data) != file.size_bytes:
        raise RejectedError(
            Reason.CHANGED_SINCE_LISTING,
            f"listed with {file.size_bytes} bytes, read with {len(data)}",
        )
    if file.coding is Coding.DEFLATED:
        data = _inflate(data, file=file, unreadable=unreadable)
    if file.coding is Coding.BASE64:
        try:
            data = decode_base64(data)
        except ValueError as error:
            raise RejectedError(unreadable, str(error)) from error
    if file.crc32 >= 0 and zlib.crc32(data) != file.crc32:
        raise RejectedError(unreadable, "its bytes do not have the checksum that its archive gives")
    return data


def decode_base64(data: bytes) -> bytes:
    """Decodes base64.

    Raises:
        ValueError: The data is not base64.
    """
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ValueError(f"expected base64: {error}") from error


def _read_range(file: ImageRef) -> bytes:
    if file.coding is Coding.GRAY_GZIP:
        return read_unpacked(file, offset=file.offset, size_bytes=file.size_bytes)
    return storage_for(file.uri).read(
        file.uri,
        offset=file.offset,
        size_bytes=None if file.whole else file.size_bytes,
        version=file.version,
    )


def _read_member(file: ImageRef, *, unreadable: Reason) -> bytes:
    """Reads a member of a zip archive; one read is enough unless its header is unusually long."""
    storage = storage_for(file.uri)
    expected_bytes = file.header_bytes + file.size_bytes
    data = storage.read(
        file.uri, offset=file.offset, size_bytes=expected_bytes, version=file.version
    )
    begin = local_header_bytes(data)
    if begin is None:
        raise RejectedError(
            unreadable, "there is no file at the place that its archive's directory gives"
        )
    end = begin + file.size_bytes
    if end > expected_bytes == len(data):
        data += storage.read(
            file.uri,
            offset=file.offset + expected_bytes,
            size_bytes=end - expected_bytes,
            version=file.version,
        )
    return data[begin:end]


def _inflate(data: bytes, *, file: ImageRef, unreadable: Reason) -> bytes:
    decompressor = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    content = io.BytesIO()
    try:
        # In pieces, because zlib needs twice the memory of what it returns at once. Never inflate a
        # bomb: one byte more than announced is enough to recognize it.
        for offset in range(0, len(data), _PART_BYTES):
            part = data[offset : offset + _PART_BYTES]
            while part and (room := file.decoded_bytes + 1 - content.tell()):
                content.write(decompressor.decompress(part, min(room, _PART_BYTES)))
                part = decompressor.unconsumed_tail
    except zlib.error as error:
        raise RejectedError(unreadable, f"cannot be decompressed: {error}") from error
    if content.tell() != file.decoded_bytes or not decompressor.eof:
        raise RejectedError(
            unreadable,
            f"its archive announces {file.decoded_bytes} bytes, but holds more or fewer",
        )
    return content.getvalue()
