"""Describes in words what differs between two datasets, and in their images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rich.filesize import decimal

from shardbeam.readers.compare.changes import Change, ChangeKind, ClassChange, Difference
from shardbeam.readers.compare.difference import ChangedImage
from shardbeam.readers.compare.image_changes import ImageFacts
from shardbeam.readers.compare.object_changes import (
    ADDED,
    AREA,
    ATTRIBUTES,
    BOX,
    CLASS,
    REMOVED,
    ObjectChange,
)
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.text import counted, cut
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.statistics_file import read_statistics
from shardbeam.transforms.examples.geometry.boxes import Box, Size

# By default, this many images are compared.
COMPARED = 50
# How many keys are named in a line, and characters of a text.
_KEYS, _CHARACTERS = 5, 60
_TIMES = "\N{MULTIPLICATION SIGN}"
# At most this many classes that were renamed are described in the first line.
_RENAMES = 2
# Words for each kind of change.
_KINDS = {
    ChangeKind.REMOVED: "removed",
    ChangeKind.ADDED: "added",
    ChangeKind.RENAMED: "renamed",
    ChangeKind.REENCODED: "renamed and encoded again",
    ChangeKind.MOVED: "moved",
    ChangeKind.IMAGE: "image changed",
    ChangeKind.LABELS: "labels changed",
    ChangeKind.CLASS_NAMES: "class renamed",
    ChangeKind.OTHER: "other values changed",
}
# {field of `SplitDifference`: what it counts} in the first line.
_COUNTS = {
    "added": "added",
    "removed": "removed",
    "renamed": "renamed",
    "reencoded": "renamed and encoded again",
    "moved_in": "moved to another split",
}


class StatisticsPair(NamedTuple):
    """The statistics of a split in two datasets; None for a dataset without this split."""

    old: Statistics | None
    new: Statistics | None


# `{split: what is in it}`.
StatisticsPairs = Mapping[str, StatisticsPair]
# Split, class, what is counted, and the counts in the old and in the new dataset.
ClassCount = tuple[str, str, str, tuple[int, int]]


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


def describe_difference(difference: Difference) -> str:
    """Says in one sentence what differs between two datasets."""
    if difference.is_empty:
        return "nothing changed"
    unit = difference.unit
    numbers = {
        what: sum(getattr(split, field) for split in difference.splits.values())
        for field, what in _COUNTS.items()
    }
    numbers["changed"] = difference.changed
    words: list[str] = []
    for what, number in numbers.items():
        if number:
            words.append(f"{number:,} {what}" if words else f"{counted(number, unit)} {what}")
    words = words or [f"no {unit} changed"]
    return "; ".join([", ".join(words), *_describe_classes(difference)])


def _list_renamed(difference: Difference) -> list[ClassChange]:
    return [each for each in difference.class_changes if each.kind == "renamed"]


def list_class_changes(difference: Difference) -> list[str]:
    """Describes the classes that `describe_difference` leaves out, one line each."""
    described = _list_renamed(difference)[:_RENAMES]
    return [each.describe() for each in difference.class_changes if each not in described]


def _describe_classes(difference: Difference) -> Iterator[str]:
    renames = difference.renames
    explained = {*renames, *renames.values()}
    yield from (each.describe() for each in _list_renamed(difference)[:_RENAMES])
    if len(renames) > _RENAMES:
        yield f"{len(renames) - _RENAMES:,} more classes were renamed"
    others = {name: ids for name, ids in difference.classes.items() if name not in explained}
    for what, names in (
        ("added", [name for name, (old, _) in others.items() if old is None]),
        ("removed", [name for name, (_, new) in others.items() if new is None]),
        ("with another id", [name for name, ids in others.items() if None not in ids]),
    ):
        if names:
            yield f"{counted(len(names), 'class', 'classes')} {what} ({list_classes(names)})"


def describe_change(change: Change) -> tuple[str, str]:
    """Describes how an example has changed, and its split, or both splits if it has moved."""
    splits = dict.fromkeys(split for split in (change.old_split, change.new_split) if split)
    return ", ".join(_KINDS[kind] for kind in change.kinds), " to ".join(splits)


def describe_key(change: Change) -> str:
    """Returns an example's key, or both keys if it was renamed."""
    return f"{change.old_key} to {change.key}" if change.old_key else change.key


def describe_image(picture: ChangedImage) -> Iterator[str]:
    """Describes what differs in a picture, one line for each change; boxes are in pixels."""
    lines = list(_describe_image(picture))
    yield from lines or (["only the name of a class"] if picture.is_renamed else [])


def _describe_image(picture: ChangedImage) -> Iterator[str]:
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
        changed = any(BOX in change.kinds for change in what.objects)
        is_resized = sizes[0] != sizes[1] and what.same_objects and not changed
        scale = "; boxes scale with it" if is_resized else ""
        yield f"image {_describe_file(what.old_image)} to {_describe_file(what.new_image)}{scale}"
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


def _describe_file(image: ImageFacts) -> str:
    size = f"{image.width}{_TIMES}{image.height} {_short(image.format)}, "
    return size + decimal(image.num_bytes)


def _short(text: str) -> str:
    return cut(text, _CHARACTERS)


def class_counts(statistics: StatisticsPairs, *, renames: Mapping[str, str]) -> list[ClassCount]:
    """Finds the counts of classes that differ, the largest differences first.

    Args:
        statistics: The statistics of both datasets.
        renames: `{old class: new class}` of the classes that were renamed.

    Returns:
        `(split, class, what is counted, (old count, new count))`; it counts objects if the split
        has any, otherwise images.
    """
    rows = _class_counts(statistics, renames=renames)
    return sorted(rows, key=lambda row: -abs(row[-1][1] - row[-1][0]))


def _class_counts(
    statistics: StatisticsPairs, *, renames: Mapping[str, str]
) -> Iterator[ClassCount]:
    empty = Statistics()
    for split, pair in statistics.items():
        old, new = (each or empty for each in pair)
        what = "objects" if old.objects_by_class or new.objects_by_class else "images"
        olds, news = (getattr(each, f"{what}_by_class") for each in (old, new))
        olds = {renames.get(name, name): count for name, count in olds.items()}
        for name in sorted({*olds, *news}):
            values = olds.get(name, 0), news.get(name, 0)
            if values[0] != values[1]:
                yield split, name, what, values
