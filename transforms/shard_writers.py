"""Writing several shards at a time: in this process, and in helper processes beside it."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from transforms.helper_pool import helper_pool
from transforms.helper_process import HelperLostError, HelperProcess
from transforms.output.shard_result import ShardResult
from transforms.shard_encoder import Batches, ShardEncoder, ShardEncoderSettings, ShardWork

_log = logging.getLogger(__name__)

# While a shard's last images are encoded, written and synced, the next one is begun.
_SHARDS_HERE = 2

# Writes the images of a shard, in whatever process; may be called again where that has failed.
Write = Callable[[ShardWork], ShardResult]


class ShardWriters:
    """Writes as many shards at a time as there are processes.

    This process has room for the next shard as soon as it has handed the last images of one to
    its threads, a helper process when it has finished one. Where a helper cannot be started, or
    is lost, its work is done in this process.

    Args:
        settings: How shards are written, in each of the processes.
        helpers: How many helper processes.
    """

    def __init__(self, settings: ShardEncoderSettings, *, helpers: int) -> None:
        self._encoder = ShardEncoder(settings)
        self._helpers: list[HelperProcess] = []
        for _ in range(helpers):
            # One that cannot be had is no reason to do without those that wait.
            with contextlib.suppress(OSError):
                self._helpers.append(helper_pool.take(settings))
        self._here = ThreadPoolExecutor(max_workers=_SHARDS_HERE, thread_name_prefix="shard")
        # They only wait.
        self._beside = ThreadPoolExecutor(
            max_workers=max(1, helpers), thread_name_prefix="shard-beside"
        )
        self._stopped = threading.Event()
        # Who has room for a shard; None is this process. An interrupt in the middle of an Event's
        # own code could leave its lock taken, and whoever sets it would wait for ever.
        self._rooms: queue.SimpleQueue[HelperProcess | None] = queue.SimpleQueue()
        for room in (None, *self._helpers):
            self._rooms.put(room)

    def begin(self, make: Callable[[Write], ShardResult]) -> Future[ShardResult]:
        """Begins a shard as soon as there is room for it.

        Args:
            make: Makes the shard, in a thread, with what it gets for the writing of images.

        Raises:
            KeyboardInterrupt: As it comes; what is under way is then stopped.
        """
        with self._stopped_by_interrupt():
            room = self._rooms.get()
        if room is None:
            return self._here.submit(self._make_here, make)
        return self._beside.submit(self._make_beside, make, room)

    def wait(self, shard: Future[ShardResult]) -> ShardResult:
        """Waits for the end of a shard.

        Raises:
            KeyboardInterrupt: As it comes; what is under way is then stopped.
            Exception: What making the shard raises.
        """
        with self._stopped_by_interrupt():
            return shard.result()

    def close(self) -> None:
        """Stops what is under way, and ends all threads and processes."""
        self._stop()
        self._here.shutdown(cancel_futures=True)
        self._beside.shutdown(cancel_futures=True)
        self._encoder.close()

    def _make_here(self, make: Callable[[Write], ShardResult]) -> ShardResult:
        has_left = False

        def leave() -> None:
            nonlocal has_left
            if not has_left:
                has_left = True
                self._rooms.put(None)

        def watch(batches: Batches) -> Batches:
            yield from self._until_stopped(batches)
            leave()

        try:
            return make(functools.partial(self._encoder.write, watch=watch))
        finally:
            leave()

    def _make_beside(
        self, make: Callable[[Write], ShardResult], helper: HelperProcess
    ) -> ShardResult:
        try:
            return make(functools.partial(self._write_beside, helper))
        finally:
            if not helper.is_lost:
                self._rooms.put(helper)

    def _write_beside(self, helper: HelperProcess, work: ShardWork) -> ShardResult:
        if not helper.is_lost:
            try:
                return helper.write(work)
            except HelperLostError as error:
                if self._stopped.is_set():
                    raise CancelledError from None
                _log.warning("%s; its shard is written anew by this process", error)
        return self._encoder.write(work, watch=self._until_stopped)

    def _until_stopped(self, batches: Batches) -> Batches:
        for batch in batches:
            if self._stopped.is_set():
                raise CancelledError
            yield batch

    def _stop(self) -> None:
        self._stopped.set()
        for helper in self._helpers:
            helper.close()

    @contextlib.contextmanager
    def _stopped_by_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._stop()
            raise
