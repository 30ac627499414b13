"""Reads the pictures that differ between two datasets, and compares them.

Only the Examples of these pictures are read, each at the place that its index gives
(`PlacedExamples`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.readers.compare.difference import Change, DifferingImage
from shardbeam.readers.compare.image_changes import (
    ADDED,
    BOX,
    CLASS,
    REMOVED,
    ImageChange,
    compare_images,
)
from shardbeam.readers.compare.index_rows import ExamplePlace
from shardbeam.readers.open.images import Place, PlacedExamples
from shardbeam.readers.open.stored_dataset import StoredDataset, read_feature_map
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.storage.find import storage_for

# The changes of objects that are changes of labels.
_OF_LABELS = {ADDED, REMOVED, CLASS, BOX}
# If an Example has more objects, the objects of its picture are not compared.
_MOST_OBJECTS = 10_000


class ChangedImage(NamedTuple):
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
    what: ImageChange


def read_changed(
    images: Sequence[DifferingImage], *, old: StoredDataset, new: StoredDataset
) -> Iterator[ChangedImage]:
    """Yields the pictures that differ, one after another.

    Args:
        images: The images (`compare_datasets`).
        old: The dataset with their old versions.
        new: The dataset with their new versions.

    Raises:
        InputError: An Example cannot be read, or is not where its index says.
    """
    yield from map(_Comparer(images, old=old, new=new).compare, images)


def compare_labels(
    images: Sequence[DifferingImage], *, old: StoredDataset, new: StoredDataset
) -> Iterator[bool]:
    """Yields for each image whether its classes, boxes and captions are the same.

    Boxes that differ by less than a ten-thousandth of the image are the same.

    Args:
        images: The images (`CompareLabels`).
        old: The dataset with their old versions.
        new: The dataset with their new versions.

    Raises:
        InputError: An Example cannot be read, or is not where its index says.
    """
    comparer = _Comparer(images, old=old, new=new)
    splits = (*old.splits, *new.splits)
    # Other containers keep the Examples of a file in one that threads cannot share.
    can_share = all(find_container(split.container).checks_records for split in splits)
    run = storage_for(new.path).map_many if can_share else map
    yield from run(lambda image: not _has_other_labels(comparer.compare(image).what), images)


def _has_other_labels(what: ImageChange) -> bool:
    return bool(
        what.labels_removed
        or what.labels_added
        or what.captions_removed
        or what.captions_added
        or what.objects_not_compared
        or what.more_objects
        or any(not _OF_LABELS.isdisjoint(each.kinds) for each in what.objects)
    )


class _Comparer:
    """Reads both versions of pictures, and compares them.

    Args:
        images: All images that may be compared.
        old: The dataset with their old versions.
        new: The dataset with their new versions.
    """

    def __init__(
        self, images: Sequence[DifferingImage], *, old: StoredDataset, new: StoredDataset
    ) -> None:
        self._olds = _ImageReader(old, [place for image in images for place in image.old])
        self._news = _ImageReader(new, [place for image in images for place in image.new])
        keys = self._news.feature_map.keys
        self._defaults = {written: default for default, written in keys.items() if written}

    def compare(self, image: DifferingImage) -> ChangedImage:
        most = image.too_many or max(place.objects for place in (*image.old, *image.new))
        with_objects = most <= _MOST_OBJECTS and not image.too_many
        before = self._olds.read(image.old, with_objects=with_objects)
        after = self._news.read(image.new, with_objects=with_objects)
        what = compare_images(before, after, default_keys=self._defaults)
        if not with_objects:
            what = msgspec.structs.replace(what, objects_not_compared=most)
        return ChangedImage(image.change, before, after, what)


class _ImageReader:
    """Reads pictures of a dataset at the places of their Examples.

    Args:
        dataset: The dataset.
        places: All places that may be read.

    Attributes:
        feature_map: How its Examples are to be read.
    """

    def __init__(self, dataset: StoredDataset, places: Sequence[ExamplePlace]) -> None:
        self.feature_map: FeatureMap = read_feature_map(dataset)
        self._splits = {split.name: split for split in dataset.splits}
        shards = {
            (split.name, shard.path): number
            for split in dataset.splits
            for number, shard in enumerate(split.shards)
        }
        self._places: dict[ExamplePlace, Place] = {}
        for place in places:
            if (place.split, place.shard) not in shards:
                problem = f"lacks the shard {place.shard}, which its manifest lists"
                raise InputError(uri=dataset.path, problem=problem)
            number = shards[place.split, place.shard]
            self._places[place] = Place(
                place.split, place.number, number, place.offset, place.length
            )
        self._examples = PlacedExamples(self._splits, self._places.values())

    def read(self, places: Sequence[ExamplePlace], *, with_objects: bool) -> Picture:
        """Reads a picture; it has the objects of all its Examples."""
        pictures = [self._read_one(place, with_objects=with_objects) for place in places]
        return msgspec.structs.replace(
            pictures[0], objects=tuple(item for picture in pictures for item in picture.objects)
        )

    def _read_one(self, place: ExamplePlace, *, with_objects: bool) -> Picture:
        stored = self._examples.read(self._places[place])
        return stored.picture(
            self._splits[place.split], feature_map=self.feature_map, with_objects=with_objects
        )
