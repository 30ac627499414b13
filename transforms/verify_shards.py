"""VerifyShards: reads shards to their end and compares them with what their dataset says."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.process import usable_cpus
from shardbeam.transforms.dataset.verify_shard import ShardCheck, ShardReport, check_shard


@dataclasses.dataclass(eq=False, kw_only=True)
class VerifyShards(beam.PTransform[PCollection[ShardCheck], PCollection[ShardReport]]):
    """Reads each shard to its end, and reports what is wrong with it.

    A worker reads as many shards at a time as it has CPUs.

    Args:
        decode: Whether images are decoded, strictly.
    """

    decode: bool = False

    def expand(self, checks: PCollection[ShardCheck]) -> PCollection[ShardReport]:
        """Adds the step to a pipeline."""
        return (
            checks
            # Shards come from one list: without it one worker would read them all.
            | beam.Reshuffle()
            | "VerifyShard" >> beam.ParDo(_VerifyShardFn(decode=self.decode))
        )


@beam.typehints.with_output_types(ShardReport)
@dataclasses.dataclass(eq=False, kw_only=True)
class _VerifyShardFn(beam.DoFn):
    decode: bool

    def setup(self) -> None:
        self._threads = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="verify")

    def teardown(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        self._under_way: deque[Future[ShardReport]] = deque()

    def process(self, check: ShardCheck) -> Iterator[ShardReport]:
        self._under_way.append(self._threads.submit(check_shard, check, decode=self.decode))
        while self._under_way and self._under_way[0].done():
            yield self._under_way.popleft().result()

    def finish_bundle(self) -> Iterator[Any]:
        while self._under_way:
            yield in_global_window(self._under_way.popleft().result())
        report_usage()
