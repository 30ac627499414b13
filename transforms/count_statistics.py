"""CountStatistics: reads shards to their end, and counts what is in them."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.shards import ReadShardFn
from shardbeam.transforms.dataset.read.count import CountedShard, ShardCount, count_shard


class CountStatistics(beam.PTransform[PCollection[ShardCount], PCollection[CountedShard]]):
    """Reads each shard to its end, and counts what is in it.

    A worker reads as many shards at a time as it has CPUs.
    """

    def expand(self, shards: PCollection[ShardCount]) -> PCollection[CountedShard]:
        """Adds the step to a pipeline."""
        return (
            shards
            # Shards come from one list: without it one worker would read them all.
            | beam.Reshuffle()
            | "CountShard"
            >> beam.ParDo(ReadShardFn(read=count_shard)).with_output_types(CountedShard)
        )
