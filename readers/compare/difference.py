"""Finds what differs between two datasets, by their indexes.

Digests of labels differ, too, if they were made otherwise, or if two values on both sides of a step
are rounded. So the Examples of images of which only digests say that labels differ are read and
compared; no other shard is read. Each Example is read at the place that its index gives.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from shardbeam.readers.compare.changes import (
    Change,
    ChangeKind,
    ClassChange,
    ClassNames,
    Difference,
    LabelChanges,
    SplitDifference,
    find_class_changes,
    find_label_changes,
    list_renames,
    restore_names,
    uses_class,
)
from shardbeam.readers.compare.image_changes import ImageChange, compare_images
from shardbeam.readers.compare.pairs import (
    ExamplePlace,
    Flags,
    Pairs,
    Places,
    examples_of,
    match_examples,
    read_indexes,
)
from shardbeam.readers.open.images import Place, PlacedExamples
from shardbeam.readers.open.stored_dataset import StoredDataset, read_feature_map
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.storage.find import storage_for

# Kinds of examples whose image had another key before.
_HAVE_KEY = frozenset({ChangeKind.RENAMED, ChangeKind.REENCODED})
_MAX_SPLITS = 255
# If an image has more Examples (`example_per: annotation`), they are not located, so its objects
# cannot be compared.
_MOST_EXAMPLES = 1_000
# The labels of at most this many images are compared by reading their Examples.
_MOST_READ = 10_000
# If an Example has more objects, the objects of its picture are not compared.
_MOST_OBJECTS = 10_000


class DifferingImage(NamedTuple):
    """An image that is in two datasets, and whose Examples differ.

    Attributes:
        change: How it differs.
        old: Its Examples in the old dataset; several with `example_per: annotation`.
        new: Its Examples in the new dataset.
        too_many: How many Examples it has, if they are too many to be located: then `old` and `new`
            are one pair of Examples that match.
    """

    change: Change
    old: Sequence[ExamplePlace]
    new: Sequence[ExamplePlace]
    too_many: int = 0


class Comparison(NamedTuple):
    """The result of a comparison.

    Attributes:
        difference: What differs.
        images: The first images that are in both and differ: those whose labels differ, then those
            whose pixels differ, then the others; each in the order of the new dataset.
    """

    difference: Difference
    images: Sequence[DifferingImage]


class _Group(NamedTuple):
    """An image whose Examples differ.

    Attributes:
        pairs: Numbers of the pairs of its Examples that differ.
        old: Places of its Examples in the old dataset, as for `DifferingImage`.
        new: Places of its Examples in the new dataset.
        too_many: As for `DifferingImage`.
    """

    pairs: Places
    old: Places
    new: Places
    too_many: int = 0


def compare_datasets(
    old: StoredDataset,
    new: StoredDataset,
    *,
    limit: int,
    images: int = 0,
) -> Comparison:
    """Compares two datasets that Shardbeam has built.

    Args:
        old: One dataset.
        new: The other.
        limit: How many examples of each kind of change are named.
        images: How many of the images whose Examples differ are located, so that they can be read
            (`read_changed`). With 0 no Example is read: digests alone say whether
            labels differ.

    Raises:
        InputError: One has no index, or cannot be read.
    """
    splits = list(dict.fromkeys(split.name for each in (old, new) for split in each.splits))
    if len(splits) > _MAX_SPLITS:
        raise InputError(uri=new.path, problem=f"more than {_MAX_SPLITS} splits")
    pairs = match_examples(*(read_indexes(each, splits=splits) for each in (old, new)))
    found = _Labels(_compare_digests(pairs), np.zeros(len(pairs.old), bool))
    if images:
        found = _read_labels(pairs, found.differ)
    changes = _find_changes(pairs, found)
    changed = changes.image | changes.labels | changes.other
    differ = np.flatnonzero(changed | changes.reencoded)
    of_pixels = changes.image | changes.reencoded
    rank = np.where(changes.labels[differ], 0, np.where(of_pixels[differ], 1, 2))
    differing, groups = _group_by_image(pairs, differ[np.lexsort((pairs.new[differ], rank))])
    chosen = list(itertools.islice(groups, images))
    # The first pairs of each kind of change, in the order of the new dataset.
    order = np.argsort(pairs.new, kind="stable")
    named_kinds = changes._replace(class_names=np.zeros_like(changes.class_names))
    firsts = {pair for flag in named_kinds for pair in order[flag[order]][:limit].tolist()}
    named = np.array([pair for pair in order.tolist() if pair in firsts], np.intp)
    removed, added = pairs.removed[:limit], pairs.added[:limit]
    olds = pairs.before.locate([removed, pairs.old[named], *(each.old for each in chosen)])
    news = pairs.after.locate([added, pairs.new[named], *(each.new for each in chosen)])
    old_ids, new_ids = pairs.before.manifest.labels, pairs.after.manifest.labels
    difference = Difference(
        old=old.path,
        new=new.path,
        splits=_count_splits(pairs, changes, splits=splits),
        moves=_count_moves(pairs, changes, splits=splits),
        classes={
            name: (old_ids.get(name), new_ids.get(name))
            for name in sorted({*old_ids, *new_ids})
            if old_ids.get(name) != new_ids.get(name)
        },
        class_changes=tuple(found.class_changes),
        changes=(
            *(_make_change(olds[place], None, kinds=(ChangeKind.REMOVED,)) for place in removed),
            *(_make_change(None, news[place], kinds=(ChangeKind.ADDED,)) for place in added),
            *(
                _make_change(
                    olds[pairs.old[pair]],
                    news[pairs.new[pair]],
                    kinds=changes.kinds(np.array([pair])),
                )
                for pair in named
            ),
        ),
        differing=differing,
        notes=tuple(_make_notes(pairs, unread=found.unread)),
        unit="example" if pairs.before.is_by_object or pairs.after.is_by_object else "image",
        changed=int(changed.sum()),
    )
    located = [
        _make_image(each, olds=olds, news=news, kinds=changes.kinds(each.pairs)) for each in chosen
    ]
    return Comparison(difference, located)


class _Changes(NamedTuple):
    """How the pairs differ: one flag for each pair and kind of change."""

    renamed: Flags
    reencoded: Flags
    moved: Flags
    image: Flags
    labels: Flags
    class_names: Flags
    other: Flags

    def kinds(self, pairs: Places) -> tuple[ChangeKind, ...]:
        """Returns the kinds of change that any of these pairs has."""
        return tuple(
            ChangeKind(name) for name, flags in self._asdict().items() if flags[pairs].any()
        )


def _compare_digests(pairs: Pairs) -> Flags:
    """Returns for each pair whether the digests say that the labels of the image differ.

    Equal Examples have equal labels, even if these were digested otherwise; unless each object has
    an Example, because then the digest covers the other Examples of the image, too.
    """
    if not pairs.has_labels:
        return np.zeros(len(pairs.old), bool)
    old, new = pairs.rows
    labels: Flags = old["labels"] != new["labels"]
    if not (pairs.before.is_by_object or pairs.after.is_by_object):
        labels &= (old["length"] != new["length"]) | (old["crc32c"] != new["crc32c"])
    return labels


class _Labels(NamedTuple):
    """What is known of the labels of the pairs.

    Attributes:
        differ: For each pair whether its labels differ.
        renamed: For each pair whether nothing but renamed classes differs, and perhaps the image.
        class_changes: The classes that were renamed, and objects with another class.
        unread: How many images were not read, because they are too many.
    """

    differ: Flags
    renamed: Flags
    class_changes: Sequence[ClassChange] = ()
    unread: int = 0


def _read_labels(pairs: Pairs, differ: Flags) -> _Labels:
    """Reads the images of which only digests say that their labels differ, to find out.

    Args:
        pairs: The pairs.
        differ: For each pair whether the digests differ.
    """
    old, new = pairs.rows
    names = ClassNames(pairs.before.manifest.labels, pairs.after.manifest.labels)
    # A class may have been renamed: where objects were removed, too, they tell whether.
    chosen = differ & ((old["objects"] == new["objects"]) | names.may_have_renames)
    at = np.flatnonzero(chosen)
    _, groups = _group_by_image(pairs, at[np.argsort(pairs.new[at], kind="stable")])
    doubtful = [each for each in groups if len(each.old) == len(each.new) and not each.too_many]
    read = doubtful[:_MOST_READ]
    if not read:
        return _Labels(differ, np.zeros_like(differ))
    olds = pairs.before.locate(each.old for each in read)
    news = pairs.after.locate(each.new for each in read)
    kinds = (ChangeKind.LABELS,)
    images = [_make_image(each, olds=olds, news=news, kinds=kinds) for each in read]
    found = list(compare_labels(images, old=pairs.before.dataset, new=pairs.after.dataset))
    class_changes = find_class_changes(found, names=names)
    renames = list_renames(class_changes).items()
    differ, renamed = differ.copy(), np.zeros_like(differ)
    for group, each in zip(read, found, strict=True):
        if each.is_same:
            differ[group.pairs] = False
        elif not each.other_labels and each.classes.keys() <= renames:
            differ[group.pairs] = False
            renamed[group.pairs] = not each.other_values
    return _Labels(differ, renamed, class_changes, len(doubtful) - len(read))


def _find_changes(pairs: Pairs, labels: _Labels) -> _Changes:
    """Finds how the pairs differ."""
    old, new = pairs.rows
    renamed = (old["key"] != new["key"]) & ~pairs.near
    image = (old["image"] != new["image"]) & ~pairs.near
    record = old["length"] != new["length"]
    if pairs.has_labels:
        record |= old["crc32c"] != new["crc32c"]
    class_names = record & labels.renamed
    return _Changes(
        renamed=renamed,
        reencoded=pairs.near,
        moved=old["split"] != new["split"],
        image=image,
        labels=labels.differ,
        class_names=class_names,
        # The Example of a renamed image differs anyway, because the key is in it.
        other=record & ~(image | labels.differ | renamed | pairs.near | class_names),
    )


def _group_by_image(pairs: Pairs, at: Places) -> tuple[int, Iterator[_Group]]:
    """Groups pairs by their image, in the order in which the images come first.

    Returns:
        How many images there are, and the images.
    """
    old_firsts, new_firsts = pairs.before.first_places(), pairs.after.first_places()
    old, new = old_firsts[pairs.old[at]], new_firsts[pairs.new[at]]
    # A number for each pair of first Examples.
    numbers = old * (len(new_firsts) + 1) + new
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    by_image = np.split(at[np.argsort(which, kind="stable")], np.cumsum(np.bincount(which))[:-1])

    def groups() -> Iterator[_Group]:
        for image in np.argsort(first).tolist():
            olds = examples_of(old[first[image]], old_firsts)
            news = examples_of(new[first[image]], new_firsts)
            most = max(len(olds), len(news))
            if most <= _MOST_EXAMPLES:
                yield _Group(by_image[image], olds, news)
            else:
                # The first Examples of each side would not do: if one is removed, another moves up.
                one = by_image[image][:1]
                yield _Group(by_image[image], pairs.old[one], pairs.new[one], too_many=most)

    return len(first), groups()


def _make_notes(pairs: Pairs, *, unread: int) -> Iterator[str]:
    for each in (pairs.before, pairs.after):
        if not each.has_labels:
            yield (
                f"the index of {each.dataset.path} is of an older version of Shardbeam: changes "
                "are found only if they change the length of an Example or its image; a box that "
                "moved, or a class that got another number, is not found"
            )
    if pairs.ambiguous:
        yield (
            f"{counted(pairs.ambiguous, 'removed image')} may be an added one, encoded again under "
            "another name: not matched, because several pictures are nearly the same"
        )
    if unread:
        yield (
            f"the labels of {unread:,} more images were compared by their digests alone; some may "
            "only have been rounded otherwise, or digested by another version of Shardbeam"
        )


def _count_splits(
    pairs: Pairs, changes: _Changes, *, splits: Sequence[str]
) -> dict[str, SplitDifference]:
    old, new = pairs.before.rows["split"], pairs.after.rows["split"]
    of_new = new[pairs.new]
    counted = {
        "old": old,
        "new": new,
        "added": new[pairs.added],
        "removed": old[pairs.removed],
        "moved_in": of_new[changes.moved],
        "moved_out": old[pairs.old[changes.moved]],
        "unchanged": of_new[~np.logical_or.reduce(changes)],
        **{kind: of_new[flags] for kind, flags in changes._asdict().items() if kind != "moved"},
    }
    numbers = {name: np.bincount(each, minlength=len(splits)) for name, each in counted.items()}
    return {
        split: SplitDifference(**{name: int(each[index]) for name, each in numbers.items()})
        for index, split in enumerate(splits)
    }


def _count_moves(
    pairs: Pairs, changes: _Changes, *, splits: Sequence[str]
) -> dict[str, dict[str, int]]:
    ways = Counter(
        zip(*(rows["split"][changes.moved].tolist() for rows in pairs.rows), strict=True)
    )
    moved: dict[str, dict[str, int]] = {}
    for (source, target), count in sorted(ways.items()):
        moved.setdefault(splits[source], {})[splits[target]] = count
    return moved


def _make_image(
    group: _Group,
    *,
    olds: Mapping[int, ExamplePlace],
    news: Mapping[int, ExamplePlace],
    kinds: tuple[ChangeKind, ...],
) -> DifferingImage:
    old, new = [olds[place] for place in group.old], [news[place] for place in group.new]
    change = _make_change(old[0], new[0], kinds=kinds)
    return DifferingImage(change, old, new, group.too_many)


def _make_change(
    old: ExamplePlace | None, new: ExamplePlace | None, *, kinds: tuple[ChangeKind, ...]
) -> Change:
    found = new or old
    assert found is not None
    return Change(
        key=found.key,
        kinds=kinds,
        old_split="" if old is None else old.split,
        new_split="" if new is None else new.split,
        old_key=old.key if old is not None and not _HAVE_KEY.isdisjoint(kinds) else "",
    )


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
