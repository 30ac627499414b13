"""Reads from the indexes of a dataset which of its Examples have findings."""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardbeam.readers.open.record_reader import find_indexes, load_shard_index, read_bounds
from shardbeam.readers.open.stored_dataset import StoredDataset, StoredSplit
from shardbeam.transforms.commit.runs import RunRecord
from shardbeam.transforms.commit.warnings import NEVER_OCCUR
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.example_findings import ObjectLimits, limit_objects
from shardbeam.transforms.dataset.findings import (
    OF_SIMILAR_PICTURES,
    SAME_PICTURE,
    KindFound,
    find_kinds,
    limits_of,
)
from shardbeam.transforms.dataset.index import index_path
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.dataset.statistics_file import read_statistics
from shardbeam.transforms.duplicates.duplicates import DUPLICATES, load_duplicates
from shardbeam.transforms.storage.base import join_uri

# The columns of an index that `find_in_index` needs.
COLUMNS = ("key", "source", "objects", "findings")
# The columns of `duplicates.parquet` that `read_label_conflicts` needs, besides the strengths.
_PLACE_COLUMNS = ("split", "shard", "row")

# The warning that says what `UNUSED_CLASS` does.
_UNUSED = re.compile(rf"[\d,]+ of [\d,]+ {NEVER_OCCUR}: ")

_Image = TypeVar("_Image", bound="FoundImage")
# {(split, shard, row): [(kind, strength)]}
LabelConflicts: TypeAlias = Mapping[tuple[str, int, int], Sequence[tuple[str, int]]]


def list_kinds(splits: Mapping[str, Statistics], *, manifest: Manifest | None) -> list[KindFound]:
    """Lists the kinds of findings in a dataset, without those that its config ignores.

    Args:
        splits: `{split: what is in it}`.
        manifest: Its manifest, if Shardbeam has written it.
    """
    if manifest is None:
        return find_kinds(splits)
    return find_kinds(
        splits,
        # A sample (`limit`) does not show which classes never occur.
        classes=() if manifest.config.get("limit") else manifest.labels,
        corrections={name: split.outcome.corrections for name, split in manifest.splits.items()},
        similar=None if manifest.duplicates is None else manifest.duplicates.findings,
        ignore=manifest.ignored_findings,
    )


def list_warnings(run: RunRecord | None) -> tuple[str, ...]:
    """Returns what a build has warned of; empty if it is unknown.

    Classes that never occur are left out, because they are a finding.

    Args:
        run: The record of the build that committed the dataset last.
    """
    warnings = () if run is None else run.outcome.warnings
    return tuple(line for line in warnings if not _UNUSED.match(line))


class FoundImage(msgspec.Struct, frozen=True, kw_only=True):
    """An Example with a finding.

    Attributes:
        split: Its split.
        number: Its number there, from 1.
        source: The source of its image.
        key: The key of its image.
        kind: The kind of finding.
        strength: How far it is from usual (`dataset.example_findings.Finding`).
    """

    split: str
    number: int
    source: str
    key: str
    kind: str
    strength: int


def read_findings(
    dataset: StoredDataset,
    *,
    splits: Collection[str],
    kinds: Collection[str],
    indexes: str | None = None,
) -> Iterator[FoundImage]:
    """Yields the findings of a dataset, in its order, one of each kind for each Example.

    Args:
        dataset: The dataset.
        splits: The splits to read.
        kinds: The kinds to yield.
        indexes: A folder with the indexes of its shards (`shardbeam index`); None for those in the
            dataset, which Shardbeam has built.

    Raises:
        InputError: The dataset has no index with findings, or an index is missing or damaged.
    """
    statistics: Mapping[str, Statistics] | None = {}
    if indexes is None:
        statistics = read_statistics(dataset.path) if dataset.features is not None else None
    if statistics is None:
        raise InputError(
            uri=dataset.path,
            problem="says nothing about findings: only datasets that this version of Shardbeam has "
            "built do; build it again with --reuse, which copies the shards and counts them; for "
            "other TFRecord files, make an index with `shardbeam index`, and name its folder with "
            "--index",
        )
    is_marked = not indexes and any(kind in kinds for kind in OF_SIMILAR_PICTURES)
    label_conflicts = read_label_conflicts(dataset) if is_marked else {}
    for name in splits:
        split = dataset.find_split(name)
        if indexes is None:
            limits = limits_of(statistics[name]) if name in statistics else ObjectLimits()
            tables = _read_indexes(split, dataset=dataset)
        else:
            limits = limit_objects(_count_objects(split, dataset=dataset, folder=indexes))
            tables = _read_separate_indexes(split, dataset=dataset, folder=indexes)
        for found in _read_split(split, tables, limits=limits, label_conflicts=label_conflicts):
            if found.kind in kinds:
                yield found


def read_label_conflicts(dataset: StoredDataset) -> LabelConflicts:
    """Reads the pictures that `duplicates.parquet` marks.

    Returns:
        `{(split, shard, row): [(kind of finding, strength)]}`.

    Raises:
        InputError: The file is missing or damaged.
    """
    manifest = dataset.manifest
    counts = None if manifest is None else manifest.duplicates
    if counts is None or not any(counts.findings.values()):
        return {}
    table = load_duplicates(
        dataset.path,
        listed=dataset.listed_files.get(DUPLICATES),
        columns=[*_PLACE_COLUMNS, *OF_SIMILAR_PICTURES],
    )
    if not {*_PLACE_COLUMNS, SAME_PICTURE} <= {*table.column_names}:
        raise InputError(
            uri=join_uri(dataset.path, DUPLICATES),
            problem="not the duplicates of a dataset: a column is missing",
        )
    return {
        (row["split"], row["shard"], row["row"]): marks
        for row in table.to_pylist()
        if (
            marks := [
                (kind, row[kind]) for kind in OF_SIMILAR_PICTURES if row.get(kind) is not None
            ]
        )
    }


def _read_indexes(split: StoredSplit, *, dataset: StoredDataset) -> Iterator[tuple[str, pa.Table]]:
    """Yields the indexes in a dataset, one for each shard of a split."""
    most = max(split.shard_examples, default=0)
    for shard in split.shards:
        uri = join_uri(dataset.path, index_path(shard.path))
        yield uri, load_shard_index(dataset, shard.path, columns=COLUMNS, max_rows=most)


def _read_separate_indexes(
    split: StoredSplit, *, dataset: StoredDataset, folder: str
) -> Iterator[tuple[str, pa.Table]]:
    """Yields the indexes that `shardbeam index` wrote, one for each shard of a split."""
    for index in find_indexes(split.shards, dataset=dataset, folder=folder):
        _, table = read_bounds(index, columns=COLUMNS)
        yield index.uri, table


def _count_objects(split: StoredSplit, *, dataset: StoredDataset, folder: str) -> Mapping[int, int]:
    """Counts the Examples of a split by their numbers of objects."""
    counts: Counter[int] = Counter()
    for _, table in _read_separate_indexes(split, dataset=dataset, folder=folder):
        counts.update(table["objects"].to_pylist())
    return counts


def strongest_images(found: Iterator[_Image], *, limit: int) -> list[_Image]:
    """Chooses the strongest findings of each kind; each image counts once.

    Among equally strong findings, the smallest hashes of source and key come first, so that the
    choice does not depend on the order of the shards.

    Args:
        found: All findings.
        limit: At most this many of each kind are chosen.
    """
    # {kind: {image: finding}}
    by_kind: dict[str, dict[tuple[str, str, str], _Image]] = {}
    for each in found:
        images = by_kind.setdefault(each.kind, {})
        image = each.split, each.source, each.key
        if image not in images or each.strength > images[image].strength:
            images[image] = each
            # Keep only the strongest from time to time: a dataset may have millions of findings.
            if len(images) > 4 * limit + 1000:
                by_kind[each.kind] = {
                    (kept.split, kept.source, kept.key): kept
                    for kept in heapq.nsmallest(limit, images.values(), key=_rank)
                }
    return [
        each
        for images in by_kind.values()
        for each in heapq.nsmallest(limit, images.values(), key=_rank)
    ]


def _rank(found: FoundImage) -> tuple[int, bytes]:
    name = f"{found.source}\0{found.key}".encode("utf-8", "surrogatepass")
    return -found.strength, hashlib.sha256(name).digest()


def _read_split(
    split: StoredSplit,
    tables: Iterable[tuple[str, pa.Table]],
    *,
    limits: ObjectLimits,
    label_conflicts: LabelConflicts,
) -> Iterator[FoundImage]:
    first = 1
    for number, (uri, table) in enumerate(tables):
        if "findings" not in table.column_names or table["findings"].null_count:
            problem = "an older version of Shardbeam wrote it, without findings; make it again"
            raise InputError(uri=uri, problem=problem)
        yield from find_in_index(
            table,
            split=split.name,
            shard=number,
            first=first,
            limits=limits,
            label_conflicts=label_conflicts,
        )
        first += table.num_rows


def find_in_index(
    table: pa.Table,
    *,
    split: str,
    shard: int,
    first: int,
    limits: ObjectLimits,
    label_conflicts: LabelConflicts,
) -> Iterator[FoundImage]:
    """Yields the findings of a shard, in its order, one of each kind for each Example.

    Args:
        table: Its index with at least `COLUMNS`.
        split: Its split.
        shard: The shard's number in the split, from 0.
        first: Number of its first Example in the split, from 1.
        limits: Which numbers of objects are findings in the split.
        label_conflicts: The images that `read_label_conflicts` gives.
    """
    by_objects = map(limits.finding, table["objects"].to_pylist())
    lengths = pc.list_value_length(table["findings"]).to_pylist()
    for row, (of_objects, length) in enumerate(zip(by_objects, lengths, strict=True)):
        conflicts = label_conflicts.get((split, shard, row), ())
        if of_objects is None and not length and not conflicts:
            # Most rows are like this, so only the others are decoded as a whole.
            continue
        (values,) = table.slice(row, 1).to_pylist()
        found = [(each["kind"], each["strength"]) for each in values["findings"] or ()]
        found += [] if of_objects is None else [of_objects]
        found += conflicts
        for kind, strength in found:
            yield FoundImage(
                split=split,
                number=first + row,
                source=values["source"],
                key=values["key"],
                kind=kind,
                strength=strength,
            )
