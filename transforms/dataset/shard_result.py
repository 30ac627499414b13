"""A shard that is written, and what became of its records.

The writer of a shard returns a `ShardResult`; the shard's done-file holds it, and the dataset keeps
it for the next version.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from shardbeam.configs.decoding import convert_value
from shardbeam.transforms.core.counts import Counts
from shardbeam.transforms.core.reasons import PASSING_REASONS
from shardbeam.transforms.core.records import Corrected, ImageRef, Reject
from shardbeam.transforms.dataset.collectors.statistics import (
    Collected,
    Statistics,
    merge_statistics,
)
from shardbeam.transforms.dataset.dataset_files import Amount, DatasetFile, ShardFile

_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Origin(str, enum.Enum):
    """Where a shard's bytes come from."""

    # Its images were read.
    WRITTEN = "written"
    # It was copied from the previous version of the dataset.
    COPIED = "copied"
    # It should have been copied, but was damaged or gone there: its images were read.
    DAMAGED = "damaged"


class RecordOutcomes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a shard's records, which their Examples do not show.

    Attributes:
        images: How many images have Examples; in a table without images, how many rows.
        fingerprint: Sum of the fingerprints (source, key, size, SHA-256) of the images read.
        inputs: How many images were read.
        corrections: `{correction: count}`.
        excluded: `{rule: count}` of the images that a rule excluded after they were read.
        rejects: The records that could not be written.
        corrected: The first corrections of each kind, by kind, source and key.
        readings: `{source: counts of its boxes}` by how their numbers may be read (`box_readings`),
            and of its maps' pixels by what 255 may mean.
        unread: The first files that could not be read; a later run may be able to read them.
        rejected_classes: Written names of the classes of the first few images that were rejected
            for one of `ALLOWED_REASONS`.
    """

    images: Amount
    fingerprint: _Sha256
    inputs: Amount
    corrections: Mapping[str, Amount]
    excluded: Mapping[str, Amount]
    rejects: tuple[Reject, ...]
    corrected: tuple[Corrected, ...] = ()
    readings: Mapping[str, Mapping[str, Amount]] = {}
    unread: tuple[ImageRef, ...] = ()
    rejected_classes: tuple[str, ...] = ()


class ShardResult(RecordOutcomes, frozen=True, kw_only=True, omit_defaults=True):
    """A shard that is written.

    Attributes:
        key: Its shard key, a digest of what decides its bytes (`dataset.shard_key`).
        split: Its split.
        shard_index: Its number among the split's shards, from 0.
        num_shards: How many shards the split has.
        data: The file with its Examples.
        index: The Parquet file with one row for each Example.
        records: How many records it accounts for, as Examples, rejects or exclusions.
        objects: How many objects are in `data`.
        collected: `{collector: what it has counted}`.
        libraries: `{library: version}` of the libraries that decide its bytes and rejects; the
            version of one that was not installed is empty.
        exchanged: `{source: whether it exchanges width and height}`, where this decides images.
        staged: The folder of the attempt that wrote it, below the plan's staging folder. It holds
            the shard's files until the commit; afterwards this is empty.
        origin: Where its bytes come from.
        run_id: The run that wrote or copied it.
        resumed: Whether an earlier run wrote it. In a run that copies from a previous version, a
            shard that an earlier run copied counts as copied, not as resumed.
        counts: The records that this run received, and the rejects that it sent on.
    """

    key: _Sha256
    split: str
    shard_index: Amount
    num_shards: Amount
    data: ShardFile
    index: DatasetFile
    records: Amount
    objects: Amount
    collected: Mapping[str, Collected] = {}
    libraries: Mapping[str, str] = {}
    exchanged: Mapping[str, bool] = {}
    staged: str = ""
    origin: Origin = Origin.WRITTEN
    run_id: str = ""
    resumed: bool = False
    counts: Counts = msgspec.field(default_factory=Counts)

    @property
    def examples(self) -> int:
        """Examples in `data`."""
        return self.data.examples

    @property
    def statistics(self) -> Statistics:
        """The statistics of `data`."""
        return merge_statistics(
            each.statistics for each in self.collected.values() if each.statistics is not None
        )

    @property
    def may_differ(self) -> bool:
        """Whether writing it again could give another result: some rejects are transient."""
        return any(reject.reason in PASSING_REASONS for reject in self.rejects)


def convert_result(fields: object) -> ShardResult:
    """Converts decoded fields to a shard's result, without what another version has counted.

    Raises:
        msgspec.ValidationError: The fields are not those of a result.
    """
    if isinstance(fields, dict) and isinstance(fields.get("collected"), dict):
        fields = {**fields, "collected": dict(_readable(fields["collected"]))}
    return convert_value(fields, ShardResult)


def _readable(collected: Mapping[str, object]) -> Iterator[tuple[str, Collected]]:
    for name, each in collected.items():
        # Another version may have other fields.
        with contextlib.suppress(msgspec.ValidationError):
            yield name, convert_value(each, Collected)
