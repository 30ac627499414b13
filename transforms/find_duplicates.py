"""FindDuplicates: finds pictures that a dataset contains several times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import CENSUS, CensusFn, counting, typed_outputs
from shardbeam.transforms.core.edges import INDEXES, ROWS, Edges, encode_element
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.files import ShardResult
from shardbeam.transforms.duplicates.duplicates import Duplicates, pack_shard, report_duplicates
from shardbeam.transforms.duplicates.near_duplicates import Matches, count_partitions, match_rows
from shardbeam.transforms.staging.staging import Staging, explain_write_errors

# `((space of the compared values, partition of it), packed rows of one shard)`
_Packed = tuple[tuple[int, int], bytes]


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
        census: One `Census` of these shards' records.

    Raises:
        InputError: (at run time) The index of a shard is missing, or staging cannot be written.
    """

    splits: Sequence[str]
    near: int
    staging: Staging
    census: PCollection[Census]

    def expand(self, shards: PCollection[ShardResult]) -> PCollection[Duplicates]:
        """Adds the step to a pipeline."""
        # ((space, partition), rows of one shard)
        pack_fn = _PackFn(splits=self.splits, near=self.near > 0, staging=self.staging)
        packed = typed_outputs(
            shards
            | "PackRows"
            >> beam.ParDo(pack_fn, pvalue.AsSingleton(self.census)).with_outputs(
                CENSUS, main="rows"
            )
        )
        matches = (
            packed.rows
            | beam.GroupByKey()
            # Matches
            | "MatchRows" >> beam.Map(_match_rows, near=self.near).with_output_types(Matches)
        )
        return self.census | "Report" >> beam.Map(
            counting(_report),
            pvalue.AsList(shards),
            pvalue.AsIter(matches),
            pvalue.AsIter(packed[CENSUS]),
            splits=self.splits,
            near=self.near,
            staging=self.staging,
        ).with_output_types(Duplicates)


@beam.typehints.with_output_types(_Packed)
@dataclasses.dataclass(eq=False, kw_only=True)
class _PackFn(CensusFn):
    splits: Sequence[str]
    near: bool
    staging: Staging

    def process(self, shard: ShardResult, census: Census) -> Iterator[_Packed]:
        self.edges.receive(INDEXES, shard.key.encode())
        records = sum(split.images for split in census.splits.values())
        with explain_write_errors(self.staging.output):
            for key, rows in pack_shard(
                shard,
                splits=self.splits,
                partitions=count_partitions(records),
                near=self.near,
                staging=self.staging,
            ):
                self.edges.send(ROWS, encode_element(key), rows)
                yield key, rows


def _match_rows(element: tuple[tuple[int, int], Iterable[bytes]], *, near: int) -> Matches:
    (space, partition), values = element
    packed, edges = list(values), Edges()
    for rows in packed:
        edges.receive(ROWS, encode_element((space, partition)), rows)
    return msgspec.structs.replace(match_rows(space, packed, near=near), edges=edges)


def _report(
    census: Census,
    shards: Sequence[ShardResult],
    matches: Iterable[Matches],
    packed: Iterable[Census],
    *,
    splits: Sequence[str],
    near: int,
    staging: Staging,
) -> Duplicates:
    del census
    matches, edges = list(matches), Edges()
    for shard in shards:
        edges.send(INDEXES, shard.key.encode())
    for match in matches:
        edges.add(match.edges)
    for part in packed:
        edges.add(part.edges)
    with explain_write_errors(staging.output):
        found = report_duplicates(shards, matches, splits=splits, near=near, staging=staging)
    return msgspec.structs.replace(found, edges=edges)
