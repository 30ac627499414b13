"""The lease of an output: one run at a time writes there.

On disk it is a lock of the kernel (`FolderLock`), on object storage a small object (`ObjectLease`).
"""

from __future__ import annotations

from types import TracebackType

import msgspec

from shardbeam.configs.problem import ShardbeamError


class LeaseError(ShardbeamError):
    """Another run holds the lease. The message is one line."""


class LeaseLostError(LeaseError):
    """Another run has taken the lease that this one had."""


class LeaseClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know of its run's lease.

    Attributes:
        uri: Where it lies.
        holder: The run's id.
        is_job: Whether the job's workers renew and release it, since no process has to follow the
            job.
    """

    uri: str
    holder: str
    is_job: bool = False


class Lease:
    """The right of one run to write to an output; its context releases it.

    This class itself stands for a storage that cannot keep a lease: every run has it.

    Attributes:
        output: The dataset's folder.
        lost: Says which run has taken the lease meanwhile, if one has.
    """

    def __init__(self, output: str) -> None:
        self.output = output
        self.lost: LeaseLostError | None = None

    def take(self) -> bool:
        """Takes the lease, which was free when this object was made.

        Returns:
            Whether this run holds it, and no other run has held it since it was found free. After
            False the output has to be looked at again, before this is called again.

        Raises:
            LeaseError: Another run holds it by now.
            InputError: The output cannot be written.
            OSError: The same, on local disk.
        """
        return True

    def release(self, *, wait_s: float = 10.0) -> None:
        """Gives the lease up, if this run holds it; again does nothing more.

        A signal handler may call this at any moment. A lease that cannot be released expires.

        Args:
            wait_s: How long to wait for a storage that does not answer.
        """

    def claim(self, *, is_job: bool = False) -> LeaseClaim | None:
        """Describes the lease for workers; None where workers have nothing that they can check."""
        del is_job
        return None

    def hand_over(self, job: str) -> None:
        """Makes a job the holder, which goes on without this process.

        Args:
            job: Its id or name, in words.

        Raises:
            LeaseLostError: Another run has it.
        """

    def leave(self) -> None:
        """Neither renews nor releases the lease from now on: its job may go on."""

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
            LeaseLostError: The context ends by an error, and the lease was lost: that is why.
        """
        self.release()
        if self.lost is not None and error is not None and not isinstance(error, LeaseError):
            raise self.lost from error
