"""Reads single records of TFRecord files, each by one read at the place that an index gives."""

from __future__ import annotations

import bisect
import itertools
import os
import posixpath
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardbeam.readers.open.shard_cache import OPEN_FILES, OpenFile, ShardCache
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.containers.base import parse_example
from shardbeam.transforms.containers.tfrecord import OVERHEAD_BYTES, frame, frame_header
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.index import index_path, load_index
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import ListedFile
from shardbeam.transforms.storage.local import open_regular, read_at

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
# No disk has room for more.
_MAX_UNPACKED_BYTES = 1 << 50

Bounds: TypeAlias = npt.NDArray[np.int64]


class ShardIndex(NamedTuple):
    """Where a shard's index is.

    Attributes:
        shard: The shard.
        uri: The URI of its index.
        listed: What the dataset's manifest says about the index (`load_index`).
    """

    shard: StoredFile
    uri: str
    listed: ListedFile | None


def find_indexes(
    shards: Sequence[StoredFile], *, dataset: StoredDataset, folder: str | None
) -> list[ShardIndex]:
    """Finds the indexes of shards: in their dataset, or in a folder of indexes.

    Args:
        shards: The shards.
        dataset: Their dataset.
        folder: The folder of indexes (`shardbeam index`); None for the indexes in the dataset.
    """
    found = []
    for shard in shards:
        root, name = posixpath.split(shard.uri)
        if folder is None:
            path = index_path(name)
            uri = join_uri(root or ".", path)
            found.append(ShardIndex(shard, uri, dataset.listed_files.get(path)))
        else:
            found.append(ShardIndex(shard, join_uri(folder, f"{name}.parquet"), None))
    return found


def load_shard_index(
    dataset: StoredDataset,
    shard: str,
    *,
    columns: Sequence[str],
    max_rows: int = limits.INDEX_ROWS,
) -> pa.Table:
    """Reads columns of the index that a dataset has of one of its shards (`load_index`).

    Args:
        dataset: The dataset.
        shard: The shard's path below the dataset's folder.
        columns: The columns; an older index may lack some.
        max_rows: How many Examples the shard holds, if that is known.

    Raises:
        InputError: The index is missing or damaged.
    """
    path = index_path(shard)
    listed = dataset.listed_files.get(path)
    uri = join_uri(dataset.path, path)
    return load_index(uri, listed=listed, columns=columns, max_rows=max_rows)


def read_indexes(
    indexes: Sequence[ShardIndex],
    *,
    path: str,
    columns: Sequence[str],
    examples: Sequence[int],
    is_packed: bool = False,
) -> tuple[list[Bounds], list[pa.Table]]:
    """Reads the bounds of each shard, and other columns of its index (`read_bounds`).

    Args:
        indexes: The indexes.
        path: The dataset, for errors.
        columns: More columns of the indexes.
        examples: How many Examples each shard has; empty if that is not known.
        is_packed: As for `read_bounds`.

    Raises:
        InputError: An index is missing or damaged, or does not fit its shard.
    """

    def read(index: ShardIndex) -> tuple[Bounds, pa.Table]:
        try:
            return read_bounds(index, columns=columns, is_packed=is_packed)
        except InputError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            problem = f"has no index ({index.uri}); {how_to_index(path)}"
            raise InputError(uri=index.shard.uri, problem=problem) from error

    found = list(storage_for(indexes[0].uri).map_many(read, indexes))
    for index, number, (bounds, _) in zip(indexes, examples, found):  # noqa: B905
        if len(bounds) - 1 != number:
            raise InputError(
                uri=index.shard.uri,
                problem=f"its index has {len(bounds) - 1:,} rows, and dataset_info.json says "
                f"{number:,} Examples; check it with `shardbeam verify {path}`",
            )
    return [bounds for bounds, _ in found], [table for _, table in found]


def how_to_index(path: str) -> str:
    """Says how to make and use an index of a dataset without one."""
    return (
        f"make one with `shardbeam index {path} --output DIR`, and read it with "
        "shardbeam.open(path, split=..., index=DIR)"
    )


def read_bounds(
    index: ShardIndex, *, columns: Sequence[str], is_packed: bool = False
) -> tuple[Bounds, pa.Table]:
    """Reads where the records of a shard begin, and other columns of its index.

    Records follow each other without gaps. An index that says otherwise, or that does not end where
    its shard ends, belongs to another file.

    Args:
        index: The index.
        columns: More columns of it.
        is_packed: Whether the shard is of another container, whose records `ShardCache` writes into
            a TFRecord file; the bounds are those of that file.

    Returns:
        The first byte of each record, and the length of the shard; the columns, of which an older
        index may lack some.

    Raises:
        InputError: The index is missing or damaged, or does not fit the shard.
    """
    table = load_index(index.uri, listed=index.listed, columns=["offset", "length", *columns])
    places, lengths = (table[name] for name in ("offset", "length"))
    size = index.shard.size_bytes
    if is_packed:
        sizes = lengths.to_numpy().astype(np.float64)
        if (sizes < 0).any() or sizes.sum() > _MAX_UNPACKED_BYTES:
            raise _unfit(index, detail="it gives lengths that no shard has")
        bounds = np.append(0, np.cumsum(lengths.to_numpy() + OVERHEAD_BYTES)).astype(np.int64)
        return bounds, table.select([name for name in columns if name in table.column_names])
    bounds = np.append(places.to_numpy(), size).astype(np.int64)
    # Checked first, so that no difference of two of them overflows.
    outside = np.flatnonzero((bounds < 0) | (bounds > size))
    if len(outside):
        detail = f"row {outside[0]} says byte {bounds[outside[0]]} of a file of {size} bytes"
        raise _unfit(index, detail=detail)
    if bounds[0] != 0:
        raise _unfit(index, detail=f"its first record begins at byte {bounds[0]}")
    wrong = np.flatnonzero(np.diff(bounds) != lengths.to_numpy() + OVERHEAD_BYTES)
    if len(wrong) or (lengths.to_numpy() < 0).any():
        row = int(wrong[0]) if len(wrong) else int(np.argmin(lengths.to_numpy()))
        detail = f"row {row} says {lengths[row].as_py()} bytes, followed by byte {bounds[row + 1]}"
        raise _unfit(index, detail=detail)
    return bounds, table.select([name for name in columns if name in table.column_names])


def _unfit(index: ShardIndex, *, detail: str) -> InputError:
    return InputError(
        uri=index.uri,
        problem=f"does not fit {index.shard.uri} ({detail}): the dataset has changed, or one of "
        "the two is damaged; check it with `shardbeam verify`, or make an index with "
        "`shardbeam index`",
    )


class Records:
    """The records of some shards, numbered from 0. Threads and forked processes may share it.

    Args:
        shards: The shards.
        bounds: For each shard the first byte of each record, and its length.
        cache: Holds copies of the shards; None to read them where they are.
        checksums: Whether the checksum of each record's data is compared, too.
    """

    def __init__(
        self,
        shards: Sequence[StoredFile],
        bounds: Sequence[Bounds],
        *,
        cache: ShardCache | None,
        checksums: bool,
    ) -> None:
        self._shards = shards
        # The number of each shard's first record.
        self._firsts = [0, *itertools.accumulate(len(each) - 1 for each in bounds)]
        self.size = self._firsts.pop()
        # Numbers of a memory view are Python's own, which is faster than NumPy's.
        self._bounds = np.concatenate([np.empty(0, np.int64), *bounds]).data
        self._cache = cache
        self._checksums = checksums
        self._storage = storage_for(shards[0].uri)
        self.is_remote = cache is None and self._storage.is_remote
        # `{shard: OpenFile.number}` of the shards that were opened.
        self._opened: dict[int, int] = {}

    def fingerprint(self) -> int:
        """Returns a checksum of the shards' names and sizes, and of the records' places."""
        names = "\n".join(posixpath.basename(shard.uri) for shard in self._shards)
        return google_crc32c.extend(google_crc32c.value(names.encode()), self._bounds.tobytes())

    def read(self, number: int) -> bytes:
        """Reads the data of a record.

        Raises:
            InputError: It cannot be read, is damaged, or the dataset has changed.
        """
        shard, begin, end = self._find(number)
        file = self._shards[shard]
        size = end - begin if self._checksums else end - begin - _FOOTER_BYTES
        try:
            data = self._read_range(shard, begin=begin, size_bytes=size)
        except (ChangedError, FileNotFoundError) as error:
            raise self._changed(number) from error
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            raise InputError(uri=file.uri, place=f"byte {begin}", problem=problem) from error
        length = end - begin - OVERHEAD_BYTES
        # The length and its checksum: other data almost never begins with them.
        if len(data) != size or not data.startswith(frame_header(length)):
            raise self._changed(number)
        record = data[_HEADER_BYTES : _HEADER_BYTES + length]
        if self._checksums:
            _, footer = frame(length, crc32c=google_crc32c.value(record))
            if not data.endswith(footer):
                problem = "the checksum of a record's data does not match: it is damaged"
                raise InputError(uri=file.uri, place=f"byte {begin}", problem=problem)
        return record

    def size_bytes(self, number: int) -> int:
        """Returns the length of a record, with its frame."""
        _, begin, end = self._find(number)
        return end - begin

    def place(self, number: int) -> tuple[str, str]:
        """Returns the shard's URI and the place of a record in it, for errors."""
        shard, begin, _ = self._find(number)
        return self._shards[shard].uri, f"byte {begin}"

    def _find(self, number: int) -> tuple[int, int, int]:
        """Returns a record's shard, and the bytes where it begins and ends."""
        shard = bisect.bisect_right(self._firsts, number) - 1
        # Each shard has a bound more than records.
        place = number + shard
        return shard, self._bounds[place], self._bounds[place + 1]

    def _read_range(self, shard: int, *, begin: int, size_bytes: int) -> bytes:
        if self.is_remote:
            file = self._shards[shard]
            return self._storage.read(
                file.uri, offset=begin, size_bytes=size_bytes, version=file.version
            )
        # The file stays open as long as this refers to it.
        opened = self._open(shard)
        return read_at(opened.descriptor, begin, size_bytes)

    def _open(self, shard: int) -> OpenFile:
        """Returns an open shard, or an open copy of it.

        The name is looked up again only after the file was closed: another file may have the name
        meanwhile, even one of the same length and time (`cp -p`, `rsync -t`).

        Raises:
            ChangedError: It has another length than was listed.
            OSError: It cannot be opened.
        """
        opened = OPEN_FILES.find(self._opened.get(shard, -1))
        if opened is not None:
            return opened
        file = self._shards[shard]
        descriptor = (
            open_regular(file.uri, os.O_RDONLY | os.O_CLOEXEC)
            if self._cache is None
            else self._cache.open(file)
        )
        opened = OpenFile(descriptor, is_copy=self._cache is not None)
        if opened.size_bytes != file.size_bytes:
            raise ChangedError(f"{file.uri} has another length than was listed")
        opened = OPEN_FILES.add(opened)
        self._opened[shard] = opened.number
        return opened

    def _changed(self, number: int) -> InputError:
        uri, place = self.place(number)
        return InputError(
            uri=uri,
            place=place,
            problem="the dataset has changed since its index was read: another record is here, or "
            "none; open it again, or check it with `shardbeam verify`",
        )


def read_one_with_objects(records: Records, indexes: Sequence[ShardIndex]) -> Example | None:
    """Reads the first Example with objects; None if there is none.

    Args:
        records: The records.
        indexes: The indexes of their shards.

    Raises:
        InputError: An index or the record cannot be read.
    """
    first = 0
    for index in indexes:
        table = load_index(index.uri, listed=index.listed, columns=["objects"])
        found = np.flatnonzero(table["objects"].to_numpy())
        if len(found):
            number = first + int(found[0])
            shard, place = records.place(number)
            return parse_example(records.read(number), uri=shard, place=place)
        first += table.num_rows
    return None
