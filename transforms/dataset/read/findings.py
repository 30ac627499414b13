"""Reads which Examples of a dataset are worth a look, from its indexes alone."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.index import index_path, load_index
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.dataset.read.dataset import StoredDataset, StoredSplit
from shardbeam.transforms.dataset.statistics import Statistics
from shardbeam.transforms.dataset.statistics_file import read_statistics
from shardbeam.transforms.dataset.worth_a_look import KindFound, find_kinds, limits_of
from shardbeam.transforms.examples.findings import ObjectLimits
from shardbeam.transforms.storage.base import join_uri

# The columns of an index that `find_in_index` needs.
COLUMNS = ("key", "source", "objects", "findings")

_Image = TypeVar("_Image", bound="FoundImage")


def list_kinds(splits: Mapping[str, Statistics], *, manifest: Manifest | None) -> list[KindFound]:
    """Lists what is worth a look in a dataset, without the kinds that its config ignores.

    Args:
        splits: `{split: what is in it}`.
        manifest: Its manifest, if Shardbeam has written it.
    """
    if manifest is None:
        return find_kinds(splits)
    return find_kinds(
        splits,
        classes=manifest.labels,
        corrections={name: split.outcome.corrections for name, split in manifest.splits.items()},
        ignore=manifest.ignored_findings,
    )


class FoundImage(msgspec.Struct, frozen=True, kw_only=True):
    """An Example that is worth a look.

    Attributes:
        split: Its split.
        number: Its number there, from 1.
        source: The source of its image.
        key: The key of its image.
        kind: The kind of finding.
        strength: How far it is from usual (`examples.findings.Finding`).
    """

    split: str
    number: int
    source: str
    key: str
    kind: str
    strength: int


def read_findings(
    dataset: StoredDataset, *, splits: Collection[str], kinds: Collection[str]
) -> Iterator[FoundImage]:
    """Yields the findings of a dataset, in its order, one of each kind for each Example.

    Args:
        dataset: The dataset, built by Shardbeam.
        splits: The splits to read.
        kinds: The kinds to yield.

    Raises:
        InputError: The dataset has no index with findings, or an index is missing or damaged.
    """
    statistics = read_statistics(dataset.path) if dataset.features is not None else None
    if statistics is None:
        raise InputError(
            uri=dataset.path,
            problem="says nothing about findings: only datasets that this version of Shardbeam "
            "has built do; build it again with --reuse, which copies the shards and counts them",
        )
    for name in splits:
        limits = limits_of(statistics[name]) if name in statistics else ObjectLimits()
        for found in _read_split(dataset.find_split(name), dataset=dataset, limits=limits):
            if found.kind in kinds:
                yield found


def strongest_images(found: Iterator[_Image], *, limit: int) -> list[_Image]:
    """Chooses the strongest findings of each kind; each image counts once.

    Of equally strong ones those with the smallest hash of source and key come first, so that the
    choice does not depend on the order of the shards.

    Args:
        found: All findings.
        limit: How many of each kind.
    """
    # {kind: {image: finding}}
    by_kind: dict[str, dict[tuple[str, str, str], _Image]] = {}
    for each in found:
        images = by_kind.setdefault(each.kind, {})
        image = each.split, each.source, each.key
        if image not in images or each.strength > images[image].strength:
            images[image] = each
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
    split: StoredSplit, *, dataset: StoredDataset, limits: ObjectLimits
) -> Iterator[FoundImage]:
    first = 1
    most = max(split.shard_examples, default=0)
    for shard in split.shards:
        uri = join_uri(dataset.path, index_path(shard.path))
        table = load_index(uri, columns=COLUMNS, max_rows=most)
        if "findings" not in table.column_names:
            raise InputError(uri=uri, problem="an older version of Shardbeam wrote it")
        yield from find_in_index(table, split=split.name, first=first, limits=limits)
        first += table.num_rows


def find_in_index(
    table: pa.Table, *, split: str, first: int, limits: ObjectLimits
) -> Iterator[FoundImage]:
    """Yields the findings of a shard, in its order, one of each kind for each Example.

    Args:
        table: Its index with at least `COLUMNS`.
        split: Its split.
        first: Number of its first Example in the split, from 1.
        limits: Which numbers of objects are worth a look in the split.
    """
    by_objects = map(limits.finding, table["objects"].to_pylist())
    lengths = pc.list_value_length(table["findings"]).to_pylist()
    for row, (of_objects, length) in enumerate(zip(by_objects, lengths, strict=True)):
        if of_objects is None and not length:
            # Most rows are like this, so only the others are decoded as a whole.
            continue
        (values,) = table.slice(row, 1).to_pylist()
        found = [(each["kind"], each["strength"]) for each in values["findings"] or ()]
        for kind, strength in (*found, *([] if of_objects is None else [of_objects])):
            yield FoundImage(
                split=split,
                number=first + row,
                source=values["source"],
                key=values["key"],
                kind=kind,
                strength=strength,
            )
