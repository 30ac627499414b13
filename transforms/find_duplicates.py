"""FindDuplicates: finds pictures that a dataset contains several times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import counting
from shardbeam.transforms.core.counts import check_arrived, count_all, encode_element
from shardbeam.transforms.dataset.files import ShardResult
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.duplicates.duplicates import Duplicates, pack_shard, report_duplicates
from shardbeam.transforms.duplicates.near_duplicates import (
    Matches,
    count_partitions,
    list_partitions,
    match_rows,
)
from shardbeam.transforms.staging.staging import Staging, explain_write_errors

# `((space of the compared values, partition of it), (key of a shard, its packed rows))`
_Packed = tuple[tuple[int, int], tuple[str, bytes]]


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
    partitions = count_partitions(_count_records(inputs))
    with explain_write_errors(staging.output):
        return [
            (partition, (shard.key, rows))
            for partition, rows in pack_shard(
                shard, splits=splits, partitions=partitions, near=near, staging=staging
            )
        ]


def _count_records(inputs: InputCounts) -> int:
    return sum(split.images for split in inputs.splits.values())


def _match_rows(
    element: tuple[tuple[int, int], Iterable[tuple[str, bytes]]], *, near: int
) -> Matches:
    (space, partition), values = element
    packed = list(values)
    return msgspec.structs.replace(
        match_rows(space, [rows for _, rows in packed], near=near),
        partition=partition,
        shards=count_all(key.encode() for key, _ in packed),
    )


def _report(
    inputs: InputCounts,
    shards: Sequence[ShardResult],
    matches: Iterable[Matches],
    *,
    splits: Sequence[str],
    near: int,
    staging: Staging,
) -> Duplicates:
    matches = list(matches)
    partitions = list_partitions(_count_records(inputs), near=near > 0)
    check_arrived(
        "partitions of indexes",
        sent=count_all(map(encode_element, partitions)),
        received=count_all(encode_element((match.space, match.partition)) for match in matches),
    )
    sent = count_all(shard.key.encode() for shard in shards)
    for match in matches:
        check_arrived("indexes of shards", sent=sent, received=match.shards)
    with explain_write_errors(staging.output):
        return report_duplicates(shards, matches, splits=splits, near=near, staging=staging)
