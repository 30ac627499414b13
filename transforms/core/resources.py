"""What the writing of shards may use of a machine, the CPUs of this process among it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import logging
import math
import mmap
import os
import re
import resource
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

# Limits for the memory that several threads use together.

_log = logging.getLogger(__name__)

# Prefix of temporary files and folders, and that of the folder that a command makes for its own.
TEMPORARY_PREFIX = "shardbeam-"
COMMAND_FOLDER = f"{TEMPORARY_PREFIX}command-"
# `tempfile` adds eight characters.
_TEMPORARY = re.compile(rf"{TEMPORARY_PREFIX}(command-)?[a-z0-9_]{{8}}(/|$)")

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


def machine_folder() -> str:
    """Returns the folder for temporary files that all commands on this machine share."""
    folder = tempfile.gettempdir()
    outer, name = os.path.split(folder)
    return outer if name.startswith(COMMAND_FOLDER) else folder


def temporary_folder_of(path: str) -> str:
    """Returns the folder for temporary files if a path is that or a temporary file of ours in it.

    Otherwise, as if there is no such folder, the result is empty.
    """
    with contextlib.suppress(OSError):
        folder = machine_folder()
        name = os.path.relpath(path, folder) if os.path.isabs(path) else ""
        if name == os.curdir or _TEMPORARY.match(name):
            return folder
    return ""


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


# Each process takes about 100 MB of memory.
_MAX_PROCESSES = 8
# Below this a process is not worth the half second that it takes to start.
_BYTES_PER_PROCESS = 100_000_000
# Threads beyond the CPUs, because one may wait for the disk or for the writer.
_WAITING_THREADS = 1
_MEMORY_MB = 500
_MEGABYTE = 1_000_000
# All processes together take at most this part of the machine's memory for decoding.
_SHARE_OF_MACHINE = 4
# With images of 135 KB and round trips of 30 ms, more does not help (benchmarks/RESULTS.md).
_READ_AHEAD = 32


class Share(NamedTuple):
    """What one process may use.

    Attributes:
        threads: Threads that read and encode ahead.
        memory_bytes: Memory for decoding; an image that needs more is decoded alone.
        read_ahead: Images that are read from object storage at the same time.
    """

    threads: int
    memory_bytes: int
    read_ahead: int


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What each worker may use to write shards.

    Attributes:
        processes: Processes that write shards at the same time, including the worker itself. Each
            can use a whole CPU, because they do not share the interpreter's lock. None means one
            for each CPU, at most eight, and fewer if there is little to write.
        threads: Threads that read and encode ahead, in each of these processes; None means one
            more than the process's share of the CPUs. Small images occupy one of them.
        memory_mb: Memory for decoding in each of these processes (MB of 10⁶ bytes); None means
            half a GB, or less if all of them together would take more than a quarter of the
            machine's memory.
        read_ahead: Images that each of these processes reads from object storage at the same time;
            None means 32.
    """

    processes: int | None = None
    threads: int | None = None
    memory_mb: int | None = None
    read_ahead: int | None = None

    def count_processes(self, *, shards: int, num_bytes: int) -> int:
        """Returns the number of processes that write this many shards and bytes."""
        worthwhile = min(usable_cpus(), _MAX_PROCESSES, num_bytes // _BYTES_PER_PROCESS)
        return max(1, min(self.processes or worthwhile, shards))

    def share(self, *, processes: int) -> Share:
        """Returns what each of some processes on this machine may use."""
        memory_bytes = (self.memory_mb or _MEMORY_MB) * _MEGABYTE
        if self.memory_mb is None:
            of_machine = (machine_bytes() or math.inf) // _SHARE_OF_MACHINE // processes
            memory_bytes = int(min(memory_bytes, of_machine))
        return Share(
            threads=self.threads or math.ceil(usable_cpus() / processes) + _WAITING_THREADS,
            memory_bytes=memory_bytes,
            read_ahead=self.read_ahead or _READ_AHEAD,
        )


# Where Linux mounts control groups: in a container, its own.
_GROUPS = Path("/sys/fs/cgroup")
# Quota and period of CPU time in microseconds, in one file in version 2 and in two in version 1:
# https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-
# bwc.html.
_QUOTA_FILES = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


def usable_cpus() -> int:
    """Counts the CPUs that this process may use: a container may allow only some of them.

    Besides the CPUs that it may run on, a quota of CPU time counts: with one of 1.5 CPUs, two
    processes use all of it.
    """
    cpus = reachable_cpus()
    quota = cpu_quota()
    return cpus if quota is None else min(cpus, math.ceil(quota))


def reachable_cpus() -> int:
    """Counts the CPUs that this process may run on; C libraries start a thread for each."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        # Not Linux.
        return os.cpu_count() or 1


def cpu_quota(*, groups: Path = _GROUPS) -> float | None:
    """Returns how many CPUs the mounted control groups allow on the average, such as 1.5.

    None if they have no quota, or none that can be read.
    """
    quotas = []
    for names in _QUOTA_FILES:
        # Without a quota a file is missing, or holds `max` or -1.
        with contextlib.suppress(OSError, ValueError):
            text = " ".join((groups / name).read_text(encoding="ascii") for name in names)
            quota, period = map(int, text.split())
            if quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Turns the garbage collector off inside the context, which imports modules.

    Afterwards the collector ignores their objects for good. Modules stay until the process ends, so
    looking through their objects would waste time. If no module is new, nothing is frozen: garbage
    from before must still be collected.
    """
    imported = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > imported:
            gc.freeze()
        gc.enable()


# Maps items with threads that work ahead; results come in order, and few items are held.

T = TypeVar("T")
R = TypeVar("R")


def batch_by_size(
    items: Iterable[T], *, size_bytes: Callable[[T], int], max_bytes: int
) -> Iterator[list[T]]:
    """Groups items into batches, in order; an item larger than `max_bytes` gets its own batch."""
    batch: list[T] = []
    weight = 0
    for item in items:
        size = size_bytes(item)
        if batch and weight + size > max_bytes:
            yield batch
            batch, weight = [], 0
        batch.append(item)
        weight += size
    if batch:
        yield batch


# Items in progress for each thread, so that a slow item does not make the others wait.
_ITEMS_PER_THREAD = 4


def map_many(function: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """Yields `function(item)` for each item, in order, computed by new threads.

    An exception of `function` is raised when its item's turn comes.
    """
    max_items = threads * _ITEMS_PER_THREAD
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="many") as executor:
        yield from map_ahead(function, items, executor=executor, max_items=max_items)


def map_ahead(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    executor: ThreadPoolExecutor,
    max_items: int,
    size_bytes: Callable[[T], int] = lambda _: 0,
    max_bytes: int = 0,
) -> Iterator[R]:
    """Yields `function(item)` for each item, in order, computing ahead in `executor`.

    Args:
        function: Runs in the executor's threads.
        items: The items.
        executor: The threads.
        max_items: The most items in progress at a time.
        size_bytes: Returns the bytes that an item takes while it is in progress.
        max_bytes: The most bytes in progress at a time; a larger item is processed alone.

    Raises:
        Exception: Raised by `function`, when its item's turn comes. Items in progress are then
            cancelled or waited for.
    """
    under_way: deque[tuple[Future[R], int]] = deque()
    weight = 0
    try:
        for item in items:
            size = size_bytes(item)
            while under_way and (len(under_way) >= max_items or weight + size > max_bytes):
                future, done_size = under_way.popleft()
                yield future.result()
                weight -= done_size
            under_way.append((executor.submit(function, item), size))
            weight += size
        while under_way:
            future, _ = under_way.popleft()
            yield future.result()
    finally:
        for future, _ in under_way:
            future.cancel()
        for future, _ in under_way:
            if not future.cancelled():
                future.exception()
