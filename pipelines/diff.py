"""`shardbeam diff`: prints what differs between two datasets. Needs no Beam and no TensorFlow."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from rich.table import Table
from rich.text import Text

from shardbeam.pipelines.commands import DiffArguments
from shardbeam.pipelines.logs import write_stdout
from shardbeam.pipelines.tables import (
    PLAIN,
    PRINTED_CLASSES,
    Layout,
    add_rest,
    make_table,
    name_text,
    render_table,
    stdout_layout,
)
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.dataset.read.dataset import StoredDataset, open_dataset
from shardbeam.transforms.dataset.read.difference import (
    Change,
    ChangeKind,
    Difference,
    SplitDifference,
    compare_datasets,
)
from shardbeam.transforms.dataset.statistics import Statistics
from shardbeam.transforms.dataset.statistics_file import read_statistics

# Examples of each kind of change that are named by default.
_NAMED = 10
# Statistics that are shown side by side; JSON has all.
_FIGURES = (
    *("examples", "num_bytes", "images", "image_bytes", "unannotated", "labels", "objects"),
    *("crowds", "masks", "empty_masks", "captions"),
)
# Words for each kind of change.
_KINDS = {
    ChangeKind.REMOVED: "removed",
    ChangeKind.ADDED: "added",
    ChangeKind.MOVED: "moved",
    ChangeKind.IMAGE: "image changed",
    ChangeKind.LABELS: "labels changed",
    ChangeKind.OTHER: "other values changed",
}


class StatisticsPair(NamedTuple):
    """The statistics of a split in two datasets; None for a dataset without this split."""

    old: Statistics | None
    new: Statistics | None


# `{split: what is in it}`.
StatisticsPairs = Mapping[str, StatisticsPair]
# Split, class, what is counted, and how many in the old dataset and in the new one.
_ClassCount = tuple[str, str, str, tuple[int, int]]


def run_diff(arguments: DiffArguments) -> None:
    """Prints what differs between two datasets.

    Raises:
        InputError: One of them is not a dataset of Shardbeam, or cannot be read.
    """
    old, new = open_dataset(arguments.old), open_dataset(arguments.new)
    for dataset in (old, new):
        counters.indexes.expect(sum(len(split.shards) for split in dataset.splits))
    difference = compare_datasets(old, new, limit=arguments.limit or _NAMED)
    statistics = compare_statistics(old, new)
    if arguments.json:
        write_stdout(render_json(difference, statistics))
    else:
        write_stdout(render_text(difference, statistics, stdout_layout()))


def compare_statistics(old: StoredDataset, new: StoredDataset) -> dict[str, StatisticsPair]:
    """Reads the statistics of two datasets, by split; empty if one of them has none.

    Raises:
        InputError: A `statistics.json` cannot be read.
    """
    olds, news = read_statistics(old.path), read_statistics(new.path)
    if olds is None or news is None:
        return {}
    return {
        split: StatisticsPair(olds.get(split), news.get(split))
        for split in dict.fromkeys([*olds, *news])
    }


def render_json(difference: Difference, statistics: StatisticsPairs) -> str:
    """Renders a difference as one JSON object on one line, with its keys sorted."""
    document: dict[str, Any] = {
        **msgspec.to_builtins(difference),
        "same": difference.is_empty,
        "statistics": msgspec.to_builtins(
            {split: pair._asdict() for split, pair in statistics.items()}
        ),
    }
    # json, not msgspec, because names of folders need not be valid Unicode.
    return json.dumps(document, sort_keys=True) + "\n"


def render_text(difference: Difference, statistics: StatisticsPairs, layout: Layout = PLAIN) -> str:
    """Renders a difference for people."""
    tables = [
        _splits_table(difference.splits),
        _moves_table(difference.moves),
        _changes_table(difference.changes),
        _class_ids_table(difference.classes),
        _statistics_table(statistics),
        _class_counts_table(statistics),
    ]
    parts = [render_table(table, layout=layout) for table in tables if table.rows]
    if difference.is_empty:
        parts.append("no difference\n")
    return "\n".join(parts)


def _splits_table(splits: Mapping[str, SplitDifference]) -> Table:
    names = SplitDifference.__struct_fields__
    table = make_table("split", numbers=[name.replace("_", " ") for name in names])
    rows = [(name_text(split), counts) for split, counts in splits.items()]
    if len(rows) > 1:
        total = {name: sum(getattr(counts, name) for counts in splits.values()) for name in names}
        rows.append((Text("total"), SplitDifference(**total)))
    for split, counts in rows:
        table.add_row(split, *(f"{getattr(counts, name):,}" for name in names))
    return table


def _moves_table(moves: Mapping[str, Mapping[str, int]]) -> Table:
    table = make_table("moved from", "to", numbers=["examples"])
    for source, targets in moves.items():
        for target, count in targets.items():
            table.add_row(name_text(source), name_text(target), f"{count:,}")
    return table


def _changes_table(changes: Iterable[Change]) -> Table:
    table = make_table("change", "split", "key", numbers=[])
    for change in changes:
        what, splits = describe_change(change)
        table.add_row(what, name_text(splits), name_text(change.key))
    return table


def describe_change(change: Change) -> tuple[str, str]:
    """Describes how an example has changed, and its split, or both splits if it has moved."""
    splits = dict.fromkeys(split for split in (change.old_split, change.new_split) if split)
    return ", ".join(_KINDS[kind] for kind in change.kinds), " to ".join(splits)


def _class_ids_table(classes: Mapping[str, tuple[int | None, int | None]]) -> Table:
    table = make_table("class", numbers=["old id", "new id"])
    for name, ids in itertools.islice(classes.items(), PRINTED_CLASSES):
        table.add_row(name_text(name), *("" if each is None else str(each) for each in ids))
    add_rest(table, len(classes) - PRINTED_CLASSES)
    return table


def _statistics_table(statistics: StatisticsPairs) -> Table:
    table = make_table("split", "statistics", numbers=["old", "new", "difference"])
    for split, (old, new) in statistics.items():
        for name in _FIGURES:
            values = [0 if each is None else getattr(each, name) for each in (old, new)]
            if values[0] != values[1]:
                what = name.removeprefix("num_").replace("_", " ")
                table.add_row(name_text(split), what, *_cells(values))
    return table


def _class_counts_table(statistics: StatisticsPairs) -> Table:
    table = make_table("split", "class", "in", numbers=["old", "new", "difference"])
    rows = class_counts(statistics)
    for split, name, what, values in rows[:PRINTED_CLASSES]:
        table.add_row(name_text(split), name_text(name), what, *_cells(values))
    add_rest(table, len(rows) - PRINTED_CLASSES)
    return table


def class_counts(statistics: StatisticsPairs) -> list[_ClassCount]:
    """Finds the counts of classes that differ, the largest differences first.

    Returns:
        `(split, class, what is counted, (old count, new count))`; it counts objects if the split
        has any, otherwise images.
    """
    return sorted(_class_counts(statistics), key=lambda row: -abs(row[-1][1] - row[-1][0]))


def _class_counts(statistics: StatisticsPairs) -> Iterator[_ClassCount]:
    empty = Statistics()
    for split, pair in statistics.items():
        old, new = (each or empty for each in pair)
        what = "objects" if old.objects_by_class or new.objects_by_class else "images"
        olds, news = (getattr(each, f"{what}_by_class") for each in (old, new))
        for name in sorted({*olds, *news}):
            values = olds.get(name, 0), news.get(name, 0)
            if values[0] != values[1]:
                yield split, name, what, values


def _cells(values: Iterable[int]) -> tuple[str, str, str]:
    old, new = values
    return f"{old:,}", f"{new:,}", f"{new - old:+,}"
