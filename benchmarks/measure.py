"""Measuring a whole process: wall time, and the memory of it and its children."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

import psutil

SAMPLE_INTERVAL_S = 0.05
_STDERR_TAIL_CHARS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """A process that ended well.

    Attributes:
        wall_time_s: From its start to its exit, imports included.
        memory: `(seconds since the start, bytes)`: the resident set sizes of the process and
            all its children, added up. Pages that they share count more than once.
        stdout: What it printed.
    """

    wall_time_s: float
    memory: tuple[tuple[float, int], ...]
    stdout: str

    def peak_bytes(self, *, until_s: float = float("inf")) -> int:
        """The most memory seen, up to some time after the start."""
        return max((size for at_s, size in self.memory if at_s <= until_s), default=0)


def measure(command: Sequence[str], *, watch: Callable[[float], None] | None = None) -> Measurement:
    """Runs a command to its end, and measures it.

    Args:
        command: Program and arguments.
        watch: Called with the seconds since the start at every sample, and after the end.

    Raises:
        RuntimeError: The command failed.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        # What other runs have written must not be on its way to the disk any more.
        os.sync()
        started_s = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        memory: list[tuple[float, int]] = []
        over = threading.Event()

        def sample() -> None:
            while not over.wait(SAMPLE_INTERVAL_S):
                at_s = time.monotonic() - started_s
                memory.append((at_s, _tree_bytes(process.pid)))
                if watch is not None:
                    watch(at_s)

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
        if watch is not None:
            watch(wall_time_s)
        if exit_code != 0:
            stderr.seek(0)
            words = stderr.read().decode(errors="replace")[-_STDERR_TAIL_CHARS:]
            raise RuntimeError(f"{' '.join(command)}: exit code {exit_code}\n{words}")
        stdout.seek(0)
        return Measurement(
            wall_time_s=wall_time_s, memory=tuple(memory), stdout=stdout.read().decode()
        )


def _tree_bytes(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
