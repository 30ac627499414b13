"""TFRecord files: each record is a length, its checksum, the data, and its checksum.

Format: `u64le length, u32le masked_crc32c(length), data, u32le masked_crc32c(data)`
(tensorflow/core/lib/io/record_writer.h).
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import google_crc32c

from shardbeam.transforms.containers.base import (
    ChecksummedFile,
    Container,
    ExampleParts,
    ExampleSchema,
    WriteExample,
    compressed_with,
)
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import DamagedError, reading
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Bytes that the framing adds to a record.
OVERHEAD_BYTES = 16
_HEADER = struct.Struct("<QI")
# Bytes before a record's data.
HEADER_BYTES = _HEADER.size
_FOOTER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
# Enough for an image or two, so that an object store needs few requests.
_BUFFER_BYTES = 1 << 20
# A long record is read in parts of this size, so that it is not in memory twice.
_PART_BYTES = 64 << 20
_ZEROS = bytes(1 << 16)
# {compression: what undoes it}
_DECOMPRESS = {"gzip": "gunzip", "zlib": "`zlib.decompress` of Python"}
# Usual names of TFRecord files; a shard's number comes before or after the extension.
SHARD_NUMBER = re.compile(r"-(\d+)-of-(\d+)")
TFRECORD_EXTENSION = re.compile(r"\.(tfrecords?|tfrecs?|records?)(\.gz)?$", re.IGNORECASE)


class TFRecord(Container):
    """TFRecord files; a record's place is the byte where it begins."""

    suffix = ".tfrecord"
    tfds_name = "tfrecord"
    recipe = (
        "import tensorflow_datasets as tfds\n\n"
        'builder = tfds.builder_from_directory("path/to/this/folder")\n'
        "dataset = builder.as_dataset(split={split})"
    )

    @contextlib.contextmanager
    def writer(self, file: ChecksummedFile, *, schema: ExampleSchema) -> Iterator[WriteExample]:
        """Returns a function that writes serialized Examples to a file."""

        def write(example: ExampleParts) -> int:
            offset = file.size_bytes
            header, footer = frame(example.size_bytes, crc32c=example.crc32c)
            file.write(header, *example.chunks, footer)
            return offset

        yield write

    def read(
        self, file: StoredFile, *, start: int = 0, see: Callable[[bytes], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields the records, and fetches only what they need."""
        offset = start
        stored = _StoredFileReader(file, start=start, see=see)
        with reading(file.uri), io.BufferedReader(stored, buffer_size=_BUFFER_BYTES) as reader:
            try:
                head = reader.peek(2)
                for record in read_records(reader, start=start):
                    yield offset, record
                    offset += OVERHEAD_BYTES + len(record)
            except ValueError as error:
                # The length of a valid record may begin with the same bytes.
                compression = compressed_with(head) if offset == 0 else ""
                if compression:
                    undo = _DECOMPRESS[compression]
                    problem = f"compressed with {compression}; decompress it first ({undo})"
                    raise DamagedError(uri=file.uri, problem=problem) from error
                place, _, problem = str(error).partition(": ")
                if offset == 0:
                    problem = f"not a TFRecord file, or a damaged one: {problem}"
                raise DamagedError(uri=file.uri, place=place, problem=problem) from error

    def checksum(self, records: Iterable[tuple[int, int]]) -> int:
        """Computes the CRC-32C of a file from the length and the CRC-32C of each of its records."""
        checksum = 0
        for size_bytes, crc32c in records:
            header, footer = frame(size_bytes, crc32c=crc32c)
            checksum = google_crc32c.extend(checksum, header)
            checksum = _append(checksum, size_bytes=size_bytes, crc32c=crc32c)
            checksum = google_crc32c.extend(checksum, footer)
        return checksum

    def describe_place(self, place: int) -> str:
        """Returns "byte" and its number."""
        return f"byte {place}"


CONTAINER = TFRecord()


def is_tfrecord_name(name: str) -> bool:
    """Returns whether a file has a usual name of TFRecord files; `name` is without folders."""
    unnumbered = SHARD_NUMBER.sub("", name, count=1)
    if TFRECORD_EXTENSION.search(unnumbered):
        return True
    # Numbered files of other kinds have another extension (.parquet, .csv).
    return unnumbered != name and "." not in unnumbered


def is_tfrecord_head(data: bytes) -> bool:
    """Returns whether a file with these first bytes begins like a TFRecord file."""
    if len(data) < _HEADER.size:
        return False
    _, length_crc = _HEADER.unpack_from(data)
    return _masked(google_crc32c.value(data[: _LENGTH.size])) == length_crc


def frame(size_bytes: int, *, crc32c: int) -> tuple[bytes, bytes]:
    """Returns the bytes before and after a record with a given length and CRC-32C."""
    return frame_header(size_bytes), _FOOTER.pack(_masked(crc32c))


def frame_header(size_bytes: int) -> bytes:
    """Returns the bytes before a record with a given length."""
    return _HEADER.pack(size_bytes, _masked(google_crc32c.value(_LENGTH.pack(size_bytes))))


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _append(checksum: int, *, size_bytes: int, crc32c: int) -> int:
    """Returns the CRC-32C of data that is followed by other data of a given length and CRC-32C."""
    # CRCs are linear: the checksum of the data and zeros, less that of the zeros alone, is what the
    # data contributes.
    zeros = 0
    for begin in range(0, size_bytes, len(_ZEROS)):
        part = _ZEROS[: size_bytes - begin]
        checksum = google_crc32c.extend(checksum, part)
        zeros = google_crc32c.extend(zeros, part)
    return checksum ^ zeros ^ crc32c


def read_records(file: BinaryIO, *, start: int = 0) -> Iterator[bytes]:
    """Yields the records of a TFRecord file from byte `start` on, where a record begins.

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
    """A stored file as a stream that fetches only the bytes that are read."""

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
        counters.shard_bytes.add(len(data))
        return len(data)
