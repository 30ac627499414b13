"""Renewing a lease while a run holds it."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.lease import (
    LEASE_S,
    Lease,
    LeaseClaim,
    LeaseLostError,
    RemoteJob,
)

_log = logging.getLogger(__name__)

RENEW_S = LEASE_S / 3
# How long a run waits in the end for a storage that does not answer. The lease expires anyway.
_END_S = 10.0
# How long a submitted job waits for its lease to name it.
_NAME_S = 60.0

_Change = tuple[Callable[[], None], "Future[None]", bool]


class LeaseKeeper:
    """Keeps a lease alive in a thread of its own, within a context; releases it in the end.

    The thread makes every change, so that none of them can hold up the run: a storage that does
    not answer is asked again for minutes.

    Args:
        lease: The lease; without one, there is nothing to do.
        on_lost: Called in the thread, within the context only, once a renewal finds that another
            run has the lease.
        renew_s: Seconds between two renewals.
    """

    def __init__(
        self, lease: Lease | None, *, on_lost: Callable[[], None], renew_s: float = RENEW_S
    ) -> None:
        self._lease = lease
        self._on_lost = on_lost
        self._renew_s: float | None = renew_s
        self._changes: queue.SimpleQueue[_Change] = queue.SimpleQueue()
        # Held while it is decided whether a loss still stops the run.
        self._ending = threading.Lock()
        self._ended = False
        self._lost: LeaseLostError | None = None

    def __enter__(self) -> LeaseKeeper:
        if self._lease is not None:
            threading.Thread(
                target=self._run, args=(self._lease,), name="lease", daemon=True
            ).start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases the lease, if nothing else was done with it.

        Raises:
            LeaseLostError: The context ends by an error, and the lease was lost: that is why.
        """
        try:
            self.release()
        finally:
            if (
                self._lost is not None
                and error is not None
                and not isinstance(error, LeaseLostError)
            ):
                raise self._lost from error

    @property
    def lost(self) -> LeaseLostError | None:
        """Says who has taken the lease, if anybody has."""
        return self._lost

    def claim(self, *, released_by_job: bool = False) -> LeaseClaim | None:
        """Describes the lease for workers; None where there is none."""
        if self._lease is None:
            return None
        return LeaseClaim(
            uri=self._lease.uri,
            holder=self._lease.record.holder,
            released_by_job=released_by_job,
        )

    def name_job(self, job: RemoteJob) -> None:
        """Hands the lease over to a job: from now on nobody here renews it.

        Raises:
            LeaseLostError: Another run has it.
        """
        if self._lease is None:
            return
        self._change(functools.partial(self._hand_over, self._lease, job), timeout_s=_NAME_S)
        if self._lost is not None:
            raise self._lost

    def _hand_over(self, lease: Lease, job: RemoteJob) -> None:
        lease.name_job(job)
        self._renew_s = None

    def release(self) -> None:
        """Releases the lease, if the storage answers in time; done once, or left, is done."""
        if self._lease is not None:
            self._end(self._lease, self._lease.release)

    def leave(self) -> None:
        """Ends renewing the lease, and lets it expire, or end with its job."""
        if self._lease is not None:
            self._end(self._lease, lambda: None)

    def _end(self, lease: Lease, change: Callable[[], None]) -> None:
        with self._ending:
            if self._ended:
                return
            self._ended = True
        self._change(change, timeout_s=_END_S, is_last=True)
        # Whatever came of it, this process holds it no more.
        lease.forget()

    def _change(
        self, change: Callable[[], None], *, timeout_s: float, is_last: bool = False
    ) -> None:
        future: Future[None] = Future()
        self._changes.put((change, future, is_last))
        try:
            future.result(timeout_s)
        except (InputError, LeaseLostError, OSError, FutureTimeoutError):
            # A loss is kept as `lost`; else the lease expires, or is found by its job's name.
            _log.info("the lease could not be changed", exc_info=True)

    def _run(self, lease: Lease) -> None:
        is_last = False
        while not is_last:
            is_awaited = True
            try:
                change, future, is_last = self._changes.get(timeout=self._renew_s)
            except queue.Empty:
                change, future = functools.partial(_renew, lease), Future()
                is_awaited = False
            try:
                if self._lost is not None:
                    raise self._lost
                change()
            except Exception as error:  # noqa: BLE001
                # For whoever waits.
                if isinstance(error, LeaseLostError):
                    self._lose(error, is_awaited=is_awaited)
                future.set_exception(error)
            else:
                future.set_result(None)

    def _lose(self, error: LeaseLostError, *, is_awaited: bool) -> None:
        with self._ending:
            first, self._lost = self._lost is None, error
            # Whoever waits for a change learns of the loss by that.
            if first and not self._ended and not is_awaited:
                self._on_lost()


def _renew(lease: Lease) -> None:
    try:
        lease.renew()
    except (InputError, OSError):
        # It is tried again: a lease that has expired is ours as long as nobody takes it.
        _log.info("the lease could not be renewed: %s", lease.uri, exc_info=True)
