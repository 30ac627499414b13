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
from shardbeam.transforms.duplicates.near_duplicates import BANDS, COMPARED, are_near

# Matches images of two datasets that have other names and other bytes, by their pictures.
#
# The index holds a difference hash of each picture (`images.measures`), which differs in few bits
# after an image was encoded again or resized. Two images are one if their hashes are near each
# other, and neither has another near image in the other dataset, matched or not: frames of a
# video, or copies, are never matched by chance. As in `near_duplicates`, a hash is compared only
# with those that have the same bits in one of four bands.

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]

# The most bits in which two hashes differ.
_NEAR_BITS = 3
# Pairs of hashes that are compared at a time: about 100 MB.
_PAIRS = 2_000_000


class NearImages(NamedTuple):
    """Images that were matched by their pictures.

    Attributes:
        old: Places of their first Examples in the old dataset.
        new: Places of the same images in the new dataset.
        ambiguous: How many images of the old dataset look like a new image, and were not matched,
            because several images may be the same.
    """

    old: Places
    new: Places
    ambiguous: int = 0


def match_near(
    before: IndexedDataset, after: IndexedDataset, *, old: Places, new: Places
) -> NearImages:
    """Matches images by their pictures.

    Args:
        before: The old dataset.
        after: The new dataset.
        old: Places of Examples in the old dataset that are not matched.
        new: Places of Examples in the new dataset that are not matched.

    Raises:
        InputError: An index cannot be read.
    """
    olds, news = _lone_images(before, old), _lone_images(after, new)
    if not len(olds) or not len(news):
        return NearImages(np.empty(0, np.intp), np.empty(0, np.intp))
    old_pictures, new_pictures = before.read_pictures(), after.read_pictures()
    # Of an image with several Examples, the first stands for all.
    old_firsts, new_firsts = (
        np.flatnonzero(pictures.known & (each.first_places() == np.arange(len(each.rows))))
        for pictures, each in ((old_pictures, before), (new_pictures, after))
    )
    olds, news = np.intersect1d(olds, old_firsts), np.intersect1d(news, new_firsts)
    to_new = _find_near(old_pictures.hashes[olds], new_pictures.hashes[new_firsts])
    to_old = _find_near(new_pictures.hashes[news], old_pictures.hashes[old_firsts])
    places = np.where(to_new.is_only, new_firsts[to_new.found], -1)
    # For each new image the only old one that is near it.
    back = np.full(len(after.rows) + 1, -2, np.intp)
    back[news[to_old.is_only]] = old_firsts[to_old.found[to_old.is_only]]
    agrees = back[places] == olds
    agrees[agrees] = _have_same_shape(
        old_pictures.sizes[olds[agrees]], new_pictures.sizes[places[agrees]]
    )
    is_near = np.isin(olds, old_firsts[to_old.pairs[:, 1]])
    return NearImages(olds[agrees], places[agrees], int((is_near & ~agrees).sum()))


def _lone_images(dataset: IndexedDataset, places: Places) -> Places:
    """Returns the first Examples of the images none of whose Examples is matched."""
    firsts = dataset.first_places()
    all_of = np.bincount(firsts, minlength=len(firsts))
    left = np.bincount(firsts[places], minlength=len(firsts))
    return np.flatnonzero((left == all_of) & (left > 0))


class _Near(NamedTuple):
    """The hashes that are near others.

    Attributes:
        pairs: Numbers of hashes, and of the others that are near them, (pairs, 2).
        found: For each hash the number of the last of these; 0 if there is none.
        is_only: Whether this is the only one, and none was left out because too many would have to
            be compared.
    """

    pairs: Places
    found: Places
    is_only: Flags


def _find_near(hashes: Numbers, others: Numbers) -> _Near:
    is_crowded = np.zeros(len(hashes), bool)
    parts = [np.empty((0, 2), np.intp)]
    for band in map(np.uint64, BANDS):
        order = np.argsort(others & band, kind="stable")
        values = (others & band)[order]
        begins = np.searchsorted(values, hashes & band, side="left")
        ends = np.searchsorted(values, hashes & band, side="right")
        is_crowded |= ends - begins > COMPARED
        ends = np.where(is_crowded, begins, ends)
        for some in _split_pairs(ends - begins):
            one, other = _compare(hashes, others[order], begins=begins, ends=ends, some=some)
            parts.append(np.stack([one, order[other]], axis=1))
    # A pair may agree in several bands.
    pairs = np.unique(np.concatenate(parts), axis=0)
    found = np.zeros(len(hashes), np.intp)
    found[pairs[:, 0]] = pairs[:, 1]
    numbers = np.bincount(pairs[:, 0], minlength=len(hashes))
    return _Near(pairs, found, (numbers == 1) & ~is_crowded)


def _split_pairs(numbers: Places) -> Sequence[Places]:
    """Splits hashes so that not too many pairs are compared at a time."""
    parts = np.cumsum(numbers) // _PAIRS
    return np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(parts)) + 1)


def _compare(
    hashes: Numbers, others: Numbers, *, begins: Places, ends: Places, some: Places
) -> tuple[Places, Places]:
    """Returns the numbers of hashes, and of the others that are near them.

    Args:
        hashes: Hashes.
        others: The hashes that they are compared with.
        begins: For each hash the first of the others that it is compared with.
        ends: For each hash the end of these.
        some: The hashes that are compared.
    """
    numbers = ends[some] - begins[some]
    one = np.repeat(some, numbers)
    starts = np.cumsum(numbers) - numbers
    other = np.arange(len(one)) + np.repeat(begins[some] - starts, numbers)
    near = are_near(hashes[one] ^ others[other], near=_NEAR_BITS)
    return one[near], other[near]


def _have_same_shape(old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]) -> Flags:
    """Whether sides have the same ratio, to a pixel; an image may have been turned upright."""
    most = np.maximum(old.max(axis=1), new.max(axis=1))
    width, height = new.T
    same, turned = (
        np.abs(one * height - other * width) <= most for one, other in (old.T, old.T[::-1])
    )
    return same | turned


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
