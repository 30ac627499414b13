"""The shards that this process has open: those that were read last."""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable

# Shards that this process has open.
MAX_OPEN_FILES = 64

_numbers = itertools.count()


class OpenFile:
    """An open file, which is closed when nothing refers to it any more.

    Args:
        descriptor: Its descriptor.
        is_copy: Whether it is a copy in a cache.

    Attributes:
        number: Its number in this process, which no other file gets.
        identity: Device and inode, which another file may get as soon as this one is closed.
        size_bytes: Its length when it was opened.
    """

    __slots__ = ("descriptor", "identity", "is_copy", "number", "size_bytes")

    def __init__(self, descriptor: int, *, is_copy: bool) -> None:
        self.descriptor = descriptor
        self.is_copy = is_copy
        status = os.fstat(descriptor)
        self.number = next(_numbers)
        self.identity = (status.st_dev, status.st_ino)
        self.size_bytes = status.st_size

    # Bound here, because modules may be gone when the interpreter ends.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


class OpenFiles:
    """Open files that several sequences share, at most `MAX_OPEN_FILES`.

    A file that a thread is reading stays open until it has finished.
    """

    def __init__(self) -> None:
        # By number; the file that was read last is the last.
        self._files: OrderedDict[int, OpenFile] = OrderedDict()
        self.unlock()

    def unlock(self) -> None:
        """Forgets a lock that a thread of the parent process held when it forked."""
        self._lock = threading.Lock()

    def find(self, number: int) -> OpenFile | None:
        """Returns the file with a number; None if it is not open any more."""
        with self._lock:
            opened = self._files.get(number)
            if opened is not None:
                self._files.move_to_end(number)
            return opened

    def add(self, opened: OpenFile) -> OpenFile:
        """Keeps a file open; returns the one to read, as the same file may be open already."""
        with self._lock:
            for other in self._files.values():
                if other.identity == opened.identity:
                    return other
            self._files[opened.number] = opened
            while len(self._files) > MAX_OPEN_FILES:
                self._files.popitem(last=False)
            return opened

    def close_deleted_copies(self) -> None:
        """Closes copies that were deleted, because they take room on the disk until then."""
        with self._lock:
            for number, opened in list(self._files.items()):
                if opened.is_copy and not os.fstat(opened.descriptor).st_nlink:
                    del self._files[number]


OPEN_FILES = OpenFiles()
os.register_at_fork(after_in_child=OPEN_FILES.unlock)
