"""Counts and lists the pictures that a dataset has several times.

`transforms.duplicates.near_duplicates` finds them by the digests and hashes in the shards' indexes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.dataset.dataset_files import DatasetFile, describe_data
from shardbeam.transforms.dataset.findings import OF_SIMILAR_PICTURES, SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.dataset.index import read_index
from shardbeam.transforms.dataset.outcome import DuplicateCounts
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.duplicates.label_conflicts import (
    PICTURE_COLUMNS,
    PictureRows,
    find_conflicts,
    read_rows,
)
from shardbeam.transforms.duplicates.near_duplicates import (
    COLUMNS,
    Flags,
    Groups,
    Indexes,
    Matches,
    Numbers,
    first_of_runs,
    group_rows,
    pack_rows,
    split_places,
)
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import ListedFile, read_listed
from shardbeam.transforms.storage.parquet import read_parquet

DUPLICATES = "duplicates.parquet"

# The most rows of the file: for each group in each split, and altogether.
_MOST_OF_GROUP = 1_000
MOST_ROWS = 100_000
# Pairs that a message names.
_NAMED = 3

SCHEMA = pa.schema(
    [
        ("group", pa.int32()),
        ("source", pa.string()),
        ("key", pa.string()),
        ("keep", pa.bool_()),
        ("split", pa.string()),
        ("shard", pa.int32()),
        ("row", pa.int32()),
        ("sha256", pa.string()),
        ("labels", pa.string()),
        ("distance", pa.int32()),
        ("leak", pa.bool_()),
        ("contradiction", pa.bool_()),
        ("classes_digest", pa.string()),
        ("near_contradiction", pa.bool_()),
        (SAME_PICTURE, pa.int32()),
        ("cropped", pa.bool_()),
        (UNEQUAL_OBJECTS, pa.int32()),
    ]
)
# The columns that have a value in every row.
_FILLED = frozenset(SCHEMA.names) - {"distance", *OF_SIMILAR_PICTURES}
# A row of the file.
Row: TypeAlias = Mapping[str, Any]
_T = TypeVar("_T")


class Duplicates(msgspec.Struct, frozen=True, kw_only=True):
    """The duplicates that were found in a dataset.

    Attributes:
        counts: Their numbers.
        leaks: The first pairs of images in different splits, each as a text.
        contradictions: The first pairs of the same file with different labels.
        near_contradictions: The first pairs of nearly equal files with different classes.
        staged: The folder, below the plan's staging folder, with `file` under its final path.
        file: `duplicates.parquet`; None where nothing was found.
    """

    counts: DuplicateCounts
    leaks: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    near_contradictions: tuple[str, ...] = ()
    staged: str = ""
    file: DatasetFile | None = None


def pack_shard(
    shard: ShardResult, *, splits: Sequence[str], partitions: int, near: bool, staging: Staging
) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Packs the rows of a written shard for the comparison; see `pack_rows`.

    Raises:
        InputError: The shard's index is gone or damaged.
    """
    return pack_rows(
        _read_staged(shard, staging=staging, columns=COLUMNS),
        split=splits.index(shard.split),
        shard=shard.shard_index,
        partitions=partitions,
        near=near,
    )


def _read_staged(shard: ShardResult, *, staging: Staging, columns: Sequence[str]) -> pa.Table:
    """Reads columns of a shard's index: in staging, or in place if an earlier run moved it."""
    staged = staging.uri(shard.staged, shard.index.path)
    for uri in (staged, join_uri(staging.output, shard.index.path)):
        with contextlib.suppress(FileNotFoundError):
            data = storage_for(uri).read_small(uri, max_bytes=limits.INDEX_BYTES)
            if describe_data(shard.index.path, data) != shard.index:
                # On object storage, a run that stood still may be overtaken by another.
                problem = "is another file than this run has written; run the same command again"
                raise InputError(uri=uri, problem=problem)
            return read_index(data, uri=uri, columns=columns, max_rows=shard.examples)
    staging.check_mark()
    raise InputError(uri=staged, problem="is gone; was it deleted? Run the same command again")


def load_duplicates(folder: str, *, listed: ListedFile | None, columns: Sequence[str]) -> pa.Table:
    """Reads columns of a dataset's `duplicates.parquet`; those that the file lacks are skipped.

    Args:
        folder: The dataset's folder.
        listed: What its manifest says about the file (`StoredDataset.listed_files`), which is
            compared before anything is decoded; None if it does not list the file.
        columns: The columns.

    Raises:
        InputError: It is missing, cannot be read, or is damaged.
    """
    uri = join_uri(folder, DUPLICATES)
    missing = "is missing, although the manifest counts duplicates"
    data = read_listed(uri, max_bytes=limits.KEY_FILE_BYTES, listed=listed, missing=missing)
    return read_parquet(data, uri=uri, columns=columns, max_rows=MOST_ROWS, filled=_FILLED)


def report_duplicates(
    shards: Iterable[ShardResult],
    matches: Iterable[Matches],
    *,
    splits: Sequence[str],
    near: int,
    staging: Staging,
) -> Duplicates:
    """Groups and counts the duplicates, and writes `duplicates.parquet` to staging.

    Args:
        shards: All shards.
        matches: The links that were found in each partition.
        splits: The splits' names, in the config's order.
        near: The most bits in which the hashes of a pair may differ; 0 if none were compared.
        staging: The run's staging area.

    Raises:
        InputError: The index of a shard is gone or damaged, or this machine does not see the run's
            folder.
        OSError: Staging cannot be written.
    """
    staging.check_mark()
    matches = list(matches)
    indexes = _ShardIndexes(
        splits, {(shard.split, shard.shard_index): shard for shard in shards}, staging
    )
    found = group_rows(match.links for match in matches)
    crowded: Counter[int] = Counter()
    for match in matches:
        crowded[match.space] += match.crowded
    split, _, _ = split_places(found.places)
    pairs = np.unique(np.stack([found.groups, split]), axis=1)
    leaks = np.bincount(pairs[0], minlength=len(found.equal)) > 1
    conflicts = _find_conflicts(found, near=near, indexes=indexes)
    harmful = leaks | found.contradicts | found.near_contradicts
    for strengths in conflicts.values():
        found.telling[strengths > 0] = True
        harmful[found.groups[strengths > 0]] = True
    listed = _choose(found, split, first=harmful)

    def count_by_split(chosen: Flags) -> dict[str, int]:
        return dict(sorted(Counter(splits[each] for each in split[chosen]).items()))

    counts = DuplicateCounts(
        groups=len(found.equal),
        images=len(found.places),
        equal=int(found.equal.sum()),
        leaks=int(leaks.sum()),
        leaking=count_by_split(leaks[found.groups]),
        contradictions=int(found.contradicts.sum()),
        near_contradictions=int(found.near_contradicts.sum()),
        near=near,
        crowded=max(crowded.values(), default=0),
        unlisted=len(found.places) - len(listed),
        same_pictures=count_by_split(conflicts[SAME_PICTURE] > 0),
        cropped=len(np.unique(found.groups[found.cropped])),
        unequal_objects=count_by_split(conflicts[UNEQUAL_OBJECTS] > 0),
    )
    if not counts.groups:
        return Duplicates(counts=counts)
    table = _list_rows(found, listed, leaks=leaks, conflicts=conflicts, indexes=indexes)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    storage_for(staging.root).replace(staging.uri(staging.run_folder, DUPLICATES), data)
    name = functools.partial(_name_pairs, table.to_pylist(), sizes=np.bincount(found.groups))
    return Duplicates(
        counts=counts,
        leaks=tuple(name(flag="leak")),
        contradictions=tuple(name(flag="contradiction")),
        near_contradictions=tuple(name(flag="near_contradiction")),
        staged=staging.run_folder,
        file=describe_data(DUPLICATES, data),
    )


class _ShardIndexes(NamedTuple):
    """The indexes of all shards.

    Attributes:
        splits: The splits' names, in the config's order.
        shards: `{(split, number): shard}`.
        staging: The run's staging area.
    """

    splits: Sequence[str]
    shards: Mapping[tuple[str, int], ShardResult]
    staging: Staging

    def map(
        self,
        read: Callable[[pa.Table, Indexes], _T],
        places: Numbers,
        *,
        columns: Sequence[str],
    ) -> Iterator[_T]:
        """Reads the rows at some places, which are in order, from one shard after another.

        Args:
            read: Takes rows from the index of a shard.
            places: Where the rows are.
            columns: The columns of the indexes.
        """
        split, shard, row = split_places(places)
        ends = np.flatnonzero(np.diff(split) | np.diff(shard)) + 1

        def read_part(part: Indexes) -> _T:
            of_shard = self.shards[self.splits[split[part[0]]], int(shard[part[0]])]
            return read(_read_staged(of_shard, staging=self.staging, columns=columns), row[part])

        return storage_for(self.staging.root).map_many(
            read_part, np.split(np.arange(len(places)), ends)
        )


def _find_conflicts(found: Groups, *, near: int, indexes: _ShardIndexes) -> Mapping[str, Indexes]:
    """Returns `{kind of finding: strength of each picture}`, as `find_conflicts` does."""
    if not (len(found.places) and any(shard.objects for shard in indexes.shards.values())):
        return dict.fromkeys(OF_SIMILAR_PICTURES, np.zeros(len(found.places), np.intp))
    read = functools.partial(read_rows, near=near)
    parts = list(indexes.map(read, found.places, columns=PICTURE_COLUMNS))
    pictures = PictureRows(
        np.concatenate([part.values for part in parts]),
        [classes for part in parts for classes in part.classes],
    )
    return find_conflicts(found.groups, pictures, near=near)


def _choose(found: Groups, split: Indexes, *, first: Flags) -> Indexes:
    """Chooses the rows that the file lists, in the order of groups: all, if there is room.

    In a large group, rows whose labels or classes differ from others', and the group's first row,
    are chosen first in each split.

    Args:
        found: All groups.
        split: The number of each row's split.
        first: For each group, whether it goes before others if there is no room for all.
    """
    telling = found.telling.copy()
    telling[np.unique(found.groups, return_index=True)[1]] = True
    order = np.lexsort((found.places, ~telling, split, found.groups))
    runs = found.groups[order] * (int(split.max(initial=0)) + 1) + split[order]
    rank = np.arange(len(order)) - first_of_runs(runs)
    order = order[rank < _MOST_OF_GROUP]
    groups = found.groups[order]
    chosen = order[np.lexsort((groups, ~first[groups]))][:MOST_ROWS]
    return chosen[np.lexsort((found.places[chosen], found.groups[chosen]))]


def _list_rows(
    found: Groups,
    listed: Indexes,
    *,
    leaks: Flags,
    conflicts: Mapping[str, Indexes],
    indexes: _ShardIndexes,
) -> pa.Table:
    """Makes the rows of `duplicates.parquet`; some columns come from the shards' indexes."""
    groups = found.groups[listed]
    split, shard, row = split_places(found.places[listed])
    by_place = np.argsort(found.places[listed])
    parts = indexes.map(pa.Table.take, found.places[listed][by_place], columns=COLUMNS)
    rows = pa.concat_tables(parts).take(np.argsort(by_place))
    first = first_of_runs(groups)
    hashes = rows["dhash"].to_pylist()
    distances = [
        None if None in (one, hashes[other]) else (one ^ hashes[other]).bit_count()
        for one, other in zip(hashes, first, strict=True)
    ]
    values = {
        "group": groups,
        "keep": first == np.arange(len(first)),
        "split": [indexes.splits[number] for number in split],
        "shard": shard,
        "row": row,
        "distance": distances,
        "leak": leaks[groups],
        "contradiction": found.contradicts[groups],
        "near_contradiction": found.near_contradicts[groups],
        "cropped": found.cropped[listed],
        **{
            kind: [strength or None for strength in strengths[listed].tolist()]
            for kind, strengths in conflicts.items()
        },
    }
    columns = {name: values[name] if name in values else rows[name] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def _name_pairs(rows: Iterable[Mapping[str, Any]], *, flag: str, sizes: Indexes) -> Iterator[str]:
    """Gives one example pair for each of the first flagged groups, and the number of other rows."""
    flagged = (row for row in rows if row[flag])
    groups = itertools.groupby(flagged, key=lambda row: row["group"])
    for number, members in itertools.islice(groups, _NAMED):
        pair = find_pair(list(members), flag=flag)
        if pair is not None:
            one, other = pair
            is_near = flag == "leak" and one["sha256"] != other["sha256"]
            how = "partly" if one["cropped"] or other["cropped"] else "nearly"
            nearly = f", {how} the same," if is_near else ""
            others = int(sizes[number]) - 2
            more = f", and {others:,} more" if others else ""
            yield f"{_name(one)} and{nearly} {_name(other)}{more}"


def find_pair(members: Sequence[Row], *, flag: str) -> tuple[Row, Row] | None:
    """Finds the first two rows that show why a group has a flag; None if the file left them out.

    Args:
        members: Rows of `duplicates.parquet` of one group.
        flag: `contradiction` (one file with different labels), `near_contradiction` (different
            files with different classes), or `leak` (different splits; a pair of the same file
            is preferred).
    """
    if flag == "near_contradiction":
        return _find_other_classes(members)
    differs = "labels" if flag == "contradiction" else "split"
    seen: dict[str, Row] = {}
    for member in members:
        one = seen.setdefault(member["sha256"], member)
        if one[differs] != member[differs]:
            return one, member
    if flag == "leak":
        others = (row for row in members if row["split"] != members[0]["split"])
        return next(((members[0], other) for other in others), None)
    return None


def _find_other_classes(members: Sequence[Row]) -> tuple[Row, Row] | None:
    first = members[0]
    other = next((row for row in members if row["classes_digest"] != first["classes_digest"]), None)
    if other is None or other["sha256"] != first["sha256"]:
        return None if other is None else (first, other)
    # One file with different classes: any other file differs from one of the two.
    third = next((row for row in members if row["sha256"] != first["sha256"]), None)
    if third is None:
        return None
    return (first if third["classes_digest"] != first["classes_digest"] else other), third


def _name(row: Row) -> str:
    return escape(f"{row['key']} ({row['split']})")
