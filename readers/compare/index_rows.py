"""The rows of a dataset's indexes, each in 37 bytes of memory, and the places of its Examples.

A row has the first 64 bits of the digests of its key, its image and its labels, its checksum, its
length, its number of objects and its split. Among two datasets of 10^6 examples, the chance that
two keys share their 64 bits is 1 in 10^7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.readers.open.record_reader import load_shard_index
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.dataset.index import INDEX_SCHEMA, first_bits, index_path
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.duplicates.near_duplicates import first_of_runs
from shardbeam.transforms.storage.base import join_uri

Rows: TypeAlias = npt.NDArray[np.void]
Places: TypeAlias = npt.NDArray[np.intp]

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
