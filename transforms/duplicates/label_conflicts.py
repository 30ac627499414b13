"""Finds equal or nearly equal pictures whose objects contradict each other.

Their objects have no class in common, or other numbers of objects of a class. This takes the whole
dataset, so it reads the shards' indexes, and compares only pictures that
`transforms.duplicates.near_duplicates` has put in one group.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.transforms.dataset.findings import (
    OF_SIMILAR_PICTURES,
    SAME_PICTURE,
    UNEQUAL_OBJECTS,
)
from shardbeam.transforms.dataset.index import first_bits
from shardbeam.transforms.duplicates.near_duplicates import pair_near

# The columns of an index that `read_rows` reads.
COLUMNS = ("key", "source", "sha256", "dhash", "objects", "classes", "class_objects")

_BITS = 64
_MILLION = 1_000_000
# A limit of memory: numbers of objects, each of a class in a picture, that are compared at once.
_BLOCK = 1_000_000

_Flags = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.uint64]
_Indexes = npt.NDArray[np.intp]
# (id of a class, objects), in the order of the ids
ClassCounts: TypeAlias = tuple[tuple[int, int], ...]


class PictureRows(NamedTuple):
    """Pictures, and the classes of the objects in each.

    Attributes:
        values: The hash of each picture, or the first 64 bits of its digest if it has none.
        classes: Its classes, each with its number of objects, which is 0 for classes of the image
            as a whole; empty if it has no objects.
    """

    values: _Numbers
    classes: Sequence[ClassCounts]


def read_rows(index: pa.Table, rows: _Indexes, *, near: int) -> PictureRows:
    """Reads pictures of a shard.

    If each object of an image has its own row, the picture has the objects of all these rows.

    Args:
        index: `COLUMNS` of the shard's index; older ones lack the last ones.
        rows: The number of each picture's first row.
        near: The most bits in which the hashes of two pictures may differ; 0 compares digests.
    """
    chosen = index.take(rows)
    values = first_bits(chosen["sha256"])
    if near:
        hashed = chosen["dhash"].is_valid().to_numpy(zero_copy_only=False)
        values = np.where(hashed, chosen["dhash"].fill_null(0).to_numpy(), values)
    return PictureRows(values, list(read_classes(index, rows)))


def read_classes(index: pa.Table, rows: _Indexes) -> Iterator[ClassCounts]:
    """Reads the classes of pictures with objects: those of their Examples from a row on.

    Args:
        index: Columns of a shard's index; older ones lack `class_objects`, or `classes`, too.
        rows: The number of each picture's first row.
    """
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
    numbers = [0] * len(items)
    if "class_objects" in index.column_names:
        numbers = index["class_objects"].combine_chunks().values.to_pylist()
    for row, end in zip(rows, starts[np.searchsorted(starts, rows, side="right")], strict=True):
        counts: Counter[int] = Counter()
        if objects[row:end].any():
            part = slice(offsets[row], offsets[end])
            for label, number in zip(items[part], numbers[part], strict=True):
                counts[label] += number
        yield tuple(sorted(counts.items()))


def find_conflicts(groups: _Indexes, pictures: PictureRows, *, near: int) -> Mapping[str, _Indexes]:
    """Finds pictures of objects that contradict another picture, equal or nearly.

    Pictures without objects are not compared.

    Args:
        groups: The number of each picture's group, in which all similar pictures are.
        pictures: The pictures.
        near: The most bits in which the hashes of two pictures may differ; 0 if only equal files
            are compared.

    Returns:
        `{kind of finding: strength of each picture}`; a strength is 0 where there is no finding.
        For `SAME_PICTURE`, which have no class in common, it is in how many of 64 bits the hash
        agrees with that of the most similar such picture. For `UNEQUAL_OBJECTS`, it is the share of
        objects that have no counterpart of their class in the other picture, in millionths.
    """
    numbers = {classes: number for number, classes in enumerate(sorted(set(pictures.classes)))}
    kinds = np.array([numbers[classes] for classes in pictures.classes], np.uint64)
    counts = _ObjectCounts(list(numbers))
    rows = np.flatnonzero([bool(classes) for classes in pictures.classes])
    columns = np.stack([groups.astype(np.uint64), pictures.values, kinds])[:, rows]
    # Pictures with the same hash and the same objects are compared once, as one row.
    (group, value, kind), places = np.unique(columns, axis=1, return_inverse=True)
    kind = kind.astype(np.intp)
    strengths = {name: np.zeros(len(group), np.intp) for name in OF_SIMILAR_PICTURES}
    for one, other in pair_near(value, band=group, near=near):
        differs = kind[one] != kind[other]
        one, other = one[differs], other[differs]
        agreeing = _BITS - np.bitwise_count(value[one] ^ value[other]).astype(np.intp)
        is_disjoint, share = counts.compare(kind[one], kind[other])
        for name, strength in (
            (SAME_PICTURE, np.where(is_disjoint, agreeing, 0)),
            (UNEQUAL_OBJECTS, np.where(is_disjoint, 0, share)),
        ):
            # No row occurs twice in `one`, nor in `other`.
            for each in (one, other):
                strengths[name][each] = np.maximum(strengths[name][each], strength)
    found = {name: np.zeros(len(groups), np.intp) for name in strengths}
    for name, strength in strengths.items():
        found[name][rows] = strength[places.ravel()]
    return found


class _ObjectCounts:
    """Numbers of objects by class, of which many pairs are compared.

    Args:
        counts: The classes of each picture, with their numbers of objects.
    """

    def __init__(self, counts: Sequence[ClassCounts]) -> None:
        self._lengths = np.array([len(each) for each in counts], np.intp)
        self._starts = self._lengths.cumsum() - self._lengths
        flat = np.array(list(itertools.chain(*counts)), np.int64).reshape(-1, 2)
        known, self._classes = np.unique(flat[:, 0], return_inverse=True)
        self._objects = flat[:, 1]
        self._num_classes = max(1, len(known))
        self._block = max(1, _BLOCK // max(1, 2 * int(self._lengths.max(initial=0))))

    def compare(self, ones: _Indexes, others: _Indexes) -> tuple[_Flags, _Indexes]:
        """Compares pairs of pictures, by their numbers.

        Returns:
            For each pair, whether it has no class in common, and the share of the objects without
            a counterpart, in millionths.
        """
        is_disjoint = np.zeros(len(ones), np.bool_)
        share = np.zeros(len(ones), np.intp)
        for begin in range(0, len(ones), self._block):
            block = slice(begin, begin + self._block)
            is_disjoint[block], share[block] = self._compare(ones[block], others[block])
        return is_disjoint, share

    def _compare(self, ones: _Indexes, others: _Indexes) -> tuple[_Flags, _Indexes]:
        of_ones, of_others = self._list(ones), self._list(others)
        each = np.concatenate([of_ones[0], of_others[0]])
        classes, places = np.unique(each, return_inverse=True)
        # The number of objects of each class that the first picture of a pair has more.
        more = np.bincount(places, np.concatenate([of_ones[1], -of_others[1]]))
        pair, num_pairs = classes // self._num_classes, len(ones)
        lonely = np.bincount(pair, np.abs(more), minlength=num_pairs)
        objects = np.bincount(of_ones[0] // self._num_classes, of_ones[1], minlength=num_pairs)
        objects += np.bincount(of_others[0] // self._num_classes, of_others[1], minlength=num_pairs)
        # Objects with a counterpart are counted in both pictures.
        share = lonely / np.maximum((objects + lonely) / 2, 1)
        lengths = self._lengths[ones] + self._lengths[others]
        is_disjoint = np.bincount(pair, minlength=num_pairs) == lengths
        return is_disjoint, np.rint(share * _MILLION).astype(np.intp)

    def _list(self, pictures: _Indexes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Lists the classes of some pictures.

        Returns:
            The place in `pictures`, and the class, as one number; and the number of objects.
        """
        lengths = self._lengths[pictures]
        ends = lengths.cumsum()
        places = np.arange(lengths.sum()) + np.repeat(
            self._starts[pictures] - ends + lengths, lengths
        )
        of_picture = np.repeat(np.arange(len(pictures)), lengths)
        return of_picture * self._num_classes + self._classes[places], self._objects[places]
