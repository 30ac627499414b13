"""`shardbeam diff`: prints what differs between two datasets. Needs no Beam and no TensorFlow."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from shardbeam.pipelines.commands import DiffArguments
from shardbeam.pipelines.logs import write_stdout
from shardbeam.pipelines.tables import (
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
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.text import cut, escape
from shardbeam.transforms.dataset.read.changed_pictures import (
    ChangedPicture,
    compare_labels,
    read_changed,
)
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
from shardbeam.transforms.examples.boxes import Box, Size
from shardbeam.transforms.examples.picture_changes import (
    ADDED,
    AREA,
    ATTRIBUTES,
    BOX,
    CLASS,
    REMOVED,
    ImageFacts,
    ObjectChange,
    PictureChange,
)

# By default, how many examples of each kind of change are named, and how many images are compared.
_NAMED, COMPARED = 10, 50
# How many lines about an image, keys in a line and characters of a text are printed; JSON has all.
_LINES, _KEYS, _CHARACTERS = 12, 5, 60
_TIMES = "\N{MULTIPLICATION SIGN}"
# Statistics that are shown side by side; JSON has all.
_FIGURES = (
    *("examples", "num_bytes", "images", "image_bytes", "unannotated", "labels", "objects"),
    *("crowds", "masks", "empty_masks", "captions"),
)
# Words for each kind of change.
_KINDS = {
    ChangeKind.REMOVED: "removed",
    ChangeKind.ADDED: "added",
    ChangeKind.RENAMED: "renamed",
    ChangeKind.MOVED: "moved",
    ChangeKind.IMAGE: "image changed",
    ChangeKind.LABELS: "labels changed",
    ChangeKind.OTHER: "other values changed",
}


class StatisticsPair(NamedTuple):
    """The statistics of a split in two datasets; None for a dataset without this split."""

    old: Statistics | None
    new: Statistics | None


class ComparedPicture(NamedTuple):
    """What differs in a picture.

    Attributes:
        change: Which picture, and how it differs by the indexes.
        what: What differs in it.
        lines: The same in words, one line for each change.
    """

    change: Change
    what: PictureChange
    lines: Sequence[str]


# `{split: what is in it}`.
StatisticsPairs = Mapping[str, StatisticsPair]
# Split, class, what is counted, and the counts in the old and in the new dataset.
_ClassCount = tuple[str, str, str, tuple[int, int]]


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
        images=arguments.examples,
        # With --examples 0, no shard has to be there.
        compare_labels=functools.partial(compare_labels, old=old, new=new)
        if arguments.examples
        else None,
    )
    pictures = [
        # Keep the words only: fifty pictures would take much memory.
        ComparedPicture(each.change, each.what, list(describe_picture(each)))
        for each in read_changed(images, old=old, new=new)
    ]
    statistics = compare_statistics(old, new)
    if arguments.json:
        write_stdout(render_json(difference, statistics, pictures))
    else:
        write_stdout(render_text(difference, statistics, pictures, stdout_layout()))


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


def render_json(
    difference: Difference, statistics: StatisticsPairs, pictures: Iterable[ComparedPicture]
) -> str:
    """Renders a difference as one JSON object on one line, with its keys sorted."""
    document: dict[str, Any] = {
        **msgspec.to_builtins(difference),
        "same": difference.is_empty,
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
    pictures: Sequence[ComparedPicture],
    layout: Layout = PLAIN,
) -> str:
    """Renders a difference for people."""
    tables = [
        _splits_table(difference.splits),
        _moves_table(difference.moves),
        _changes_table(difference.changes),
        _pictures_table(pictures),
        _class_ids_table(difference.classes),
        _statistics_table(statistics),
        _class_counts_table(statistics),
    ]
    parts = [render_table(table, layout=layout) for table in tables if table.rows]
    if pictures and difference.differing > len(pictures):
        parts.append(
            f"{difference.differing:,} images in both datasets differ: --examples "
            f"{difference.differing} compares all of them\n"
        )
    parts += [f"{escape(note)}\n" for note in difference.notes]
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
        table.add_row(what, name_text(splits), name_text(describe_key(change)))
    return table


def describe_change(change: Change) -> tuple[str, str]:
    """Describes how an example has changed, and its split, or both splits if it has moved."""
    splits = dict.fromkeys(split for split in (change.old_split, change.new_split) if split)
    return ", ".join(_KINDS[kind] for kind in change.kinds), " to ".join(splits)


def describe_key(change: Change) -> str:
    """Returns an example's key, or both keys if it was renamed."""
    return f"{change.old_key} to {change.key}" if change.old_key else change.key


def _pictures_table(pictures: Iterable[ComparedPicture]) -> Table:
    table = make_table("split", "key", "what changed", numbers=[])
    for picture in pictures:
        _, splits = describe_change(picture.change)
        names = name_text(splits), name_text(describe_key(picture.change))
        left = len(picture.lines) - _LINES
        lines = [*picture.lines[:_LINES], *([f"... and {left:,} more"] if left > 0 else [])]
        for number, line in enumerate(lines or ["nothing that is compared"]):
            table.add_row(*(names if not number else ("", "")), cell_text(line))
    return table


def describe_picture(picture: ChangedPicture) -> Iterator[str]:
    """Describes what differs in a picture, one line for each change; boxes are in pixels."""
    what = picture.what
    old, new = picture.old, picture.new
    sizes = (old.width, old.height), (new.width, new.height)
    if len(what.labels_removed) == len(what.labels_added) == 1:
        yield f"label {_short(what.labels_removed[0])} to {_short(what.labels_added[0])}"
    else:
        yield from (f"label {_short(name)} removed" for name in what.labels_removed)
        yield from (f"label {_short(name)} added" for name in what.labels_added)
    yield from (_describe_object(change, sizes=sizes) for change in what.objects)
    if what.objects_not_compared:
        yield f"{what.objects_not_compared:,} objects: too many to compare"
    if what.more_objects:
        yield f"{what.more_objects:,} more objects changed"
    if what.old_image is not None and what.new_image is not None:
        yield f"image {_describe_image(what.old_image)} to {_describe_image(what.new_image)}"
    yield from (f"{name.replace('_', ' ')} changed" for name in what.maps)
    yield from (f"caption removed: {_short(text)}" for text in what.captions_removed)
    yield from (f"caption added: {_short(text)}" for text in what.captions_added)
    for words, keys in (
        ("keys removed", what.keys_removed),
        ("keys added", what.keys_added),
        ("other values changed", what.keys_changed),
    ):
        if keys:
            more = f" and {len(keys) - _KEYS:,} more" if len(keys) > _KEYS else ""
            yield f"{words}: {', '.join(map(_short, keys[:_KEYS]))}{more}"


def _describe_object(change: ObjectChange, *, sizes: tuple[Size, Size]) -> str:
    before, now = (
        _describe_box(box, size=size)
        for box, size in zip((change.old_box, change.new_box), sizes, strict=True)
    )
    if ADDED in change.kinds:
        return f"{_class_name(change.new_class)} added at {now}"
    if REMOVED in change.kinds:
        return f"{_class_name(change.old_class)} removed at {before}"
    words = _class_name(change.old_class)
    if CLASS in change.kinds:
        words += f" to {_class_name(change.new_class)}"
    if BOX in change.kinds:
        shared = "" if change.iou is None else f" (IoU {change.iou:.2f})"
        words += f" moved from {before} to {now}{shared}"
    else:
        words += f" at {now}"
    # If the box has moved, it explains the area.
    left_out = {CLASS, BOX, ATTRIBUTES, *([AREA] if BOX in change.kinds else [])}
    others = [*(kind for kind in change.kinds if kind not in left_out), *change.attributes]
    return f"{words}: {', '.join(map(_short, others))} changed" if others else words


def _class_name(name: str) -> str:
    return _short(name) if name else "an object without a class"


def _describe_box(box: Box | None, *, size: Size) -> str:
    """Describes a box: left, top, width and height in pixels; in fractions without a size."""
    if box is None:
        return "no box"
    width, height = size if min(size) > 0 else (1, 1)
    digits = 1 if min(size) > 0 else 4
    left, top, right, bottom = (
        side * length for side, length in zip(box, (width, height) * 2, strict=True)
    )
    texts = [_describe_number(each, digits) for each in (left, top, right - left, bottom - top)]
    return f"{texts[0]}, {texts[1]}, {texts[2]}{_TIMES}{texts[3]}"


def _describe_number(value: float, digits: int) -> str:
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _describe_image(image: ImageFacts) -> str:
    size = f"{image.width}{_TIMES}{image.height} {_short(image.format)}, "
    return size + decimal(image.num_bytes)


def _short(text: str) -> str:
    return cut(text, _CHARACTERS)


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
