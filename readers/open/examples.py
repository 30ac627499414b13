"""Reads Examples from containers."""

from __future__ import annotations

from collections.abc import Iterator

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.examples.decode.decode import parse_example
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.storage.base import StoredFile


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
