"""The memory of this process, which its threads share, and signs that there is no more of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import logging
import math
import mmap
import os
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from shardbeam.transforms.core.temporary_files import machine_folder

_log = logging.getLogger(__name__)

# Decoding a large image takes some seconds; a longer wait has another cause.
_WARN_AFTER_S = 10.0

# Lines of /proc/self/status
_STATUS = re.compile(r"^(VmHWM|RssFile):\s*(\d+) kB$", re.MULTILINE)

# Phrases in errors of Python and the system's loader when there is no more memory.
_SHORTAGE_WORDS = (
    "can't start new thread",
    "failed to map segment",
    "cannot allocate memory",
    "cannot create shared object descriptor",
)

# Parameters of glibc's mallopt(3), and their values. Free memory at the end of a thread's heap goes
# back to the system from 4 MB on, and a freed block from 1 MB on.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 4_000_000
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 1_000_000


class MemoryBudget:
    """Limits the bytes that the threads of this process use at the same time.

    Work that needs more than the whole budget waits until it is the only work of this process, and
    until no other process on this machine does such work.

    Args:
        size_bytes: The budget.
    """

    def __init__(self, size_bytes: float = math.inf) -> None:
        self._size_bytes = self._left_bytes = size_bytes
        self._given_back = threading.Condition()
        # Held by the one that waits: the others wait behind it, so that smaller work does not
        # overtake a large image again and again.
        self._next = threading.Lock()

    @contextlib.contextmanager
    def take(self, size_bytes: float) -> Iterator[None]:
        """Waits until `size_bytes` are free and holds them inside the context; do not nest it."""
        # Wait for the machine first, so that smaller work of this process goes on meanwhile.
        with _alone_on_machine() if size_bytes > self._size_bytes else contextlib.nullcontext():
            size_bytes = min(size_bytes, self._size_bytes)
            with self._next, self._given_back:
                self._given_back.wait_for(lambda: self._left_bytes >= size_bytes)
                self._left_bytes -= size_bytes
            try:
                yield
            finally:
                with self._given_back:
                    self._left_bytes += size_bytes
                    self._given_back.notify_all()


@contextlib.contextmanager
def _alone_on_machine() -> Iterator[None]:
    """Holds a kernel lock on the folder for temporary files inside the context.

    The kernel releases the lock of a killed process. Where folders cannot be locked, there is no
    waiting. Another program may lock the same folder, so a warning names it after a while.
    """
    folder = machine_folder()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            _lock(descriptor, folder=folder)
        yield


def _lock(descriptor: int, *, folder: str) -> None:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    warning = threading.Timer(_WARN_AFTER_S, _warn_of_lock, args=(folder,))
    warning.daemon = True
    warning.start()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        warning.cancel()


@functools.cache  # So that it warns once.
def _warn_of_lock(folder: str) -> None:
    _log.warning(
        "%s: another process has locked this folder; waiting for it before decoding a large image "
        "(if that process is not a build, set TMPDIR to another folder)",
        folder,
    )


def give_back_freed_memory() -> None:
    """Makes glibc give large blocks back to the system as soon as they are freed.

    By default it keeps up to 64 MB for each thread that decodes images. Other C libraries stay as
    they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def machine_bytes() -> int | None:
    """Returns how much memory this machine has; None if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def peak_bytes() -> int:
    """Returns the most memory that this process has had, about without pages of files.

    It is 0 if the system has no `/proc`.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    kilobytes = {name: int(value) for name, value in _STATUS.findall(status)}
    return 1024 * max(0, kilobytes.get("VmHWM", 0) - kilobytes.get("RssFile", 0))


def is_shortage(error: BaseException) -> bool:
    """Returns whether an error means that memory, address space or threads have run out."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, (ImportError, RuntimeError)):
        text = str(error).lower()
        return any(words in text for words in _SHORTAGE_WORDS)
    return isinstance(error, MemoryError)


def address_space_limit() -> int | None:
    """Returns this process's limit of address space in bytes (`ulimit -v`); None for no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def has_room(size_bytes: int) -> bool:
    """Returns whether `size_bytes` more of address space are available."""
    try:
        mmap.mmap(-1, size_bytes).close()
    except (OSError, MemoryError):
        return False
    return True


def raise_shortage(error: BaseException, *, size_bytes: int) -> None:
    """Raises ENOMEM if an image was not decoded because this process is out of memory.

    Args:
        error: What the decoder raised. A `MemoryError` may also be the image's own fault: a
            damaged header can ask for more memory than any machine has.
        size_bytes: The most memory that an image may take.

    Raises:
        OSError: (ENOMEM) This process is out of memory.
    """
    if is_shortage(error) and not (isinstance(error, MemoryError) and has_room(size_bytes)):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
