"""Chooses the pictures of the gallery, so that it shows every class if there is room.

It takes the picture with the smallest hash of each class, then those with the smallest hashes of
each split, so the same dataset always has the same gallery.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.pipelines.figure import class_name
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.dataset.read.dataset import StoredSplit
from shardbeam.transforms.examples.decode import Picture

# Reads the pictures of a split, in order.
ReadPictures = Callable[[StoredSplit], Iterator[Picture]]
# Names the classes that a picture's map shows.
ReadMap = Callable[[Picture], Collection[str]]

# Decoding maps takes most of the time for a dataset that has them: decode only the first ones.
_DECODED_MAPS = 2000


class Sample(NamedTuple):
    """The pictures that the gallery shows, and counts of the whole dataset.

    Attributes:
        pictures: The pictures, in the dataset's order.
        examples: `{split: how many Examples it has}`.
        classes: `{class: how many pictures of the dataset show it}`; only the first 2,000 maps are
            searched for classes.
        absent: Classes that no picture of the gallery shows, because there are too many.
    """

    pictures: tuple[Picture, ...]
    examples: Mapping[str, int]
    classes: Mapping[str, int]
    absent: tuple[str, ...] = ()


class _Candidate(NamedTuple):
    """A picture that may be chosen; candidates with smaller digests are preferred."""

    digest: bytes
    split: str
    number: int
    classes: frozenset[str]


def sample_pictures(
    splits: Sequence[StoredSplit],
    *,
    read: ReadPictures,
    read_map: ReadMap,
    limit: int,
    keys: Collection[str] | None = None,
) -> Sample:
    """Reads a dataset, chooses pictures, and reads the chosen ones again.

    Args:
        splits: The dataset's splits.
        read: Reads the pictures of a split.
        read_map: Reads a picture's map.
        limit: How many pictures are chosen at most.
        keys: If given, the pictures with these keys are chosen, and no others.

    Raises:
        InputError: A shard cannot be read.
    """
    looks = _Looks(limit=limit, read_map=read_map)
    named: set[tuple[str, int]] = set()
    for split in splits:
        for picture in read(split):
            looks.add(picture)
            if keys is not None and picture.key in keys:
                named.add((picture.split, picture.number))
    chosen = looks.choose() if keys is None else named
    pictures = tuple(_read_again(splits, chosen, read=read))
    shown = Counter(name for picture in pictures for name in looks.classes_of(picture))
    return Sample(
        pictures=pictures,
        examples=dict(looks.examples),
        # Not all maps were decoded. A class that only other maps show is counted in the gallery.
        classes={**shown, **looks.classes},
        absent=tuple(sorted(looks.classes.keys() - shown)),
    )


class _Looks:
    """Looks at all pictures of a dataset, and keeps only the candidates."""

    def __init__(self, *, limit: int, read_map: ReadMap) -> None:
        self.examples: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self._limit = limit
        self._read_map = read_map
        self._maps_left = _DECODED_MAPS
        self._by_class: dict[str, _Candidate] = {}
        # For each split a heap of the candidates with the smallest digests; the largest is on top.
        self._by_split: dict[str, list[tuple[int, _Candidate]]] = {}

    def classes_of(self, picture: Picture, *, read_map: bool = True) -> frozenset[str]:
        """Names the classes of a picture: its own, those of its objects, those of its map."""
        names = {*picture.labels, *map(class_name, picture.objects)}
        if picture.class_map and read_map:
            # The card of the picture says that its map cannot be read.
            with contextlib.suppress(RejectedError):
                names.update(self._read_map(picture))
        return frozenset(names)

    def add(self, picture: Picture) -> None:
        """Counts a picture, and keeps it if it may be chosen."""
        self._maps_left -= bool(picture.class_map)
        place = f"{picture.split}\0{picture.number}\0{picture.key}".encode("utf-8", "replace")
        candidate = _Candidate(
            digest=hashlib.blake2b(place, digest_size=8).digest(),
            split=picture.split,
            number=picture.number,
            classes=self.classes_of(picture, read_map=self._maps_left >= 0),
        )
        self.examples[picture.split] += 1
        self.classes.update(candidate.classes)
        for name in candidate.classes:
            best = self._by_class.get(name)
            if best is None or candidate.digest < best.digest:
                self._by_class[name] = candidate
        heap = self._by_split.setdefault(picture.split, [])
        entry = (-int.from_bytes(candidate.digest, "big"), candidate)
        if len(heap) < self._limit:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)

    def choose(self) -> set[tuple[str, int]]:
        """Chooses one picture of each class, the rarest first, then from each split in turn."""
        chosen: set[tuple[str, int]] = set()
        shown: set[str] = set()
        for name in sorted(self._by_class, key=lambda name: (self.classes[name], name)):
            if name not in shown and len(chosen) < self._limit:
                candidate = self._by_class[name]
                chosen.add((candidate.split, candidate.number))
                shown |= candidate.classes
        for candidate in _in_turn(
            sorted(candidate for _, candidate in heap) for heap in self._by_split.values()
        ):
            if len(chosen) < self._limit:
                chosen.add((candidate.split, candidate.number))
        return chosen


def _in_turn(lists: Iterable[Sequence[_Candidate]]) -> Iterator[_Candidate]:
    """Yields the first of each list, then the second of each, and so on."""
    lists = list(lists)
    for place in range(max(map(len, lists), default=0)):
        for each in lists:
            if place < len(each):
                yield each[place]


def _read_again(
    splits: Iterable[StoredSplit], chosen: Collection[tuple[str, int]], *, read: ReadPictures
) -> Iterator[Picture]:
    for split in splits:
        numbers = {number for name, number in chosen if name == split.name}
        if not numbers:
            continue
        last = max(numbers)
        for picture in read(split):
            if picture.number in numbers:
                yield picture
            if picture.number >= last:
                break
