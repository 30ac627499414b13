"""The processes that write shards: this one, and worker processes beside it.

    this process                                            worker process, one or several
      main     Beam: hands a shard to the next free place     main     ShardWriter.write
        │ Shard, by a queue of places                           ▲ │    Shard in, ShardResult out,
      shard    one thread waits for each worker process;  ◂─pipe─┘ ▾    or an exception
        │      two write shards in this process               read, encode: as here
      read     images in object storage                       parent   ends the process when its
      encode   images on disk; check, convert, encode                  parent has ended in any way

After a kill, shards that were under way are written again: the next run finds finished shards by
their done-files.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import msgspec

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.collectors.collect import list_outdated
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.shards.dependencies import describe_difference
from shardbeam.transforms.shards.recount import NotCountableError, check_countable, recount
from shardbeam.transforms.shards.reuse import copy_shard
from shardbeam.transforms.shards.shard_records import find_record
from shardbeam.transforms.shards.worker import Worker, WorkerLostError, picklable
from shardbeam.transforms.shards.writer import (
    SHARDS_HERE,
    Shard,
    ShardSettings,
    ShardWriter,
    finish_progress,
)
from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE, is_anonymous
from shardbeam.transforms.storage.usage import StorageUsage, usage_counter

_log = logging.getLogger(__name__)

# The shard, or the exception and its traceback; and the storage requests that were made.
_Answer = tuple[ShardResult | Exception, str, StorageUsage]

# Seconds after which a caller that waits for a shard may report what has been done meanwhile.
WAIT_S = 5.0


class WriterPool:
    """Makes shards, in this process and in worker processes at the same time.

    This process takes the next shard as soon as it has handed the last images of one to its
    threads; a worker process takes the next one after it has finished its shard. If a worker
    process is lost, this process writes its shard.

    Args:
        settings: How shards are made, in each of the processes.
        workers: How many worker processes to start; the system may allow fewer.
    """

    def __init__(self, settings: ShardSettings, *, workers: int) -> None:
        self._settings = settings
        self._workers: list[WorkerProcess] = []
        with contextlib.ExitStack() as begun:
            self._writer = ShardWriter(settings, processes=1 + workers)
            begun.callback(self._writer.close)
            with contextlib.suppress(OSError, AssertionError):
                for _ in range(workers):
                    worker = WorkerProcess(settings, processes=1 + workers)
                    self._workers.append(worker)
                    begun.callback(worker.close)
            # An error before this line, such as an interrupt, ends what has begun.
            begun.pop_all()
        self._threads = ThreadPoolExecutor(SHARDS_HERE + workers, thread_name_prefix="shard")
        # None stands for this process.
        self._places: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        for place in (None, *self._workers):
            self._places.put(place)
        self._is_closed = False
        self._has_warned = False

    def begin(
        self, shard: Shard, *, waiting: Callable[[], None] = lambda: None
    ) -> Future[ShardResult]:
        """Waits for a free place, then begins a shard.

        A shard that an earlier run has finished, or that the previous version of the dataset has,
        is taken over; any other shard is written.

        Args:
            shard: The shard.
            waiting: Called every `WAIT_S` seconds while there is no free place.

        Returns:
            The future shard, in staging; it may raise what `ShardWriter.write` raises.
        """
        while True:
            try:
                place = self._places.get(timeout=WAIT_S)
            except queue.Empty:
                waiting()
            else:
                return self._threads.submit(self._make, shard, place)

    def close(self) -> None:
        """Ends all threads and processes; a shard that is under way fails."""
        self._is_closed = True
        for worker in self._workers:
            worker.close()
        self._writer.close()
        self._threads.shutdown(cancel_futures=True)

    def _make(self, shard: Shard, worker: WorkerProcess | None) -> ShardResult:
        with contextlib.ExitStack() as place:
            place.callback(self._places.put, worker)
            taken_over, origin = self._take_over(shard)
            if taken_over is not None:
                staging = self._settings.staging
                finish_progress(shard, staging=staging, resumed=taken_over.resumed)
                return taken_over
            shard = msgspec.structs.replace(shard, origin=origin)
            if worker is not None:
                try:
                    return worker.write(shard)
                except WorkerLostError as error:
                    if self._is_closed:
                        raise CancelledError from error
                    _log.warning("%s; its shard is written by this process", error)
                    place.pop_all()
            return self._writer.write(shard, handed_out=place.close)

    def _take_over(self, shard: Shard) -> tuple[ShardResult | None, Origin]:
        """Looks for the shard in staging, then in the previous version.

        Returns:
            The shard, or None; and the origin of a shard that has to be written.

        Raises:
            InputError: Another run has taken the output, or this machine does not see it.
        """
        staging, previous = self._settings.staging, self._settings.previous
        staging.check_mark()
        staging.check_lease()
        found = staging.find_shard(shard_key=shard.key, previous=previous)
        if found is not None and self._differs(found, shard=shard):
            found = None
        is_resumed = found is not None
        if not is_resumed and not previous:
            return None, Origin.WRITTEN
        try:
            if found is None:
                found = find_record(previous, shard=shard)
                if found is None or self._differs(found, shard=shard):
                    found = None
                else:
                    check_countable(found, settings=self._settings.encoder)
                    found = copy_shard(found, shard=shard, settings=self._settings)
            if found is not None and list_outdated(found.collected):
                found = recount(
                    found, shard=shard, settings=self._settings, memory=self._writer.memory
                )
        except NotCountableError as error:
            self._warn(f"another version of Shardbeam counted {shard.file_name}, and {error}")
            return None, Origin.WRITTEN
        except (InputError, OSError) as error:
            # A failed reuse falls back to writing. Log the first failure; count all.
            self._warn(error)
            return None, Origin.WRITTEN if is_resumed else Origin.DAMAGED
        return found, Origin.WRITTEN

    def _differs(self, found: ShardResult, *, shard: Shard) -> bool:
        """Whether a finished shard would come out differently now; logs why."""
        difference = describe_difference(
            found,
            container=find_container(self._settings.container),
            size_fields=self._writer.size_fields,
        )
        if difference:
            self._warn(f"{shard.file_name} {difference}")
        return bool(difference)

    def _warn(self, error: Exception | str) -> None:
        """Logs why a shard is not taken over; only the first time."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s; the shard is written again from its images", error)


class WorkerProcess(Worker[Shard, _Answer]):
    """A process that writes shards, one at a time.

    Args:
        settings: How it writes.
        processes: How many processes write.
    """

    def __init__(self, settings: ShardSettings, *, processes: int) -> None:
        super().__init__(_prepare, settings, processes, is_anonymous(), task="wrote shards")

    def write(self, shard: Shard) -> ShardResult:
        """Writes a shard; see `ShardWriter.write`.

        Raises:
            WorkerLostError: The process was killed, or could not even start.
            Exception: What writing the shard raises.
        """
        made, text, usage = self.call(shard)
        usage_counter.add(usage)
        if isinstance(made, Exception):
            raise made from RuntimeError(text)
        return made


def _prepare(
    settings: ShardSettings, processes: int, anonymous: bool
) -> Callable[[Shard], _Answer]:
    if anonymous:
        os.environ[ANONYMOUS_VARIABLE] = "1"
    return functools.partial(_write, writer=ShardWriter(settings, processes=processes))


def _write(shard: Shard, *, writer: ShardWriter) -> _Answer:
    made: ShardResult | Exception
    text = ""
    try:
        made = writer.write(shard)
    except Exception as error:  # noqa: BLE001  # The process that asked for it raises it.
        made, text = picklable(error), traceback.format_exc()
    return made, text, usage_counter.take()
