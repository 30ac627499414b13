"""Reads the Examples of a split as pictures, for people to look at."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.read.dataset import StoredSplit
from shardbeam.transforms.dataset.read.examples import read_examples
from shardbeam.transforms.examples.decode import Picture, make_picture, parse_example
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.legend import Legend
from shardbeam.transforms.storage.base import StoredFile

_ENDS = (
    "the file ends before this Example, which its index lists; `shardbeam verify` finds out more"
)


class Place(NamedTuple):
    """Where an Example is.

    Attributes:
        split: Its split.
        number: Its number there, from 1.
        shard: Number of its shard in the split, from 0.
        offset: Where it begins in the shard, like `IndexRow.offset`.
    """

    split: str
    number: int
    shard: int
    offset: int


class StoredExample(NamedTuple):
    """An Example, and the length of its record in bytes."""

    place: Place
    example: Example
    num_bytes: int

    def picture(self, split: StoredSplit, *, legend: Legend) -> Picture:
        """Makes a picture of it.

        Args:
            split: Its split.
            legend: How it is to be read.
        """
        return make_picture(
            self.example,
            legend=legend,
            split=split.name,
            shard=posixpath.basename(split.shards[self.place.shard].uri),
            number=self.place.number,
        )


def read_pictures(
    split: StoredSplit, *, legend: Legend, first: int = 1, with_objects: bool = True
) -> Iterator[Picture]:
    """Yields the pictures of a split, in order; reads only as far as the caller iterates.

    Args:
        split: The split.
        legend: How its Examples are to be read.
        first: The number of the first picture to yield, from 1. Shards before it are skipped
            unread if the dataset says how many Examples they hold.
        with_objects: Whether their objects are read.

    Raises:
        InputError: A file cannot be read, is cut off or damaged, or a record in it is not a
            `tf.train.Example`.
    """
    for shard, number, example in read_split(split, first=first):
        yield make_picture(
            example,
            legend=legend,
            split=split.name,
            shard=posixpath.basename(shard.uri),
            number=number,
            with_objects=with_objects,
        )


def read_split(split: StoredSplit, *, first: int = 1) -> Iterator[tuple[StoredFile, int, Example]]:
    """Yields the Examples of a split with their shards and numbers, as `read_pictures` does."""
    number = 1
    for shard, examples in itertools.zip_longest(split.shards, split.shard_examples):
        if examples is not None and number + examples <= first:
            number += examples
            continue
        for example in read_examples(shard, container=split.container):
            if number >= first:
                yield shard, number, example
            number += 1


def read_with_places(split: StoredSplit) -> Iterator[StoredExample]:
    """Yields the Examples of a split with their places, in order.

    Raises:
        InputError: See `read_pictures`.
    """
    reader = find_container(split.container)
    number = 1
    for index, shard in enumerate(split.shards):
        for offset, record in reader.read(shard):
            example = parse_example(record, uri=shard.uri, place=reader.describe_place(offset))
            yield StoredExample(Place(split.name, number, index, offset), example, len(record))
            number += 1


def read_at(split: StoredSplit, place: Place) -> StoredExample:
    """Reads one Example of a split, and nothing before it.

    Raises:
        InputError: It cannot be read, is damaged, or is not there.
    """
    reader = find_container(split.container)
    shard = split.shards[place.shard]
    found = next(reader.read(shard, start=place.offset), None)
    words = reader.describe_place(place.offset)
    if found is None:
        raise InputError(uri=shard.uri, place=words, problem=_ENDS)
    _, record = found
    return StoredExample(place, parse_example(record, uri=shard.uri, place=words), len(record))
