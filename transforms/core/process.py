"""The CPUs of this process, and its garbage collector."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
from collections.abc import Iterator

from shardbeam.transforms.core.cgroups import cpu_quota


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
