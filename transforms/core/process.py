"""Settings of a worker's process that make writing images faster."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import sys
from collections.abc import Iterator

# glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Above any image that is worth it; glibc allows no more.
_KEPT_BYTES = 32 << 20
_SWITCH_INTERVAL_S = 0.0005


def usable_cpus() -> int:
    """Counts the CPUs that this process may use: in a container, perhaps not all there are."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        # Not Linux.
        return os.cpu_count() or 1


@functools.cache
def tune_process() -> None:
    """Tunes the memory and the threads of this process, once; the bytes that it writes stay.

    - The thread that writes gives the interpreter up for every image, and has to wait to get it
      back from those that encode: by default up to 5 ms, which is ten images' time.
    - The C library gives freed blocks of an image's size back to the system, which clears them,
      page by page, whenever it hands them out again. Here it keeps some.
    - What was imported, half a million objects with Beam, stays anyway; the garbage collector
      need not look through it again and again.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _keep_freed_memory()
    gc.freeze()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keeps the garbage collector out of imports, whose objects stay; neither then nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _keep_freed_memory() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        # Not glibc.
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
