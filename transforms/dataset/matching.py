"""Which pictures of a dataset are the same, or nearly: arrays, compared a group of rows at a time.

Workers take on the groups by themselves:

rows of each shard's index
▼ pack_rows     (space, partition), rows        space 0: digests of files; 1 to 4: bands of hashes
▼ match_rows    links between rows of a group   equal digests; hashes that differ in few bits
▼ group_rows    groups of linked rows           of all spaces together

Two hashes of 64 bits that differ in at most three agree in one of four bands of 16 bits: so only
hashes with the same value of a band are compared. Of a million pictures of all kinds these are 15,
which makes 3·10⁷ comparisons in all; a distance of 6 would take seven bands of 9 bits and 7·10⁹.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.transforms.core.edges import Edges
from shardbeam.transforms.dataset.index import first_bits

# The columns of an index that `pack_rows` takes.
COLUMNS = ("key", "source", "sha256", "labels", "classes", "dhash")

# Records of a partition, 1 MB, which one worker holds at a time.
_RECORDS_PER_PARTITION = 50_000
# A band takes its bits from everywhere in the picture: many pictures of a set have the same
# background above or beside what is in them, and would agree in a band of that.
_BANDS = tuple(
    sum(1 << 63 - bit for bit in range(64) if (bit // 8 + bit) % 4 == band) for band in range(4)
)
# Where more hashes than this agree in a band, each is compared with as many that follow it in
# order: all pairs would be too many.
_COMPARED = 1_000
# Knuth's multiplicative hash (The Art of Computer Programming, 6.4), for 64 bits.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Bits of a row's place: its number, and its shard's within the split.
_ROW_BITS, _SHARD_BITS = 28, 20

_ROW = np.dtype([("value", "<u8"), ("labels", "<u8"), ("classes", "<u8"), ("place", "<u8")])
_LINK = np.dtype(
    [("one", "<u8"), ("other", "<u8"), ("equal", "?"), ("contradicts", "?"), ("differs", "?")]
)

Flags = npt.NDArray[np.bool_]
Indexes = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.uint64]


class Matches(msgspec.Struct, frozen=True, kw_only=True):
    """What is alike within one group of rows.

    Attributes:
        space: What was compared.
        links: Pairs of rows, packed.
        crowded: How many hashes agree in the band with so many others that not all of these were
            compared.
        edges: The rows that have arrived.
    """

    space: int
    links: bytes
    crowded: int = 0
    edges: Edges = msgspec.field(default_factory=Edges)


class Groups(NamedTuple):
    """Rows that are alike, directly or by way of others.

    Attributes:
        places: Where each row is (`split_places`), in order.
        groups: The group of each: its number, from 0, by its first row.
        equal: Of each group, whether it is of one and the same file.
        contradicts: Of each group, whether equal files in it have different labels.
        near_contradicts: Of each group, whether different files in it have different classes.
        telling: Of each row, whether its labels or classes are not those of all in its group.
    """

    places: Numbers
    groups: Indexes
    equal: Flags
    contradicts: Flags
    near_contradicts: Flags
    telling: Flags


def count_partitions(records: int) -> int:
    """Decides into how many parts each space is divided."""
    return max(1, math.ceil(records / _RECORDS_PER_PARTITION))


def pack_rows(
    index: pa.Table, *, split: int, shard: int, partitions: int, near: bool
) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Packs what is compared of a shard's rows: `((space, partition), rows)`.

    Several rows of one image, one for each of its objects, count as the first of them; rows
    without an image are left out.

    Args:
        index: `COLUMNS` of its index.
        split: The number of its split.
        shard: Its number within the split.
        partitions: See `count_partitions`.
        near: Whether hashes are compared, too.
    """
    keys, sources, digests = (
        index[name].to_numpy(zero_copy_only=False) for name in ("key", "source", "sha256")
    )
    chosen = digests != ""
    chosen[1:] &= (keys[1:] != keys[:-1]) | (sources[1:] != sources[:-1])
    rows = np.zeros(len(chosen), _ROW)
    rows["labels"] = first_bits(index["labels"])
    rows["classes"] = first_bits(index["classes"])
    first = np.uint64((split << _SHARD_BITS | shard) << _ROW_BITS)
    rows["place"] = first + np.arange(len(chosen), dtype=np.uint64)
    rows["value"] = first_bits(index["sha256"])
    yield from _pack(rows[chosen], rows["value"][chosen], space=0, partitions=partitions)
    if near:
        chosen &= index["dhash"].is_valid().to_numpy(zero_copy_only=False)
        rows["value"] = index["dhash"].fill_null(0).to_numpy()
        for space, band in enumerate(_BANDS, 1):
            values = rows["value"][chosen] & np.uint64(band)
            yield from _pack(rows[chosen], values, space=space, partitions=partitions)


def _pack(
    rows: npt.NDArray[np.void], values: Numbers, *, space: int, partitions: int
) -> Iterator[tuple[tuple[int, int], bytes]]:
    partition = (values * _MULTIPLIER >> np.uint64(32)) % np.uint64(partitions)
    for number in np.unique(partition):
        yield (space, int(number)), rows[partition == number].tobytes()


def match_rows(space: int, packed: Iterable[bytes], *, near: int) -> Matches:
    """Finds what is alike within a group of rows.

    Args:
        space: What is compared.
        packed: All rows of the group, in any order.
        near: The most bits in which two hashes may differ, up to 3.
    """
    rows = np.frombuffer(b"".join(packed), _ROW)
    if space == 0:
        return Matches(space=space, links=_link_equal(rows).tobytes())
    band = rows["value"] & np.uint64(_BANDS[space - 1])
    rows = rows[np.lexsort((rows["place"], rows["value"], band))]
    first = first_of_runs(rows["value"])
    # Equal hashes are equal in every band.
    same = _link(rows, first) if space == 1 else np.empty(0, _LINK)
    hashes = rows[np.unique(first)]
    links, crowded = _link_near(
        hashes, band=hashes["value"] & np.uint64(_BANDS[space - 1]), near=near
    )
    return Matches(space=space, links=same.tobytes() + links.tobytes(), crowded=crowded)


def _link_equal(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    rows = rows[np.lexsort((rows["place"], rows["value"]))]
    first = first_of_runs(rows["value"])
    links = _link(rows, first)
    links["equal"] = True
    differs = rows["labels"] != rows["labels"][first]
    links["contradicts"] = differs[first != np.arange(len(rows))]
    return links


def _link_near(
    rows: npt.NDArray[np.void], *, band: Numbers, near: int
) -> tuple[npt.NDArray[np.void], int]:
    """Links rows of different hashes, sorted by band and hash, that differ in few bits."""
    found: list[tuple[Indexes, Indexes]] = []
    starts = np.arange(len(rows))
    for step in range(1, _COMPARED + 1):
        starts = starts[: np.searchsorted(starts, len(rows) - step)]
        starts = starts[band[starts] == band[starts + step]]
        if not len(starts):
            break
        differences = rows["value"][starts] ^ rows["value"][starts + step]
        for _ in range(near):
            # Takes the lowest bit away.
            differences &= differences - np.uint64(1)
        hits = starts[differences == 0]
        found.append((hits, hits + step))
    one, other = (np.concatenate([pair[side] for pair in found] or [starts]) for side in (0, 1))
    _, sizes = np.unique(band, return_counts=True)
    crowded = int(sizes[sizes > _COMPARED + 1].sum())
    # Of pictures that are all alike, each is linked to the first one only.
    return _link(rows, _connect(len(rows), one, other)), crowded


def _link(rows: npt.NDArray[np.void], first: Indexes) -> npt.NDArray[np.void]:
    """Links rows with the first one that each is like, by its index; none with itself."""
    linked = np.flatnonzero(first != np.arange(len(rows)))
    links = np.zeros(len(linked), _LINK)
    links["one"], links["other"] = rows["place"][first[linked]], rows["place"][linked]
    links["differs"] = rows["classes"][first[linked]] != rows["classes"][linked]
    return links


def first_of_runs(values: Numbers | Indexes) -> Indexes:
    """The index of the first of the equal values among which each stands; they are sorted."""
    indexes = np.arange(len(values))
    starts = np.append(True, values[1:] != values[:-1])[: len(values)]
    return np.maximum.accumulate(np.where(starts, indexes, 0))


def _connect(number: int, one: Indexes, other: Indexes) -> Indexes:
    """Finds the first of all that each of some things is connected with, by pairs of them."""
    first = np.arange(number)
    while (first[one] != first[other]).any():
        low, high = np.minimum(first[one], first[other]), np.maximum(first[one], first[other])
        np.minimum.at(first, high, low)
        while (first[first] != first).any():
            first = first[first]
    return first


def group_rows(links: Iterable[bytes]) -> Groups:
    """Groups all rows that are linked.

    Args:
        links: Those of all matches, in any order.
    """
    all_links = np.frombuffer(b"".join(links), _LINK)
    places = np.unique(np.concatenate([all_links["one"], all_links["other"]]))
    one, other = (np.searchsorted(places, all_links[side]) for side in ("one", "other"))
    firsts, groups = np.unique(_connect(len(places), one, other), return_inverse=True)
    equal = all_links["equal"]
    of_one_file = _connect(len(places), one[equal], other[equal])
    is_equal = np.ones(len(firsts), bool)
    is_equal[groups[of_one_file != firsts[groups]]] = False
    contradicts, near_contradicts = np.zeros((2, len(firsts)), bool)
    contradicts[groups[one[all_links["contradicts"]]]] = True
    # Each row of a group is linked, so where two have different classes, two that are linked do.
    near_contradicts[groups[one[all_links["differs"]]]] = True
    telling = np.zeros(len(places), bool)
    tells = all_links["contradicts"] | all_links["differs"]
    telling[one[tells]] = telling[other[tells]] = True
    return Groups(places, groups, is_equal, contradicts, near_contradicts & ~is_equal, telling)


def split_places(places: Numbers) -> tuple[Indexes, Indexes, Indexes]:
    """Takes places apart: the numbers of split, shard and row."""
    row = places & np.uint64((1 << _ROW_BITS) - 1)
    shard = places >> np.uint64(_ROW_BITS) & np.uint64((1 << _SHARD_BITS) - 1)
    split = places >> np.uint64(_ROW_BITS + _SHARD_BITS)
    return split.astype(np.intp), shard.astype(np.intp), row.astype(np.intp)
