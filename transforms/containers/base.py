"""Containers: kinds of files that hold many Examples, serialized or in columns.

To add one, add a module to this folder with the container's name, which holds a `Container` named
`CONTAINER`. No other file has to change.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import os
import pkgutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import google_crc32c
import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

import shardbeam.transforms.containers as containers
from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import DamagedError, InputError, naming, reading
from shardbeam.transforms.core.temporary_files import TEMPORARY_PREFIX
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import FeatureKind, FeatureSpec
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.transforms.core.labels import LabelMap
    from shardbeam.transforms.examples.columns import ColumnType

# Bytes that are copied at a time.
_PART_BYTES = 8 << 20
# Bytes of a record that is no Example, in the error about it.
_SHOWN_BYTES = 16


class ExampleParts(Protocol):
    """An Example to be written (`examples.encode.encode.EncodedExample`)."""

    @property
    def chunks(self) -> Sequence[bytes]:
        """The serialized Example in parts, so that its image is not copied."""

    @property
    def data(self) -> bytes:
        """The serialized Example in one piece."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    @property
    def crc32c(self) -> int:
        """Its CRC-32C."""

    def features(self) -> Mapping[str, Sequence[Any]]:
        """Returns `{key as written: values}` of all its features."""


# Appends an Example, and returns its place: the byte where it begins or, in some containers, its
# number.
WriteExample = Callable[[ExampleParts], int]


class ExampleSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What all Examples of a file have in common.

    Attributes:
        features: Their features, sorted by key.
        label_map: The names and ids of their classes.
    """

    features: tuple[FeatureSpec, ...]
    label_map: LabelMap


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
        suffix: The part of a file's name that says what it is, such as `.tfrecord`.
        number_before_suffix: Whether a shard's number comes before `suffix` (`-00000-of-00001.tar`)
            or after it (`.tfrecord-00000-of-00001`).
        tfds_name: Its name in TFDS, for `dataset_info.json`; one that TFDS does not know makes
            TFDS refuse the dataset.
        readers: Other libraries that read its files, for messages.
        media_type: The files' media type.
        recipe: Python code that reads the split `{split}` of a dataset's folder, for the data card.
        checks_records: Whether its reader finds damage by itself; otherwise a file's size and
            CRC-32C are compared with the manifest's before it is read.
        stores_images: Whether an image of an Example is one range of a file's bytes.
    """

    suffix: str
    number_before_suffix: bool = False
    tfds_name: str
    readers: str = ""
    media_type: str = "application/octet-stream"
    recipe: str = ""
    checks_records: bool = True
    stores_images: bool = True

    def versions(self) -> Mapping[str, str]:
        """Returns `{library: version}` of the libraries that decide the bytes of its files.

        Raises:
            ModuleNotFoundError: A package is not installed; the message has the command that
                installs it.
        """
        return {}

    @abc.abstractmethod
    def writer(
        self, file: ChecksummedFile, *, schema: ExampleSchema
    ) -> contextlib.AbstractContextManager[WriteExample]:
        """Returns a function that writes Examples to a file; the context's end completes it.

        Args:
            file: The new file.
            schema: The features of its Examples.
        """

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

    def checksum(self, records: Iterable[tuple[int, int]]) -> int | None:
        """Computes the CRC-32C of a file from the length and the CRC-32C of each of its records.

        Returns:
            The CRC-32C; None if these do not decide it.
        """
        del records
        return None

    @abc.abstractmethod
    def describe_place(self, place: int) -> str:
        """Describes a record's place in words."""

    def columns(
        self, schema: ExampleSchema, *, image_formats: Sequence[str]
    ) -> Mapping[str, ColumnType]:
        """Returns the columns as which Hugging Face's `datasets` loads the files, by their names.

        Empty if it cannot load them.

        Args:
            schema: The features of the Examples.
            image_formats: The formats of their images, such as `jpeg`.
        """
        return {}


@contextlib.contextmanager
def copy_to_disk(file: StoredFile, *, see: Callable[[bytes], None] | None = None) -> Iterator[str]:
    """Copies a file to a temporary one on this machine, for libraries that read only such files.

    Args:
        file: The file; if it has a `crc32c`, the copy is compared with that.
        see: Called with all bytes of the file, in order.

    Yields:
        The path of the copy, which is deleted at the end.

    Raises:
        InputError: The file cannot be read.
        DamagedError: Its checksum differs.
    """
    storage = storage_for(file.uri)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as folder:
        path = os.path.join(folder, "records")
        with naming(path), open(path, "wb") as local:
            copy = ChecksummedFile(local)
            for offset in range(0, file.size_bytes, _PART_BYTES):
                with reading(file.uri):
                    part = storage.read(file.uri, offset=offset, size_bytes=_PART_BYTES)
                copy.write(part)
                if see is not None:
                    see(part)
                counters.shard_bytes.add(len(part))
        if file.crc32c and file.crc32c != copy.crc32c:
            problem = f"damaged: its checksum is {copy.crc32c}, not {file.crc32c}"
            raise DamagedError(uri=file.uri, problem=problem)
        yield path


def serialize_example(features: Mapping[str, tuple[FeatureKind, Sequence[Any]]]) -> bytes:
    """Serializes `{key: (kind, values)}` as `ExampleLayout` does.

    Raises:
        TypeError: A value is of another kind.
        ValueError: A value does not fit.
    """
    example = Example()
    for key, (kind, values) in features.items():
        filled = getattr(example.features.feature[key], f"{kind.value}_list")
        # Also write an empty list, so that readers see a feature of its kind.
        filled.SetInParent()
        filled.value.extend(values)
    return example.SerializeToString(deterministic=True)


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
    # Most have the same name; trying that first saves the imports of the others.
    for name in sorted(container_names(), key=lambda each: each != tfds_name):
        if find_container(name).tfds_name == tfds_name:
            return name
    return None


def parse_example(record: bytes, *, uri: str, place: str) -> Example:
    """Parses a record.

    Raises:
        InputError: It is not a `tf.train.Example`.
    """
    try:
        example = Example.FromString(record)
    except DecodeError as error:
        raise _not_an_example(record, uri=uri, place=place) from error
    # Almost any bytes parse as some message; unknown fields show that it is not an Example.
    if len(UnknownFieldSet(example)):
        raise _not_an_example(record, uri=uri, place=place)
    return example


def compressed_with(head: bytes) -> str:
    """Names the compression that bytes begin with, `gzip` or `zlib`; empty for any other content.

    A tf.train.Example never begins like either of them.
    """
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    # Deflate with a window of 32 KB, and a check of these two bytes (RFC 1950, 2.2).
    return "zlib" if head[:1] == b"x" and int.from_bytes(head[:2], "big") % 31 == 0 else ""


def _not_an_example(record: bytes, *, uri: str, place: str) -> InputError:
    if compression := compressed_with(record):
        return InputError(
            uri=uri,
            place=place,
            problem=f"the record of {len(record)} bytes is compressed with {compression}, each by "
            "itself; no reader of TFRecord files undoes that: write the records uncompressed",
        )
    more = "" if len(record) <= _SHOWN_BYTES else " ..."
    return InputError(
        uri=uri,
        place=place,
        problem=f"the record of {len(record)} bytes is not a tf.train.Example; it begins with "
        f"{record[:_SHOWN_BYTES].hex(' ')}{more}",
    )


def read_examples(file: StoredFile, *, container: str = "tfrecord") -> Iterator[Example]:
    """Yields the Examples of a file; reads only as far as the caller iterates.

    Args:
        file: The file.
        container: Name of its container (`find_container`).

    Raises:
        InputError: The file cannot be read, is not such a container, is cut off or damaged, or a
            record in it is not a `tf.train.Example`.
    """
    reader = find_container(container)
    for place, record in reader.read(file):
        yield parse_example(record, uri=file.uri, place=reader.describe_place(place))
