"""The worker processes of a process."""

from __future__ import annotations

import contextlib

import psutil

# Long enough for a process on a busy machine.
LIMIT_S = 120


def worker_processes(pid: int | None = None) -> list[psutil.Process]:
    """The processes that write shards for a process; this one where none is given.

    Beside them `multiprocessing` starts a process of its own, which does nothing here.
    """
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
    return found
