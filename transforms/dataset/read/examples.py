"""Reading Examples from TFRecord files, with errors that name the file and the byte."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from shardbeam.transforms.containers.tfrecord import OVERHEAD_BYTES, read_records
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.example_pb2 import Example, Feature
from shardbeam.transforms.examples.features import FeatureKind
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from typing_extensions import Buffer

# An image or two at a time, and few requests to an object store.
_BUFFER_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_SHOWN_BYTES = 16


def read_examples(file: StoredFile) -> Iterator[Example]:
    """Yields the Examples of a TFRecord file, reading no further than is asked for.

    Raises:
        InputError: The file cannot be read, is no TFRecord file, is cut off or damaged, or a
            record in it is no `tf.train.Example`.
    """
    offset = 0
    with io.BufferedReader(_StoredFileReader(file), buffer_size=_BUFFER_BYTES) as reader:
        try:
            magic = reader.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)]
            for record in read_records(reader):
                yield _parse(record, uri=file.uri, offset=offset)
                offset += OVERHEAD_BYTES + len(record)
        except OSError as error:
            raise InputError(uri=file.uri, problem=f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            # The magic alone says nothing: a record's length may begin with the same bytes.
            if offset == 0 and magic == _GZIP_MAGIC:
                problem = "compressed with gzip; decompress it first (gunzip)"
                raise InputError(uri=file.uri, problem=problem) from error
            place, _, problem = str(error).partition(": ")
            if offset == 0:
                problem = f"not a TFRecord file, or a damaged one: {problem}"
            raise InputError(uri=file.uri, place=place, problem=problem) from error


def feature_values(feature: Feature) -> tuple[FeatureKind | None, Sequence[bytes | int | float]]:
    """Returns a feature's kind and its list; no kind and an empty list where none is set."""
    field = feature.WhichOneof("kind")
    if field is None:
        return None, ()
    return FeatureKind(field.removesuffix("_list")), getattr(feature, field).value


def _parse(record: bytes, *, uri: str, offset: int) -> Example:
    try:
        example = Example.FromString(record)
    except DecodeError as error:
        raise _not_an_example(record, uri=uri, offset=offset) from error
    # Most bytes are some message or other: what is none of an Example's fields tells them apart.
    if len(UnknownFieldSet(example)):
        raise _not_an_example(record, uri=uri, offset=offset)
    return example


def _not_an_example(record: bytes, *, uri: str, offset: int) -> InputError:
    more = "" if len(record) <= _SHOWN_BYTES else " ..."
    return InputError(
        uri=uri,
        place=f"byte {offset}",
        problem=f"the record of {len(record)} bytes is no tf.train.Example; it begins with "
        f"{record[:_SHOWN_BYTES].hex(' ')}{more}",
    )


class _StoredFileReader(io.RawIOBase):
    """A file in any storage as a stream, of which no more is fetched than is read."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._storage = storage_for(file.uri)
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        data = self._storage.read(
            self._file.uri,
            offset=self._position,
            size_bytes=min(len(view), self._file.size_bytes - self._position),
        )
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
