"""CountStatistics: reads shards completely and counts their content."""

from __future__ import annotations

import dataclasses
import functools

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.shards import ReadShardFn
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.shards.count import CountResult, CountTask, count_shard


@dataclasses.dataclass(eq=False, kw_only=True)
class CountStatistics(beam.PTransform[PCollection[CountTask], PCollection[CountResult]]):
    """Reads each shard completely and counts its content.

    A worker reads as many shards at a time as it has CPUs.

    Args:
        feature_map: The meaning of keys, and the names of classes.
    """

    feature_map: FeatureMap

    def expand(self, shards: PCollection[CountTask]) -> PCollection[CountResult]:
        """Adds the step to a pipeline."""
        return (
            shards
            # Without this, one worker would read all shards, because they come from one list.
            | beam.Reshuffle()
            | "CountShard"
            >> beam.ParDo(
                ReadShardFn(read=functools.partial(count_shard, feature_map=self.feature_map))
            ).with_output_types(CountResult)
        )
