"""Reads the Examples of a shard, and finds where their images are."""

from __future__ import annotations

import mmap
import os
import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, TypeAlias

from shardbeam.transforms.containers.base import Container, find_container, parse_example
from shardbeam.transforms.containers.tfrecord import HEADER_BYTES
from shardbeam.transforms.core.errors import DamagedError, InputError, naming, unreadable
from shardbeam.transforms.core.memory import TEMPORARY_PREFIX
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.formats.tfrecord_layout import TFRECORD, how_to_convert
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

_FIX = "copy or make the file again, or leave it out"
# Unpacked again, a file has the same time, so that it is the same version.
_UNPACKED_NS = 10**18


# (value, key)
Locate: TypeAlias = Callable[[bytes, str], tuple[StoredFile, int]]
# (place, record, function)
_Located: TypeAlias = tuple[int, bytes, Locate]


class FoundExample(NamedTuple):
    """An Example of a file.

    Attributes:
        number: Its number in the file, from 0.
        offset: Its place in its container: for TFRecord the byte where its record begins.
        record: The serialized Example.
        example: The Example.
        place: Its place in words.
        locate: Returns the file that holds a value of a key of the Example, and the byte where it
            begins.
    """

    number: int
    offset: int
    record: bytes
    example: Example
    place: str
    locate: Locate


def read_examples(
    file: StoredFile,
    *,
    container: str = TFRECORD,
    unpack_into: str = "",
    see: Callable[[bytes], None] | None = None,
) -> Iterator[FoundExample]:
    """Yields the Examples of a shard, after comparing the checksum of each, or of the file.

    Args:
        file: The file.
        container: Its container.
        unpack_into: A folder on disk, where the records of a container that does not store images
            in one piece are written.
        see: Called with all bytes of the file, in order.

    Raises:
        InputError: The file cannot be read, is truncated, damaged or compressed, is no file of
            Examples in this container, or does not hold an image in one piece.
    """
    reader = find_container(container)
    if container == TFRECORD:
        records = _read_tfrecord(file, reader=reader, see=see)
    elif reader.stores_images:
        records = _read_copied(file, reader=reader, see=see)
    else:
        records = _unpack(file, reader=reader, folder=unpack_into, see=see)
    try:
        for number, (offset, record, locate) in enumerate(records):
            place = reader.describe_place(offset)
            if container == TFRECORD:
                place = f"record {number:,}, byte {offset:,}"
            example = parse_example(record, uri=file.uri, place=place)
            yield FoundExample(number, offset, record, example, place, locate)
    except DamagedError as error:
        fix = "" if "gunzip" in error.problem else f"; {_FIX}"
        raise InputError(uri=error.uri, place=error.place, problem=error.problem + fix) from error


def _read_tfrecord(
    file: StoredFile, *, reader: Container, see: Callable[[bytes], None] | None
) -> Iterator[_Located]:
    for offset, record in reader.read(file, see=see):
        yield offset, record, _in_record(file, offset + HEADER_BYTES, record)


def _in_record(file: StoredFile, begin: int, record: bytes) -> Locate:
    # A value of an Example is one run of bytes of its record. Wherever the first such run is, it
    # holds the same bytes.
    return lambda data, _: (file, begin + record.index(data))


def _read_copied(
    file: StoredFile, *, reader: Container, see: Callable[[bytes], None] | None
) -> Iterator[_Located]:
    """Copies a file while it is read, and searches the values of its Examples in the copy."""
    values: _Values | None = None
    with tempfile.TemporaryFile(prefix=TEMPORARY_PREFIX) as copy:

        def see_and_copy(data: bytes) -> None:
            with naming(tempfile.gettempdir()):
                copy.write(data)
            if see is not None:
                see(data)

        for offset, record in reader.read(file, see=see_and_copy):
            if values is None:
                with naming(tempfile.gettempdir()):
                    copy.flush()
                    values = _Values(file, copy)
            yield offset, record, values.locate


class _Values:
    """Finds the values of a file's Examples.

    The values of a key follow each other in the order of the Examples, so that a search begins
    where the one before has ended. Wherever a value is found, it holds the same bytes.

    Args:
        file: The file.
        copy: A copy of it, which may be closed after this.
    """

    def __init__(self, file: StoredFile, copy: IO[bytes]) -> None:
        self._file = file
        self._bytes = mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)
        # {key: the byte after its last value}
        self._next: dict[str, int] = {}

    def locate(self, data: bytes, key: str) -> tuple[StoredFile, int]:
        """Finds a value, as `FoundExample.locate` does.

        Raises:
            InputError: The file does not hold it in one piece.
        """
        begin = self._bytes.find(data, self._next.get(key, 0))
        if begin < 0:
            begin = self._bytes.find(data)
        if begin < 0:
            raise InputError(
                uri=self._file.uri,
                problem=f"does not hold the values of {key} in one piece, so that they cannot be "
                f"read where they lie; {how_to_convert(self._file.uri)}",
            )
        self._next[key] = begin + len(data)
        return self._file, begin


def _unpack(
    file: StoredFile,
    *,
    reader: Container,
    folder: str,
    see: Callable[[bytes], None] | None,
) -> Iterator[_Located]:
    """Writes all records of a file into one file, and yields them then."""
    path = os.path.join(folder, posixpath.basename(file.uri))
    part = f"{path}.{uuid.uuid4().hex}"
    records = []
    with naming(part), open(part, "xb") as unpacked:
        for offset, record in reader.read(file, see=see):
            records.append((offset, unpacked.tell(), len(record)))
            unpacked.write(record)
        os.utime(part, ns=(_UNPACKED_NS, _UNPACKED_NS))
    os.replace(part, path)
    stored = find_file(path)
    with naming(path), open(path, "rb") as unpacked:
        for offset, begin, size_bytes in records:
            record = unpacked.read(size_bytes)
            yield offset, record, _in_record(stored, begin, record)


def find_file(uri: str) -> StoredFile:
    """Finds a file that was listed.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return storage_for(uri).find(uri)
    except OSError as error:
        raise unreadable(uri, error) from error
