"""The lease of an output: only its holder, one run at a time, writes there.

On disk it is a kernel lock (`FolderLock`), on object storage a small object (`object_lease`).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from types import TracebackType

import msgspec

from shardbeam.configs.problem import ShardbeamError
from shardbeam.transforms.storage.local import is_at, make_folders, remove_empty

# Path of a lease on object storage, below the dataset's folder.
LEASE_PATH = "runs/.lease.json"


class LeaseError(ShardbeamError):
    """Another run holds the lease. The message is one line."""

    exit_code = 4


class LeaseLostError(LeaseError):
    """Another run has taken the lease that this one had."""


class LeaseClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What workers need to know to check a run's lease.

    Attributes:
        uri: The URI of the lease.
        holder: The run's id.
        is_job: Whether the job's workers renew and release it, so that no process has to follow
            the job.
    """

    uri: str
    holder: str
    is_job: bool = False


class Lease:
    """The right of one run to write to an output; leaving its context releases it.

    This base class is for storage without leases: every run holds it.

    Attributes:
        output: The dataset's folder.
        lost: The error that names the run that took this lease, if one did.
    """

    def __init__(self, output: str) -> None:
        self.output = output
        self.lost: LeaseLostError | None = None

    def take(self) -> bool:
        """Takes the lease, which was free when this object was made.

        Returns:
            True if this run holds it, and no other run can have held it since this object was made.
            After False, look at the output again, then repeat the call.

        Raises:
            LeaseError: Another run holds it by now.
            InputError: The output cannot be written.
            OSError: The same, on local disk.
        """
        return True

    def release(self, *, wait_s: float = 10.0) -> None:
        """Gives the lease up, if this run holds it; a second call does nothing.

        A signal handler may call this at any moment. A lease that cannot be released expires.

        Args:
            wait_s: How long to wait for storage that does not answer.
        """

    def claim(self, *, is_job: bool = False) -> LeaseClaim | None:
        """Describes the lease for workers; None if they have nothing to check."""
        del is_job
        return None

    def hand_over(self, job: str) -> None:
        """Makes a job, which continues without this process, the holder.

        Args:
            job: Its id or name, in words.

        Raises:
            LeaseLostError: Another run has it.
        """

    def leave(self) -> None:
        """Stops renewing the lease without releasing it, because its job may still run."""

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases the lease.

        Raises:
            LeaseLostError: The context ends with an error that the loss of the lease explains.
        """
        self.release()
        if self.lost is not None and error is not None and not isinstance(error, LeaseError):
            raise self.lost from error


_log = logging.getLogger(__name__)


class FolderLock(Lease):
    """A kernel lock (flock(2)) on a folder itself, without a file; `take` makes a missing folder.

    A suspended process keeps the lock; a process that ends in any way frees it; child processes do
    not inherit it. A folder has one lock, whatever path leads to it (a link, a bind mount).

    Args:
        output: The folder.

    Raises:
        LeaseError: Another run holds it.
        OSError: The folder cannot be opened.
    """

    def __init__(self, output: str) -> None:
        super().__init__(output)
        # Folders that were made for the lock, the deepest first.
        self._made: list[str] = []
        self._descriptor: int | None = None
        if os.path.isdir(output):
            self._lock()

    def take(self) -> bool:
        """Makes the folder if it is not there, and locks it."""
        if self._descriptor is not None:
            return True
        self._lock()
        return False

    def release(self, *, wait_s: float = 10.0) -> None:
        """Unlocks the folder, and removes it if it was made for the lock and is empty.

        Args:
            wait_s: Unused: the kernel answers at once.
        """
        del wait_s
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        remove_empty(self._made)
        os.close(descriptor)

    def _lock(self) -> None:
        while self._descriptor is None:
            self._made = make_folders(self.output) or self._made
            try:
                # Python opens with O_CLOEXEC.
                descriptor = os.open(self.output, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                # Another run made it and has just removed it.
                continue
            try:
                _flock(descriptor, folder=self.output)
                is_there = is_at(descriptor, self.output)
            except BaseException:
                os.close(descriptor)
                raise
            if is_there:
                self._descriptor = descriptor
            else:
                # The folder was moved or removed before it was locked.
                os.close(descriptor)


def _flock(descriptor: int, *, folder: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise LeaseError(
                f"{folder}: another run on this machine is writing there; wait until it has ended"
            ) from None
        _log.warning(
            "%s: this file system keeps no locks (%s); let only one run at a time write there",
            folder,
            error.strerror,
        )
