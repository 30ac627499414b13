"""Finds what differs between two datasets, by their indexes.

Digests of labels differ, too, if they were made otherwise, or if two values on both sides of a step
are rounded. So the Examples of images of which only digests say that labels differ are compared by
a function of the caller; no other shard is read.

Examples are matched by their images' keys, and the others by the digests of their images, which
finds files that were renamed. Each example takes 37 bytes of memory: the first 64 bits of the
digests of its key, its image and its labels, its checksum, its length, its number of objects and
its split. Among two datasets of 10^6 examples, the chance that two keys share their 64 bits is 1 in
10^7.
"""

from __future__ import annotations

import enum
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.dataset.files import DatasetFile
from shardbeam.transforms.dataset.index import first_bits, index_path, load_index
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.storage.base import join_uri

_COLUMNS = ("key", "length", "sha256", "objects", "crc32c", "labels")
_PLACE_COLUMNS = ("key", "offset", "length", "objects")
_DIGEST_BYTES = 8
_ROW = np.dtype(
    [
        ("key", np.uint64),
        ("image", np.uint64),
        ("labels", np.uint64),
        ("crc32c", np.uint32),
        ("length", np.uint32),
        ("objects", np.int32),
        ("split", np.uint8),
    ]
)
_MAX_SPLITS = 255
# If an image has more Examples (`example_per: annotation`), they are not located, so its objects
# cannot be compared.
_MOST_EXAMPLES = 1_000
# The labels of at most this many images are compared by reading their Examples.
_MOST_READ = 10_000

_Rows = npt.NDArray[np.void]
_Places = npt.NDArray[np.intp]


class ChangeKind(str, enum.Enum):
    """How an example differs between two datasets.

    Attributes:
        ADDED: Only the new dataset has it.
        REMOVED: Only the old dataset has it.
        RENAMED: Its image has another key, and the same bytes.
        MOVED: It is in another split.
        IMAGE: Its stored image has other bytes.
        LABELS: Its classes, boxes or captions differ.
        OTHER: Image and labels are the same, but something else in the Example differs, such as
            masks, areas or added keys; in older datasets, whose indexes have no labels, it may be
            labels.
    """

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    MOVED = "moved"
    IMAGE = "image"
    LABELS = "labels"
    OTHER = "other"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An example that is not the same in two datasets.

    Attributes:
        key: Its image's key.
        kinds: How it differs.
        old_split: Its split in the old dataset; empty if it is not there.
        new_split: Its split in the new dataset; empty if it is not there.
        old_key: Its image's key in the old dataset, if it was renamed.
    """

    key: str
    kinds: tuple[ChangeKind, ...]
    old_split: str = ""
    new_split: str = ""
    old_key: str = ""


class SplitDifference(msgspec.Struct, kw_only=True):
    """The differences in a split, as numbers of examples.

    An example that has moved counts as changed in its new split, and so does one that was renamed.

    Attributes:
        old: How many the old dataset has.
        new: How many the new one has.
        added: Those that only the new one has.
        removed: Those that only the old one has.
        renamed: Those whose image has another key, and the same bytes.
        moved_in: Those that were in another split before.
        moved_out: Those that are in another split now.
        image: Those whose image differs.
        labels: Those whose labels differ.
        other: Those in which only something else differs.
        unchanged: Those that are the same in the same split.
    """

    old: int = 0
    new: int = 0
    added: int = 0
    removed: int = 0
    renamed: int = 0
    moved_in: int = 0
    moved_out: int = 0
    image: int = 0
    labels: int = 0
    other: int = 0
    unchanged: int = 0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two datasets.

    Attributes:
        old: Folder of the old one.
        new: Folder of the new one.
        splits: `{split: what differs}` for the splits of both.
        moves: `{old split: {new split: examples}}` of examples that have moved.
        classes: `{class: (old id, new id)}` of classes whose ids differ; the id is None in a
            dataset that lacks the class.
        changes: The first examples of each kind of change.
        differing: How many images are in both datasets with Examples that differ.
        notes: What cannot be compared, one line each.
    """

    old: str
    new: str
    splits: Mapping[str, SplitDifference]
    moves: Mapping[str, Mapping[str, int]] = {}
    classes: Mapping[str, tuple[int | None, int | None]] = {}
    changes: tuple[Change, ...] = ()
    differing: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether both have the same examples and classes."""
        return not self.classes and all(
            split.old == split.new == split.unchanged for split in self.splits.values()
        )


class ExamplePlace(NamedTuple):
    """Where an Example is.

    Attributes:
        key: Its image's key.
        split: Its split.
        shard: The path of its shard below the dataset's folder.
        number: Its number in the split, from 1.
        offset: Its place in the shard, as `IndexRow.offset`.
        length: Length of the serialized Example in bytes.
        objects: How many objects it holds.
    """

    key: str
    split: str
    shard: str
    number: int
    offset: int
    length: int
    objects: int


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


# Reads images of which only digests say that their labels differ, and yields for each whether they
# are the same.
CompareLabels: TypeAlias = Callable[[Sequence[DifferingImage]], Iterable[bool]]


class _Dataset(NamedTuple):
    """The index of a dataset.

    Attributes:
        path: Its folder.
        manifest: Its manifest.
        listed: The files that the manifest lists (`StoredDataset.listed_files`).
        rows: Its examples, split after split, in the order of the shards.
        has_labels: Whether its index holds labels and checksums of Examples.
    """

    path: str
    manifest: Manifest
    listed: Mapping[str, DatasetFile]
    rows: _Rows
    has_labels: bool

    @property
    def is_by_object(self) -> bool:
        """Whether each object has an Example."""
        return bool(self.manifest.config.get("example_per") == "annotation")

    def first_places(self) -> _Places:
        """Returns for each Example the place of the first Example of its image.

        With `example_per: annotation`, the Examples of an image follow each other.
        """
        places = np.arange(len(self.rows))
        if not self.is_by_object:
            return places
        keys, splits = self.rows["key"], self.rows["split"]
        is_first = np.ones(len(places), bool)
        is_first[1:] = (keys[1:] != keys[:-1]) | (splits[1:] != splits[:-1])
        return np.maximum.accumulate(np.where(is_first, places, 0))


class _Pairs(NamedTuple):
    """The examples of two datasets that were matched, by their places in the rows.

    Attributes:
        old: The places of the pairs in the old dataset.
        new: The places of the same pairs in the new dataset.
        removed: The places of examples without a partner in the old dataset.
        added: The places of examples without a partner in the new dataset.
    """

    old: _Places
    new: _Places
    removed: _Places
    added: _Places


def compare_datasets(
    old: StoredDataset,
    new: StoredDataset,
    *,
    limit: int,
    images: int = 0,
    compare_labels: CompareLabels | None = None,
) -> Comparison:
    """Compares two datasets that Shardbeam has built.

    Args:
        old: One dataset.
        new: The other.
        limit: How many examples of each kind of change are named.
        images: How many of the images whose Examples differ are located, so that they can be read
            (`read.changed_pictures`).
        compare_labels: Compares labels (`read.changed_pictures.compare_labels`); None to rely on
            their digests.

    Raises:
        InputError: One has no index, or cannot be read.
    """
    splits = list(dict.fromkeys(split.name for each in (old, new) for split in each.splits))
    if len(splits) > _MAX_SPLITS:
        raise InputError(uri=new.path, problem=f"more than {_MAX_SPLITS} splits")
    before, after = (_read(each, splits=splits) for each in (old, new))
    pairs = _match(before.rows, after.rows)
    labels = _compare_labels(pairs, before=before, after=after)
    unread = 0
    if compare_labels is not None:
        doubtful = _find_doubtful(pairs, labels, before=before, after=after)
        unread = max(0, len(doubtful) - _MOST_READ)
        for same in _find_same_labels(
            doubtful[:_MOST_READ], before=before, after=after, compare_labels=compare_labels
        ):
            labels[same] = False
    changes = _find_changes(pairs, labels, before=before, after=after)
    differing, chosen = _group_differing(pairs, changes, before=before, after=after, images=images)
    named = _choose_named(pairs, changes, limit=limit)
    removed, added = pairs.removed[:limit], pairs.added[:limit]
    olds = _locate(before, [removed, pairs.old[named], *(each.old for each in chosen)])
    news = _locate(after, [added, pairs.new[named], *(each.new for each in chosen)])
    difference = Difference(
        old=old.path,
        new=new.path,
        splits=_count_splits(pairs, changes, before=before, after=after, splits=splits),
        moves=_count_moves(pairs, changes, before=before, after=after, splits=splits),
        classes=_compare_classes(before.manifest.labels, after.manifest.labels),
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
        notes=(*_note_limits(before, after), *_note_unread(unread)),
    )
    return Comparison(
        difference,
        [
            DifferingImage(
                change=_make_change(
                    olds[each.old[0]], news[each.new[0]], kinds=changes.kinds(each.pairs)
                ),
                old=[olds[place] for place in each.old],
                new=[news[place] for place in each.new],
                too_many=each.too_many,
            )
            for each in chosen
        ],
    )


def _read(dataset: StoredDataset, *, splits: Sequence[str]) -> _Dataset:
    manifest = dataset.read_manifest()
    if manifest is None:
        raise InputError(
            uri=dataset.path,
            problem="not a dataset of Shardbeam: without an index, examples cannot be compared",
        )
    listed = dataset.listed_files()
    parts = [np.empty(0, _ROW)]
    has_labels = True
    for split, entry in manifest.splits.items():
        if entry.shards and split not in splits:
            raise InputError(
                uri=dataset.path,
                problem=f"dataset_info.json lacks the split {split!r} of the manifest",
            )
        for shard in entry.shards:
            path = index_path(shard.path)
            uri = join_uri(dataset.path, path)
            table = load_index(
                uri, listed=listed.get(path), columns=_COLUMNS, max_rows=shard.examples
            )
            has_labels &= "labels" in table.column_names
            if table.num_rows != shard.examples:
                problem = f"has {table.num_rows:,} rows for {shard.examples:,} examples"
                raise DamagedError(uri=uri, problem=problem)
            try:
                parts.append(_make_rows(table, split=splits.index(split)))
            except (TypeError, ValueError, OverflowError) as error:
                raise DamagedError(uri=uri, problem=f"a value is invalid: {error}") from error
            counters.indexes.add()
    return _Dataset(dataset.path, manifest, listed, np.concatenate(parts), has_labels)


def _make_rows(table: pa.Table, *, split: int) -> _Rows:
    rows = np.zeros(table.num_rows, _ROW)
    rows["key"] = [_digest(key) for key in table["key"].to_pylist()]
    rows["image"] = first_bits(table["sha256"])
    if "labels" in table.column_names:
        rows["labels"] = first_bits(table["labels"])
        rows["crc32c"] = table["crc32c"].to_pylist()
    # Lengths wrap around at 4 GB; no reader can parse an Example of that length anyway.
    rows["length"] = np.asarray(table["length"].to_pylist(), np.int64).astype(np.uint32)
    rows["objects"] = table["objects"].to_numpy()
    rows["split"] = split
    return rows


def _digest(key: str) -> int:
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
    return int.from_bytes(digest.digest(), "big")


def _match(old: _Rows, new: _Rows) -> _Pairs:
    """Matches examples by key, and the others by the digest of their image."""
    by_key = _match_by("key", np.arange(len(old)), np.arange(len(new)), old=old, new=new)
    # An example without an image has the digest 0.
    old_left, new_left = (
        left[rows["image"][left] != 0]
        for left, rows in ((_others(by_key[0], old), old), (_others(by_key[1], new), new))
    )
    by_image = _match_by("image", old_left, new_left, old=old, new=new)
    old_matched, new_matched = (
        np.concatenate(places) for places in zip(by_key, by_image, strict=True)
    )
    return _Pairs(
        old=old_matched,
        new=new_matched,
        removed=_others(old_matched, old),
        added=_others(new_matched, new),
    )


def _match_by(
    field: str, old_places: _Places, new_places: _Places, *, old: _Rows, new: _Rows
) -> tuple[_Places, _Places]:
    """Matches examples with the same value in a field; several of one value by similarity."""
    old_values, new_values = old[field][old_places], new[field][new_places]
    old_single, new_single = _single_places(old_values), _single_places(new_values)
    _, old_found, new_found = np.intersect1d(
        old_values[old_single], new_values[new_single], assume_unique=True, return_indices=True
    )
    old_found, new_found = old_single[old_found], new_single[new_found]
    matched = [(old_places[old_found], new_places[new_found])]
    old_left, new_left = _others(old_found, old_values), _others(new_found, new_values)
    shared = np.intersect1d(old_values[old_left], new_values[new_left])
    groups: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, left, places, values in (
        (0, old_left, old_places, old_values),
        (1, new_left, new_places, new_values),
    ):
        left = left[np.isin(values[left], shared)]
        for place, value in zip(places[left].tolist(), values[left].tolist(), strict=True):
            groups[value][side].append(place)
    for olds, news in groups.values():
        pairs = np.array(_match_group(olds, news, old=old, new=new), np.intp)
        matched.append((pairs[:, 0], pairs[:, 1]))
    old_matched, new_matched = (np.concatenate(places) for places in zip(*matched, strict=True))
    return old_matched, new_matched


def _single_places(values: npt.NDArray[np.uint64]) -> _Places:
    """Returns the places of the values that occur once."""
    _, places, counts = np.unique(values, return_index=True, return_counts=True)
    single: _Places = places[counts == 1]
    return single


def _others(places: _Places, rows: npt.NDArray[Any]) -> _Places:
    """Returns all other places in the rows."""
    is_other = np.ones(len(rows), bool)
    is_other[places] = False
    return np.flatnonzero(is_other)


def _match_group(
    olds: Sequence[int], news: Sequence[int], *, old: _Rows, new: _Rows
) -> list[tuple[int, int]]:
    """Pairs examples that have the same key, or the same image.

    Those that are equal in everything are paired first, also across splits. Then come pairs within
    a split: equal Examples (they may differ in `labels`, which also covers the image's other
    Examples), then equal images with equal labels, then any. The rest is paired in order.
    """
    pairs: list[tuple[int, int]] = []
    alike = ["image", "labels", "crc32c", "length"]
    for fields in (
        ["split", *alike],
        alike,
        ["split", "image", "crc32c", "length"],
        ["split", "image", "labels"],
        ["split"],
        [],
    ):
        waiting: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place in reversed(news):
            waiting[tuple(new[place][name] for name in fields)].append(place)
        left = []
        for place in olds:
            candidates = waiting[tuple(old[place][name] for name in fields)]
            if candidates:
                pairs.append((place, candidates.pop()))
            else:
                left.append(place)
        olds, news = left, sorted(place for places in waiting.values() for place in places)
    return pairs


class _Changes(NamedTuple):
    """How the pairs differ: one flag for each pair and kind of change."""

    renamed: npt.NDArray[np.bool_]
    moved: npt.NDArray[np.bool_]
    image: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.bool_]
    other: npt.NDArray[np.bool_]

    def kinds(self, pairs: _Places) -> tuple[ChangeKind, ...]:
        """Returns the kinds of change that any of these pairs has."""
        return tuple(
            ChangeKind(name) for name, flags in self._asdict().items() if flags[pairs].any()
        )


def _find_doubtful(
    pairs: _Pairs, labels: npt.NDArray[np.bool_], *, before: _Dataset, after: _Dataset
) -> list[_Group]:
    """Finds the images whose labels differ by their digests, and not by the number of objects.

    Args:
        pairs: The pairs.
        labels: For each pair whether the digests differ (`_compare_labels`).
        before: The old dataset.
        after: The new dataset.
    """
    at = np.flatnonzero(labels)
    at = at[before.rows["objects"][pairs.old[at]] == after.rows["objects"][pairs.new[at]]]
    old_firsts, new_firsts = before.first_places(), after.first_places()
    ends = np.stack([old_firsts[pairs.old[at]], new_firsts[pairs.new[at]]], axis=1)
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    at, ends = at[order], ends[order]
    begins = np.flatnonzero((ends[1:] != ends[:-1]).any(axis=1)) + 1
    groups = []
    for of_image in np.split(at, begins) if len(at) else ():
        old = _members(old_firsts, old_firsts[pairs.old[of_image[0]]])
        new = _members(new_firsts, new_firsts[pairs.new[of_image[0]]])
        if len(old) == len(new) <= _MOST_EXAMPLES:
            groups.append(_Group(of_image, old, new, too_many=0))
    return groups


def _compare_labels(pairs: _Pairs, *, before: _Dataset, after: _Dataset) -> npt.NDArray[np.bool_]:
    """Returns for each pair whether the digests say that the labels of the image differ.

    Equal Examples have equal labels, even if these were digested otherwise; unless each object has
    an Example, because then the digest covers the other Examples of the image, too.
    """
    if not (before.has_labels and after.has_labels):
        return np.zeros(len(pairs.old), bool)
    old, new = before.rows[pairs.old], after.rows[pairs.new]
    labels: npt.NDArray[np.bool_] = old["labels"] != new["labels"]
    if not (before.is_by_object or after.is_by_object):
        labels &= (old["length"] != new["length"]) | (old["crc32c"] != new["crc32c"])
    return labels


def _find_same_labels(
    groups: Sequence[_Group], *, before: _Dataset, after: _Dataset, compare_labels: CompareLabels
) -> Iterator[_Places]:
    """Reads images, and yields the pairs of each one whose labels are the same."""
    if not groups:
        return
    olds = _locate(before, [each.old for each in groups])
    news = _locate(after, [each.new for each in groups])
    images = []
    for each in groups:
        old, new = [olds[place] for place in each.old], [news[place] for place in each.new]
        change = _make_change(old[0], new[0], kinds=(ChangeKind.LABELS,))
        images.append(DifferingImage(change, old, new))
    for group, is_same in zip(groups, compare_labels(images), strict=True):
        if is_same:
            yield group.pairs


def _find_changes(
    pairs: _Pairs, labels: npt.NDArray[np.bool_], *, before: _Dataset, after: _Dataset
) -> _Changes:
    """Finds how the pairs differ; `labels` says of each whether its labels do."""
    old, new = before.rows[pairs.old], after.rows[pairs.new]
    renamed = old["key"] != new["key"]
    image = old["image"] != new["image"]
    record = old["length"] != new["length"]
    if before.has_labels and after.has_labels:
        record |= old["crc32c"] != new["crc32c"]
    return _Changes(
        renamed=renamed,
        moved=old["split"] != new["split"],
        image=image,
        labels=labels,
        # The Example of a renamed image differs anyway, because the key is in it.
        other=record & ~image & ~labels & ~renamed,
    )


def _note_limits(before: _Dataset, after: _Dataset) -> Iterator[str]:
    for each in (before, after):
        if not each.has_labels:
            yield (
                f"the index of {each.path} is of an older version of Shardbeam: changes are found "
                "only if they change the length of an Example or its image; a box that moved, or "
                "a class that got another number, is not found"
            )


def _note_unread(images: int) -> Iterator[str]:
    if images:
        yield (
            f"the labels of {images:,} more images were compared by their digests alone; some may "
            "only have been rounded otherwise, or digested by another version of Shardbeam"
        )


def _count_splits(
    pairs: _Pairs,
    changes: _Changes,
    *,
    before: _Dataset,
    after: _Dataset,
    splits: Sequence[str],
) -> dict[str, SplitDifference]:
    old, new = before.rows["split"], after.rows["split"]
    unchanged = ~np.logical_or.reduce(changes)
    counted = {
        "old": old,
        "new": new,
        "added": new[pairs.added],
        "removed": old[pairs.removed],
        "renamed": new[pairs.new[changes.renamed]],
        "moved_in": new[pairs.new[changes.moved]],
        "moved_out": old[pairs.old[changes.moved]],
        "image": new[pairs.new[changes.image]],
        "labels": new[pairs.new[changes.labels]],
        "other": new[pairs.new[changes.other]],
        "unchanged": new[pairs.new[unchanged]],
    }
    numbers = {name: np.bincount(each, minlength=len(splits)) for name, each in counted.items()}
    return {
        split: SplitDifference(**{name: int(each[index]) for name, each in numbers.items()})
        for index, split in enumerate(splits)
    }


def _count_moves(
    pairs: _Pairs, changes: _Changes, *, before: _Dataset, after: _Dataset, splits: Sequence[str]
) -> dict[str, dict[str, int]]:
    moved: dict[str, dict[str, int]] = {}
    old = before.rows["split"][pairs.old[changes.moved]]
    new = after.rows["split"][pairs.new[changes.moved]]
    ways, counts = np.unique(np.stack([old, new], axis=1), axis=0, return_counts=True)
    for (source, target), count in zip(ways.tolist(), counts.tolist(), strict=True):
        moved.setdefault(splits[source], {})[splits[target]] = count
    return moved


def _compare_classes(
    old: Mapping[str, int], new: Mapping[str, int]
) -> dict[str, tuple[int | None, int | None]]:
    return {
        name: (old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    }


class _Group(NamedTuple):
    """An image that differs.

    Attributes:
        pairs: Numbers of the pairs of its Examples that differ.
        old: Places of its Examples in the old dataset, as for `DifferingImage`.
        new: Places of its Examples in the new dataset.
        too_many: As for `DifferingImage`.
    """

    pairs: _Places
    old: _Places
    new: _Places
    too_many: int


def _group_differing(
    pairs: _Pairs, changes: _Changes, *, before: _Dataset, after: _Dataset, images: int
) -> tuple[int, list[_Group]]:
    """Finds the images that are in both datasets and differ.

    Returns:
        How many they are, and the first of them, as for `Comparison.images`.
    """
    at = np.flatnonzero(changes.image | changes.labels | changes.other)
    rank = np.where(changes.labels[at], 0, np.where(changes.image[at], 1, 2))
    at = at[np.lexsort((pairs.new[at], rank))]
    old_firsts, new_firsts = before.first_places(), after.first_places()
    ends = np.stack([old_firsts[pairs.old[at]], new_firsts[pairs.new[at]]], axis=1)
    _, first = np.unique(ends, axis=0, return_index=True)
    groups = []
    for number in np.sort(first)[:images]:
        of_image = at[(ends == ends[number]).all(axis=1)]
        old, new = _members(old_firsts, ends[number, 0]), _members(new_firsts, ends[number, 1])
        most = max(len(old), len(new))
        if most <= _MOST_EXAMPLES:
            groups.append(_Group(of_image, old, new, too_many=0))
        else:
            # The first Examples of each side would not do: if one is removed, another one moves up.
            one = of_image[:1]
            groups.append(_Group(of_image, pairs.old[one], pairs.new[one], too_many=most))
    return len(first), groups


def _members(firsts: _Places, first: int) -> _Places:
    """Returns the places of the Examples of an image."""
    return np.arange(first, int(np.searchsorted(firsts, first, side="right")))


def _choose_named(pairs: _Pairs, changes: _Changes, *, limit: int) -> _Places:
    """Chooses the first pairs of each kind of change, in the order of the new dataset."""
    order = np.argsort(pairs.new, kind="stable")
    chosen = {place for flag in changes for place in order[flag[order]][:limit].tolist()}
    return np.array([place for place in order.tolist() if place in chosen], np.intp)


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
        old_key=old.key if ChangeKind.RENAMED in kinds and old is not None else "",
    )


def _locate(dataset: _Dataset, wanted: Iterable[_Places]) -> dict[int, ExamplePlace]:
    """Reads from the indexes where the Examples at these places in the rows are."""
    places = iter(np.unique(np.concatenate(list(wanted))).tolist())
    place = next(places, None)
    located: dict[int, ExamplePlace] = {}
    start = 0
    for split, entry in dataset.manifest.splits.items():
        before = start
        for shard in entry.shards:
            end = start + shard.examples
            if place is not None and place < end:
                path = index_path(shard.path)
                table = load_index(
                    join_uri(dataset.path, path),
                    listed=dataset.listed.get(path),
                    columns=_PLACE_COLUMNS,
                    max_rows=shard.examples,
                )
                while place is not None and place < end:
                    (row,) = table.slice(place - start, 1).to_pylist()
                    located[place] = ExamplePlace(
                        split=split, shard=shard.path, number=place - before + 1, **row
                    )
                    place = next(places, None)
            start = end
    return located
