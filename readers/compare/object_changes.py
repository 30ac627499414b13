"""Finds the objects that differ between two versions of a picture.

Objects have no names, so they are matched by their classes and boxes. Each rule applies to the
objects that the rules before it have not matched:

1. Objects that are the same in everything.
2. Objects of one class whose boxes have an IoU of more than 0.5; the best pair first.
3. Objects of two classes with the same box: an IoU of more than 0.95; the best pair first.
4. Objects of one class whose boxes overlap at all; the best pair first.

All others were removed or added. Among equally good pairs, the one with the earlier old object
comes first, then the one with the earlier new object, so that the same Examples always give the
same result.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.transforms.examples.decode.annotations import class_of
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from shardbeam.transforms.examples.geometry.boxes import Box

ADDED, REMOVED = "added", "removed"
CLASS, BOX, CROWD, AREA = "class", "box", "crowd", "area"
MASK, KEYPOINTS, ATTRIBUTES = "mask", "keypoints", "attributes"
# The kinds of changes of an object, the most notable first.
KINDS = (CLASS, BOX, MASK, KEYPOINTS, CROWD, ATTRIBUTES, AREA, REMOVED, ADDED)

# Boxes of one class with a greater IoU are probably one object.
_ALIKE_IOU = 0.5
# Boxes of two classes with a greater IoU are the same box.
_SAME_IOU = 0.95
# If more pairs of objects would have to be compared, only boxes that are exactly equal are matched.
_MOST_PAIRS = 1_000_000
# Sides that differ by less, in fractions of the image, differ by rounding (`label_digest`).
_ROUNDING = 5e-5
# Stands for the IoU of two objects of which only one has a box: less than that of any overlap.
_UNKNOWN_IOU = 1e-12
_NO_BOX = (-1.0, -1.0, -1.0, -1.0)

_Pair = tuple[int, int]
# Objects with their numbers, from 0.
_Numbered = list[tuple[int, PictureObject]]


class ObjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is not the same in both versions.

    Attributes:
        kinds: How it differs: `added`, `removed`, or some of `KINDS`.
        old_class: Its class before; empty if it was added, or has no class.
        new_class: Its class now; empty if it was removed, or has no class.
        old_box: Its box before, `(xmin, ymin, xmax, ymax)` in fractions of the image.
        new_box: Its box now.
        iou: The IoU of both boxes; None if the box is the same, or if one is missing.
        attributes: Names of its attributes that differ.
        old_number: Its number among the old objects, from 1; None if it was added.
        new_number: Its number among the new objects, from 1; None if it was removed.
    """

    kinds: tuple[str, ...]
    old_class: str = ""
    new_class: str = ""
    old_box: Box | None = None
    new_box: Box | None = None
    iou: float | None = None
    attributes: tuple[str, ...] = ()
    old_number: int | None = None
    new_number: int | None = None


def same_values(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Compares values; NaN equals NaN."""
    return old == new or (
        len(old) == len(new)
        and all(
            one == other or (one != one and other != other)
            for one, other in zip(old, new, strict=True)
        )
    )


class Scaling(NamedTuple):
    """How a picture's size has changed.

    Attributes:
        tolerance: By how much a box may differ, in fractions of the width and of the height.
        area: By how much areas in pixels² have grown.
    """

    tolerance: tuple[float, float] = (_ROUNDING, _ROUNDING)
    area: float = 1.0


_SAME_SIZE = Scaling()


def find_scaling(old: Picture, new: Picture) -> Scaling:
    """Boxes of a resized picture may be rounded to its pixels: half a pixel is no change."""
    sizes = (old.width, new.width), (old.height, new.height)
    if (old.width, old.height) == (new.width, new.height) or min(map(min, sizes)) <= 0:
        return _SAME_SIZE
    across, down = (0.5 / min(sides) + _ROUNDING for sides in sizes)
    area = new.width * new.height / (old.width * old.height)
    return Scaling((across, down), area)


def find_changed_objects(
    olds: Sequence[PictureObject], news: Sequence[PictureObject], *, scaling: Scaling
) -> tuple[list[ObjectChange], int]:
    """Returns the objects that differ, the most notable first, and how many are the same."""
    pairs, removed, added = _match_objects(olds, news)
    changed = [
        change
        for pair in pairs
        if (change := _compare_objects(olds, news, pair=pair, scaling=scaling)) is not None
    ]
    same = len(pairs) - len(changed)
    changed += [_lone_object(olds, number, kind=REMOVED) for number in removed]
    changed += [_lone_object(news, number, kind=ADDED) for number in added]
    # The sort is stable: objects of one kind stay in their order.
    changed.sort(key=lambda change: KINDS.index(change.kinds[0]))
    return changed, same


def _match_objects(
    olds: Sequence[PictureObject], news: Sequence[PictureObject]
) -> tuple[list[_Pair], list[int], list[int]]:
    """Matches objects by the rules above.

    Returns:
        The pairs, in the order of the old objects; the removed ones; the added ones.
    """
    old_left, new_left = list(enumerate(olds)), list(enumerate(news))
    pairs = _match_equal(old_left, new_left, key=_identity)
    for is_one_class, least in ((True, _ALIKE_IOU), (False, _SAME_IOU), (True, 0.0)):
        old_left, new_left = _left_over(old_left, new_left, pairs=pairs)
        if not old_left or not new_left:
            break
        groups = _by_class(old_left, new_left) if is_one_class else [(old_left, new_left)]
        are_many = sum(len(ones) * len(others) for ones, others in groups) > _MOST_PAIRS
        for ones, others in groups:
            if are_many:
                pairs += _match_equal(ones, others, key=operator.attrgetter("box"))
            else:
                pairs += _match_boxes(ones, others, least=least)
    removed, added = _left_over(old_left, new_left, pairs=pairs)
    return sorted(pairs), [number for number, _ in removed], [number for number, _ in added]


def _left_over(
    olds: _Numbered, news: _Numbered, *, pairs: Iterable[_Pair]
) -> tuple[_Numbered, _Numbered]:
    """Returns the objects that are in no pair."""
    paired_olds, paired_news = {old for old, _ in pairs}, {new for _, new in pairs}
    return (
        [each for each in olds if each[0] not in paired_olds],
        [each for each in news if each[0] not in paired_news],
    )


def _identity(item: PictureObject) -> Hashable:
    """Returns all values of an object; they are equal if two objects are the same."""
    return (
        *(class_of(item)[0], item.box, item.is_crowd, item.area, item.mask, item.keypoints),
        tuple(sorted(item.attributes.items())),
    )


def _match_equal(
    olds: _Numbered, news: _Numbered, *, key: Callable[[PictureObject], Hashable]
) -> list[_Pair]:
    """Pairs objects that have the same key, in order."""
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, item in reversed(news):
        waiting[key(item)].append(number)
    pairs = []
    for number, item in olds:
        candidates = waiting.get(key(item))
        if candidates:
            pairs.append((number, candidates.pop()))
    return pairs


def _by_class(olds: _Numbered, news: _Numbered) -> list[tuple[_Numbered, _Numbered]]:
    """Groups objects by class, without the classes that one side lacks."""
    groups: dict[str, tuple[_Numbered, _Numbered]] = {}
    for side, objects in enumerate((olds, news)):
        for number, item in objects:
            groups.setdefault(class_of(item)[0], ([], []))[side].append((number, item))
    return [group for group in groups.values() if all(group)]


def _match_boxes(olds: _Numbered, news: _Numbered, *, least: float) -> list[_Pair]:
    """Pairs objects whose boxes have an IoU of more than `least`, the best pair first."""
    ious = _pairwise_iou([item.box for _, item in olds], [item.box for _, item in news])
    rows, columns = np.nonzero(ious > least)
    order = np.lexsort((columns, rows, -ious[rows, columns]))
    pairs: list[_Pair] = []
    taken: tuple[set[int], set[int]] = set(), set()
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if row not in taken[0] and column not in taken[1]:
            taken[0].add(row)
            taken[1].add(column)
            pairs.append((olds[row][0], news[column][0]))
    return pairs


def _pairwise_iou(
    olds: Sequence[Box | None], news: Sequence[Box | None]
) -> npt.NDArray[np.float64]:
    """Returns the IoU of each old box with each new one, (old, new); equal boxes have 1."""
    old = np.array([box or _NO_BOX for box in olds])[:, np.newaxis]
    new = np.array([box or _NO_BOX for box in news])[np.newaxis]
    low = np.maximum(old[..., :2], new[..., :2])
    high = np.minimum(old[..., 2:], new[..., 2:])
    both = _area_of(high - low)
    union = _area_of(old[..., 2:] - old[..., :2]) + _area_of(new[..., 2:] - new[..., :2]) - both
    ious: npt.NDArray[np.float64] = np.divide(both, union, out=np.zeros_like(both), where=both > 0)
    ious[(old == new).all(axis=-1)] = 1.0
    lacking = (old == _NO_BOX).all(axis=-1) ^ (new == _NO_BOX).all(axis=-1)
    ious[lacking] = _UNKNOWN_IOU
    return ious


def _area_of(sides: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    area: npt.NDArray[np.float64] = np.maximum(sides, 0).prod(axis=-1)
    return area


def _compare_objects(
    olds: Sequence[PictureObject],
    news: Sequence[PictureObject],
    *,
    pair: _Pair,
    scaling: Scaling,
) -> ObjectChange | None:
    """Compares two versions of an object; None if they are the same."""
    old, new = olds[pair[0]], news[pair[1]]
    attributes = tuple(
        name
        for name in sorted(old.attributes.keys() | new.attributes.keys())
        if not same_values([old.attributes.get(name)], [new.attributes.get(name)])
    )
    differs = {
        CLASS: class_of(old)[0] != class_of(new)[0],
        BOX: not _is_same_box(old.box, new.box, tolerance=scaling.tolerance),
        MASK: old.mask != new.mask,
        KEYPOINTS: old.keypoints != new.keypoints,
        CROWD: old.is_crowd != new.is_crowd,
        ATTRIBUTES: bool(attributes),
        AREA: not _is_same_area(old, new, scaling=scaling),
    }
    kinds = tuple(kind for kind in KINDS if differs.get(kind))
    if not kinds:
        return None
    iou = None
    if differs[BOX] and old.box is not None and new.box is not None:
        iou = round(float(_pairwise_iou([old.box], [new.box])[0, 0]), 6)
    return ObjectChange(
        kinds=kinds,
        old_class=class_of(old)[0],
        new_class=class_of(new)[0],
        old_box=old.box,
        new_box=new.box,
        iou=iou,
        attributes=attributes,
        old_number=pair[0] + 1,
        new_number=pair[1] + 1,
    )


def _is_same_box(old: Box | None, new: Box | None, *, tolerance: tuple[float, float]) -> bool:
    if old is None or new is None:
        return old is new
    return all(
        abs(one - other) <= most
        for one, other, most in zip(old, new, (*tolerance, *tolerance), strict=True)
    )


def _is_same_area(old: PictureObject, new: PictureObject, *, scaling: Scaling) -> bool:
    """Compares areas; that of a resized object may be off by half a pixel on each side."""
    if scaling is _SAME_SIZE or old.box is None:
        return same_values([old.area], [new.area])
    sides = old.box[2] - old.box[0], old.box[3] - old.box[1]
    # Both ends of a side may be off.
    grown = [side + 2 * most for side, most in zip(sides, scaling.tolerance, strict=True)]
    expected = scaling.area * old.area
    most = expected * grown[0] * grown[1] / (sides[0] * sides[1]) if min(sides) > 0 else math.inf
    return abs(new.area - expected) <= most - expected


def _lone_object(objects: Sequence[PictureObject], number: int, *, kind: str) -> ObjectChange:
    """Describes an object that only one version has."""
    item = objects[number]
    if kind == ADDED:
        return ObjectChange(
            kinds=(kind,), new_class=class_of(item)[0], new_box=item.box, new_number=number + 1
        )
    return ObjectChange(
        kinds=(kind,), old_class=class_of(item)[0], old_box=item.box, old_number=number + 1
    )
