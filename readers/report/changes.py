"""Finds what has changed since an earlier version of a dataset, and draws it for the page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.readers.compare.changes import Difference
from shardbeam.readers.compare.describe_changes import (
    COMPARED,
    ClassCount,
    class_counts,
    compare_statistics,
    describe_change,
    describe_difference,
    describe_image,
    describe_key,
    list_class_changes,
)
from shardbeam.readers.compare.difference import ChangedImage, compare_datasets, read_changed
from shardbeam.readers.compare.object_changes import MASK
from shardbeam.readers.open.stored_dataset import StoredDataset, open_dataset, read_feature_map
from shardbeam.readers.report.cards import Card, make_card
from shardbeam.readers.report.facts import read_facts
from shardbeam.readers.report.styles import Classes
from shardbeam.readers.report.thumbnails import fit_thumbnail
from shardbeam.transforms.examples.decode.picture import Picture

# At most this many examples of each kind of change, and this many classes, are named.
_NAMED, _CLASSES = 10, 50
# The longer side of a thumbnail in pixels, the most objects that are drawn on it, and the bytes of
# all cards: pictures that do not fit are described in words only.
_SIDE, _OBJECTS, _MAX_BYTES = 320, 50, 3_000_000


class ChangedCard(NamedTuple):
    """A picture before and after.

    Attributes:
        key: Its key, or both keys.
        splits: Its split, or both splits.
        lines: What has changed, in words; the page shows the first ones.
        cards: The old picture and the new one, with the objects that have changed; empty if the
            page has no room for them.
    """

    key: str
    splits: str
    lines: Sequence[str]
    cards: Sequence[Card]


class Changes(NamedTuple):
    """The changes since an earlier version of a dataset.

    Attributes:
        name: Title of the earlier dataset.
        version: Its version.
        difference: What differs.
        summary: The same in one sentence.
        class_changes: Objects that have another class, in words.
        examples: `(change, splits, key)` of the first examples of each kind of change, in words.
        classes: The classes whose counts have changed (`class_counts`), the largest changes first.
        pictures: The first pictures that have changed, before and after.
    """

    name: str
    version: str
    difference: Difference
    summary: str
    class_changes: Sequence[str]
    examples: Sequence[tuple[str, str, str]]
    classes: Sequence[ClassCount]
    pictures: Sequence[ChangedCard] = ()


def find_changes(
    previous: str, dataset: StoredDataset, *, render: Callable[[Card], str]
) -> Changes:
    """Compares a dataset with an earlier one.

    Args:
        previous: Where the earlier one is.
        dataset: The dataset.
        render: Renders a card, to find out how many bytes it adds to the page.

    Raises:
        InputError: One of them is not a dataset of Shardbeam, or cannot be read.
    """
    old = open_dataset(previous)
    difference, images = compare_datasets(old, dataset, limit=_NAMED, images=COMPARED)
    facts = read_facts(old)
    counts = class_counts(compare_statistics(old, dataset), renames=difference.renames)
    return Changes(
        name=facts.title,
        version=facts.version,
        difference=difference,
        summary=describe_difference(difference),
        class_changes=list_class_changes(difference)[:_CLASSES],
        examples=[
            (*describe_change(change), describe_key(change)) for change in difference.changes
        ],
        classes=counts[:_CLASSES],
        pictures=list(
            _draw(
                read_changed(images, old=old, new=dataset, renames=difference.renames),
                old=old,
                new=dataset,
                render=render,
            )
        ),
    )


def _draw(
    pictures: Iterator[ChangedImage],
    *,
    old: StoredDataset,
    new: StoredDataset,
    render: Callable[[Card], str],
) -> Iterator[ChangedCard]:
    feature_maps = read_feature_map(old), read_feature_map(new)
    # A class has the same colour before and after; only the values of old maps have old names.
    before, after = (
        Classes(feature_map.class_names, numbered_maps=feature_map.numbered_maps)
        for feature_map in feature_maps
    )
    room = _MAX_BYTES
    for number, picture in enumerate(pictures):
        cards = list(_make_cards(picture, before=before, after=after, name=f"changed-{number}"))
        num_bytes = sum(len(render(card).encode()) for card in cards)
        if num_bytes > room:
            cards = []
        else:
            room -= num_bytes
        yield ChangedCard(
            key=describe_key(picture.change),
            splits=describe_change(picture.change)[1],
            lines=list(describe_image(picture)),
            cards=cards,
        )


def _make_cards(
    picture: ChangedImage, *, before: Classes, after: Classes, name: str
) -> Iterator[Card]:
    """Draws the old and the new version of a picture."""
    objects = picture.what.objects[:_OBJECTS]
    for place, (version, numbers, classes) in enumerate(
        (
            (picture.old, [each.old_number for each in objects], before),
            (picture.new, [each.new_number for each in objects], after),
        )
    ):
        shown = _show_changed(
            version,
            numbers=numbers,
            has_masks=any(MASK in change.kinds for change in picture.what.objects),
            has_maps=bool(picture.what.maps),
        )
        thumbnail = fit_thumbnail(
            shown, max_side=_SIDE, classes=classes if shown.class_map else after
        )
        yield make_card(shown, thumbnail, classes=after, name=f"{name}-{place}")


def _show_changed(
    picture: Picture, *, numbers: Collection[int | None], has_masks: bool, has_maps: bool
) -> Picture:
    """Leaves out what is not to be drawn: unchanged objects, masks and maps.

    Args:
        picture: One version of the picture.
        numbers: The numbers of the changed objects, from 1; if none changed, the first are drawn.
        has_masks: Whether masks are drawn.
        has_maps: Whether maps are drawn.
    """
    objects = tuple(
        item if has_masks else msgspec.structs.replace(item, mask=b"")
        for number, item in enumerate(picture.objects, 1)
        if number in numbers or (not numbers and number <= _OBJECTS)
    )
    shown = msgspec.structs.replace(picture, objects=objects)
    return shown if has_maps else msgspec.structs.replace(shown, class_map=b"", instance_map=b"")
