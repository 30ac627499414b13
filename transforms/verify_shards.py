"""VerifyShards: reads shards completely and compares them with their manifest and indexes."""

from __future__ import annotations

import dataclasses
import functools

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.shards import ReadShardFn
from shardbeam.transforms.shards.verify_shard import CheckReport, CheckTask, check_shard


@dataclasses.dataclass(eq=False, kw_only=True)
class VerifyShards(beam.PTransform[PCollection[CheckTask], PCollection[CheckReport]]):
    """Reads each shard completely and reports everything that is wrong with it.

    A worker reads as many shards at a time as it has CPUs.

    Args:
        decode: Whether images are decoded completely, too.
    """

    decode: bool = False

    def expand(self, checks: PCollection[CheckTask]) -> PCollection[CheckReport]:
        """Adds the step to a pipeline."""
        return (
            checks
            # Without this, one worker would read all shards, because they come from one list.
            | beam.Reshuffle()
            | "VerifyShard"
            >> beam.ParDo(
                ReadShardFn(read=functools.partial(check_shard, decode=self.decode))
            ).with_output_types(CheckReport)
        )
