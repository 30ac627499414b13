"""Finds pictures of a dataset that are the same, or nearly the same.

Rows are arrays, divided into partitions; one worker compares the rows of a partition:

rows of each shard's index
▼ pack_rows     (space, partition), rows        space 0: digests of files; 1 to 4: bands of hashes
▼ match_rows    links between two rows          equal digests; hashes that differ in few bits
▼ group_rows    groups of linked rows           across all spaces

Two hashes of 64 bits that differ in at most three agree in one of four bands of 16 bits. So a hash
is compared only with those that have the same value of a band: about 15 among a million pictures of
all kinds, 3·10⁷ comparisons in all. A distance of 6 would take seven bands of 9 bits and 7·10⁹.

With `image.crop_hashes`, a picture has a row for each of its crops, too. A crop's hash is compared
with those of whole pictures only: two pictures that have a part in common are not meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.transforms.core.counts import Counts
from shardbeam.transforms.dataset.index import first_bits

# The columns of an index that `pack_rows` reads.
COLUMNS = ("key", "source", "sha256", "labels", "classes_digest", "dhash", "crop_hashes")

# Records of a partition, which one worker holds in memory: about 1 MB.
_RECORDS_PER_PARTITION = 50_000
# A band takes its bits from all over the picture: many pictures of a set have the same background
# at the top or at a side, and would agree in a band of that region.
BANDS = tuple(
    sum(1 << 63 - bit for bit in range(64) if (bit // 8 + bit) % 4 == band) for band in range(4)
)
# A hash is compared with at most this many of those that agree with it in a band: the next ones in
# order. All pairs would be too many.
COMPARED = 1_000
# Knuth's multiplicative hash (The Art of Computer Programming, 6.4), for 64 bits.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Bits of a row's place that hold the number of the row, and of its shard within the split.
_ROW_BITS, _SHARD_BITS = 28, 20

# `whole` is the hash of the whole picture; `value` is another one in the rows of crops.
_ROW = np.dtype([(name, "<u8") for name in ("value", "whole", "labels", "classes", "place")])
# `cropped`: the second picture is a crop of the first one.
_LINK = np.dtype(
    [
        *((side, "<u8") for side in ("one", "other")),
        *((flag, "?") for flag in ("equal", "contradicts", "differs", "cropped")),
    ]
)

Flags = npt.NDArray[np.bool_]
Indexes = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.uint64]


class Matches(msgspec.Struct, frozen=True, kw_only=True):
    """The links that were found in one partition.

    Attributes:
        space: 0 for digests of files, 1 to 4 for a band of hashes.
        links: Pairs of rows, packed.
        crowded: How many hashes agree in the band with too many others to compare them all.
        counts: The rows that were received, and what their shards have sent.
    """

    space: int
    links: bytes
    crowded: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)


class Groups(NamedTuple):
    """Rows that are linked, directly or through others.

    Attributes:
        places: Where each row is (`split_places`), in order.
        groups: For each row the number of its group, from 0; groups are ordered by their first row.
        equal: For each group, whether all its files are equal.
        contradicts: For each group, whether equal files in it have different labels.
        near_contradicts: For each group, whether different files in it have different classes.
        telling: For each row, whether it has other labels or classes than a row it is linked to, or
            is cropped.
        cropped: For each row, whether its picture is a crop of another one.
    """

    places: Numbers
    groups: Indexes
    equal: Flags
    contradicts: Flags
    near_contradicts: Flags
    telling: Flags
    cropped: Flags


def count_partitions(records: int) -> int:
    """Returns the number of partitions of each space."""
    return max(1, math.ceil(records / _RECORDS_PER_PARTITION))


def pack_rows(
    index: pa.Table, *, split: int, shard: int, partitions: int, near: bool
) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Packs a shard's rows for the comparison: `((space, partition), rows)`.

    If an image has several rows, one for each of its objects, only the first is packed; rows
    without an image are left out.

    Args:
        index: `COLUMNS` of the shard's index.
        split: The number of the shard's split.
        shard: The number of the shard within the split.
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
    rows["classes"] = first_bits(index["classes_digest"])
    first = np.uint64((split << _SHARD_BITS | shard) << _ROW_BITS)
    rows["place"] = first + np.arange(len(chosen), dtype=np.uint64)
    rows["value"] = first_bits(index["sha256"])
    yield from _pack(rows[chosen], rows["value"][chosen], space=0, partitions=partitions)
    if near:
        chosen &= index["dhash"].is_valid().to_numpy(zero_copy_only=False)
        rows["value"] = rows["whole"] = index["dhash"].fill_null(0).to_numpy()
        rows = np.concatenate([rows[chosen], *_crop_rows(rows, index=index, chosen=chosen)])
        for space, band in enumerate(BANDS, 1):
            values = rows["value"] & np.uint64(band)
            yield from _pack(rows, values, space=space, partitions=partitions)


def _crop_rows(
    rows: npt.NDArray[np.void], *, index: pa.Table, chosen: Flags
) -> Iterator[npt.NDArray[np.void]]:
    """Yields a row for each hash of a crop; older datasets lack them."""
    if "crop_hashes" in index.column_names:
        lists = index["crop_hashes"].combine_chunks()
        lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        crops = np.repeat(rows, lengths)
        crops["value"] = lists.flatten().to_numpy(zero_copy_only=False)
        yield crops[np.repeat(chosen, lengths) & (crops["value"] != crops["whole"])]


def _pack(
    rows: npt.NDArray[np.void], values: Numbers, *, space: int, partitions: int
) -> Iterator[tuple[tuple[int, int], bytes]]:
    partition = (values * _MULTIPLIER >> np.uint64(32)) % np.uint64(partitions)
    for number in np.unique(partition):
        yield (space, int(number)), rows[partition == number].tobytes()


def match_rows(space: int, packed: Iterable[bytes], *, near: int) -> Matches:
    """Finds the rows of a partition that are alike.

    Args:
        space: 0 for digests of files, 1 to 4 for a band of hashes.
        packed: All rows of the partition, in any order.
        near: The most bits in which two hashes may differ, up to 3.
    """
    rows = np.frombuffer(b"".join(packed), _ROW)
    if not len(rows):
        return Matches(space=space, links=b"")
    if space == 0:
        return Matches(space=space, links=_link_equal(rows).tobytes())
    is_whole = rows["value"] == rows["whole"]
    crops, rows = rows[~is_whole], rows[is_whole]
    band = rows["value"] & np.uint64(BANDS[space - 1])
    rows = rows[np.lexsort((rows["place"], rows["value"], band))]
    first = first_of_runs(rows["value"])
    # Equal hashes agree in every band, so that one band is enough to link them.
    same = _link(rows, first) if space == 1 else np.empty(0, _LINK)
    hashes = rows[np.unique(first)]
    links, crowded = _link_near(
        hashes, band=hashes["value"] & np.uint64(BANDS[space - 1]), near=near
    )
    found = (same, links, _link_crops(hashes, crops, band=BANDS[space - 1], near=near))
    return Matches(space=space, links=b"".join(each.tobytes() for each in found), crowded=crowded)


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
    """Links rows whose hashes differ in few bits; the rows are sorted by band and hash."""
    found = [np.stack(pair) for pair in pair_near(rows["value"], band=band, near=near)]
    one, other = np.concatenate([np.empty((2, 0), np.intp), *found], axis=1)
    _, sizes = np.unique(band, return_counts=True)
    crowded = int(sizes[sizes > COMPARED + 1].sum())
    # Link each of several similar pictures only to the first of them.
    return _link(rows, _connect(len(rows), one, other)), crowded


def are_near(differences: Numbers, *, near: int) -> Flags:
    """Returns which numbers, each of the bits in which two hashes differ, have few bits set.

    Args:
        differences: The numbers.
        near: The most bits that may be set.
    """
    few: Flags = np.bitwise_count(differences) <= near
    return few


def pair_near(values: Numbers, *, band: Numbers, near: int) -> Iterator[tuple[Indexes, Indexes]]:
    """Yields the places of pairs of hashes of one band that differ in few bits.

    Each is compared with at most the `COMPARED` next ones.

    Args:
        values: The hashes, sorted by band and hash.
        band: What the two of a pair have in common, such as some of their bits or a group.
        near: The most bits in which they may differ.
    """
    starts = np.arange(len(values))
    for step in range(1, COMPARED + 1):
        starts = starts[: np.searchsorted(starts, len(values) - step)]
        starts = starts[band[starts] == band[starts + step]]
        if not len(starts):
            return
        hits = starts[are_near(values[starts] ^ values[starts + step], near=near)]
        yield hits, hits + step


def _link_crops(
    wholes: npt.NDArray[np.void], crops: npt.NDArray[np.void], *, band: int, near: int
) -> npt.NDArray[np.void]:
    """Links each picture to one that it is a crop of, if there are any.

    Pictures that are nearly the same as a whole are not linked again.

    Args:
        wholes: Rows of pictures, each hash once.
        crops: Rows of crops.
        band: The bits in which all pairs agree.
        near: The most bits in which two hashes may differ.
    """
    # Crops of pictures with the same hash are the same: those of one picture are enough.
    crops = crops[np.lexsort((crops["place"], crops["whole"], crops["value"]))]
    firsts = (first_of_runs(crops[name]) for name in ("value", "whole"))
    crops = crops[np.maximum(*firsts) == np.arange(len(crops))]
    rows = np.concatenate([wholes, crops])
    bands = rows["value"] & np.uint64(band)
    order = np.lexsort((rows["place"], rows["value"], bands))
    rows, bands, is_crop = rows[order], bands[order], order >= len(wholes)
    nearest: dict[int, int] = {}
    for pair in pair_near(rows["value"], band=bands, near=near):
        one, other = (side[is_crop[pair[0]] != is_crop[pair[1]]] for side in pair)
        crop, whole = np.where(is_crop[one], [one, other], [other, one])
        is_other = ~are_near(rows["whole"][crop] ^ rows["whole"][whole], near=near)
        for number, of in zip(whole[is_other].tolist(), crop[is_other].tolist(), strict=True):
            nearest.setdefault(number, of)
    links = np.zeros(len(nearest), _LINK)
    links["one"] = rows["place"][list(nearest.values())]
    links["other"] = rows["place"][list(nearest)]
    links["cropped"] = True
    return links


def _link(rows: npt.NDArray[np.void], first: Indexes) -> npt.NDArray[np.void]:
    """Links each row to the row whose index `first` gives; a row is not linked to itself."""
    linked = np.flatnonzero(first != np.arange(len(rows)))
    links = np.zeros(len(linked), _LINK)
    links["one"], links["other"] = rows["place"][first[linked]], rows["place"][linked]
    links["differs"] = rows["classes"][first[linked]] != rows["classes"][linked]
    return links


def first_of_runs(values: Numbers | Indexes) -> Indexes:
    """Returns, for each of some sorted values, the index of the first value equal to it."""
    indexes = np.arange(len(values))
    starts = np.append(True, values[1:] != values[:-1])[: len(values)]
    return np.maximum.accumulate(np.where(starts, indexes, 0))


def _connect(number: int, one: Indexes, other: Indexes) -> Indexes:
    """Returns the first node of each node's component, in the graph with edges (one, other)."""
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
        links: The packed links of all matches, in any order.
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
    # If two nearly equal pictures of a group have different classes, two that are linked do, too.
    near_contradicts[groups[one[all_links["differs"]]]] = True
    telling = np.zeros(len(places), bool)
    tells = all_links["contradicts"] | all_links["differs"]
    telling[one[tells]] = telling[other[tells]] = True
    # Of pictures with the same hash, only the first is compared with crops.
    is_crop = all_links["cropped"]
    alike = _connect(len(places), one[~is_crop], other[~is_crop])
    cropped = np.isin(alike, alike[other[is_crop]])
    near_contradicts &= ~is_equal
    return Groups(
        places, groups, is_equal, contradicts, near_contradicts, telling | cropped, cropped
    )


def split_places(places: Numbers) -> tuple[Indexes, Indexes, Indexes]:
    """Splits places into the numbers of split, shard and row."""
    row = places & np.uint64((1 << _ROW_BITS) - 1)
    shard = places >> np.uint64(_ROW_BITS) & np.uint64((1 << _SHARD_BITS) - 1)
    split = places >> np.uint64(_ROW_BITS + _SHARD_BITS)
    return split.astype(np.intp), shard.astype(np.intp), row.astype(np.intp)
