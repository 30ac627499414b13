"""Reads the Examples of a split as pictures, for people to look at, and finds them by keys."""

from __future__ import annotations

import itertools
import os
import posixpath
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.configs.problem import did_you_mean
from shardbeam.readers.open.stored_dataset import StoredDataset, StoredSplit
from shardbeam.transforms.containers.base import Container, find_container, parse_example
from shardbeam.transforms.containers.tfrecord import OVERHEAD_BYTES
from shardbeam.transforms.core.errors import InputError, naming
from shardbeam.transforms.examples.decode.decode import make_picture
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.formats.names import normalize_for_match
from shardbeam.transforms.storage.base import StoredFile

# To suggest a key, a wrong key is compared with this many of the first keys, and with this many of
# the keys that differ from it only by folder, case or extension.
_COMPARED = 10_000
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
        length: Length of its record in bytes.
    """

    split: str
    number: int
    shard: int
    offset: int
    length: int


class StoredExample(NamedTuple):
    """An Example, and where it is."""

    place: Place
    example: Example

    def picture(
        self, split: StoredSplit, *, feature_map: FeatureMap, with_objects: bool = True
    ) -> Picture:
        """Makes a picture of it.

        Args:
            split: Its split.
            feature_map: How it is to be read.
            with_objects: Whether its objects are read.
        """
        return make_picture(
            self.example,
            feature_map=feature_map,
            split=split.name,
            shard=posixpath.basename(split.shards[self.place.shard].uri),
            number=self.place.number,
            with_objects=with_objects,
        )


def read_images(
    split: StoredSplit, *, feature_map: FeatureMap, first: int = 1, with_objects: bool = True
) -> Iterator[Picture]:
    """Yields the pictures of a split, in order; reads only as far as the caller iterates.

    Args:
        split: The split.
        feature_map: How its Examples are to be read.
        first: The number of the first picture to yield, from 1. Shards before it are skipped
            unread if the dataset says how many Examples they hold.
        with_objects: Whether their objects are read.

    Raises:
        InputError: A file cannot be read, is cut off or damaged, or a record in it is not a
            `tf.train.Example`.
    """
    for stored in read_with_places(split, first=first):
        yield stored.picture(split, feature_map=feature_map, with_objects=with_objects)


def read_with_places(split: StoredSplit, *, first: int = 1) -> Iterator[StoredExample]:
    """Yields the Examples of a split with their places, in order, as `read_images` does."""
    reader = find_container(split.container)
    number = 1
    shards = itertools.zip_longest(split.shards, split.shard_examples)
    for index, (shard, examples) in enumerate(shards):
        if examples is not None and number + examples <= first:
            number += examples
            continue
        for offset, record in reader.read(shard):
            example = parse_example(record, uri=shard.uri, place=reader.describe_place(offset))
            if number >= first:
                yield StoredExample(Place(split.name, number, index, offset, len(record)), example)
            number += 1


class PlacedExamples:
    """Reads Examples of a dataset at known places.

    A record of a TFRecord file is read by itself. Files of other containers can only be checked as
    a whole: such a file is read once, when the first of its Examples is asked for, and its Examples
    at all places are kept in a temporary file.

    Args:
        splits: `{name: split}`.
        places: All places that may be asked for.
    """

    def __init__(self, splits: Mapping[str, StoredSplit], places: Iterable[Place]) -> None:
        self._splits = splits
        # {(split, shard): offsets}
        self._offsets: dict[tuple[str, int], set[int]] = {}
        for place in places:
            self._offsets.setdefault((place.split, place.shard), set()).add(place.offset)
        # The file has no name, and is gone when this object is.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        # {(split, shard): {offset: its record in the temporary file}}
        self._kept: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}

    def read(self, place: Place) -> StoredExample:
        """Reads an Example; no more than the bytes of its record are fetched.

        Raises:
            InputError: It cannot be read, is damaged, is not there, or has another length.
        """
        split = self._splits[place.split]
        reader, shard = find_container(split.container), split.shards[place.shard]
        if reader.checks_records:
            end = min(shard.size_bytes, place.offset + OVERHEAD_BYTES + place.length)
            file = msgspec.structs.replace(shard, size_bytes=end)
            _, record = next(reader.read(file, start=place.offset), (0, None))
        else:
            record = self._read_kept(place, reader=reader, shard=shard)
        words = reader.describe_place(place.offset)
        if record is None:
            raise InputError(uri=shard.uri, place=words, problem=_ENDS)
        if place.length != len(record):
            raise InputError(
                uri=shard.uri,
                place=words,
                problem=f"the record has {len(record):,} bytes, and {place.length:,} in the index: "
                "the dataset has changed, or is damaged; check it with `shardbeam verify`",
            )
        return StoredExample(place, parse_example(record, uri=shard.uri, place=words))

    def _read_kept(self, place: Place, *, reader: Container, shard: StoredFile) -> bytes | None:
        file = place.split, place.shard
        if file not in self._kept:
            wanted = self._offsets[file]
            kept = self._kept[file] = {}
            for offset, record in reader.read(shard, start=min(wanted)):
                if offset in wanted:
                    with naming(tempfile.gettempdir()):
                        kept[offset] = self._file.seek(0, os.SEEK_END), self._file.write(record)
                    if len(kept) == len(wanted):
                        break
        if place.offset not in self._kept[file]:
            return None
        begin, size_bytes = self._kept[file][place.offset]
        with naming(tempfile.gettempdir()):
            self._file.seek(begin)
            return self._file.read(size_bytes)


def find_key(
    key: str, *, dataset: StoredDataset, splits: Sequence[StoredSplit], feature_map: FeatureMap
) -> list[tuple[StoredSplit, int]]:
    """Finds the Examples of an image in a dataset's index, or else by reading all Examples.

    There are several if each object has its own.

    Args:
        key: The image's key.
        dataset: The dataset.
        splits: The splits to search.
        feature_map: How its Examples are to be read.

    Returns:
        The split of each Example, and its number there, from 1.

    Raises:
        InputError: No Example has the key, or the dataset cannot be read.
    """
    found = []
    compared: list[str] = []
    alike: list[str] = []
    name = normalize_for_match(key, "name")
    for split in splits:
        for number, other in _read_keys(split, dataset=dataset, feature_map=feature_map):
            if other == key:
                found.append((split, number))
            elif not found:
                if len(compared) < _COMPARED:
                    compared.append(other)
                if len(alike) < _COMPARED and normalize_for_match(other, "name") == name:
                    alike.append(other)
    if not found:
        hint = did_you_mean(key, alike) or (f"; did you mean {alike[0]!r}?" if alike else "")
        hint = hint or did_you_mean(key, compared)
        raise InputError(uri=dataset.path, problem=f"no example with the key {key!r}{hint}")
    return found


def _read_keys(
    split: StoredSplit, *, dataset: StoredDataset, feature_map: FeatureMap
) -> Iterator[tuple[int, str]]:
    number = 1
    if feature_map.is_ours and dataset.features is not None:
        # Imported here, as pyarrow takes a while.
        from shardbeam.readers.open.record_reader import load_shard_index

        most = max(split.shard_examples, default=0)
        for shard in split.shards:
            table = load_shard_index(dataset, shard.path, columns=["key"], max_rows=most)
            for key in table["key"].to_pylist():
                yield number, key
                number += 1
    else:
        for picture in read_images(split, feature_map=feature_map, with_objects=False):
            yield picture.number, picture.key
