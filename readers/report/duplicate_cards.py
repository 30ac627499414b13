"""Reads the duplicates that the page shows from a dataset's `duplicates.parquet`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from shardbeam.readers.open.images import Place
from shardbeam.readers.open.record_reader import load_shard_index
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.readers.report.cards import Card
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.outcome import DuplicateCounts
from shardbeam.transforms.duplicates.duplicates import DUPLICATES, Row, find_pair, load_duplicates
from shardbeam.transforms.storage.base import join_uri

# At most this many groups are drawn, the harmful ones first, and usually at most this many pictures
# of each.
_GROUPS, _OF_GROUP = 40, 4
_COLUMNS = [
    *("group", "key", "split", "shard", "row", "sha256", "labels", "distance"),
    *("leak", "contradiction"),
]
# Columns that older datasets lack, and the values to assume for them.
_NEW_COLUMNS = {"classes_digest": "", "near_contradiction": False}
# Columns that older datasets have under another name.
_OLD_NAMES = {"classes": "classes_digest"}
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
        distances: For each of `places`, the bits in which its hash differs from that of the
            group's first picture; None without a hash.
    """

    number: int
    is_leak: bool
    is_contradiction: bool
    is_near_contradiction: bool
    images: int
    places: Sequence[Place]
    distances: Sequence[int | None]


class Pair(NamedTuple):
    """A group of duplicates.

    Attributes:
        group: The group.
        cards: Some of its images, each with how far its hash differs, in words.
    """

    group: Group
    cards: Sequence[tuple[Card, str]]


class Duplicates(NamedTuple):
    """The duplicates of a dataset.

    Attributes:
        counts: Their numbers.
        groups: The first groups: contradictions, leaks, near contradictions, and others.
    """

    counts: DuplicateCounts
    groups: Sequence[Group] = ()


def read_duplicates(dataset: StoredDataset, *, counts: DuplicateCounts) -> Duplicates:
    """Reads the first groups of duplicates of a dataset.

    Args:
        dataset: The dataset.
        counts: The numbers of duplicates in its manifest.

    Raises:
        InputError: A file is missing or damaged.
    """
    if not counts.groups:
        return Duplicates(counts)
    find = functools.partial(_find_place, dataset=dataset, indexes={})
    rows = sorted(_read_rows(dataset), key=_order)
    groups = (list(members) for _, members in itertools.groupby(rows, key=_order))
    first = itertools.islice(groups, _GROUPS)
    return Duplicates(counts, [_make_group(members, find=find) for members in first])


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
        distances=[row["distance"] for row in chosen],
    )


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


def _find_place(
    row: Row, *, dataset: StoredDataset, indexes: dict[str, Sequence[tuple[int, int]]]
) -> Place:
    """Finds an Example by its shard's index.

    Args:
        row: The Example's row of `duplicates.parquet`.
        dataset: The dataset.
        indexes: `{shard: (place, length) of its Examples}` for the indexes read so far.
    """
    split = dataset.find_split(row["split"])
    try:
        path = split.shards[row["shard"]].path
        if path not in indexes:
            columns, examples = ["offset", "length"], split.shard_examples[row["shard"]]
            table = load_shard_index(dataset, path, columns=columns, max_rows=examples)
            indexes[path] = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
        offset, length = indexes[path][row["row"]]
    except IndexError as error:
        uri = join_uri(dataset.path, DUPLICATES)
        raise InputError(uri=uri, problem=f"{row['key']!r} is in no shard") from error
    number = sum(split.shard_examples[: row["shard"]]) + row["row"] + 1
    return Place(split.name, number, row["shard"], offset, length)
