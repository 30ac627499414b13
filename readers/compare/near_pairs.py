"""Matches images of two datasets that have other names and other bytes, by their pictures.

The index holds a difference hash of each picture (`images.measures`), which differs in few bits
after an image was encoded again or resized. Two images are one if their hashes are near each other,
and neither has another near image in the other dataset, matched or not: frames of a video, or
copies, are never matched by chance. As in `near_duplicates`, a hash is compared only with those
that have the same bits in one of four bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.readers.compare.index_rows import IndexedDataset, Places
from shardbeam.transforms.duplicates.near_duplicates import BANDS, COMPARED, are_near

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
