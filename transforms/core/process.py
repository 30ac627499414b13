"""The CPUs of this process, and its garbage collector."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator


def usable_cpus() -> int:
    """Counts the CPUs that this process may use: in a container, perhaps not all there are."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        # Not Linux.
        return os.cpu_count() or 1


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keeps the garbage collector out of imports, whose objects stay; neither then nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
