"""Finds what differs between two datasets, by their indexes alone: no shard is read.

Examples are matched by their images' keys. Each example takes 33 bytes of memory: the first 64 bits
of the digests of its key, its image and its labels, its checksum, its length and its split. If two
datasets of 10^6 examples are compared, two keys share their 64 bits in one of 10^7 cases.
"""

from __future__ import annotations

import enum
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.dataset.index import first_bits, index_path, load_index
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.dataset.read.dataset import StoredDataset
from shardbeam.transforms.storage.base import join_uri

_COLUMNS = ("key", "length", "sha256", "crc32c", "labels")
_DIGEST_BYTES = 8
_ROW = np.dtype(
    [
        ("key", np.uint64),
        ("image", np.uint64),
        ("labels", np.uint64),
        ("crc32c", np.uint32),
        ("length", np.uint32),
        ("split", np.uint8),
    ]
)
_MAX_SPLITS = 255

_Rows = npt.NDArray[np.void]
_Places = npt.NDArray[np.intp]


class ChangeKind(str, enum.Enum):
    """How an example differs between two datasets.

    Attributes:
        ADDED: Only the new dataset has it.
        REMOVED: Only the old dataset has it.
        MOVED: It is in another split.
        IMAGE: Its stored image has other bytes.
        LABELS: Its classes, boxes or captions differ.
        OTHER: Image and labels are the same, but something else in the Example differs, such as
            masks, areas or added keys; in older datasets, whose indexes have no labels, it may be
            labels.
    """

    ADDED = "added"
    REMOVED = "removed"
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
    """

    key: str
    kinds: tuple[ChangeKind, ...]
    old_split: str = ""
    new_split: str = ""


class SplitDifference(msgspec.Struct, kw_only=True):
    """The differences in a split, as numbers of examples.

    An example that has moved counts as changed in its new split.

    Attributes:
        old: How many the old dataset has.
        new: How many the new one has.
        added: Those that only the new one has.
        removed: Those that only the old one has.
        moved_in: Those that come from another split.
        moved_out: Those that have gone to another split.
        image: Those whose image differs.
        labels: Those whose labels differ.
        other: Those in which only something else differs.
        unchanged: Those that are the same in the same split.
    """

    old: int = 0
    new: int = 0
    added: int = 0
    removed: int = 0
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
    """

    old: str
    new: str
    splits: Mapping[str, SplitDifference]
    moves: Mapping[str, Mapping[str, int]] = {}
    classes: Mapping[str, tuple[int | None, int | None]] = {}
    changes: tuple[Change, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether both have the same examples and classes."""
        return not self.classes and all(
            split.old == split.new == split.unchanged for split in self.splits.values()
        )


class _Dataset(NamedTuple):
    """The index of a dataset.

    Attributes:
        path: Its folder.
        manifest: Its manifest.
        rows: Its examples, split after split, in the order of the shards.
        has_labels: Whether its index holds labels and checksums of Examples.
    """

    path: str
    manifest: Manifest
    rows: _Rows
    has_labels: bool


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


def compare_datasets(old: StoredDataset, new: StoredDataset, *, limit: int) -> Difference:
    """Finds out what differs between two datasets of ours.

    Args:
        old: One dataset.
        new: The other.
        limit: How many examples of each kind of change are named.

    Raises:
        InputError: One has no index, or cannot be read.
    """
    splits = list(dict.fromkeys(split.name for each in (old, new) for split in each.splits))
    if len(splits) > _MAX_SPLITS:
        raise InputError(uri=new.path, problem=f"more than {_MAX_SPLITS} splits")
    before, after = (_read(each, splits=splits) for each in (old, new))
    pairs = _match(before.rows, after.rows)
    changes = _find_changes(pairs, before=before, after=after)
    return Difference(
        old=old.path,
        new=new.path,
        splits=_count_splits(pairs, changes, before=before, after=after, splits=splits),
        moves=_count_moves(pairs, changes, before=before, after=after, splits=splits),
        classes=_compare_classes(before.manifest.labels, after.manifest.labels),
        changes=tuple(
            _name_changes(pairs, changes, before=before, after=after, splits=splits, limit=limit)
        ),
    )


def _read(dataset: StoredDataset, *, splits: Sequence[str]) -> _Dataset:
    manifest = dataset.read_manifest()
    if manifest is None:
        raise InputError(
            uri=dataset.path,
            problem="not a dataset of Shardbeam: without an index, examples cannot be compared",
        )
    parts = [np.empty(0, _ROW)]
    has_labels = True
    for split, entry in manifest.splits.items():
        if entry.shards and split not in splits:
            raise InputError(
                uri=dataset.path,
                problem=f"dataset_info.json lacks the split {split!r} of the manifest",
            )
        for shard in entry.shards:
            uri = join_uri(dataset.path, index_path(shard.path))
            table = load_index(uri, columns=_COLUMNS, max_rows=shard.examples)
            has_labels &= "labels" in table.column_names
            if table.num_rows != shard.examples:
                problem = f"has {table.num_rows:,} rows for {shard.examples:,} examples"
                raise DamagedError(uri=uri, problem=problem)
            try:
                parts.append(_make_rows(table, split=splits.index(split)))
            except (TypeError, ValueError, OverflowError) as error:
                raise DamagedError(uri=uri, problem=f"a value is invalid: {error}") from error
            counters.indexes.add()
    return _Dataset(dataset.path, manifest, np.concatenate(parts), has_labels)


def _make_rows(table: pa.Table, *, split: int) -> _Rows:
    rows = np.zeros(table.num_rows, _ROW)
    rows["key"] = [_digest(key) for key in table["key"].to_pylist()]
    rows["image"] = first_bits(table["sha256"])
    if "labels" in table.column_names:
        rows["labels"] = first_bits(table["labels"])
        rows["crc32c"] = table["crc32c"].to_pylist()
    # Lengths wrap around at 4 GB; no reader can parse an Example of that length anyway.
    rows["length"] = np.asarray(table["length"].to_pylist(), np.int64).astype(np.uint32)
    rows["split"] = split
    return rows


def _digest(key: str) -> int:
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
    return int.from_bytes(digest.digest(), "big")


def _match(old: _Rows, new: _Rows) -> _Pairs:
    """Matches examples by key; among several with the same key, the most similar ones."""
    old_single, new_single = (_single_places(rows["key"]) for rows in (old, new))
    _, old_found, new_found = np.intersect1d(
        old["key"][old_single], new["key"][new_single], assume_unique=True, return_indices=True
    )
    matched = [(old_single[old_found], new_single[new_found])]
    old_left, new_left = _others(matched[0][0], old), _others(matched[0][1], new)
    shared = np.intersect1d(old["key"][old_left], new["key"][new_left])
    groups: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, left, rows in ((0, old_left, old), (1, new_left, new)):
        for place in left[np.isin(rows["key"][left], shared)].tolist():
            groups[int(rows["key"][place])][side].append(place)
    for olds, news in groups.values():
        pairs = np.array(_match_group(olds, news, old=old, new=new), np.intp)
        matched.append((pairs[:, 0], pairs[:, 1]))
    old_matched, new_matched = (np.concatenate(places) for places in zip(*matched, strict=True))
    return _Pairs(
        old=old_matched,
        new=new_matched,
        removed=_others(old_matched, old),
        added=_others(new_matched, new),
    )


def _single_places(keys: npt.NDArray[np.uint64]) -> _Places:
    """Returns the places of the keys that occur once."""
    _, places, counts = np.unique(keys, return_index=True, return_counts=True)
    single: _Places = places[counts == 1]
    return single


def _others(places: _Places, rows: _Rows) -> _Places:
    is_other = np.ones(len(rows), bool)
    is_other[places] = False
    return np.flatnonzero(is_other)


def _match_group(
    olds: Sequence[int], news: Sequence[int], *, old: _Rows, new: _Rows
) -> list[tuple[int, int]]:
    """Pairs examples with the same key: first equal ones, then in the same split, then the rest."""
    pairs: list[tuple[int, int]] = []
    alike = ["image", "labels", "crc32c", "length"]
    for fields in (["split", *alike], alike, ["split"], []):
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

    moved: npt.NDArray[np.bool_]
    image: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.bool_]
    other: npt.NDArray[np.bool_]


def _find_changes(pairs: _Pairs, *, before: _Dataset, after: _Dataset) -> _Changes:
    old, new = before.rows[pairs.old], after.rows[pairs.new]
    image = old["image"] != new["image"]
    labels = np.zeros(len(old), bool)
    record = old["length"] != new["length"]
    if before.has_labels and after.has_labels:
        labels = old["labels"] != new["labels"]
        record |= old["crc32c"] != new["crc32c"]
    return _Changes(
        moved=old["split"] != new["split"],
        image=image,
        labels=labels,
        other=record & ~image & ~labels,
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
    unchanged = ~(changes.moved | changes.image | changes.labels | changes.other)
    counted = {
        "old": old,
        "new": new,
        "added": new[pairs.added],
        "removed": old[pairs.removed],
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


def _name_changes(
    pairs: _Pairs,
    changes: _Changes,
    *,
    before: _Dataset,
    after: _Dataset,
    splits: Sequence[str],
    limit: int,
) -> Iterator[Change]:
    """Yields the first changes of each kind, in the order of the datasets."""
    for dataset, kind, places in (
        (before, ChangeKind.REMOVED, pairs.removed[:limit]),
        (after, ChangeKind.ADDED, pairs.added[:limit]),
    ):
        for place, key in zip(places.tolist(), _read_keys(dataset, places), strict=True):
            split = splits[dataset.rows["split"][place]]
            if kind is ChangeKind.ADDED:
                yield Change(key=key, kinds=(kind,), new_split=split)
            else:
                yield Change(key=key, kinds=(kind,), old_split=split)
    order = np.argsort(pairs.new, kind="stable")
    flags = {
        ChangeKind.MOVED: changes.moved,
        ChangeKind.IMAGE: changes.image,
        ChangeKind.LABELS: changes.labels,
        ChangeKind.OTHER: changes.other,
    }
    chosen = {place for flag in flags.values() for place in order[flag[order]][:limit].tolist()}
    shown = np.array([place for place in order.tolist() if place in chosen], np.intp)
    for place, key in zip(shown.tolist(), _read_keys(after, pairs.new[shown]), strict=True):
        yield Change(
            key=key,
            kinds=tuple(kind for kind, flag in flags.items() if flag[place]),
            old_split=splits[before.rows["split"][pairs.old[place]]],
            new_split=splits[after.rows["split"][pairs.new[place]]],
        )


def _read_keys(dataset: _Dataset, places: _Places) -> Iterator[str]:
    """Reads the keys of the examples at these places in the rows; the places are ascending."""
    wanted = iter(places.tolist())
    place = next(wanted, None)
    start = 0
    for entry in dataset.manifest.splits.values():
        for shard in entry.shards:
            end = start + shard.examples
            if place is not None and place < end:
                uri = join_uri(dataset.path, index_path(shard.path))
                keys = load_index(uri, columns=["key"], max_rows=shard.examples).column("key")
                while place is not None and place < end:
                    yield keys[place - start].as_py()
                    place = next(wanted, None)
            start = end
