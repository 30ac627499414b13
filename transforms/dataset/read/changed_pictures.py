"""Reads the pictures that differ between two datasets, and finds out what differs in them.

Only the Examples of these pictures are read, each at the place that its index gives. Containers
other than TFRecord have a checksum for each file only, so that a file with any of these Examples is
read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.containers.tfrecord import OVERHEAD_BYTES
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.read.dataset import StoredDataset
from shardbeam.transforms.dataset.read.difference import Change, DifferingImage, ExamplePlace
from shardbeam.transforms.dataset.read.legend import read_legend
from shardbeam.transforms.examples.decode import Picture, make_picture, parse_example
from shardbeam.transforms.examples.legend import Legend
from shardbeam.transforms.examples.picture_changes import PictureChange, compare_pictures
from shardbeam.transforms.storage.base import StoredFile

# The objects of an Example with more are not compared.
_MOST_OBJECTS = 10_000


class ChangedPicture(NamedTuple):
    """A picture that differs between two datasets.

    Attributes:
        change: Which picture, and how it differs by the indexes.
        old: The old version.
        new: The new version.
        what: What differs in it.
    """

    change: Change
    old: Picture
    new: Picture
    what: PictureChange


def read_changed(
    images: Sequence[DifferingImage], *, old: StoredDataset, new: StoredDataset
) -> Iterator[ChangedPicture]:
    """Reads pictures that differ, one after another.

    Args:
        images: The images (`compare_datasets`).
        old: The dataset with their old versions.
        new: The dataset with their new versions.

    Raises:
        InputError: An Example cannot be read, or is not where its index says.
    """
    olds = _Pictures(old, [place for image in images for place in image.old])
    news = _Pictures(new, [place for image in images for place in image.new])
    defaults = {written: default for default, written in news.legend.keys.items() if written}
    for image in images:
        most = max(place.objects for place in (*image.old, *image.new))
        with_objects = most <= _MOST_OBJECTS
        before = olds.read(image.old, with_objects=with_objects)
        after = news.read(image.new, with_objects=with_objects)
        what = compare_pictures(before, after, default_keys=defaults)
        if not with_objects:
            what = msgspec.structs.replace(what, objects_not_compared=most)
        yield ChangedPicture(image.change, before, after, what)


class _Pictures:
    """Reads pictures of a dataset at the places of their Examples.

    Args:
        dataset: The dataset.
        places: All places that are read.

    Attributes:
        legend: How its Examples are to be read.
    """

    def __init__(self, dataset: StoredDataset, places: Sequence[ExamplePlace]) -> None:
        self.legend: Legend = read_legend(dataset)
        self._dataset = dataset
        self._shards: Mapping[str, tuple[StoredFile, str]] = {
            shard.path: (shard, split.container)
            for split in dataset.splits
            for shard in split.shards
        }
        self._places = places
        # Records of the last shard of a container that is read as a whole.
        self._records: dict[ExamplePlace, bytes] = {}

    def read(self, places: Sequence[ExamplePlace], *, with_objects: bool) -> Picture:
        """Reads a picture; its objects are those of all its Examples."""
        pictures = [self._read_one(place, with_objects=with_objects) for place in places]
        return msgspec.structs.replace(
            pictures[0], objects=tuple(item for picture in pictures for item in picture.objects)
        )

    def _read_one(self, place: ExamplePlace, *, with_objects: bool) -> Picture:
        try:
            shard, container = self._shards[place.shard]
        except KeyError:
            problem = f"lacks the shard {place.shard}, which its manifest lists"
            raise InputError(uri=self._dataset.path, problem=problem) from None
        record = self._read_record(place, shard=shard, container=container)
        words = find_container(container).describe_place(place.offset)
        if len(record) != place.length:
            raise InputError(
                uri=shard.uri,
                place=words,
                problem=f"the record has {len(record):,} bytes, and {place.length:,} in the "
                "index: the dataset has changed, or is damaged; check it with `shardbeam verify`",
            )
        return make_picture(
            parse_example(record, uri=shard.uri, place=words),
            legend=self.legend,
            split=place.split,
            shard=shard.path,
            number=place.number,
            with_objects=with_objects,
        )

    def _read_record(self, place: ExamplePlace, *, shard: StoredFile, container: str) -> bytes:
        reader = find_container(container)
        if container == "tfrecord":
            # No more is fetched than this record.
            end = min(shard.size_bytes, place.offset + OVERHEAD_BYTES + place.length)
            file = msgspec.structs.replace(shard, size_bytes=end)
            return next((record for _, record in reader.read(file, start=place.offset)), b"")
        if place not in self._records:
            wanted = {each.offset: each for each in self._places if each.shard == place.shard}
            for offset, record in reader.read(shard, start=min(wanted)):
                if offset in wanted:
                    self._records[wanted.pop(offset)] = record
                if not wanted:
                    break
        return self._records.pop(place, b"")
