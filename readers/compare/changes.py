"""The differences between two datasets, as they are counted, shown and written as JSON."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.readers.compare.class_changes import ClassChange, list_renames
from shardbeam.readers.compare.index_rows import ExamplePlace


class ChangeKind(str, enum.Enum):
    """How an example differs between two datasets.

    Attributes:
        ADDED: Only the new dataset has it.
        REMOVED: Only the old dataset has it.
        RENAMED: Its image has another key, and the same bytes.
        REENCODED: Its image has another key and other bytes, and shows the same picture, or nearly:
            it was renamed and encoded again, or resized.
        MOVED: It is in another split.
        IMAGE: Its stored image has other bytes.
        LABELS: Its classes, boxes or captions differ.
        CLASS_NAMES: Labels and all other values are the same, but for the names and ids of classes
            that were renamed.
        OTHER: Image and labels are the same, but something else in the Example differs, such as
            masks, areas or added keys; in older datasets, whose indexes have no labels, it may be
            labels.
    """

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    REENCODED = "reencoded"
    MOVED = "moved"
    IMAGE = "image"
    LABELS = "labels"
    CLASS_NAMES = "class_names"
    OTHER = "other"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An example that is not the same in two datasets.

    Attributes:
        key: Its image's key.
        kinds: How it differs.
        old_split: Its split in the old dataset; empty if it is not there.
        new_split: Its split in the new dataset; empty if it is not there.
        old_key: Its image's key in the old dataset, if it was renamed, or encoded again, too.
    """

    key: str
    kinds: tuple[ChangeKind, ...]
    old_split: str = ""
    new_split: str = ""
    old_key: str = ""


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


class SplitDifference(msgspec.Struct, kw_only=True):
    """The differences in a split, as numbers of examples.

    An example that has moved counts as changed in its new split, and so does one that was renamed
    or encoded again.

    Attributes:
        old: How many the old dataset has.
        new: How many the new one has.
        added: Examples that only the new one has.
        removed: Examples that only the old one has.
        renamed: Examples whose image has another key, and the same bytes.
        reencoded: Examples whose image has another key and other bytes, and the same picture.
        moved_in: Examples that were in another split before.
        moved_out: Examples that are in another split now.
        image: Examples whose image differs.
        labels: Examples whose labels differ.
        class_names: Examples in which only classes that were renamed differ, and perhaps the image.
        other: Examples in which only something else differs.
        unchanged: Unchanged Examples.
    """

    old: int = 0
    new: int = 0
    added: int = 0
    removed: int = 0
    renamed: int = 0
    reencoded: int = 0
    moved_in: int = 0
    moved_out: int = 0
    image: int = 0
    labels: int = 0
    class_names: int = 0
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
        class_changes: Classes that were renamed, and objects that have another class, if the labels
            of images were compared; the most first.
        changes: The first examples of each kind of change, but `CLASS_NAMES`.
        differing: How many images are in both datasets with Examples that differ in more than
            names of classes.
        notes: What cannot be compared, one line each.
        unit: What `splits` counts: `image`, or `example` if each object has one.
        changed: How many of these are in both datasets and differ, as for `differing`, in more than
            key and encoding of the image.
    """

    old: str
    new: str
    splits: Mapping[str, SplitDifference]
    moves: Mapping[str, Mapping[str, int]] = {}
    classes: Mapping[str, tuple[int | None, int | None]] = {}
    class_changes: tuple[ClassChange, ...] = ()
    changes: tuple[Change, ...] = ()
    differing: int = 0
    notes: tuple[str, ...] = ()
    unit: str = "image"
    changed: int = 0

    @property
    def renames(self) -> Mapping[str, str]:
        """`{old class: new class}` of the classes that were renamed."""
        return list_renames(self.class_changes)

    @property
    def is_empty(self) -> bool:
        """Whether both have the same examples and classes."""
        return not self.classes and all(
            split.old == split.new == split.unchanged for split in self.splits.values()
        )
