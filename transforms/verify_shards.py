"""VerifyShards: reads shards to their end and compares them with what their dataset says."""

from __future__ import annotations

import dataclasses
import functools

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.shards import ReadShardFn
from shardbeam.transforms.dataset.verify_shard import CheckReport, CheckTask, check_shard


@dataclasses.dataclass(eq=False, kw_only=True)
class VerifyShards(beam.PTransform[PCollection[CheckTask], PCollection[CheckReport]]):
    """Reads each shard to its end, and reports what is wrong with it.

    A worker reads as many shards at a time as it has CPUs.

    Args:
        decode: Whether images are decoded, strictly.
    """

    decode: bool = False

    def expand(self, checks: PCollection[CheckTask]) -> PCollection[CheckReport]:
        """Adds the step to a pipeline."""
        return (
            checks
            # Shards come from one list: without it one worker would read them all.
            | beam.Reshuffle()
            | "VerifyShard"
            >> beam.ParDo(
                ReadShardFn(read=functools.partial(check_shard, decode=self.decode))
            ).with_output_types(CheckReport)
        )
