"""The CPUs that this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

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
