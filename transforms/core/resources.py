"""What each worker may use to write shards: processes, threads, memory."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from shardbeam.transforms.core.cpus import usable_cpus
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
