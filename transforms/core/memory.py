"""Work of several threads, within so much memory."""

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
import resource
import tempfile
import threading
from collections.abc import Iterator

_log = logging.getLogger(__name__)

# What the folder's name begins with that a command has for its temporary files alone.
COMMAND_FOLDER = "shardbeam-command-"

# A large image takes some seconds.
_WARN_AFTER_S = 10.0
_DEFAULT_BYTES = 500_000_000
_SHARE_OF_MACHINE = 4

# How Python and the system's loader say that they get no more memory.
_SHORTAGE_WORDS = (
    "can't start new thread",
    "failed to map segment",
    "cannot allocate memory",
    "cannot create shared object descriptor",
)

# glibc's mallopt(3): blocks from so many bytes on are given back to the system when they are freed,
# and as much of what is free at the end of a thread's memory.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 4_000_000
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 1_000_000


class MemoryBudget:
    """Bytes that all work of this process under way may take together.

    Work that takes more than all of it waits until this process has no other, and goes on alone;
    and no other process on this machine does such work at the same time.

    Args:
        size_bytes: How many there are.
    """

    def __init__(self, size_bytes: float = math.inf) -> None:
        self._size_bytes = self._left_bytes = size_bytes
        self._given_back = threading.Condition()

    @contextlib.contextmanager
    def take(self, size_bytes: float) -> Iterator[None]:
        """Waits until so much is left, and takes it inside the context: not one inside another."""
        # The machine first: meanwhile this process goes on with what takes less.
        with _alone_on_machine() if size_bytes > self._size_bytes else contextlib.nullcontext():
            size_bytes = min(size_bytes, self._size_bytes)
            with self._given_back:
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
    """Waits for a lock of the kernel on the folder of temporary files, and holds it inside.

    A process that is killed frees it. Where folders cannot be locked, nothing is waited for.
    Another program may lock the folder, too: a warning names the folder after a while.
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


# Once is enough.
@functools.cache
def _warn_of_lock(folder: str) -> None:
    _log.warning(
        "%s: waiting for another process, which has locked this folder, before a large image is "
        "decoded; if it is no build, set TMPDIR to another folder",
        folder,
    )


def machine_folder() -> str:
    """Returns the folder of temporary files that all commands of the machine share."""
    folder = tempfile.gettempdir()
    outer, name = os.path.split(folder)
    return outer if name.startswith(COMMAND_FOLDER) else folder


def give_back_freed_memory() -> None:
    """Lets this process give large blocks back to the system as soon as they are freed.

    By itself glibc comes to keep up to 64 MB for each thread that decodes images. Other C
    libraries are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def default_budget_bytes(*, processes: int) -> int:
    """Returns half a GB for a process, or less: all together take a quarter of the machine."""
    try:
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _DEFAULT_BYTES
    return min(_DEFAULT_BYTES, machine_bytes // _SHARE_OF_MACHINE // processes)


def is_shortage(error: BaseException) -> bool:
    """Says whether an error is that this process gets no more memory, address space or threads."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, (ImportError, RuntimeError)):
        text = str(error).lower()
        return any(words in text for words in _SHORTAGE_WORDS)
    return isinstance(error, MemoryError)


def address_space_limit() -> int | None:
    """Returns how many bytes of addresses this process may have (`ulimit -v`); None for any."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def has_room(size_bytes: int) -> bool:
    """Says whether this process could get so many more bytes of addresses; none are used."""
    try:
        mmap.mmap(-1, size_bytes).close()
    except (OSError, MemoryError):
        return False
    return True


def raise_shortage(error: BaseException, *, size_bytes: int) -> None:
    """Raises what a worker raises that is out of memory, if that is why an image was not decoded.

    Args:
        error: What was raised. A `MemoryError` may be the image's own fault, too: a damaged header
            asks for more than any machine has.
        size_bytes: What an image may take.

    Raises:
        OSError: (ENOMEM) The process gets no more memory.
    """
    if is_shortage(error) and not (isinstance(error, MemoryError) and has_room(size_bytes)):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
