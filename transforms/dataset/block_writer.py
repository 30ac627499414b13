"""Writing a large file in blocks, and digesting it, beside the thread that makes its content."""

from __future__ import annotations

import hashlib
import mmap
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self

# A multiple of any page size, so that storages can take a block from where it lies.
_BLOCK_BYTES = 2 << 20
# One is filled and digested while another is written.
_BLOCKS = 2
# Blocks' worth of chunks that wait to be copied.
_MAX_WAITING = 2


class BlockWriter:
    """Writes chunks to a file, and knows its size and checksums.

    All that is long is done in two threads, a block at a time and without the interpreter: one
    puts chunks together into blocks and digests these, one writes them. What does not fill a
    block, all of a small file, is written when the context ends well.

    Args:
        file: A new file. Blocks of 2 MiB, at addresses of whole pages, come to it first.

    Attributes:
        size_bytes: Length of all chunks so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._crc32c = 0
        self._sha256 = hashlib.sha256()
        self._chunks: list[bytes] = []
        self._chunks_bytes = 0
        self._waiting: deque[Future[None]] = deque()
        self._block: mmap.mmap | None = None
        self._filled_bytes = 0
        self._written: deque[tuple[mmap.mmap, Future[int]]] = deque()
        # A single thread each keeps the order.
        self._filler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fill")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write")
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._filler.shutdown(cancel_futures=True)
            self._writer.shutdown(cancel_futures=True)

    def write(self, *chunks: bytes) -> None:
        """Appends chunks.

        Args:
            chunks: They are held until they are written.

        Raises:
            OSError: What came before could not be written.
        """
        size_bytes = sum(map(len, chunks))
        self.size_bytes += size_bytes
        self._chunks += chunks
        self._chunks_bytes += size_bytes
        if self._chunks_bytes >= _BLOCK_BYTES:
            if len(self._waiting) == _MAX_WAITING:
                self._waiting.popleft().result()
            self._waiting.append(self._filler.submit(self._fill, self._chunks))
            self._chunks = []
            self._chunks_bytes = 0

    @property
    def crc32c(self) -> str:
        """CRC-32C of all chunks, as 8 hex digits; once the context has ended."""
        return f"{self._crc32c:08x}"

    @property
    def sha256(self) -> str:
        """SHA-256 of all chunks, hex; once the context has ended."""
        return self._sha256.hexdigest()

    def _fill(self, chunks: Iterable[bytes]) -> None:
        # Joining so many bytes needs no interpreter, nor does digesting them, nor copying arrays.
        data = b"".join(chunks)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        rest = np.frombuffer(data, dtype=np.uint8)
        while rest.size:
            if self._block is None:
                self._block = self._take_block()
            block = np.frombuffer(self._block, dtype=np.uint8)[self._filled_bytes :]
            taken = min(block.size, rest.size)
            block[:taken] = rest[:taken]
            rest = rest[taken:]
            self._filled_bytes += taken
            if self._filled_bytes == _BLOCK_BYTES:
                written = self._writer.submit(self._file.write, self._block)
                self._sha256.update(self._block)
                self._written.append((self._block, written))
                self._block = None
                self._filled_bytes = 0

    def _take_block(self) -> mmap.mmap:
        if len(self._written) < _BLOCKS:
            return mmap.mmap(-1, _BLOCK_BYTES)
        block, written = self._written.popleft()
        written.result()
        return block

    def _finish(self) -> None:
        for waiting in self._waiting:
            waiting.result()
        self._fill(self._chunks)
        for _, written in self._written:
            written.result()
        if self._block is not None:
            rest = memoryview(self._block)[: self._filled_bytes]
            self._file.write(rest)
            self._sha256.update(rest)
