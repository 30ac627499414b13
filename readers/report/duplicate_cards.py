"""Reads the duplicates that the page shows from a dataset's `duplicates.parquet`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardbeam.readers.open.images import Place
from shardbeam.readers.open.record_reader import load_shard_index
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.readers.report.cards import Card
from shardbeam.readers.report.twins import Twin, find_twins
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.findings import SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.dataset.outcome import DuplicateCounts
from shardbeam.transforms.duplicates.duplicates import DUPLICATES, Row, find_pair, load_duplicates
from shardbeam.transforms.duplicates.label_conflicts import ClassCounts, read_classes
from shardbeam.transforms.storage.base import join_uri

# At most this many groups are drawn, the harmful ones first, and usually at most this many pictures
# of each.
_GROUPS, _OF_GROUP = 40, 4
_COLUMNS = [
    *("group", "key", "split", "shard", "row", "sha256", "labels", "distance"),
    *("leak", "contradiction"),
]
# Columns that older datasets lack, and the values to assume for them.
_NEW_COLUMNS = {
    "classes_digest": "",
    "near_contradiction": False,
    SAME_PICTURE: None,
    "cropped": False,
    UNEQUAL_OBJECTS: None,
}
# Columns that older datasets have under another name.
_OLD_NAMES = {"classes": "classes_digest"}
# The columns of an index that show where an Example is, and which objects it has.
_INDEX_COLUMNS = ("key", "source", "offset", "length", "objects", "classes", "class_objects")
# Columns that say what is wrong with a group, the worst first.
_FLAGS = ("contradiction", "leak", "near_contradiction")


class Group(NamedTuple):
    """Pictures that are the same, or nearly.

    Attributes:
        number: The group's number in `duplicates.parquet`.
        is_leak: Whether its pictures are in several splits.
        is_contradiction: Whether one file among them has different labels.
        is_near_contradiction: Whether different files among them have different classes.
        images: How many pictures of the group `duplicates.parquet` lists.
        places: Where some of them are: first those that show what is wrong with the group, then one
            for each split and labels, if there is room.
        notes: For each of `places`, how the picture differs from the group's first one, in words.
    """

    number: int
    is_leak: bool
    is_contradiction: bool
    is_near_contradiction: bool
    images: int
    places: Sequence[Place]
    notes: Sequence[str]


class Pair(NamedTuple):
    """A group of duplicates.

    Attributes:
        group: The group.
        cards: Some of its images, each with how it differs, in words.
    """

    group: Group
    cards: Sequence[tuple[Card, str]]


class Duplicates(NamedTuple):
    """The duplicates of a dataset.

    Attributes:
        counts: Their numbers.
        groups: The first groups: contradictions, leaks, near contradictions, and others.
        twins: `{(split, number): the image that shows what is wrong with it}`.
    """

    counts: DuplicateCounts
    groups: Sequence[Group] = ()
    twins: Mapping[tuple[str, int], Twin] = {}


def read_duplicates(
    dataset: StoredDataset,
    *,
    counts: DuplicateCounts,
    shown: Iterable[Place] = (),
    ignored: Collection[str] = (),
) -> Duplicates:
    """Reads the first groups of duplicates of a dataset, and the twins of some images.

    Args:
        dataset: The dataset.
        counts: The numbers of duplicates in its manifest.
        shown: The images whose twins are to be found.
        ignored: Kinds of findings that the dataset's config ignores.

    Raises:
        InputError: A file is missing or damaged.
    """
    if not counts.groups:
        return Duplicates(counts)
    indexes = _Indexes(dataset)
    rows = sorted(_read_rows(dataset), key=_order)
    groups = [list(members) for _, members in itertools.groupby(rows, key=_order)]
    find = indexes.find_place
    twins = find_twins(
        groups,
        shown={indexes.find_row(place): place for place in shown},
        find_place=find,
        find_classes=indexes.find_classes,
        ignored=ignored,
    )
    first = [_make_group(members, find=find) for members in groups[:_GROUPS]]
    return Duplicates(counts, first, twins)


def _order(row: Row) -> tuple[object, ...]:
    return *(not row[flag] for flag in _FLAGS), row["group"]


def _read_rows(dataset: StoredDataset) -> list[Row]:
    table = load_duplicates(
        dataset.path,
        listed=dataset.listed_files().get(DUPLICATES),
        columns=[*_COLUMNS, *_NEW_COLUMNS, *_OLD_NAMES],
    )
    table = table.rename_columns([_OLD_NAMES.get(name, name) for name in table.column_names])
    if set(_COLUMNS) - set(table.column_names):
        raise InputError(
            uri=join_uri(dataset.path, DUPLICATES),
            problem="not the duplicates of a dataset: a column is missing",
        )
    return [{**_NEW_COLUMNS, **row} for row in table.to_pylist()]


def _make_group(rows: Sequence[Row], *, find: Callable[[Row], Place]) -> Group:
    chosen = _choose(rows)
    return Group(
        number=rows[0]["group"],
        is_leak=rows[0]["leak"],
        is_contradiction=rows[0]["contradiction"],
        is_near_contradiction=rows[0]["near_contradiction"],
        images=len(rows),
        places=[find(row) for row in chosen],
        notes=[_describe(row) for row in chosen],
    )


def _describe(row: Row) -> str:
    if row["cropped"]:
        return "cropped copy"
    return f"{row['distance']} of 64 bits differ" if row["distance"] else ""


def _choose(rows: Sequence[Row]) -> list[Row]:
    """Chooses the rows to draw: pairs that show what is wrong, and others if there is room."""
    chosen: list[Row] = []
    for flag in ("contradiction", "near_contradiction", "leak"):
        if rows[0][flag] and not (chosen and find_pair(chosen, flag=flag)):
            # Prefer a pair of which one row is chosen already.
            pair = find_pair([*chosen, *rows], flag=flag) or ()
            chosen += [row for row in pair if row not in chosen]
    for row in _most_different(rows):
        if len(chosen) < _OF_GROUP and row not in chosen:
            chosen.append(row)
    return chosen


def _most_different(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the first row of each split and labels, then the other rows."""
    seen: set[tuple[str, str]] = set()
    others = []
    for row in rows:
        kind = (row["split"], row["labels"])
        if kind in seen:
            others.append(row)
        else:
            seen.add(kind)
            yield row
    yield from others


class _Indexes:
    """Finds Examples by the indexes of a dataset's shards; each index is read once."""

    def __init__(self, dataset: StoredDataset) -> None:
        self._dataset = dataset
        self._splits = {split.name: split for split in dataset.splits}
        self._tables: dict[str, pa.Table] = {}
        self._classes: dict[str, Sequence[ClassCounts]] = {}

    def find_row(self, place: Place) -> tuple[str, int, int]:
        """Returns the split, the shard and the row there of an Example."""
        return place.split, place.shard, place.number - self._first(place.split, place.shard)

    def find_place(self, row: Row) -> Place:
        """Returns where the Example of a row is."""
        table = self._tables[self._read(row)]
        number = self._first(row["split"], row["shard"]) + row["row"]
        offset, length = (table[name][row["row"]].as_py() for name in ("offset", "length"))
        return Place(row["split"], number, row["shard"], offset, length)

    def find_classes(self, row: Row) -> Mapping[int, int]:
        """Returns the classes of the image whose Examples begin with a row: `{id: objects}`."""
        path = self._read(row)
        if path not in self._classes:
            table = self._tables[path]
            self._classes[path] = list(read_classes(table, np.arange(table.num_rows)))
        return dict(self._classes[path][row["row"]])

    def _first(self, split: str, shard: int) -> int:
        """Returns the number of a shard's first Example in its split, from 1."""
        return sum(self._splits[split].shard_examples[:shard]) + 1

    def _read(self, row: Row) -> str:
        """Reads the index of the shard that a row names, if it is not read yet.

        Returns:
            The shard's path.
        """
        split = self._splits.get(row["split"])
        if split is None or not 0 <= row["shard"] < len(split.shards):
            raise self._error(row)
        path = split.shards[row["shard"]].path
        if path not in self._tables:
            self._tables[path] = load_shard_index(
                self._dataset,
                path,
                columns=_INDEX_COLUMNS,
                max_rows=split.shard_examples[row["shard"]],
            )
        if not 0 <= row["row"] < self._tables[path].num_rows:
            raise self._error(row)
        return path

    def _error(self, row: Row) -> InputError:
        uri = join_uri(self._dataset.path, DUPLICATES)
        return InputError(uri=uri, problem=f"{row['key']!r} is in no shard")
