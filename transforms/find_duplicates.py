"""FindDuplicates: finds pictures that a dataset contains several times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import counting
from shardbeam.transforms.core.counts import Counts, count_all, encode_element, lost_error
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.duplicates.duplicates import Duplicates, pack_shard, report_duplicates
from shardbeam.transforms.duplicates.near_duplicates import (
    Matches,
    count_partitions,
    match_rows,
)
from shardbeam.transforms.staging.staging import Staging, explain_write_errors

# `((space of the compared values, partition of it), (packed rows of a shard, all that it sends))`;
# the latter comes with the rows for the first partition.
_Packed = tuple[tuple[int, int], tuple[bytes, Counts | None]]
_FIRST = (0, 0)

_ROWS = "rows of indexes"
_SHARDS = "indexes of shards"


@dataclasses.dataclass(eq=False, kw_only=True)
class FindDuplicates(beam.PTransform[PCollection[ShardResult], PCollection[Duplicates]]):
    """Finds equal and nearly equal pictures in staged shards: `ShardResult` → one `Duplicates`.

    It reads the shards' indexes, but no image. An element holds all rows of a shard in one
    partition: an element for each row would cost more than the comparison.

    Args:
        splits: The splits' names, in the config's order.
        near: The most bits in which the hashes of two pictures may differ, up to 3; with 0 only
            equal files are found.
        staging: The staging that holds the shards.
        inputs: One `InputCounts` of these shards' records.

    Raises:
        InputError: (at run time) The index of a shard is missing, staging cannot be written, or
            the runner lost or doubled rows.
    """

    splits: Sequence[str]
    near: int
    staging: Staging
    inputs: PCollection[InputCounts]

    def expand(self, shards: PCollection[ShardResult]) -> PCollection[Duplicates]:
        """Adds the step to a pipeline."""
        inputs = pvalue.AsSingleton(self.inputs)
        # ((space, partition), rows of one shard)
        packed = shards | "PackRows" >> beam.FlatMap(
            counting(_pack_shard),
            inputs,
            splits=self.splits,
            near=self.near > 0,
            staging=self.staging,
        ).with_output_types(_Packed)
        matches = (
            packed
            | beam.GroupByKey()
            # Matches
            | "MatchRows" >> beam.Map(_match_rows, near=self.near).with_output_types(Matches)
        )
        return self.inputs | "Report" >> beam.Map(
            counting(_report),
            pvalue.AsList(shards),
            pvalue.AsIter(matches),
            splits=self.splits,
            near=self.near,
            staging=self.staging,
        ).with_output_types(Duplicates)


def _pack_shard(
    shard: ShardResult, inputs: InputCounts, *, splits: Sequence[str], near: bool, staging: Staging
) -> list[_Packed]:
    partitions = count_partitions(sum(split.images for split in inputs.splits.values()))
    with explain_write_errors(staging.output):
        packed = dict(
            pack_shard(shard, splits=splits, partitions=partitions, near=near, staging=staging)
        )
    # One element says what the shard has sent, so it is there even if it has no rows.
    packed.setdefault(_FIRST, b"")
    counts = Counts(received={_SHARDS: count_all([shard.key.encode()])})
    for partition, rows in packed.items():
        counts.send(_ROWS, encode_element(partition), rows)
    return [
        (partition, (rows, counts if partition == _FIRST else None))
        for partition, rows in packed.items()
    ]


def _match_rows(
    element: tuple[tuple[int, int], Iterable[tuple[bytes, Counts | None]]], *, near: int
) -> Matches:
    partition, values = element
    packed, total = list(values), Counts()
    for rows, counts in packed:
        total.receive(_ROWS, encode_element(partition), rows)
        total.add(counts or Counts())
    found = match_rows(partition[0], [rows for rows, _ in packed], near=near)
    return msgspec.structs.replace(found, counts=total)


def _report(
    inputs: InputCounts,
    shards: Sequence[ShardResult],
    matches: Iterable[Matches],
    *,
    splits: Sequence[str],
    near: int,
    staging: Staging,
) -> Duplicates:
    del inputs
    matches = list(matches)
    total = Counts(sent={_SHARDS: count_all(shard.key.encode() for shard in shards)})
    for match in matches:
        total.add(match.counts)
    if lost := total.lost():
        raise lost_error(lost)
    with explain_write_errors(staging.output):
        return report_duplicates(shards, matches, splits=splits, near=near, staging=staging)
