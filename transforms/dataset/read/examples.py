"""Reads Examples from containers, and describes their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.examples.example_pb2 import Example, Feature
from shardbeam.transforms.examples.features import FeatureKind
from shardbeam.transforms.images.header import ImageHeader
from shardbeam.transforms.images.jpeg import scan_jpeg
from shardbeam.transforms.images.png import scan_png
from shardbeam.transforms.images.sniff import FileFormat, sniff_format
from shardbeam.transforms.storage.base import StoredFile

_SHOWN_BYTES = 16
_SCANS = {FileFormat.JPEG: scan_jpeg, FileFormat.PNG: scan_png}


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


def feature_values(feature: Feature) -> tuple[FeatureKind | None, Sequence[bytes | int | float]]:
    """Returns a feature's kind and its values; None and no values if no list is set."""
    field = feature.WhichOneof("kind")
    if field is None:
        return None, ()
    return FeatureKind(field.removesuffix("_list")), getattr(feature, field).value


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


def _not_an_example(record: bytes, *, uri: str, place: str) -> InputError:
    more = "" if len(record) <= _SHOWN_BYTES else " ..."
    return InputError(
        uri=uri,
        place=place,
        problem=f"the record of {len(record)} bytes is not a tf.train.Example; it begins with "
        f"{record[:_SHOWN_BYTES].hex(' ')}{more}",
    )


def recognize_image(data: bytes) -> tuple[FileFormat, ImageHeader | None] | None:
    """Describes an image by its first bytes; None if the data is not an image.

    Returns:
        Its format and its header; the header is None for formats other than JPEG and PNG, and if
        it cannot be read.
    """
    file_format = sniff_format(data)
    if file_format is None:
        return None
    scan = _SCANS.get(file_format)
    try:
        return file_format, scan and scan(data, complete=False)
    except RejectedError:
        return file_format, None
