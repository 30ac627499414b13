"""Assigns each example its split, shard and place, and samples splits, by a hash of source and key.

Nothing here depends on arrival order, on the number of workers or on the runner.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from shardbeam.transforms.core.counts import Count, check_arrived
from shardbeam.transforms.core.search import search

HASH_BYTES = 16
# The split of an input that belongs to no split, or whose split is not known.
NO_SPLIT = ""
_HASH_RANGE = 1 << (8 * HASH_BYTES)
# Bytes of each record's hash that decide where exact splits end.
POINT_BYTES = 8
_LAST_POINT = (1 << 8 * POINT_BYTES) - 1
# A stratum's points are counted in 4,096 bins, ranges of the same length.
_BIN_BITS = 12


def example_hash(*, seed: int, source: str, key: str) -> bytes:
    """Hashes an example's identity: 16 bytes, uniform, keyed by the config's seed.

    The order of these hashes is the order of the examples in their split.
    """
    return _keyed_hash(seed=seed, purpose=b"shardbeam-shard", source=source, text=key)


def image_number(*, source: str, key: str) -> int:
    """Numbers an image by a hash of its identity, of 63 bits.

    It stays the same whatever else is in the dataset. Two of a million images have the same number
    with a probability of one in 18 million.
    """
    digest = _keyed_hash(seed=0, purpose=b"shardbeam-number", source=source, text=key)
    return int.from_bytes(digest[:8], "big") >> 1


def shard_index(example_hash: bytes, *, num_shards: int) -> int:
    """Maps a hash to a shard, so that shards are consecutive ranges of the hash."""
    return int.from_bytes(example_hash, "big") * num_shards // _HASH_RANGE


def shard_count(*, num_bytes: int, num_examples: int, shard_size_bytes: int) -> int:
    """Decides a split's number of shards by its size; there are never more shards than examples."""
    return max(1, min(num_examples, math.ceil(num_bytes / shard_size_bytes)))


def bin_of(point: bytes) -> int:
    """Returns the bin that a point (`SplitAssignment.point_of`) is counted in."""
    return int.from_bytes(point[:2], "big") >> (16 - _BIN_BITS)


class Border(msgspec.Struct, frozen=True):
    """A bin with the point where a split ends.

    Attributes:
        bin: The bin.
        place: The place of that point among the bin's points in their order, from 0.
        points: The count of the bin's points.
    """

    bin: int
    place: int
    points: Count


def find_borders(bins: Mapping[int, Count], ranks: Iterable[int]) -> list[Border]:
    """Finds the bins in which splits end; a split that ends after the last point has none.

    Args:
        bins: `{bin: the count of its points}`, for one stratum.
        ranks: For each split but the last, how many points are before its end; in order.
    """
    borders: list[Border] = []
    numbers = iter(sorted(bins))
    index, before, after = -1, 0, 0
    for rank in ranks:
        while rank >= after:
            index = next(numbers, -1)
            if index < 0:
                return borders
            before, after = after, after + bins[index].number
        borders.append(Border(index, rank - before, bins[index]))
    return borders


class SplitCuts(msgspec.Struct, frozen=True):
    """The points where splits of exact sizes end.

    Attributes:
        ends: `{stratum: the point where each split but the last ends}`.
        images: `{class: number of images with it}`, where splits are stratified.
    """

    ends: Mapping[str, tuple[int, ...]]
    images: Mapping[str, int] = {}

    def stratum(self, classes: Iterable[str]) -> str:
        """Returns the rarest of an image's classes; empty where it has none."""
        known = [name for name in classes if name in self.images]
        return min(known, key=lambda name: (self.images[name], name), default="")


class SplitAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """Decides the split of each example.

    Attributes:
        by_source: `{source: split}`, for sources that are one split each.
        fractions: `{split: fraction}` adding up to 1, for all other sources.
        group_by: A regular expression for the key: images with the same first group (or the same
            match, if the expression has no group) stay together in one split.
        seed: Key of the hash.
        predefined: Splits that the source itself assigns; the attributes above are unused then.
        exact: Whether the sizes of splits follow `fractions` exactly, not just roughly.
        stratify: Whether each class is shared out by `fractions`, too.
        cuts: The ends of exact splits (`cut`); None until all records are known.
        grouped: Whether a file, which the join reads, lists the groups that stay together.
    """

    by_source: Mapping[str, str]
    fractions: Mapping[str, float] = {}
    group_by: str | None = None
    seed: int = 0
    predefined: tuple[str, ...] = ()
    exact: bool = False
    stratify: bool = False
    cuts: SplitCuts | None = None
    grouped: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All splits, in the config's order."""
        return tuple(dict.fromkeys([*self.by_source.values(), *self.fractions, *self.predefined]))

    def matches(self, *, source: str, key: str) -> bool:
        """Returns whether `group_by` matches the key; True where it is not used."""
        if self.group_by is None or source in self.by_source:
            return True
        return search(self.group_by, key, setting="group_by") is not None

    def split_of(
        self,
        *,
        source: str,
        key: str,
        predefined: str = NO_SPLIT,
        classes: Iterable[str] = (),
        group: tuple[str, str] | None = None,
    ) -> str:
        """Returns the split of an example; a key without a group forms its own group.

        Args:
            source: The example's source.
            key: The example's key.
            predefined: The split that the source assigns.
            classes: The example's classes.
            group: Source and key of the image whose split this example shares, where a file lists
                groups; its own source and key if it is in no group.

        Returns:
            The split; `NO_SPLIT` where the source should assign one and does not, or where `cuts`
            or the group are not known yet.
        """
        if self.predefined:
            return predefined if predefined in self.predefined else NO_SPLIT
        split = self.by_source.get(source)
        if split is not None:
            return split
        if (self.exact and self.cuts is None) or (self.grouped and group is None):
            return NO_SPLIT
        digest = self._digest(*(group or (source, key)))
        ends = None if self.cuts is None else self.cuts.ends.get(self.cuts.stratum(classes))
        if ends is not None:
            point = int.from_bytes(digest[:POINT_BYTES], "big")
            return list(self.fractions)[bisect.bisect_right(ends, point)]
        share = int.from_bytes(digest, "big") / _HASH_RANGE
        upper = 0.0
        for split, fraction in self.fractions.items():
            upper += fraction
            if share < upper:
                return split
        # The fractions' sum may round to just below 1.
        return max(self.fractions, key=lambda split: self.fractions[split])

    def point_of(self, *, source: str, key: str) -> bytes:
        """Returns an example's place in the order that `cut` divides into splits."""
        return self._digest(source, key)[:POINT_BYTES]

    def rank_ends(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Finds how many points lie before the end of each split but the last, in each stratum.

        Sizes of splits are exact overall and in each stratum.

        Args:
            sizes: `{stratum: number of its records}`.
        """
        ranks = {}
        owed: dict[str, Fraction] = {}
        for stratum in sorted(sizes):
            shares = share_out(sizes[stratum], self.fractions, owed=owed)
            *before, _ = itertools.accumulate(shares.values())
            ranks[stratum] = tuple(before)
        return ranks

    def cut(
        self,
        points: Mapping[tuple[str, bytes], int],
        *,
        borders: Mapping[str, Sequence[Border]],
        images: Mapping[str, int],
    ) -> SplitCuts:
        """Finds the points where splits end.

        Examples of one group have the same point. A group at the end of a split goes to the next
        split as a whole, so a split is short by less than one group.

        Args:
            points: `{(stratum, point): number of records}`, for all points of the borders' bins.
            borders: `{stratum: its borders}` (`find_borders`).
            images: `{class: number of images with it}`, for `SplitCuts.images`.

        Raises:
            InputError: A bin has other points than its border counts.
        """
        by_bin: dict[tuple[str, int], list[tuple[bytes, int]]] = defaultdict(list)
        for (stratum, point), count in sorted(points.items()):
            by_bin[stratum, bin_of(point)].append((point, count))
        ends = {}
        for stratum, found in borders.items():
            known = [_find_end(border, by_bin[stratum, border.bin]) for border in found]
            beyond = [_LAST_POINT] * (len(self.fractions) - 1 - len(known))
            ends[stratum] = (*known, *beyond)
        return SplitCuts(ends, images)

    def _digest(self, source: str, key: str) -> bytes:
        return _keyed_hash(
            seed=self.seed, purpose=b"shardbeam-split", source=source, text=self._group(key)
        )

    def _group(self, key: str) -> str:
        if self.group_by is None:
            return key
        match = search(self.group_by, key, setting="group_by")
        if match is None:
            return key
        return match[1] if match.re.groups and match[1] is not None else match[0]


def _find_end(border: Border, points: Iterable[tuple[bytes, int]]) -> int:
    """Returns the point at a border's place among points with their counts, in order."""
    end, found = _LAST_POINT, Count()
    for point, count in points:
        if found.number <= border.place < found.number + count:
            end = int.from_bytes(point, "big")
        found.add(point, times=count)
    check_arrived("points where exact splits end", sent=border.points, received=found)
    return end


def share_out(
    count: int, fractions: Mapping[str, float], *, owed: dict[str, Fraction]
) -> dict[str, int]:
    """Divides a number by fractions: rounds down, then gives the rest to splits that are owed most.

    Args:
        count: The number to divide.
        fractions: `{split: fraction}`.
        owed: The fractions that each split has lost by rounding so far; updated here.
    """
    # The fractions as written: 0.29 of 100 is 29, while the float 0.29 is a little less.
    exact = {split: Fraction(repr(fraction)) for split, fraction in fractions.items()}
    shares = {split: count * each / sum(exact.values()) for split, each in exact.items()}
    sizes = {split: math.floor(share) for split, share in shares.items()}
    for split, share in shares.items():
        owed[split] = owed.get(split, Fraction()) + share - sizes[split]
    for _ in range(count - sum(sizes.values())):
        split = max(owed, key=lambda split: owed[split])
        sizes[split] += 1
        owed[split] -= 1
    return sizes


def _keyed_hash(*, seed: int, purpose: bytes, source: str, text: str) -> bytes:
    # Neither a source's name nor a key can hold a NUL, so the pair is unambiguous.
    return hashlib.blake2b(
        f"{source}\0{text}".encode(),
        digest_size=HASH_BYTES,
        key=str(seed).encode(),
        person=purpose,
    ).digest()


@dataclasses.dataclass
class SplitSample:
    """A sample of a split that holds every class if it can; samples of parts can be merged.

    Attributes:
        limit: The most images in the sample.
        places: The smallest places that were added, and perhaps some more.
        first_of: `{class: the first place of an image with that class}`.
    """

    limit: int
    places: list[bytes] = dataclasses.field(default_factory=list)
    first_of: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def add(self, place: bytes, classes: Iterable[str]) -> None:
        """Adds an image.

        Args:
            place: Its place in the order of its split (`example_hash`).
            classes: Its classes.
        """
        self.places.append(place)
        # Cut rarely, because cutting takes time in proportion to the limit.
        if len(self.places) > 2 * self.limit:
            self._cut()
        for name in classes:
            self.first_of[name] = min(place, self.first_of.get(name, place))

    def merge(self, other: SplitSample) -> None:
        """Adds another part of the split."""
        self.places += other.places
        self._cut()
        for name, place in other.first_of.items():
            self.first_of[name] = min(place, self.first_of.get(name, place))

    def chosen(self) -> frozenset[bytes]:
        """Returns the places of the sample: the first image of each class, then the split's first.

        Where there are more classes than `limit`, images that come first in the most classes are
        preferred.
        """
        classes = Counter(self.first_of.values())
        of_classes = heapq.nsmallest(
            self.limit, classes, key=lambda place: (-classes[place], place)
        )
        rest = heapq.nsmallest(self.limit, {*self.places} - {*of_classes})
        return frozenset([*of_classes, *rest][: self.limit])

    def _cut(self) -> None:
        self.places = heapq.nsmallest(self.limit, self.places)
