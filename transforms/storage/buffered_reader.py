"""A seekable file over storage, which makes few large reads instead of many small ones."""

from __future__ import annotations

import errno
import os

from shardbeam.transforms.core.errors import InputError, unreadable
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.base import ChangedError
from shardbeam.transforms.storage.find import storage_for

# Transferring this many bytes takes about as long as starting a read: on local disk, and remotely.
_LOCAL_BLOCK_BYTES = 64 << 10
_REMOTE_BLOCK_BYTES = 8 << 20


class StorageReader:
    """A seekable, read-only file over a stored file, or over a byte range of one.

    It keeps the block that it fetched last: reading forward in small steps costs one request a
    block, and skipped blocks are not fetched. Threads must not share a reader.

    Args:
        file: The file, or a byte range of a container.
        block_bytes: The least bytes to read at a time; by default 64 KB on local disk and 8 MB
            elsewhere.

    Raises:
        ValueError: `file` is a member of a zip archive, whose range of bytes is not known.

    Attributes:
        file: The file that it reads.
    """

    def __init__(self, file: ImageRef, *, block_bytes: int | None = None) -> None:
        if file.header_bytes or file.coding is Coding.DEFLATED:
            raise ValueError(f"{file.uri}: read a member of a zip archive with read_bytes")
        self.file = file
        self._storage = storage_for(file.uri)
        default = _REMOTE_BLOCK_BYTES if self._storage.is_remote else _LOCAL_BLOCK_BYTES
        self._block_bytes = block_bytes or default
        self._block = b""
        self._block_begin = 0
        self._position = 0

    @property
    def uri(self) -> str:
        """The stored file that holds the bytes."""
        return self.file.uri

    @property
    def size_bytes(self) -> int:
        """Length of `file`."""
        return self.file.size_bytes

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Reads a range; returns less if the file ends before.

        Args:
            offset: The first byte.
            size_bytes: How many bytes to read.

        Raises:
            InputError: The file cannot be read, or has changed since it was listed.
        """
        size_bytes = min(size_bytes, self.size_bytes - offset)
        if size_bytes <= 0:
            return b""
        begin = offset - self._block_begin
        if not 0 <= begin <= len(self._block) - size_bytes:
            self._block = self._fetch(offset, max(size_bytes, self._block_bytes))
            self._block_begin = offset
            begin = 0
        return self._block[begin : begin + size_bytes]

    def _fetch(self, offset: int, size_bytes: int) -> bytes:
        size_bytes = min(size_bytes, self.size_bytes - offset)
        try:
            data = self._storage.read(
                self.uri,
                offset=self.file.offset + offset,
                size_bytes=size_bytes,
                version=self.file.version,
            )
        except (ChangedError, FileNotFoundError) as error:
            raise self._changed() from error
        except OSError as error:
            raise unreadable(self.uri, error) from error
        if len(data) < size_bytes:
            raise self._changed()
        return data

    def _changed(self) -> InputError:
        return InputError(
            uri=self.uri,
            problem="the file was changed while it was read; run the same command again",
        )

    @property
    def closed(self) -> bool:
        """Never: no file stays open between reads. pyarrow asks before each."""
        return False

    def close(self) -> None:
        """Does nothing."""

    def tell(self) -> int:
        """Returns the position of the next `read`."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position of the next `read`.

        Raises:
            OSError: The new position is before the beginning.
        """
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size_bytes: int = -1, /) -> bytes:
        """Reads from the current position, by default up to the end, and moves the position."""
        if size_bytes < 0:
            size_bytes = max(0, self.size_bytes - self._position)
        data = self.read_at(self._position, size_bytes)
        self._position += len(data)
        return data
