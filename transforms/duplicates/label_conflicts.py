"""Finds equal or nearly equal pictures of objects that have no class in common.

This takes the whole dataset, so it reads the shards' indexes, and compares only pictures that
`transforms.duplicates.near_duplicates` has put in one group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.transforms.dataset.index import first_bits
from shardbeam.transforms.duplicates.near_duplicates import pair_near

# The columns of an index that `read_rows` reads.
COLUMNS = ("key", "source", "sha256", "dhash", "objects", "classes")

_BITS = 64
# Limits of memory: words of a set's mask, and pairs of pictures whose masks are compared at once.
_MOST_WORDS, _BLOCK = 32, 100_000

_Flags = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.uint64]
_Indexes = npt.NDArray[np.intp]


class PictureRows(NamedTuple):
    """Pictures, and the classes of the objects in each.

    Attributes:
        values: The hash of each picture, or the first 64 bits of its digest if it has none.
        classes: The ids of its classes, each once and in order; empty if it has no objects.
    """

    values: _Numbers
    classes: Sequence[tuple[int, ...]]


def read_rows(index: pa.Table, rows: _Indexes, *, near: int) -> PictureRows:
    """Reads pictures of a shard.

    If each object of an image has its own row, the picture has the classes of all these rows.

    Args:
        index: `COLUMNS` of the shard's index; older datasets may lack `classes`.
        rows: The number of each picture's first row.
        near: The most bits in which the hashes of two pictures may differ; 0 compares digests.
    """
    chosen = index.take(rows)
    values = first_bits(chosen["sha256"])
    if near:
        hashed = chosen["dhash"].is_valid().to_numpy(zero_copy_only=False)
        values = np.where(hashed, chosen["dhash"].fill_null(0).to_numpy(), values)
    return PictureRows(values, list(_read_classes(index, rows)))


def _read_classes(index: pa.Table, rows: _Indexes) -> Iterator[tuple[int, ...]]:
    if "classes" not in index.column_names:
        yield from [()] * len(rows)
        return
    keys, sources, objects = (
        index[name].to_numpy(zero_copy_only=False) for name in ("key", "source", "objects")
    )
    starts = np.flatnonzero((keys[1:] != keys[:-1]) | (sources[1:] != sources[:-1])) + 1
    starts = np.append(starts, len(keys))
    lists = index["classes"].combine_chunks()
    offsets, items = lists.offsets.to_pylist(), lists.values.to_pylist()
    for row, end in zip(rows, starts[np.searchsorted(starts, rows, side="right")], strict=True):
        has_objects = objects[row:end].any()
        yield tuple(sorted({*items[offsets[row] : offsets[end]]})) if has_objects else ()


def find_same_pictures(groups: _Indexes, pictures: PictureRows, *, near: int) -> _Indexes:
    """Finds pictures of objects that share no class with another picture, equal or nearly.

    Pictures without objects are not compared.

    Args:
        groups: The number of each picture's group, in which all similar pictures are.
        pictures: The pictures.
        near: The most bits in which the hashes of two pictures may differ; 0 if only equal files
            are compared.

    Returns:
        For each picture, in how many of 64 bits its hash agrees with that of the most similar such
        picture; 0 if there is none.
    """
    numbers = {classes: number for number, classes in enumerate(sorted(set(pictures.classes)))}
    sets = np.array([numbers[classes] for classes in pictures.classes], np.uint64)
    class_sets = _ClassSets(list(numbers))
    rows = np.flatnonzero([bool(classes) for classes in pictures.classes])
    columns = np.stack([groups.astype(np.uint64), pictures.values, sets])[:, rows]
    # Pictures with the same hash and the same classes are compared once, as one row.
    (group, value, kind), places = np.unique(columns, axis=1, return_inverse=True)
    kind = kind.astype(np.intp)
    nearest = np.full(len(group), near + 1)
    for one, other in pair_near(value, band=group, near=near):
        bits = _count_bits(value[one] ^ value[other], most=near)
        for begin in range(0, len(one), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            is_found = class_sets.are_disjoint(kind[one[block]], kind[other[block]])
            for each in (one[block][is_found], other[block][is_found]):
                nearest[each] = np.minimum(nearest[each], bits[block][is_found])
    found = np.zeros(len(groups), np.intp)
    found[rows] = np.where(nearest <= near, _BITS - nearest, 0)[places.ravel()]
    return found


class _ClassSets:
    """Sets of classes, of which many pairs are compared.

    Each set has a row of bits. If there are more classes than bits, several classes share a bit;
    then sets that have a bit in common are compared class by class.

    Args:
        sets: The classes of each set.
    """

    def __init__(self, sets: Sequence[tuple[int, ...]]) -> None:
        self._sets = sets
        known, classes = np.unique(list(itertools.chain(*sets)), return_inverse=True)
        num_words = min(len(known) // _BITS + 1, _MOST_WORDS)
        self._share_bits = len(known) > num_words * _BITS
        self._masks = np.zeros((len(sets), num_words), np.uint64)
        places = classes.astype(np.uint64) % np.uint64(num_words * _BITS)
        words, bits = np.divmod(places, np.uint64(_BITS))
        rows = np.repeat(np.arange(len(sets)), [len(each) for each in sets])
        np.bitwise_or.at(self._masks, (rows, words.astype(np.intp)), np.uint64(1) << bits)

    def are_disjoint(self, ones: _Indexes, others: _Indexes) -> _Flags:
        """Finds out for each pair of sets, by their numbers, whether they share no class."""
        disjoint: _Flags = np.logical_not(np.any(self._masks[ones] & self._masks[others], axis=1))
        if self._share_bits:
            for place in np.flatnonzero(~disjoint & (ones != others)).tolist():
                one, other = self._sets[ones[place]], self._sets[others[place]]
                disjoint[place] = frozenset(one).isdisjoint(other)
        return disjoint


def _count_bits(numbers: _Numbers, *, most: int) -> _Indexes:
    """Counts the bits that are set in each number; `most + 1` if there are more than `most`."""
    numbers = numbers.copy()
    counts = np.zeros(len(numbers), np.intp)
    for _ in range(most + 1):
        counts += numbers != 0
        # Clear the lowest bit that is set; 0 stays 0.
        numbers &= numbers - np.uint64(1)
    return counts
