"""Reads the Examples of a split as pictures, for people to look at."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator

from shardbeam.transforms.dataset.read.dataset import StoredSplit
from shardbeam.transforms.dataset.read.examples import read_examples
from shardbeam.transforms.examples.decode import Picture, make_picture
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.legend import Legend
from shardbeam.transforms.storage.base import StoredFile


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
