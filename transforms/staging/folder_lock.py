"""The lease of an output on disk: a kernel lock (flock(2)) on the folder itself, without a file.

A suspended process keeps the lock; a process that ends in any way frees it; child processes do not
inherit it. A folder has one lock, whatever path leads to it (a link, a bind mount).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os

from shardbeam.transforms.staging.lease import Lease, LeaseError
from shardbeam.transforms.storage.local import is_at, make_folders, remove_empty

_log = logging.getLogger(__name__)


class FolderLock(Lease):
    """A lock on a folder; `take` makes and locks a folder that does not exist yet.

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
