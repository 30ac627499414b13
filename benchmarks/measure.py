"""Measuring a whole process: wall time, and the memory of it and its children."""

from __future__ import annotations

import dataclasses
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

# The command as it is installed.
SHARDBEAM = str(Path(sys.executable).with_name("shardbeam"))

_SAMPLE_INTERVAL_S = 0.05
_STDERR_TAIL_CHARS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """A process that ended well.

    Attributes:
        wall_time_s: From its start to its exit, imports included.
        cpu_time_s: Of all CPUs, in user and system mode.
        peak_bytes: The most memory: the resident set sizes of the process and all its children,
            added up. Pages that they share count more than once.
        peak_anonymous_bytes: The most memory that they held beyond the pages of files, such as
            those of libraries.
        stdout: What it printed.
    """

    wall_time_s: float
    cpu_time_s: float
    peak_bytes: int
    peak_anonymous_bytes: int
    stdout: str


def measure(command: Sequence[str], *, touch_bytes: int = 0) -> Measurement:
    """Runs a command to its end, and measures it.

    Args:
        command: Program and arguments.
        touch_bytes: Memory to take and let go before, if there is as much.

    Raises:
        RuntimeError: The command failed.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        # What other runs have written must not be on its way to the disk any more.
        os.sync()
        _touch_memory(touch_bytes)
        cpu_time_before_s = _children_cpu_time_s()
        started_s = time.monotonic()
        process = subprocess.Popen(
            command,
            # Like packages that pip has installed, those of a checkout are compiled but once.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        peak_bytes = peak_anonymous_bytes = 0
        over = threading.Event()

        def sample() -> None:
            nonlocal peak_bytes, peak_anonymous_bytes
            while True:
                size, anonymous_size = _tree_bytes(process.pid)
                peak_bytes = max(peak_bytes, size)
                peak_anonymous_bytes = max(peak_anonymous_bytes, anonymous_size)
                if over.wait(_SAMPLE_INTERVAL_S):
                    return

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            # Without a timeout, which would make it poll.
            exit_code = process.wait()
            wall_time_s = time.monotonic() - started_s
        finally:
            process.kill()
            over.set()
            sampler.join()
        if exit_code != 0:
            stderr.seek(0)
            words = stderr.read().decode(errors="replace")[-_STDERR_TAIL_CHARS:]
            raise RuntimeError(f"{' '.join(command)}: exit code {exit_code}\n{words}")
        stdout.seek(0)
        return Measurement(
            wall_time_s=wall_time_s,
            cpu_time_s=_children_cpu_time_s() - cpu_time_before_s,
            peak_bytes=peak_bytes,
            peak_anonymous_bytes=peak_anonymous_bytes,
            stdout=stdout.read().decode(),
        )


def _touch_memory(num_bytes: int) -> None:
    # The host of a virtual machine may take back what lies unused for some seconds. Its first use
    # then costs several times as much, and whoever followed a greedy process would be spared.
    num_bytes = min(num_bytes, psutil.virtual_memory().available // 2)
    if num_bytes:
        with mmap.mmap(-1, num_bytes) as memory:
            for offset in range(0, num_bytes, mmap.PAGESIZE):
                memory[offset] = 1


def _children_cpu_time_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tree_bytes(pid: int) -> tuple[int, int]:
    """Returns the resident memory of a process and its children, and how much is anonymous."""
    resident = anonymous = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0
    for process in processes:
        try:
            memory = process.memory_info()
        except psutil.NoSuchProcess:
            continue
        resident += memory.rss
        # On Linux `shared` are the pages of files, and of shared memory.
        anonymous += memory.rss - memory.shared
    return resident, anonymous


def anonymous_bytes(pid: int) -> int:
    """Returns a process's memory without pages of files; 0 if it has ended. Linux only."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(sizes[0]) * 1024 if sizes else 0
