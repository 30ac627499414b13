"""Chooses the images of the gallery: those with findings, then every class, then others.

Pictures are chosen by a hash of their names, so the same dataset always has the same gallery. If
the dataset has an index that knows their classes, no Example is read to choose them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from shardbeam.readers.open.find_findings import (
    COLUMNS,
    FoundImage,
    LabelConflicts,
    find_in_index,
    read_label_conflicts,
    strongest_images,
)
from shardbeam.readers.open.images import Place
from shardbeam.readers.open.record_reader import load_shard_index
from shardbeam.readers.open.stored_dataset import StoredDataset, StoredSplit
from shardbeam.readers.report.styles import class_name
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.findings import limits_of
from shardbeam.transforms.examples.decode.picture import Picture

# Names the classes that a picture's map shows.
ReadMap = Callable[[Picture], Collection[str]]

# At most this many pictures are chosen for each kind of finding, and for each class.
_OF_KIND, _OF_CLASS = 12, 3
# Without an index, decoding class maps would take most of the time, so only the first ones are
# decoded.
_DECODED_MAPS = 2000


class Candidate(NamedTuple):
    """A picture that may be chosen; candidates with smaller digests are preferred.

    Attributes:
        digest: A hash of its place and its key.
        place: Where its Example is.
        key: Its key.
        classes: The classes that it shows.
        kinds: `(kind, strength)` of its findings in the index.
    """

    digest: bytes
    place: Place
    key: str
    classes: frozenset[str]
    kinds: tuple[tuple[str, int], ...] = ()


class FoundCandidate(FoundImage, frozen=True, kw_only=True):
    """A finding, and the picture that has it."""

    candidate: Candidate


class Sample(NamedTuple):
    """The pictures that are chosen for the gallery, and counts of the whole dataset.

    Attributes:
        chosen: The pictures, the most telling first.
        examples: `{split: how many Examples it has}`.
        classes: `{class: how many pictures of the dataset show it}`; without an index that knows
            them, only the first 2,000 maps are searched for classes.
        found: The strongest findings of each kind.
        is_indexed: Whether the findings were read from the indexes.
        lacks_maps: Whether the indexes do not know the classes of the dataset's maps.
    """

    chosen: tuple[Candidate, ...]
    examples: Mapping[str, int]
    classes: Mapping[str, int]
    found: tuple[FoundCandidate, ...] = ()
    is_indexed: bool = False
    lacks_maps: bool = False


def sample_images(
    pictures: Iterable[tuple[Place, Picture]],
    *,
    read_map: ReadMap,
    limit: int,
    keys: Collection[str] | None = None,
    found: Sequence[FoundCandidate] | None = None,
) -> Sample:
    """Reads all pictures of a dataset, and chooses some.

    Args:
        pictures: The pictures with their places, in order.
        read_map: Reads a picture's map.
        limit: At most this many pictures are chosen.
        keys: If given, the pictures with these keys are chosen, and no others.
        found: The strongest findings, if the indexes were read.

    Raises:
        InputError: A shard cannot be read.
    """
    collector = _Collector(limit=limit, keys=keys)
    maps_left = _DECODED_MAPS
    for place, picture in pictures:
        maps_left -= bool(picture.class_map)
        classes = _classes_of(picture, read_map=read_map if maps_left >= 0 else None)
        collector.add(_candidate(place, picture.key, classes))
    return collector.sample(found)


def sample_by_index(
    dataset: StoredDataset,
    splits: Sequence[StoredSplit],
    *,
    statistics: Mapping[str, Statistics],
    class_names: Mapping[int, str],
    kinds: Collection[str],
    limit: int,
    keys: Collection[str] | None = None,
) -> Sample | None:
    """Chooses pictures by the indexes of a dataset's shards, like `sample_images`.

    Args:
        dataset: The dataset.
        splits: Its splits.
        statistics: `{split: what is in it}`.
        class_names: `{id: class}`.
        kinds: The kinds of findings that are looked for.
        limit: At most this many pictures are chosen.
        keys: If given, the pictures with these keys are chosen, and no others.

    Returns:
        The sample; None if the indexes are missing or old, or do not know the classes of objects
        and images.
    """
    counters.indexes.expect(sum(len(split.shards) for split in splits))
    collector = _Collector(limit=limit, keys=keys)

    @functools.cache
    def name_classes(ids: tuple[int, ...]) -> frozenset[str]:
        # Cached, so that many pictures share one set of names.
        return frozenset(class_names.get(number, f"class {number}") for number in ids)

    try:
        label_conflicts = read_label_conflicts(dataset)
        found = (
            each
            for split in splits
            for each in _read_indexes(
                split,
                dataset=dataset,
                statistics=statistics,
                label_conflicts=label_conflicts,
                collector=collector,
                name_classes=name_classes,
            )
            if each.kind in kinds
        )
        strongest = strongest_images(found, limit=_OF_KIND)
    except (InputError, KeyError):
        return None
    order = list(kinds)
    return collector.sample(sorted(strongest, key=lambda each: order.index(each.kind)))


def _read_indexes(
    split: StoredSplit,
    *,
    dataset: StoredDataset,
    statistics: Mapping[str, Statistics],
    label_conflicts: LabelConflicts,
    collector: _Collector,
    name_classes: Callable[[tuple[int, ...]], frozenset[str]],
) -> Iterator[FoundCandidate]:
    """Collects the rows of a split's indexes, and yields its findings.

    Raises:
        InputError: An index is missing or damaged.
        KeyError: An older version has written it, or it lacks the classes of an Example.
    """
    counted = statistics[split.name]
    limits = limits_of(counted)
    first = 1
    for index, shard in enumerate(split.shards):
        table = load_shard_index(
            dataset,
            shard.path,
            columns=[*COLUMNS, "offset", "length", "classes", "map_classes"],
            max_rows=max(split.shard_examples),
        )
        if counted.images_by_class and table["classes"].null_count:
            raise KeyError("classes")
        keys, offsets, lengths, classes = (
            table[name].to_pylist() for name in ("key", "offset", "length", "classes")
        )
        map_classes = [None] * table.num_rows
        if "map_classes" in table.column_names:
            map_classes = table["map_classes"].to_pylist()
        if counted.pixels_by_class and None in map_classes:
            collector.lacks_maps = True
        found: dict[int, list[FoundImage]] = {}
        in_index = find_in_index(
            table,
            split=split.name,
            shard=index,
            first=first,
            limits=limits,
            label_conflicts=label_conflicts,
        )
        for each in in_index:
            found.setdefault(each.number, []).append(each)
        rows = zip(keys, offsets, lengths, classes, map_classes, strict=True)
        for number, (key, offset, length, ids, map_ids) in enumerate(rows, first):
            of_row = found.get(number, ())
            class_ids = (*(ids or ()), *(map_ids or ()))
            candidate = _candidate(
                Place(split.name, number, index, offset, length),
                key,
                name_classes(class_ids),
                kinds=tuple((each.kind, each.strength) for each in of_row),
            )
            collector.add(candidate)
            for each in of_row:
                yield FoundCandidate(candidate=candidate, **msgspec.structs.asdict(each))
        first += table.num_rows
        counters.indexes.add()


def _classes_of(picture: Picture, *, read_map: ReadMap | None) -> frozenset[str]:
    """Names the classes of a picture: its own, those of its objects, those of its map."""
    names = {*picture.labels, *map(class_name, picture.objects)}
    if picture.class_map and read_map is not None:
        # The card of the picture says that its map cannot be read.
        with contextlib.suppress(RejectedError):
            names.update(read_map(picture))
    return frozenset(names)


def _candidate(
    place: Place,
    key: str,
    classes: frozenset[str],
    kinds: tuple[tuple[str, int], ...] = (),
) -> Candidate:
    name = f"{place.split}\0{place.number}\0{key}".encode("utf-8", "replace")
    digest = hashlib.blake2b(name, digest_size=8).digest()
    return Candidate(digest, place, key, classes, kinds)


# Candidates with the negative numbers of their digests: the largest digest is on top.
_Heap: TypeAlias = list[tuple[int, Candidate]]


def _keep_smallest(heap: _Heap, candidate: Candidate, *, limit: int) -> None:
    """Adds a candidate, and keeps those with the smallest digests."""
    add = heapq.heappush if len(heap) < limit else heapq.heappushpop
    add(heap, (-int.from_bytes(candidate.digest, "big"), candidate))


def _in_order(heap: _Heap) -> list[Candidate]:
    return [candidate for _, candidate in sorted(heap, reverse=True)]


class _Collector:
    """Counts all pictures of a dataset, and keeps only those that may be chosen.

    Args:
        limit: At most this many pictures are chosen.
        keys: If given, only the pictures with these keys are chosen.

    Attributes:
        lacks_maps: Whether classes of maps are missing from the candidates.
    """

    def __init__(self, *, limit: int, keys: Collection[str] | None) -> None:
        self._limit = limit
        self._keys = keys
        self.lacks_maps = False
        self._examples: Counter[str] = Counter()
        self._classes: Counter[str] = Counter()
        self._named: list[Candidate] = []
        self._by_class: defaultdict[str, _Heap] = defaultdict(list)
        self._by_split: defaultdict[str, _Heap] = defaultdict(list)

    def add(self, candidate: Candidate) -> None:
        """Counts a picture, and keeps it if it may be chosen."""
        split = candidate.place.split
        self._examples[split] += 1
        self._classes.update(candidate.classes)
        if self._keys is not None:
            if candidate.key in self._keys:
                self._named.append(candidate)
            return
        for name in candidate.classes:
            _keep_smallest(self._by_class[name], candidate, limit=_OF_CLASS)
        _keep_smallest(self._by_split[split], candidate, limit=self._limit)

    def sample(self, found: Sequence[FoundCandidate] | None = None) -> Sample:
        """Chooses the pictures; `found` are the strongest findings, if the index was read."""
        if self._keys is None:
            chosen = tuple(itertools.islice(self._choose(found or ()), self._limit))
        else:
            chosen = tuple(self._named)
        return Sample(
            chosen=chosen,
            examples=dict(self._examples),
            classes=dict(self._classes),
            found=tuple(found or ()),
            is_indexed=found is not None,
            lacks_maps=self.lacks_maps,
        )

    def _choose(self, found: Sequence[FoundCandidate]) -> Iterator[Candidate]:
        """Yields the pictures in the order of `_ranked`, each once."""
        chosen: set[Place] = set()
        shown: set[str] = set()
        for candidate in self._ranked(found, shown):
            if candidate.place not in chosen:
                chosen.add(candidate.place)
                shown |= candidate.classes
                yield candidate

    def _ranked(self, found: Sequence[FoundCandidate], shown: set[str]) -> Iterator[Candidate]:
        """Yields the pictures, the most telling first; `shown` grows as the caller takes them."""
        kinds = itertools.groupby(found, key=lambda each: each.kind)
        yield from _in_turn([each.candidate for each in images] for _, images in kinds)
        # Rare classes go first: their pictures often show frequent classes, too.
        rarest = sorted(self._by_class, key=lambda name: (self._classes[name], name))
        best = {name: _in_order(self._by_class[name]) for name in rarest}
        for name in rarest:
            if name not in shown:
                yield best[name][0]
        yield from _in_turn(best.values())
        yield from _in_turn(map(_in_order, self._by_split.values()))


def _in_turn(lists: Iterable[Sequence[Candidate]]) -> Iterator[Candidate]:
    """Yields the first of each list, then the second of each, and so on."""
    return filter(None, itertools.chain.from_iterable(itertools.zip_longest(*lists)))
