"""Reading a stored file here and there: a few large reads instead of many small ones."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.base import ChangedError
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A read costs about as much as this many bytes: on a local disk, and where it is a request.
_LOCAL_BLOCK_BYTES = 64 << 10
_REMOTE_BLOCK_BYTES = 8 << 20


class StorageReader(io.RawIOBase):
    """A seekable, read-only file over the ranges of a stored file.

    It keeps one block, the last that was read: reads forward through a file, near each other,
    cost one request a block, and what is skipped is not read. A reader belongs to one thread.

    Args:
        file: What to read; a byte range of a container is a file of its own.
        block_bytes: How much is read at a time at least; by default 64 KB on local disk and
            8 MB elsewhere.

    Raises:
        ValueError: `file` is a member of a zip archive: its bytes are not known to be a range.
    """

    def __init__(self, file: ImageRef, *, block_bytes: int | None = None) -> None:
        super().__init__()
        if file.header_bytes or file.coding is Coding.DEFLATED:
            raise ValueError(f"{file.uri}: a zip's member is read with read_bytes")
        self._file = file
        self._storage = storage_for(file.uri)
        default = _REMOTE_BLOCK_BYTES if self._storage.is_remote else _LOCAL_BLOCK_BYTES
        self._block_bytes = block_bytes or default
        self._block = b""
        self._block_begin = 0
        self._position = 0

    @property
    def uri(self) -> str:
        """The stored file."""
        return self._file.uri

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self._file.size_bytes

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Reads a range; less where the file ends before.

        Args:
            offset: Where to begin.
            size_bytes: How much to read.

        Raises:
            InputError: The file cannot be read, or is not what was listed any more.
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
                offset=self._file.offset + offset,
                size_bytes=size_bytes,
                version=self._file.version,
            )
        except (ChangedError, FileNotFoundError) as error:
            raise self._changed() from error
        except OSError as error:
            raise InputError(
                uri=self.uri, problem=f"cannot be read: {error.strerror or error}"
            ) from error
        if len(data) < size_bytes:
            raise self._changed()
        return data

    def _changed(self) -> InputError:
        return InputError(
            uri=self.uri, problem="the file was changed while it was being read; start again"
        )

    def readable(self) -> bool:
        """Says yes."""
        return True

    def seekable(self) -> bool:
        """Says yes."""
        return True

    def tell(self) -> int:
        """Returns where the next `read` begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves to where the next `read` begins; see `io.IOBase`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Buffer, /) -> int:
        """Reads into a buffer; see `io.RawIOBase`."""
        view = memoryview(buffer).cast("B")
        data = self.read_at(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
