"""Reads the Examples of a TFRecord file, with their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardbeam.transforms.containers.base import parse_example
from shardbeam.transforms.containers.tfrecord import CONTAINER
from shardbeam.transforms.core.errors import DamagedError, InputError, unreadable
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

_FIX = "copy or make the file again, or leave it out"


class FoundExample(NamedTuple):
    """An Example of a file.

    Attributes:
        number: Its number in the file, from 0.
        offset: The byte where its record begins.
        record: The serialized Example.
        example: The Example.
    """

    number: int
    offset: int
    record: bytes
    example: Example

    @property
    def place(self) -> str:
        """Its place in words."""
        return f"record {self.number:,}, byte {self.offset:,}"


def read_examples(
    file: StoredFile, *, see: Callable[[bytes], None] | None = None
) -> Iterator[FoundExample]:
    """Yields the Examples of a TFRecord file, after comparing the checksum of each.

    Args:
        file: The file.
        see: Called with all bytes of the file, in order.

    Raises:
        InputError: The file cannot be read, is truncated, damaged or compressed, or is not a
            TFRecord file of Examples.
    """
    number = 0
    try:
        for number, (offset, record) in enumerate(CONTAINER.read(file, see=see)):
            place = f"record {number:,}, byte {offset:,}"
            example = parse_example(record, uri=file.uri, place=place)
            yield FoundExample(number, offset, record, example)
    except DamagedError as error:
        fix = "" if "gunzip" in error.problem else f"; {_FIX}"
        raise InputError(uri=error.uri, place=error.place, problem=error.problem + fix) from error


def find_file(uri: str) -> StoredFile:
    """Finds a file that was listed.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return storage_for(uri).find(uri)
    except OSError as error:
        raise unreadable(uri, error) from error
