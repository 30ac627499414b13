"""Pictures that are in a dataset several times: what is reported of them, and `duplicates.parquet`.

`transforms.dataset.matching` finds them, by the digests and hashes of the shards' indexes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shardbeam.transforms.core.edges import Edges
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.files import DatasetFile, ShardResult, describe_data
from shardbeam.transforms.dataset.index import read_index
from shardbeam.transforms.dataset.matching import (
    COLUMNS,
    Flags,
    Groups,
    Indexes,
    Matches,
    first_of_runs,
    group_rows,
    pack_rows,
    split_places,
)
from shardbeam.transforms.dataset.outcome import DuplicateCounts
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

DUPLICATES = "duplicates.parquet"

# What the file holds at most: of each group in each split, and in all.
_MOST_OF_GROUP = 1_000
_MOST_ROWS = 100_000
# As many pairs are named where there are leaks or contradictions.
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
    ]
)


class Duplicates(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a dataset.

    Attributes:
        counts: How many.
        leaks: The first pairs of images in different splits, each in words.
        contradictions: The first pairs of the same file with different labels.
        staged: The folder below the plan's staging folder where `file` is, at its path.
        file: `duplicates.parquet`; None where nothing was found.
        edges: The indexes and rows that were sent and have arrived.
    """

    counts: DuplicateCounts
    leaks: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    staged: str = ""
    file: DatasetFile | None = None
    edges: Edges = msgspec.field(default_factory=Edges)


def pack_shard(
    shard: ShardResult, *, splits: Sequence[str], partitions: int, near: bool, staging: Staging
) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Packs what is compared of a shard that is written; see `pack_rows`.

    Raises:
        InputError: Its index is gone or damaged.
    """
    return pack_rows(
        _read_staged(shard, staging=staging),
        split=splits.index(shard.split),
        shard=shard.shard_index,
        partitions=partitions,
        near=near,
    )


def _read_staged(shard: ShardResult, *, staging: Staging) -> pa.Table:
    """Reads the index of a shard: in staging, or in place if an earlier run has moved it."""
    staged = staging.uri(shard.staged, shard.index.path)
    for uri in (staged, join_uri(staging.output, shard.index.path)):
        with contextlib.suppress(FileNotFoundError):
            return read_index(storage_for(uri).read(uri), uri=uri, columns=COLUMNS)
    raise InputError(uri=staged, problem="is gone; was it deleted? Run the same command again")


def report_duplicates(
    shards: Iterable[ShardResult],
    matches: Iterable[Matches],
    *,
    splits: Sequence[str],
    near: int,
    staging: Staging,
) -> Duplicates:
    """Groups what is alike, counts it, and writes `duplicates.parquet` to staging.

    Args:
        shards: All shards.
        matches: What is alike in each group of rows.
        splits: The splits' names, in the config's order.
        near: The most bits in which hashes of a pair differ; 0 where none were compared.
        staging: The run's staging area.

    Raises:
        InputError: The index of a shard is gone or damaged.
        OSError: Staging cannot be written.
    """
    matches = list(matches)
    found = group_rows(match.links for match in matches)
    crowded: Counter[int] = Counter()
    for match in matches:
        crowded[match.space] += match.crowded
    split, _, _ = split_places(found.places)
    pairs = np.unique(np.stack([found.groups, split]), axis=1)
    leaks = np.bincount(pairs[0], minlength=len(found.equal)) > 1
    listed = _choose(found, split, first=leaks | found.contradicts)
    counts = DuplicateCounts(
        groups=len(found.equal),
        images=len(found.places),
        equal=int(found.equal.sum()),
        leaks=int(leaks.sum()),
        contradictions=int(found.contradicts.sum()),
        near=near,
        crowded=max(crowded.values(), default=0),
        unlisted=len(found.places) - len(listed),
    )
    if not counts.groups:
        return Duplicates(counts=counts)
    by_place = {(shard.split, shard.shard_index): shard for shard in shards}
    table = _list_rows(found, listed, leaks=leaks, splits=splits, shards=by_place, staging=staging)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    storage_for(staging.root).replace(staging.uri(staging.run_folder, DUPLICATES), data)
    rows = table.to_pylist()
    return Duplicates(
        counts=counts,
        leaks=tuple(_name_pairs(rows, flag="leak", differs="split")),
        contradictions=tuple(_name_pairs(rows, flag="contradiction", differs="labels")),
        staged=staging.run_folder,
        file=describe_data(DUPLICATES, data),
    )


def _choose(found: Groups, split: Indexes, *, first: Flags) -> Indexes:
    """Chooses the rows that are listed, in the order of groups: all, unless they are very many.

    Args:
        found: All groups.
        split: The number of each row's split.
        first: Which groups are listed before others if not all can be.
    """
    order = np.lexsort((found.places, split, found.groups))
    runs = found.groups[order] * (int(split.max(initial=0)) + 1) + split[order]
    rank = np.arange(len(order)) - first_of_runs(runs)
    order = order[rank < _MOST_OF_GROUP]
    groups = found.groups[order]
    chosen = order[np.lexsort((groups, ~first[groups]))][:_MOST_ROWS]
    return chosen[np.lexsort((found.places[chosen], found.groups[chosen]))]


def _list_rows(
    found: Groups,
    listed: Indexes,
    *,
    leaks: Flags,
    splits: Sequence[str],
    shards: Mapping[tuple[str, int], ShardResult],
    staging: Staging,
) -> pa.Table:
    """Makes the rows of `duplicates.parquet`, with what the shards' indexes say of them."""
    groups = found.groups[listed]
    split, shard, row = (numbers[listed] for numbers in split_places(found.places))
    by_place = np.argsort(found.places[listed])
    ends = np.flatnonzero(np.diff(split[by_place]) | np.diff(shard[by_place])) + 1

    def read(of_shard: Indexes) -> pa.Table:
        place = splits[split[of_shard[0]]], int(shard[of_shard[0]])
        return _read_staged(shards[place], staging=staging).take(row[of_shard])

    parts = storage_for(staging.root).map_many(read, np.split(by_place, ends))
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
        "split": [splits[number] for number in split],
        "shard": shard,
        "row": row,
        "distance": distances,
        "leak": leaks[groups],
        "contradiction": found.contradicts[groups],
    }
    columns = {name: values[name] if name in values else rows[name] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def _name_pairs(rows: Iterable[Mapping[str, Any]], *, flag: str, differs: str) -> Iterator[str]:
    """Names a pair of each of the first groups that have a flag."""
    flagged = (row for row in rows if row[flag])
    groups = itertools.groupby(flagged, key=lambda row: row["group"])
    for _, members in itertools.islice(groups, _NAMED):
        yield from _name_pair(list(members), differs=differs)


def _name_pair(members: Sequence[Mapping[str, Any]], *, differs: str) -> Iterator[str]:
    """Names the first two that differ in something: of the same file, if there are such."""
    seen: dict[str, Mapping[str, Any]] = {}
    for member in members:
        one = seen.setdefault(member["sha256"], member)
        if one[differs] != member[differs]:
            yield f"{_name(one)} and {_name(member)}"
            return
    for member in members:
        if differs == "split" and member[differs] != members[0][differs]:
            yield f"{_name(members[0])} and, nearly the same, {_name(member)}"
            return


def _name(row: Mapping[str, Any]) -> str:
    # Names may hold line ends; those of a message are its own.
    return r"\n".join(f"{row['key']} ({row['split']})".splitlines())
