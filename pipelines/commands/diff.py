"""`shardbeam diff`: prints what differs between two datasets. Needs no Beam and no TensorFlow."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.table import Table
from rich.text import Text

from shardbeam.pipelines.cli.commands import DiffArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.cli.tables import (
    PLAIN,
    PRINTED_CLASSES,
    Layout,
    add_rest,
    cell_text,
    make_table,
    name_text,
    render_table,
    stdout_layout,
)
from shardbeam.readers.compare.changes import Change, Difference, SplitDifference
from shardbeam.readers.compare.describe_changes import (
    StatisticsPairs,
    class_counts,
    compare_statistics,
    describe_change,
    describe_difference,
    describe_image,
    describe_key,
    list_class_changes,
)
from shardbeam.readers.compare.difference import compare_datasets, read_changed
from shardbeam.readers.compare.image_changes import ImageChange
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.text import escape

# By default, how many examples of each kind of change are named.
_NAMED = 10
# How many lines about an image are printed; JSON has all.
_LINES = 12
# Statistics that are shown side by side; JSON has all.
_FIGURES = (
    *("examples", "num_bytes", "images", "image_bytes", "unannotated", "labels", "objects"),
    *("crowds", "masks", "empty_masks", "captions"),
)


class ComparedImage(NamedTuple):
    """What differs in a picture.

    Attributes:
        change: Which picture, and how it differs by the indexes.
        what: What differs in it.
        lines: The same in words, one line for each change.
    """

    change: Change
    what: ImageChange
    lines: Sequence[str]


def run_diff(arguments: DiffArguments) -> None:
    """Prints what differs between two datasets.

    Raises:
        InputError: One of them is not a dataset of Shardbeam, or cannot be read.
    """
    old, new = open_dataset(arguments.old), open_dataset(arguments.new)
    for dataset in (old, new):
        counters.indexes.expect(sum(len(split.shards) for split in dataset.splits))
    difference, images = compare_datasets(
        old,
        new,
        limit=arguments.limit or _NAMED,
        # With --examples 0, no shard has to be there.
        images=arguments.examples,
    )
    pictures = [
        # Keep the words only: fifty pictures would take much memory.
        ComparedImage(each.change, each.what, list(describe_image(each)))
        for each in read_changed(images, old=old, new=new, renames=difference.renames)
    ]
    statistics = compare_statistics(old, new)
    if arguments.json:
        write_stdout(render_json(difference, statistics, pictures))
    else:
        write_stdout(render_text(difference, statistics, pictures, stdout_layout()))


def render_json(
    difference: Difference, statistics: StatisticsPairs, pictures: Iterable[ComparedImage]
) -> str:
    """Renders a difference as one JSON object on one line, with its keys sorted."""
    document: dict[str, Any] = {
        **msgspec.to_builtins(difference),
        "same": difference.is_empty,
        "summary": describe_difference(difference),
        "examples": [
            {**msgspec.to_builtins(each.change), **msgspec.to_builtins(each.what)}
            for each in pictures
        ],
        "statistics": msgspec.to_builtins(
            {split: pair._asdict() for split, pair in statistics.items()}
        ),
    }
    # json, not msgspec, because names of folders need not be valid Unicode.
    return json.dumps(document, sort_keys=True) + "\n"


def render_text(
    difference: Difference,
    statistics: StatisticsPairs,
    pictures: Sequence[ComparedImage],
    layout: Layout = PLAIN,
) -> str:
    """Renders a difference for people."""
    tables = [
        _splits_table(difference.splits),
        _moves_table(difference.moves),
        _changes_table(difference.changes),
        _pictures_table(pictures),
        _class_changes_table(difference),
        _class_ids_table(difference),
        _statistics_table(statistics),
        _class_counts_table(statistics, renames=difference.renames),
    ]
    # Everything from data is escaped, and each of these is one line.
    parts = [f"{escape(describe_difference(difference))}\n"]
    parts += [render_table(table, layout=layout) for table in tables if table.rows]
    if pictures and difference.differing > len(pictures):
        parts.append(
            f"{difference.differing:,} images in both datasets differ: --examples "
            f"{difference.differing} compares all of them\n"
        )
    parts += [f"{escape(note)}\n" for note in difference.notes]
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
        table.add_row(what, name_text(splits), name_text(describe_key(change)))
    return table


def _pictures_table(pictures: Iterable[ComparedImage]) -> Table:
    table = make_table("split", "key", "what changed", numbers=[])
    for picture in pictures:
        _, splits = describe_change(picture.change)
        names = name_text(splits), name_text(describe_key(picture.change))
        left = len(picture.lines) - _LINES
        lines = [*picture.lines[:_LINES], *([f"... and {left:,} more"] if left > 0 else [])]
        for number, line in enumerate(lines or ["nothing that is compared"]):
            table.add_row(*(names if not number else ("", "")), cell_text(line))
    return table


def _class_changes_table(difference: Difference) -> Table:
    table = make_table("classes of objects and images", numbers=[])
    lines = list_class_changes(difference)
    for line in lines[:PRINTED_CLASSES]:
        table.add_row(cell_text(line))
    add_rest(table, len(lines) - PRINTED_CLASSES)
    return table


def _class_ids_table(difference: Difference) -> Table:
    renames = difference.renames
    ids = difference.classes
    # The line about a class says that it was renamed; only another id is more.
    same = {name for pair in renames.items() if ids[pair[0]][0] == ids[pair[1]][1] for name in pair}
    shown = {name: each for name, each in ids.items() if name not in same}
    table = make_table("class", numbers=["old id", "new id"])
    for name, both in itertools.islice(shown.items(), PRINTED_CLASSES):
        table.add_row(name_text(name), *("" if each is None else str(each) for each in both))
    add_rest(table, len(shown) - PRINTED_CLASSES)
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


def _class_counts_table(statistics: StatisticsPairs, *, renames: Mapping[str, str]) -> Table:
    table = make_table("split", "class", "in", numbers=["old", "new", "difference"])
    rows = class_counts(statistics, renames=renames)
    for split, name, what, values in rows[:PRINTED_CLASSES]:
        table.add_row(name_text(split), name_text(name), what, *_cells(values))
    add_rest(table, len(rows) - PRINTED_CLASSES)
    return table


def _cells(values: Iterable[int]) -> tuple[str, str, str]:
    old, new = values
    return f"{old:,}", f"{new:,}", f"{new - old:+,}"
