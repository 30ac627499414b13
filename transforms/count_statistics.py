"""CountStatistics: reads shards to their end, and counts what is in them."""

from __future__ import annotations

import dataclasses
import functools

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.shards import ReadShardFn
from shardbeam.transforms.dataset.read.count import CountResult, CountTask, count_shard
from shardbeam.transforms.dataset.read.legend import Legend


@dataclasses.dataclass(eq=False, kw_only=True)
class CountStatistics(beam.PTransform[PCollection[CountTask], PCollection[CountResult]]):
    """Reads each shard to its end, and counts what is in it.

    A worker reads as many shards at a time as it has CPUs.

    Args:
        legend: How the Examples are to be read.
    """

    legend: Legend

    def expand(self, shards: PCollection[CountTask]) -> PCollection[CountResult]:
        """Adds the step to a pipeline."""
        return (
            shards
            # Shards come from one list: without it one worker would read them all.
            | beam.Reshuffle()
            | "CountShard"
            >> beam.ParDo(
                ReadShardFn(read=functools.partial(count_shard, legend=self.legend))
            ).with_output_types(CountResult)
        )
