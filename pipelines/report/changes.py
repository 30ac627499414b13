"""Finds what has changed since an earlier version of a dataset, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardbeam.pipelines.diff import class_counts, compare_statistics, describe_change
from shardbeam.pipelines.report.facts import read_facts
from shardbeam.pipelines.tables import NO_NAME
from shardbeam.transforms.dataset.read.dataset import StoredDataset, open_dataset
from shardbeam.transforms.dataset.read.difference import Difference, compare_datasets

# At most this many examples of each kind of change, and this many classes, are named.
_NAMED, _CLASSES = 10, 50


class ChangedExample(NamedTuple):
    """An example that differs: how, in which splits, and its key."""

    what: str
    splits: str
    key: str


class ChangedClass(NamedTuple):
    """A class whose count in a split has changed."""

    split: str
    name: str
    unit: str
    old: int
    new: int


class Changes(NamedTuple):
    """The changes since an earlier version of a dataset.

    Attributes:
        name: Name of the earlier dataset.
        version: Its version.
        difference: What differs.
        examples: The first examples of each kind of change.
        classes: The classes whose counts have changed, the largest changes first.
    """

    name: str
    version: str
    difference: Difference
    examples: Sequence[ChangedExample]
    classes: Sequence[ChangedClass]


def find_changes(previous: str, dataset: StoredDataset) -> Changes:
    """Compares a dataset with an earlier one.

    Args:
        previous: Where the earlier one is.
        dataset: The dataset.

    Raises:
        InputError: One of them is not a dataset of Shardbeam, or cannot be read.
    """
    old = open_dataset(previous)
    difference = compare_datasets(old, dataset, limit=_NAMED)
    facts = read_facts(old)
    counts = class_counts(compare_statistics(old, dataset))
    return Changes(
        name=facts.name,
        version=facts.version,
        difference=difference,
        examples=[
            ChangedExample(*describe_change(change), change.key) for change in difference.changes
        ],
        classes=[
            ChangedClass(split, name or NO_NAME, unit, *values)
            for split, name, unit, values in counts[:_CLASSES]
        ],
    )
