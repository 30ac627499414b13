"""Helper processes that are started before it is known what they will do."""

from __future__ import annotations

import atexit
import contextlib
import threading

from shardbeam.transforms.dataset.helper_process import HelperProcess
from shardbeam.transforms.dataset.shard_encoder import ShardEncoderSettings


class HelperPool:
    """Starts helper processes ahead of their work.

    What they import takes a third of a second of a CPU: one that has nothing else to do while
    the program, by a single thread, still joins records.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[HelperProcess] = []

    def prepare(self, count: int) -> None:
        """Sees to it that so many helpers wait for work, if they can be started."""
        with self._lock, contextlib.suppress(OSError):
            while len(self._spare) < count:
                self._spare.append(HelperProcess())

    def take(self, settings: ShardEncoderSettings) -> HelperProcess:
        """Gives a helper away for good: one that waits, or a new one.

        Args:
            settings: How it writes.

        Raises:
            OSError: It cannot be started, or has ended while it waited.
        """
        with self._lock:
            helper = self._spare.pop() if self._spare else HelperProcess()
        try:
            helper.configure(settings)
        except OSError:
            helper.close()
            raise
        return helper

    def close(self) -> None:
        """Ends the helpers that nobody has taken."""
        with self._lock:
            while self._spare:
                self._spare.pop().close()


helper_pool = HelperPool()
atexit.register(helper_pool.close)
