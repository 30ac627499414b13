"""Matches the Examples of two datasets by the rows of their indexes.

A row takes 37 bytes of memory: the first 64 bits of the digests of its key, its image and its
labels, its checksum, its length, its number of objects and its split. Among two datasets of 10^6
examples, the chance that two keys share their 64 bits is 1 in 10^7.

Examples are matched by their images' keys, and the others by the digests of their images, which
finds files that were renamed. What is left is matched by the pictures (`_match_near`), which finds
files that were renamed and encoded again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.readers.open.record_reader import load_shard_index
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.dataset.index import INDEX_SCHEMA, first_bits, index_path
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.duplicates.near_duplicates import (
    BANDS,
    COMPARED,
    are_near,
    first_of_runs,
)
from shardbeam.transforms.storage.base import join_uri

Rows: TypeAlias = npt.NDArray[np.void]
Places: TypeAlias = npt.NDArray[np.intp]
Flags: TypeAlias = npt.NDArray[np.bool_]
_Numbers: TypeAlias = npt.NDArray[np.uint64]

_COLUMNS = ("key", "length", "sha256", "objects", "crc32c", "labels")
_PLACE_COLUMNS = ("key", "offset", "length", "objects")
_PICTURE_COLUMNS = ("dhash", "width", "height")
_DIGEST_BYTES = 8
_ROW = np.dtype(
    [
        ("key", np.uint64),
        ("image", np.uint64),
        ("labels", np.uint64),
        ("crc32c", np.uint32),
        ("length", np.uint32),
        ("objects", np.int32),
        ("split", np.uint8),
    ]
)
# The most bits in which the hashes of a picture differ after it was encoded again.
_NEAR_BITS = 3
# Pairs of hashes that are compared at a time: about 100 MB.
_PAIRS = 2_000_000


class ExamplePlace(NamedTuple):
    """Where an Example is.

    Attributes:
        key: Its image's key.
        split: Its split.
        shard: The path of its shard below the dataset's folder.
        number: Its number in the split, from 1.
        offset: Its place in the shard, as `IndexRow.offset`.
        length: Length of the serialized Example in bytes.
        objects: How many objects it holds.
    """

    key: str
    split: str
    shard: str
    number: int
    offset: int
    length: int
    objects: int


class Pictures(NamedTuple):
    """The pictures of a dataset, one for each Example.

    Attributes:
        hashes: Their difference hashes; 0 if unknown.
        known: Whether the hash is known.
        sizes: Widths and heights in pixels, (pictures, 2).
    """

    hashes: npt.NDArray[np.uint64]
    known: npt.NDArray[np.bool_]
    sizes: npt.NDArray[np.int64]


class IndexedDataset(NamedTuple):
    """The index of a dataset.

    Attributes:
        dataset: The dataset.
        manifest: Its manifest.
        rows: Its examples, split after split, in the order of the shards.
        has_labels: Whether its index holds labels and checksums of Examples.
    """

    dataset: StoredDataset
    manifest: Manifest
    rows: Rows
    has_labels: bool

    @property
    def is_by_object(self) -> bool:
        """Whether each object has an Example."""
        return bool(self.manifest.config.get("example_per") == "annotation")

    def first_places(self) -> Places:
        """Returns for each Example the place of the first Example of its image.

        With `example_per: annotation`, the Examples of an image follow each other.
        """
        if not self.is_by_object:
            return np.arange(len(self.rows))
        # A run of Examples of one image ends where the key or the split changes.
        return np.maximum(*(first_of_runs(self.rows[name]) for name in ("key", "split")))

    def read_pictures(self) -> Pictures:
        """Reads what the indexes say about the pictures of all Examples."""
        none = pa.schema([INDEX_SCHEMA.field(name) for name in _PICTURE_COLUMNS]).empty_table()
        tables = [
            load_shard_index(
                self.dataset, shard.path, columns=_PICTURE_COLUMNS, max_rows=shard.examples
            )
            for shard in self.manifest.shards()
        ]
        # Older indexes have no hashes: they are null then.
        table = pa.concat_tables([none, *tables], promote_options="default")
        sides = [table[name].to_numpy().astype(np.int64) for name in ("width", "height")]
        return Pictures(
            table["dhash"].fill_null(0).to_numpy(),
            table["dhash"].is_valid().to_numpy(),
            np.stack(sides, axis=1),
        )

    def locate(self, wanted: Iterable[Places]) -> dict[int, ExamplePlace]:
        """Reads from the indexes where the Examples at these places in the rows are."""
        left = np.unique(np.concatenate(list(wanted)))
        located: dict[int, ExamplePlace] = {}
        start = 0
        for split, entry in self.manifest.splits.items():
            begin = start
            for shard in entry.shards:
                inside = left[(left >= start) & (left < start + shard.examples)]
                if len(inside):
                    table = load_shard_index(
                        self.dataset, shard.path, columns=_PLACE_COLUMNS, max_rows=shard.examples
                    ).take(inside - start)
                    for place, row in zip(inside.tolist(), table.to_pylist(), strict=True):
                        located[place] = ExamplePlace(
                            split=split, shard=shard.path, number=place - begin + 1, **row
                        )
                start += shard.examples
        return located


def examples_of(first: int, firsts: Places) -> Places:
    """Returns the places of an image's Examples, which follow each other.

    Args:
        first: The place of its first Example.
        firsts: What `IndexedDataset.first_places` returns.
    """
    return np.arange(first, np.searchsorted(firsts, first, side="right"))


def read_indexes(dataset: StoredDataset, *, splits: Sequence[str]) -> IndexedDataset:
    """Reads the indexes of a dataset.

    Args:
        dataset: The dataset.
        splits: Names of splits, which the rows number.

    Raises:
        InputError: It has no index, or one cannot be read.
    """
    manifest = dataset.manifest
    if manifest is None:
        raise InputError(
            uri=dataset.path,
            problem="not a dataset of Shardbeam: without an index, examples cannot be compared",
        )
    parts = [np.empty(0, _ROW)]
    has_labels = True
    for split, entry in manifest.splits.items():
        if entry.shards and split not in splits:
            raise InputError(
                uri=dataset.path,
                problem=f"dataset_info.json lacks the split {split!r} of the manifest",
            )
        for shard in entry.shards:
            uri = join_uri(dataset.path, index_path(shard.path))
            table = load_shard_index(dataset, shard.path, columns=_COLUMNS, max_rows=shard.examples)
            has_labels &= "labels" in table.column_names
            if table.num_rows != shard.examples:
                problem = f"has {table.num_rows:,} rows for {shard.examples:,} examples"
                raise DamagedError(uri=uri, problem=problem)
            try:
                parts.append(_make_rows(table, split=splits.index(split)))
            except (TypeError, ValueError, OverflowError) as error:
                raise DamagedError(uri=uri, problem=f"a value is invalid: {error}") from error
            counters.indexes.add()
    return IndexedDataset(dataset, manifest, np.concatenate(parts), has_labels)


def _make_rows(table: pa.Table, *, split: int) -> Rows:
    rows = np.zeros(table.num_rows, _ROW)
    rows["key"] = [_digest(key) for key in table["key"].to_pylist()]
    rows["image"] = first_bits(table["sha256"])
    if "labels" in table.column_names:
        rows["labels"] = first_bits(table["labels"])
        rows["crc32c"] = table["crc32c"].to_pylist()
    # Lengths wrap around at 4 GB; no reader can parse an Example of that length anyway.
    rows["length"] = np.asarray(table["length"].to_pylist(), np.int64).astype(np.uint32)
    rows["objects"] = table["objects"].to_numpy()
    rows["split"] = split
    return rows


def _digest(key: str) -> int:
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
    return int.from_bytes(digest.digest(), "big")


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
    near: Flags
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
    olds_near, news_near, ambiguous = _match_near(
        before, after, old=_others(old_matched, old), new=_others(new_matched, new)
    )
    old_firsts, new_firsts = before.first_places(), after.first_places()
    near = [
        pair
        for one, other in zip(olds_near.tolist(), news_near.tolist(), strict=True)
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
        ambiguous=ambiguous,
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


def _single_places(values: _Numbers) -> Places:
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


def _match_near(
    before: IndexedDataset, after: IndexedDataset, *, old: Places, new: Places
) -> tuple[Places, Places, int]:
    """Matches images of two datasets that have other names and other bytes, by their pictures.

    The index holds a difference hash of each picture (`images.measures`), which differs in few bits
    after an image was encoded again or resized. Two images are one if their hashes are near each
    other, and neither has another near image in the other dataset, matched or not: frames of a
    video, or copies, are never matched by chance. As in `near_duplicates`, a hash is compared only
    with those that have the same bits in one of four bands.

    Args:
        before: The old dataset.
        after: The new dataset.
        old: Places of Examples in the old dataset that are not matched.
        new: Places of Examples in the new dataset that are not matched.

    Returns:
        Places of the images' first Examples in the old dataset, and in the new one; and how many
        images of the old dataset look like a new image, and were not matched, because several
        images may be the same.

    Raises:
        InputError: An index cannot be read.
    """
    olds, news = _lone_images(before, old), _lone_images(after, new)
    if not len(olds) or not len(news):
        return np.empty(0, np.intp), np.empty(0, np.intp), 0
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
    return olds[agrees], places[agrees], int((is_near & ~agrees).sum())


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


def _find_near(hashes: _Numbers, others: _Numbers) -> _Near:
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
    hashes: _Numbers, others: _Numbers, *, begins: Places, ends: Places, some: Places
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
