"""Matches the Examples of two datasets by the rows of their indexes.

Examples are matched by their images' keys, and the others by the digests of their images, which
finds files that were renamed. What is left is matched by the pictures (`near_pairs`), which finds
files that were renamed and encoded again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.readers.compare.index_rows import IndexedDataset, Places, Rows, examples_of
from shardbeam.readers.compare.near_pairs import match_near


class Pairs(NamedTuple):
    """The Examples of two datasets that were matched, by their places in the rows.

    Attributes:
        before: The old dataset.
        after: The new dataset.
        old: The places of the pairs in the old dataset.
        new: The places of the same pairs in the new dataset.
        removed: The places of Examples without a partner in the old dataset.
        added: The places of Examples without a partner in the new dataset.
        near: For each pair whether it was matched by its pictures.
        ambiguous: How many images look like several, so that they were not matched.
    """

    before: IndexedDataset
    after: IndexedDataset
    old: Places
    new: Places
    removed: Places
    added: Places
    near: npt.NDArray[np.bool_]
    ambiguous: int

    @property
    def rows(self) -> tuple[Rows, Rows]:
        """The rows of the pairs in the old dataset, and in the new one."""
        return self.before.rows[self.old], self.after.rows[self.new]

    @property
    def has_labels(self) -> bool:
        """Whether both indexes hold labels and checksums of Examples."""
        return self.before.has_labels and self.after.has_labels


def match_examples(before: IndexedDataset, after: IndexedDataset) -> Pairs:
    """Matches examples by key, the others by the digest of their image, the rest by pictures."""
    old, new = before.rows, after.rows
    by_key = _match_by("key", np.arange(len(old)), np.arange(len(new)), old=old, new=new)
    # An example without an image has the digest 0.
    old_left, new_left = (
        left[rows["image"][left] != 0]
        for left, rows in ((_others(by_key[0], old), old), (_others(by_key[1], new), new))
    )
    by_image = _match_by("image", old_left, new_left, old=old, new=new)
    old_matched, new_matched = (
        np.concatenate(places) for places in zip(by_key, by_image, strict=True)
    )
    images = match_near(before, after, old=_others(old_matched, old), new=_others(new_matched, new))
    old_firsts, new_firsts = before.first_places(), after.first_places()
    near = [
        pair
        for one, other in zip(images.old.tolist(), images.new.tolist(), strict=True)
        for pair in _match_group(
            examples_of(one, old_firsts).tolist(),
            examples_of(other, new_firsts).tolist(),
            old=old,
            new=new,
        )
    ]
    olds_near, news_near = np.array(near, np.intp).reshape(-1, 2).T
    is_near = np.arange(len(old_matched) + len(near)) >= len(old_matched)
    old_matched = np.concatenate([old_matched, olds_near])
    new_matched = np.concatenate([new_matched, news_near])
    return Pairs(
        before,
        after,
        old=old_matched,
        new=new_matched,
        removed=_others(old_matched, old),
        added=_others(new_matched, new),
        near=is_near,
        ambiguous=images.ambiguous,
    )


def _match_by(
    field: str, old_places: Places, new_places: Places, *, old: Rows, new: Rows
) -> tuple[Places, Places]:
    """Matches examples with the same value in a field; several of one value by similarity."""
    old_values, new_values = old[field][old_places], new[field][new_places]
    old_single, new_single = _single_places(old_values), _single_places(new_values)
    _, old_found, new_found = np.intersect1d(
        old_values[old_single], new_values[new_single], assume_unique=True, return_indices=True
    )
    old_found, new_found = old_single[old_found], new_single[new_found]
    matched = [(old_places[old_found], new_places[new_found])]
    old_left, new_left = _others(old_found, old_values), _others(new_found, new_values)
    shared = np.intersect1d(old_values[old_left], new_values[new_left])
    groups: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, left, places, values in (
        (0, old_left, old_places, old_values),
        (1, new_left, new_places, new_values),
    ):
        left = left[np.isin(values[left], shared)]
        for place, value in zip(places[left].tolist(), values[left].tolist(), strict=True):
            groups[value][side].append(place)
    for olds, news in groups.values():
        pairs = np.array(_match_group(olds, news, old=old, new=new), np.intp)
        matched.append((pairs[:, 0], pairs[:, 1]))
    old_matched, new_matched = (np.concatenate(places) for places in zip(*matched, strict=True))
    return old_matched, new_matched


def _single_places(values: npt.NDArray[np.uint64]) -> Places:
    """Returns the places of the values that occur once."""
    _, places, counts = np.unique(values, return_index=True, return_counts=True)
    single: Places = places[counts == 1]
    return single


def _others(places: Places, rows: npt.NDArray[Any]) -> Places:
    """Returns all other places in the rows."""
    is_other = np.ones(len(rows), bool)
    is_other[places] = False
    return np.flatnonzero(is_other)


def _match_group(
    olds: Sequence[int], news: Sequence[int], *, old: Rows, new: Rows
) -> list[tuple[int, int]]:
    """Pairs examples that have the same key, or the same image.

    Equal Examples are paired first, also across splits. Then come pairs within a split: Examples
    that differ in `labels` alone, which also covers the image's other Examples; then equal images
    with equal labels; then any. The rest is paired in order.
    """
    pairs: list[tuple[int, int]] = []
    alike = ["image", "labels", "crc32c", "length"]
    for fields in (
        ["split", *alike],
        alike,
        ["split", "image", "crc32c", "length"],
        ["split", "image", "labels"],
        ["split"],
        [],
    ):
        waiting: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place in reversed(news):
            waiting[tuple(new[place][name] for name in fields)].append(place)
        left = []
        for place in olds:
            candidates = waiting[tuple(old[place][name] for name in fields)]
            if candidates:
                pairs.append((place, candidates.pop()))
            else:
                left.append(place)
        olds, news = left, sorted(place for places in waiting.values() for place in places)
    return pairs
