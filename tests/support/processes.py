"""The worker processes of a process."""

from __future__ import annotations

import contextlib
import multiprocessing

import psutil

# Long enough for a process on a busy machine.
LIMIT_S = 120


def worker_processes(pid: int | None = None) -> list[psutil.Process]:
    """The processes that write shards for a process; this one where none is given.

    Those of another process are found by their command lines. A process that was just started does
    not have its own yet, so callers wait until there are as many as they expect.
    """
    if pid is None:
        return [psutil.Process(child.pid) for child in multiprocessing.active_children()]
    found = []
    for child in psutil.Process(pid).children():
        # Beside them `multiprocessing` starts a process of its own, which does nothing here.
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
    return found
