"""Reads from a dataset's `duplicates.parquet` which duplicates the page shows.

These are the first groups of duplicates, and for each image of the gallery that has a duplicate
the one that shows what is wrong with it: its twin.
"""

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
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.findings import SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.duplicates.duplicates import (
    DUPLICATES,
    Row,
    find_pair,
    load_duplicates,
)
from shardbeam.transforms.duplicates.label_conflicts import ClassCounts, read_classes
from shardbeam.transforms.storage.base import join_uri

# {kind: its words}, the most telling first.
_WORDS = {
    "contradiction": "The same file with other labels",
    SAME_PICTURE: "The same picture with objects of other classes",
    UNEQUAL_OBJECTS: "The same picture with other numbers of objects",
    "leak": "The same picture in another split",
    "near_contradiction": "Nearly the same picture with other classes",
}
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
        flags: What is wrong with it: `leak` if its pictures are in several splits; `contradiction`
            if one file among them has different labels; `near_contradiction` if different files
            among them have different classes.
        images: How many pictures of the group `duplicates.parquet` lists.
        places: Where some of them are: first those that show what is wrong with the group, then one
            for each split and labels, if there is room.
        notes: For each of `places`, how the picture differs from the group's first one, in words.
        cards: The cards of `places`, once they are drawn.
    """

    number: int
    flags: Collection[str]
    images: int
    places: Sequence[Place]
    notes: Sequence[str]
    cards: Sequence[Card] = ()


class FoundTwin(NamedTuple):
    """An image that shows what is wrong with another one, because it is (nearly) the same.

    Attributes:
        place: Where it is.
        words: What is wrong.
    """

    place: Place
    words: str


class Duplicates(NamedTuple):
    """The duplicates of a dataset.

    Attributes:
        groups: The first groups: contradictions, leaks, near contradictions, and others.
        twins: `{(split, number): the image that shows what is wrong with it}`.
    """

    groups: Sequence[Group] = ()
    twins: Mapping[tuple[str, int], FoundTwin] = {}


def read_duplicates(
    dataset: StoredDataset, *, shown: Iterable[Place], ignored: Collection[str]
) -> Duplicates:
    """Reads the first groups of duplicates of a dataset, and the twins of some images.

    Args:
        dataset: The dataset, which has a `duplicates.parquet`.
        shown: The images whose twins are to be found.
        ignored: Kinds of findings that the dataset's config ignores.

    Raises:
        InputError: A file is missing or damaged.
    """
    indexes = _Indexes(dataset)
    rows = sorted(_read_rows(dataset), key=_order)
    groups = [list(members) for _, members in itertools.groupby(rows, key=_order)]
    twins = find_twins(
        groups,
        shown={indexes.find_row(place): place for place in shown},
        find_place=indexes.find_place,
        find_classes=indexes.find_classes,
        ignored=ignored,
    )
    return Duplicates([_make_group(each, indexes=indexes) for each in groups[:_GROUPS]], twins)


def _order(row: Row) -> tuple[object, ...]:
    return *(not row[flag] for flag in _FLAGS), row["group"]


def _read_rows(dataset: StoredDataset) -> list[Row]:
    table = load_duplicates(
        dataset.path,
        listed=dataset.listed_files.get(DUPLICATES),
        columns=[*_COLUMNS, *_NEW_COLUMNS, *_OLD_NAMES],
    )
    table = table.rename_columns([_OLD_NAMES.get(name, name) for name in table.column_names])
    if set(_COLUMNS) - set(table.column_names):
        raise InputError(
            uri=join_uri(dataset.path, DUPLICATES),
            problem="not the duplicates of a dataset: a column is missing",
        )
    return [{**_NEW_COLUMNS, **row} for row in table.to_pylist()]


def find_twins(
    groups: Sequence[Sequence[Row]],
    *,
    shown: Mapping[tuple[str, int, int], Place],
    find_place: Callable[[Row], Place],
    find_classes: Callable[[Row], Mapping[int, int]],
    ignored: Collection[str],
) -> dict[tuple[str, int], FoundTwin]:
    """Finds the twins of some images.

    Args:
        groups: The rows of `duplicates.parquet`, by group.
        shown: The images, `{(split, shard, row): place}`.
        find_place: Finds the Example of a row.
        find_classes: Finds the ids of its image's classes, with the number of objects of each.
        ignored: Kinds of findings that the dataset's config ignores.

    Returns:
        `{(split, number): twin}`.

    Raises:
        InputError: A row's Example is in no shard, or the shard's index is damaged.
    """
    twins = {}
    for members in groups:
        for row in members:
            place = shown.get((row["split"], row["shard"], row["row"]))
            if place is not None:
                found = _candidates(row, members, find_classes=find_classes)
                twin = next((each for each in found if each[0] not in ignored), None)
                if twin is not None:
                    kind, other = twin
                    twins[place[:2]] = FoundTwin(find_place(other), _WORDS[kind])
    return twins


def _candidates(
    row: Row, members: Sequence[Row], *, find_classes: Callable[[Row], Mapping[int, int]]
) -> Iterator[tuple[str, Row]]:
    """Yields rows of a group that show what is wrong with one of its rows, the most telling first.

    Args:
        row: The row.
        members: The rows of its group.
        find_classes: As for `find_twins`.
    """
    # Equal files show more than similar ones.
    ordered = sorted(members, key=lambda other: other["sha256"] != row["sha256"])
    for other in ordered:
        if other["sha256"] == row["sha256"] and other["labels"] != row["labels"]:
            yield "contradiction", other
    yield from _find_conflicts(row, ordered, find_classes=find_classes)
    for other in ordered:
        if other["split"] != row["split"]:
            yield "leak", other
    for other in ordered:
        if other["sha256"] != row["sha256"] and other["classes_digest"] != row["classes_digest"]:
            yield "near_contradiction", other


def _find_conflicts(
    row: Row, others: Sequence[Row], *, find_classes: Callable[[Row], Mapping[int, int]]
) -> Iterator[tuple[str, Row]]:
    """Yields rows whose objects contradict a row's, as `duplicates.label_conflicts` finds them."""
    if row[SAME_PICTURE]:
        classes = find_classes(row).keys()
        for other in others:
            if other[SAME_PICTURE] and classes.isdisjoint(find_classes(other)):
                yield SAME_PICTURE, other
    if row[UNEQUAL_OBJECTS]:
        marked = [other for other in others if other[UNEQUAL_OBJECTS]]
        shares = [_differing_share(find_classes(row), find_classes(other)) for other in marked]
        if any(shares):
            yield UNEQUAL_OBJECTS, marked[shares.index(max(shares))]


def _differing_share(one: Mapping[int, int], other: Mapping[int, int]) -> float:
    """Returns the share of two images' objects without a counterpart; 0 without a common class."""
    if one.keys().isdisjoint(other):
        return 0
    numbers = [(one.get(label, 0), other.get(label, 0)) for label in {*one, *other}]
    return sum(abs(a - b) for a, b in numbers) / max(1, sum(map(max, numbers)))


def _make_group(rows: Sequence[Row], *, indexes: _Indexes) -> Group:
    chosen = _choose(rows)
    return Group(
        number=rows[0]["group"],
        flags=[flag for flag in _FLAGS if rows[0][flag]],
        images=len(rows),
        places=[indexes.find_place(row) for row in chosen],
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
    # The first row of each split and labels, then the others.
    firsts = {(row["split"], row["labels"]): row for row in reversed(rows)}
    for row in sorted(rows, key=lambda row: row is not firsts[row["split"], row["labels"]]):
        if len(chosen) < _OF_GROUP and row not in chosen:
            chosen.append(row)
    return chosen


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
