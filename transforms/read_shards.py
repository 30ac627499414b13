"""ReadShards: reads shards completely, several at a time."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.cpus import usable_cpus


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadShards(beam.PTransform[PCollection[Any], PCollection[Any]]):
    """Calls a function on each shard, which reads the shard completely.

    A worker reads as many shards at a time as it has CPUs.

    Args:
        read: Reads a shard and returns the output for it.
        result_type: The type of the outputs.
    """

    read: Callable[[Any], Any]
    result_type: type

    def expand(self, shards: PCollection[Any]) -> PCollection[Any]:
        """Adds the step to a pipeline."""
        return (
            shards
            # Without this, one worker would read all shards, because they come from one list.
            | beam.Reshuffle()
            | "ReadShard"
            >> beam.ParDo(_ReadShardFn(read=self.read)).with_output_types(self.result_type)
        )


@dataclasses.dataclass(eq=False, kw_only=True)
class _ReadShardFn(beam.DoFn):
    read: Callable[[Any], Any]

    def setup(self) -> None:
        self._threads = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="read-shard")

    def teardown(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        # The shards of a bundle that failed are forgotten.
        self._reading: deque[Future[Any]] = deque()

    def process(self, shard: Any) -> Iterator[Any]:  # noqa: ANN401  # Any element.
        self._reading.append(self._threads.submit(self.read, shard))
        while self._reading and self._reading[0].done():
            yield self._reading.popleft().result()

    def finish_bundle(self) -> Iterator[Any]:
        while self._reading:
            yield in_global_window(self._reading.popleft().result())
        report_usage()
