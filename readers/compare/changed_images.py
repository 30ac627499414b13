"""Reads the pictures that differ between two datasets, and compares them.

Only the Examples of these pictures are read, each at the place that its index gives
(`PlacedExamples`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.readers.compare.changes import Change, DifferingImage
from shardbeam.readers.compare.class_changes import (
    ClassNames,
    LabelChanges,
    find_label_changes,
    restore_names,
    uses_class,
)
from shardbeam.readers.compare.image_changes import ImageChange, compare_images
from shardbeam.readers.compare.index_rows import ExamplePlace
from shardbeam.readers.open.images import Place, PlacedExamples
from shardbeam.readers.open.stored_dataset import StoredDataset, read_feature_map
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.storage.find import storage_for

# If an Example has more objects, the objects of its picture are not compared.
_MOST_OBJECTS = 10_000


class ChangedImage(NamedTuple):
    """A picture that differs between two datasets.

    Attributes:
        change: Which picture, and how it differs by the indexes.
        old: The old version.
        new: The new version.
        what: What differs in it, apart from names of classes that were renamed.
        is_renamed: Whether it has objects, or a class, of a class that was renamed.
    """

    change: Change
    old: Picture
    new: Picture
    what: ImageChange
    is_renamed: bool = False


def read_changed(
    images: Sequence[DifferingImage],
    *,
    old: StoredDataset,
    new: StoredDataset,
    renames: Mapping[str, str],
) -> Iterator[ChangedImage]:
    """Yields the pictures that differ, one after another.

    Args:
        images: The images (`compare_datasets`).
        old: The dataset with their old versions.
        new: The dataset with their new versions.
        renames: `{old class: new class}` of classes that were renamed: objects are matched as if
            they always had the new name.

    Raises:
        InputError: An Example cannot be read, or is not where its index says.
    """
    comparer = _Comparer(images, old=old, new=new)
    for image in images:
        yield comparer.compare(image, renames=renames)


def compare_labels(
    images: Sequence[DifferingImage], *, old: StoredDataset, new: StoredDataset
) -> Iterator[LabelChanges]:
    """Yields for each image how its classes, boxes and captions differ.

    Boxes that differ by less than a ten-thousandth of the image are the same.

    Args:
        images: Images of which only digests say that their labels differ.
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
    yield from run(comparer.compare_labels, images)


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
        olds, news = self._olds.feature_map, self._news.feature_map
        self._defaults = {
            written: default
            for keys in (olds.keys, news.keys)
            for default, written in keys.items()
            if written
        }
        self._names = ClassNames(
            *({name: key for key, name in each.class_names.items()} for each in (olds, news))
        )

    def compare(self, image: DifferingImage, *, renames: Mapping[str, str]) -> ChangedImage:
        """Reads and compares an image.

        Args:
            image: The image.
            renames: `{old class: new class}` of classes that were renamed.
        """
        before, after, too_many = self._read(image)
        is_renamed = uses_class(before, renames)
        what = compare_images(
            self._names.rename(before, renames, default_keys=self._defaults)
            if is_renamed
            else before,
            after,
            default_keys=self._defaults,
        )
        if is_renamed:
            what = restore_names(what, renames)
        if too_many:
            what = msgspec.structs.replace(what, objects_not_compared=too_many)
        return ChangedImage(image.change, before, after, what, is_renamed)

    def compare_labels(self, image: DifferingImage) -> LabelChanges:
        """Reads an image, and compares its labels."""
        before, after, too_many = self._read(image)
        found = find_label_changes(before, after, names=self._names, default_keys=self._defaults)
        return found._replace(is_same=False, other_labels=True) if too_many else found

    def _read(self, image: DifferingImage) -> tuple[Picture, Picture, int]:
        """Returns both versions of an image, and how many objects it has if they are too many."""
        most = image.too_many or max(place.objects for place in (*image.old, *image.new))
        is_too_many = bool(image.too_many) or most > _MOST_OBJECTS
        before = self._olds.read(image.old, with_objects=not is_too_many)
        after = self._news.read(image.new, with_objects=not is_too_many)
        return before, after, most if is_too_many else 0


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
        self._path = dataset.path
        self._splits = {split.name: split for split in dataset.splits}
        self._shards = {
            (split.name, shard.path): number
            for split in dataset.splits
            for number, shard in enumerate(split.shards)
        }
        self._examples = PlacedExamples(self._splits, map(self._find, places))

    def read(self, places: Sequence[ExamplePlace], *, with_objects: bool) -> Picture:
        """Reads a picture; it has the objects of all its Examples."""
        pictures = [
            self._examples.read(self._find(place)).picture(
                self._splits[place.split], feature_map=self.feature_map, with_objects=with_objects
            )
            for place in places
        ]
        return msgspec.structs.replace(
            pictures[0], objects=tuple(item for picture in pictures for item in picture.objects)
        )

    def _find(self, place: ExamplePlace) -> Place:
        shard = self._shards.get((place.split, place.shard))
        if shard is None:
            problem = f"lacks the shard {place.shard}, which its manifest lists"
            raise InputError(uri=self._path, problem=problem)
        return Place(place.split, place.number, shard, place.offset, place.length)
