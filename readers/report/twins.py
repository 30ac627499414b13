"""Finds, for an image with a duplicate, the duplicate that shows what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.readers.open.images import Place
from shardbeam.transforms.dataset.findings import SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.duplicates.duplicates import Row

# {kind: its words}, the most telling first.
_WORDS = {
    "contradiction": "The same file with other labels",
    SAME_PICTURE: "The same picture with objects of other classes",
    UNEQUAL_OBJECTS: "The same picture with other numbers of objects",
    "leak": "The same picture in another split",
    "near_contradiction": "Nearly the same picture with other classes",
}


class Twin(NamedTuple):
    """An image that shows what is wrong with another one, because it is (nearly) the same.

    Attributes:
        place: Where it is.
        words: What is wrong.
    """

    place: Place
    words: str


def find_twins(
    groups: Sequence[Sequence[Row]],
    *,
    shown: Mapping[tuple[str, int, int], Place],
    find_place: Callable[[Row], Place],
    find_classes: Callable[[Row], Mapping[int, int]],
    ignored: Collection[str],
) -> dict[tuple[str, int], Twin]:
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
                    twins[place.split, place.number] = Twin(find_place(other), _WORDS[kind])
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
