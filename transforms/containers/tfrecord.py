"""TFRecord framing: a length, its checksum, the data, its checksum.

Format: `u64le length, u32le masked_crc32c(length), data, u32le masked_crc32c(data)`
(tensorflow/core/lib/io/record_writer.h).
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

import google_crc32c

from shardbeam.transforms.containers.base import ChecksummedFile, Container, WriteRecord
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What framing adds to a record, in bytes.
OVERHEAD_BYTES = 16
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
# An image or two at a time, and few requests to an object store.
_BUFFER_BYTES = 1 << 20
# A long record is read into its place in parts, and not a second time beside it.
_PART_BYTES = 64 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class TFRecord(Container):
    """TFRecord files; a record's place is the byte where it begins."""

    suffix = ".tfrecord"
    tfds_name = "tfrecord"

    @contextlib.contextmanager
    def writer(self, file: ChecksummedFile) -> Iterator[WriteRecord]:
        """Gives the function that writes records to a file; see the base class."""

        def write(chunks: Sequence[bytes], crc32c: int) -> int:
            offset = file.size_bytes
            header, footer = frame(sum(map(len, chunks)), crc32c=crc32c)
            file.write(header, *chunks, footer)
            return offset

        yield write

    def read(
        self, file: StoredFile, *, start: int = 0, see: Callable[[bytes], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields the records, fetching no further than is asked for; see the base class."""
        offset = start
        stored = _StoredFileReader(file, start=start, see=see)
        with io.BufferedReader(stored, buffer_size=_BUFFER_BYTES) as reader:
            try:
                magic = reader.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)]
                for record in read_records(reader, start=start):
                    yield offset, record
                    offset += OVERHEAD_BYTES + len(record)
            except OSError as error:
                problem = f"cannot be read: {error.strerror or error}"
                raise InputError(uri=file.uri, problem=problem) from error
            except ValueError as error:
                # The magic alone says nothing: a record's length may begin with the same bytes.
                if offset == 0 and magic == _GZIP_MAGIC:
                    problem = "compressed with gzip; decompress it first (gunzip)"
                    raise DamagedError(uri=file.uri, problem=problem) from error
                place, _, problem = str(error).partition(": ")
                if offset == 0:
                    problem = f"not a TFRecord file, or a damaged one: {problem}"
                raise DamagedError(uri=file.uri, place=place, problem=problem) from error

    def describe_place(self, place: int) -> str:
        """Names the byte; see the base class."""
        return f"byte {place}"


CONTAINER = TFRecord()


def frame(size_bytes: int, *, crc32c: int) -> tuple[bytes, bytes]:
    """Returns what stands before and after a record of known length and CRC-32C."""
    length = _LENGTH.pack(size_bytes)
    length_crc32c = _masked(google_crc32c.value(length))
    return length + _FOOTER.pack(length_crc32c), _FOOTER.pack(_masked(crc32c))


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(file: BinaryIO, *, start: int = 0) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, of which the first begins at byte `start`.

    Raises:
        ValueError: The file is cut off or damaged, or a record does not fit into memory; the
            message gives the byte offset.
    """
    offset = start
    while header := file.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise ValueError(f"byte {offset}: cut off within a record's header")
        length, length_crc = _HEADER.unpack(header)
        if _masked(google_crc32c.value(header[: _LENGTH.size])) != length_crc:
            raise ValueError(f"byte {offset}: the checksum of a record's length does not match")
        try:
            if length > limits.RECORD_BYTES:
                raise OverflowError
            data = file.read(length)
        except (MemoryError, OverflowError) as error:
            raise ValueError(f"byte {offset}: a record of {length} bytes is too long") from error
        footer = file.read(_FOOTER.size)
        if len(data) < length or len(footer) < _FOOTER.size:
            raise ValueError(f"byte {offset}: cut off within a record of {length} bytes")
        if _masked(google_crc32c.value(data)) != _FOOTER.unpack(footer)[0]:
            raise ValueError(f"byte {offset}: the checksum of a record's data does not match")
        yield data
        offset += OVERHEAD_BYTES + length


class _StoredFileReader(io.RawIOBase):
    """A file in any storage as a stream, of which no more is fetched than is read."""

    def __init__(
        self, file: StoredFile, *, start: int, see: Callable[[bytes], None] | None
    ) -> None:
        self._file = file
        self._storage = storage_for(file.uri)
        self._position = start
        self._see = see

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        data = self._storage.read(
            self._file.uri,
            offset=self._position,
            size_bytes=max(0, min(len(view), _PART_BYTES, self._file.size_bytes - self._position)),
        )
        view[: len(data)] = data
        self._position += len(data)
        if self._see is not None:
            self._see(data)
        return len(data)
