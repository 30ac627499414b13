"""What every step that reads shards to their end has in common."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.process import usable_cpus


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadShardFn(beam.DoFn):
    """Calls a function on each shard; a worker reads as many at a time as it has CPUs.

    Args:
        read: Reads a shard to its end, and returns what is output.
    """

    read: Callable[[Any], Any]

    def setup(self) -> None:
        """Makes the threads, which start when they are needed."""
        self._threads = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="read-shard")

    def teardown(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        """Begins anew, also after a bundle that failed."""
        self._under_way: deque[Future[Any]] = deque()

    def process(self, shard: Any) -> Iterator[Any]:  # noqa: ANN401  # Any element.
        """Begins a shard, and outputs what is done."""
        self._under_way.append(self._threads.submit(self.read, shard))
        while self._under_way and self._under_way[0].done():
            yield self._under_way.popleft().result()

    def finish_bundle(self) -> Iterator[Any]:
        """Waits for the others."""
        while self._under_way:
            yield in_global_window(self._under_way.popleft().result())
        report_usage()
