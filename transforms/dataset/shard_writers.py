"""Writing several shards at a time: in this process, and in helper processes beside it."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

from shardbeam.transforms.dataset.helper_pool import helper_pool
from shardbeam.transforms.dataset.helper_process import HelperLostError, HelperProcess
from shardbeam.transforms.dataset.shard_encoder import (
    Batches,
    ShardEncoder,
    ShardEncoderSettings,
    ShardWork,
)
from shardbeam.transforms.dataset.shard_result import ShardResult

_log = logging.getLogger(__name__)

# While a shard's last images are encoded, written and synced, the next one is begun.
_SHARDS_HERE = 2

# Writes the images of a shard, in whatever process; may be called again where that has failed.
Write = Callable[[ShardWork], ShardResult]


class ShardUnderWay:
    """A shard that is being made.

    The main thread asks for it, and an interrupt there, in the middle of the code of a Future, an
    Event or an executor, could leave its lock taken: whoever sets it would wait for ever. A
    SimpleQueue has no such code.
    """

    def __init__(self) -> None:
        self._outcomes: queue.SimpleQueue[ShardResult | BaseException] = queue.SimpleQueue()
        self._outcome: ShardResult | BaseException | None = None

    def finish(self, outcome: ShardResult | BaseException) -> None:
        """Says what has come of it, once."""
        self._outcomes.put(outcome)

    def done(self) -> bool:
        """Says whether `result` gives an answer at once."""
        return self._outcome is not None or not self._outcomes.empty()

    def result(self) -> ShardResult:
        """Waits for its end.

        Raises:
            BaseException: What making it has raised.
        """
        if self._outcome is None:
            self._outcome = self._outcomes.get()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class _Threads:
    """Threads that take tasks, without a lock that an interrupt could leave taken."""

    def __init__(self, count: int, *, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, task: Callable[[], None]) -> None:
        """Runs a task, which raises nothing, as soon as a thread has time."""
        self._tasks.put(task)

    def close(self) -> None:
        """Waits for the tasks, and ends the threads."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


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
        self._stopped = threading.Event()
        self._here = _Threads(_SHARDS_HERE, name="shard")
        # They only wait.
        self._beside = _Threads(len(self._helpers), name="shard-beside")
        # Who has room for a shard; None is this process.
        self._rooms: queue.SimpleQueue[HelperProcess | None] = queue.SimpleQueue()
        for room in (None, *self._helpers):
            self._rooms.put(room)

    def begin(self, make: Callable[[Write], ShardResult]) -> ShardUnderWay:
        """Begins a shard as soon as there is room for it.

        Args:
            make: Makes the shard, in a thread, with what it gets for the writing of images.

        Raises:
            KeyboardInterrupt: As it comes; what is under way is then stopped.
        """
        with self._stopped_by_interrupt():
            room = self._rooms.get()
        shard = ShardUnderWay()
        if room is None:
            threads, made = self._here, functools.partial(self._make_here, make)
        else:
            threads, made = self._beside, functools.partial(self._make_beside, make, room)
        threads.run(functools.partial(self._finish, shard, made))
        return shard

    def wait(self, shard: ShardUnderWay) -> ShardResult:
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
        self._here.close()
        self._beside.close()
        self._encoder.close()

    def _finish(self, shard: ShardUnderWay, make: Callable[[], ShardResult]) -> None:
        try:
            if self._stopped.is_set():
                raise CancelledError
            shard.finish(make())
        except BaseException as error:  # noqa: BLE001  # Whoever waits for the shard raises it.
            shard.finish(error)

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
