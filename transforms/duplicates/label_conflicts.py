"""Finds equal or nearly equal pictures whose objects contradict each other.

Their objects have no class in common, or other numbers of objects of a class. This takes the whole
dataset, so it reads the shards' indexes, and compares only pictures that
`transforms.duplicates.near_duplicates` has put in one group.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.transforms.dataset.findings import OF_SIMILAR_PICTURES, SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.dataset.index import first_bits
from shardbeam.transforms.duplicates.near_duplicates import COMPARED, Indexes, Numbers

# The columns of an index that `read_rows` reads.
PICTURE_COLUMNS = ("key", "source", "sha256", "dhash", "objects", "classes", "class_objects")

_BITS = 64
_MILLION = 1_000_000
# Limits of a table of rows that are compared at once, each with the `COMPARED` next ones: its size,
# which fits in a processor's cache, and its rows.
_CELLS, _FEWEST_ROWS, _MOST_ROWS = 1 << 18, 64, 4_096

# (id of a class, objects), in the order of the ids
ClassCounts: TypeAlias = tuple[tuple[int, int], ...]


class PictureRows(NamedTuple):
    """Pictures, and the classes of the objects in each.

    Attributes:
        values: The hash of each picture, or the first 64 bits of its digest if it has none.
        classes: Its classes, each with its number of objects, which is 0 for classes of the image
            as a whole; empty if it has no objects.
    """

    values: Numbers
    classes: Sequence[ClassCounts]


def read_rows(index: pa.Table, rows: Indexes, *, near: int) -> PictureRows:
    """Reads pictures of a shard.

    If each object of an image has its own row, the picture has the objects of all these rows.

    Args:
        index: `PICTURE_COLUMNS` of the shard's index; older ones lack the last ones.
        rows: The number of each picture's first row.
        near: The most bits in which the hashes of two pictures may differ; 0 compares digests.
    """
    chosen = index.take(rows)
    values = first_bits(chosen["sha256"])
    if near:
        hashed = chosen["dhash"].is_valid().to_numpy(zero_copy_only=False)
        values = np.where(hashed, chosen["dhash"].fill_null(0).to_numpy(), values)
    return PictureRows(values, list(read_classes(index, rows)))


def read_classes(index: pa.Table, rows: Indexes) -> Iterator[ClassCounts]:
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


def find_conflicts(groups: Indexes, pictures: PictureRows, *, near: int) -> Mapping[str, Indexes]:
    """Finds pictures of objects that contradict another picture, equal or nearly.

    Pictures without objects are not compared. Those of a group with the same hash and the same
    objects are compared once. In the order of their hashes and objects, each is compared with the
    `COMPARED` next ones of its group.

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
    rows = np.flatnonzero([bool(classes) for classes in pictures.classes])
    columns = np.stack([groups.astype(np.uint64), pictures.values, kinds])[:, rows]
    (group, value, kind), places = np.unique(columns, axis=1, return_inverse=True)
    objects = _ObjectCounts(list(numbers))
    agreeing, shares = np.zeros(len(group), np.intp), np.zeros(len(group))
    size = int(np.clip(_CELLS // max(1, objects.num_classes), _FEWEST_ROWS, _MOST_ROWS))
    for begin in range(0, len(group), size):
        end = min(begin + size, len(group))
        of_last = int(np.searchsorted(group, group[end - 1], side="right"))
        part = slice(begin, min(of_last, end + COMPARED))
        table = objects.spread(kind[part].astype(np.intp))
        found = _compare(group[part], value[part], table, size=end - begin, near=near)
        for strengths, strengths_of_part in zip((agreeing, shares), found, strict=True):
            np.maximum(strengths[part], strengths_of_part, out=strengths[part])
    conflicts = {name: np.zeros(len(groups), np.intp) for name in OF_SIMILAR_PICTURES}
    conflicts[SAME_PICTURE][rows] = agreeing[places.ravel()]
    conflicts[UNEQUAL_OBJECTS][rows] = np.rint(shares * _MILLION)[places.ravel()]
    return conflicts


class _Table(NamedTuple):
    """Numbers of objects by class, of some pictures.

    Attributes:
        total: The objects of each picture.
        cells: A row for each class that several of the pictures have, a column for each picture. A
            class of the picture is `objects * unit + 1`, so that one without objects is not 0.
        unit: More than the number of classes.
    """

    total: Indexes
    cells: npt.NDArray[Any]
    unit: int


def _compare(
    group: Numbers, value: Numbers, table: _Table, *, size: int, near: int
) -> tuple[Indexes, npt.NDArray[np.float64]]:
    """Compares the first pictures of a part with the next ones.

    Args:
        group: The group of each picture, in order.
        value: The hash of each picture.
        table: Their objects.
        size: How many pictures are compared with the `COMPARED` next ones.
        near: The most bits in which two hashes may differ.

    Returns:
        For each picture of the part, the most bits that agree with one that has no class in common;
        and of those with a class in common, the largest share of objects without a counterpart.
    """
    agreeing, shares = np.zeros(len(group), np.intp), np.zeros(len(group))
    for step in range(1, min(COMPARED, len(group) - 1) + 1):
        ones = slice(min(size, len(group) - step))
        others = slice(step, step + ones.stop)
        is_pair = group[ones] == group[others]
        if not is_pair.any():
            break
        differing = np.bitwise_count(value[ones] ^ value[others])
        is_pair &= differing <= near
        common = np.minimum(table.cells[:, ones], table.cells[:, others])
        sums = common.sum(axis=0, dtype=common.dtype)
        is_disjoint = sums == 0
        # Objects with a counterpart are counted in both pictures.
        both, counterparts = table.total[ones] + table.total[others], sums // table.unit
        share = (both - 2 * counterparts) / np.maximum(both - counterparts, 1)
        share *= is_pair & ~is_disjoint
        agree = np.where(is_pair & is_disjoint, _BITS - differing.astype(np.intp), 0)
        for side in (ones, others):
            np.maximum(agreeing[side], agree, out=agreeing[side])
            np.maximum(shares[side], share, out=shares[side])
    return agreeing, shares


class _ObjectCounts:
    """Numbers of objects by class, of many pictures.

    Args:
        counts: The classes of each picture, with their numbers of objects.

    Attributes:
        num_classes: The number of classes.
    """

    def __init__(self, counts: Sequence[ClassCounts]) -> None:
        self._lengths = np.array([len(classes) for classes in counts], np.intp)
        self._starts = self._lengths.cumsum() - self._lengths
        flat = np.array(list(itertools.chain(*counts)), np.int64).reshape(-1, 2)
        self._classes, self._objects = flat.T
        self.num_classes = len(np.unique(self._classes))

    def spread(self, pictures: Indexes) -> _Table:
        """Makes the table of some pictures, by their numbers."""
        lengths = self._lengths[pictures]
        places = np.arange(lengths.sum()) + np.repeat(
            self._starts[pictures] - lengths.cumsum() + lengths, lengths
        )
        column, objects = np.repeat(np.arange(len(pictures)), lengths), self._objects[places]
        total = np.bincount(column, objects, minlength=len(pictures)).astype(np.intp)
        _, row, sizes = np.unique(self._classes[places], return_inverse=True, return_counts=True)
        is_shared = sizes > 1
        unit = int(is_shared.sum()) + 1
        # The smallest type that holds the sum of a column: small numbers are added faster.
        dtype = np.min_scalar_type(int(total.max(initial=0) + 1) * unit)
        cells = np.zeros((unit - 1, len(pictures)), dtype)
        chosen = is_shared[row]
        row = is_shared.cumsum()[row] - 1
        cells[row[chosen], column[chosen]] = objects[chosen] * unit + 1
        return _Table(total, cells, unit)
