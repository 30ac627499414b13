"""Containers: kinds of files that hold many serialized Examples.

To add one, add a module to this folder with the container's name, which holds a `Container` named
`CONTAINER`. No other file has to change.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import google_crc32c

import shardbeam.transforms.containers as containers
from shardbeam.configs.nearest import did_you_mean
from shardbeam.transforms.storage.base import StoredFile

# Appends one record, given in several parts and with its CRC-32C, and returns its place: the byte
# where it begins or, in some containers, its number.
WriteRecord = Callable[[Sequence[bytes], int], int]


class ChecksummedFile:
    """A new file that keeps track of its length and its CRC-32C.

    Args:
        file: The file.

    Attributes:
        size_bytes: The bytes written so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._crc32c = 0
        self.size_bytes = 0

    def write(self, *chunks: bytes) -> None:
        """Appends data, given in one or several parts.

        Raises:
            OSError: It cannot be written.
        """
        for chunk in chunks:
            self._file.write(chunk)
            self._crc32c = google_crc32c.extend(self._crc32c, chunk)
            self.size_bytes += len(chunk)

    @property
    def crc32c(self) -> str:
        """CRC-32C of the bytes written so far, as 8 hex digits."""
        return f"{self._crc32c:08x}"


class Container(abc.ABC):
    """Writes Examples to files and reads them back. Implementations are stateless.

    Attributes:
        suffix: The part of a file's name after dataset and split, such as `.tfrecord`.
        tfds_name: Its name in TFDS, for `dataset_info.json`.
        checks_records: Whether its reader finds damage by itself; otherwise a file's size and
            CRC-32C are compared with the manifest's before it is read.
        readers: What programs read its files with, in words; empty for TFRecord files.
    """

    suffix: str
    tfds_name: str
    checks_records: bool = True
    readers: str = ""

    def versions(self) -> Mapping[str, str]:
        """Returns `{library: version}` of the libraries that decide the bytes of its files.

        Raises:
            ModuleNotFoundError: A package is not installed; the message has the command that
                installs it.
        """
        return {}

    @abc.abstractmethod
    def writer(self, file: ChecksummedFile) -> contextlib.AbstractContextManager[WriteRecord]:
        """Returns a function that writes records to a file; the context's end completes it."""

    @abc.abstractmethod
    def read(
        self, file: StoredFile, *, start: int = 0, see: Callable[[bytes], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields each record of a file, in order, with its place.

        Args:
            file: The file; if it has a `crc32c`, its content is compared with that, unless
                `checks_records`.
            start: Place of the first record.
            see: Called with all bytes of the file from `start` on, in order, as they are read.

        Raises:
            InputError: The file cannot be read.
            DamagedError: It is damaged, or not a file of this container. The error has a place if
                the records after it may be intact.
        """

    @abc.abstractmethod
    def describe_place(self, place: int) -> str:
        """Describes a record's place in words."""


def container_names() -> list[str]:
    """Returns the names of all containers."""
    names = [module.name for module in pkgutil.iter_modules(containers.__path__)]
    return sorted(set(names) - {"base"})


def find_container(name: str) -> Container:
    """Returns the container with a name (`output.container`).

    Raises:
        ValueError: There is no such container; the message lists the containers.
    """
    known = container_names()
    if name not in known:
        hint = did_you_mean(name, known=known) or f"; there are: {', '.join(known)}"
        raise ValueError(f"no container {name!r}{hint}")
    container = importlib.import_module(f"{containers.__name__}.{name}").CONTAINER
    assert isinstance(container, Container)
    return container


def find_tfds_container(tfds_name: str) -> str | None:
    """Returns the name of the container that TFDS calls `tfds_name`; None if there is none."""
    for name in container_names():
        if find_container(name).tfds_name == tfds_name:
            return name
    return None
