"""What the writing of shards may use of a machine, the CPUs of this process among it."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from shardbeam.transforms.core.memory import machine_bytes

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
# https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html.
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
