"""A container: a kind of file that holds many serialized Examples.

A new one is a module of this folder that is named after it and holds a `Container` named
`CONTAINER`. Nothing else needs to know it.
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
# where it begins, or its number where a container has no such bytes.
WriteRecord = Callable[[Sequence[bytes], int], int]


class ChecksummedFile:
    """A new file, with the length and the CRC-32C of what was written to it.

    Args:
        file: The file.

    Attributes:
        size_bytes: Length of what was written so far.
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
        """CRC-32C of what was written so far, as 8 hex digits."""
        return f"{self._crc32c:08x}"


class Container(abc.ABC):
    """How Examples are written to files and read from them. Implementations are stateless.

    Attributes:
        suffix: What the names of its files hold behind dataset and split, such as `.tfrecord`.
        tfds_name: Its name in TFDS, for `dataset_info.json`.
        checks_records: Whether its reader finds damage by itself; otherwise a file's size and
            CRC-32C are compared with the manifest's before it is read.
    """

    suffix: str
    tfds_name: str
    checks_records: bool = True

    def versions(self) -> Mapping[str, str]:
        """Returns `{library: version}` of what decides the bytes of its files.

        Raises:
            ModuleNotFoundError: A package that it needs is not installed; the message says how to
                install it.
        """
        return {}

    @abc.abstractmethod
    def writer(self, file: ChecksummedFile) -> contextlib.AbstractContextManager[WriteRecord]:
        """Gives the function that writes records to a file, which is complete after the context."""

    @abc.abstractmethod
    def read(
        self, file: StoredFile, *, start: int = 0, see: Callable[[bytes], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields each record of a file, in order, with its place.

        Args:
            file: The file; where it has a `crc32c`, its content is compared with it, unless
                `checks_records`.
            start: Place of the first record.
            see: Is called with all bytes of the file from there on, in order, as they are read.

        Raises:
            InputError: The file cannot be read.
            DamagedError: It is damaged, or no such container; with a place where the records
                behind the damage may be whole.
        """

    @abc.abstractmethod
    def describe_place(self, place: int) -> str:
        """Says in words where a record is."""


def container_names() -> list[str]:
    """Returns the names of all containers."""
    names = [module.name for module in pkgutil.iter_modules(containers.__path__)]
    return sorted(set(names) - {"base"})


def find_container(name: str) -> Container:
    """Returns the container of a name (`output.container`).

    Raises:
        ValueError: There is none of that name; the message lists those that there are.
    """
    known = container_names()
    if name not in known:
        hint = did_you_mean(name, known=known) or f"; there are: {', '.join(known)}"
        raise ValueError(f"no container {name!r}{hint}")
    container = importlib.import_module(f"{containers.__name__}.{name}").CONTAINER
    assert isinstance(container, Container)
    return container


def find_tfds_container(tfds_name: str) -> str | None:
    """Returns the name of the container that TFDS calls `tfds_name`; None where there is none."""
    for name in container_names():
        if find_container(name).tfds_name == tfds_name:
            return name
    return None
