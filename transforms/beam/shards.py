"""The DoFn of all steps that read shards completely."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.resources import usable_cpus


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadShardFn(beam.DoFn):
    """Calls a function on each shard; a worker reads one shard for each CPU at a time.

    Args:
        read: Reads a shard and returns the output for it.
    """

    read: Callable[[Any], Any]

    def setup(self) -> None:
        """Makes the pool of threads."""
        self._threads = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="read-shard")

    def teardown(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        """Forgets the shards of a bundle that failed."""
        self._reading: deque[Future[Any]] = deque()

    def process(self, shard: Any) -> Iterator[Any]:  # noqa: ANN401  # Any element.
        """Starts reading a shard, and outputs those that are finished."""
        self._reading.append(self._threads.submit(self.read, shard))
        while self._reading and self._reading[0].done():
            yield self._reading.popleft().result()

    def finish_bundle(self) -> Iterator[Any]:
        """Waits for the remaining shards and outputs them."""
        while self._reading:
            yield in_global_window(self._reading.popleft().result())
        report_usage()
