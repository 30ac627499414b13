"""Spending less time on memory that is only lent."""

from __future__ import annotations

import ctypes
import functools
import gc

# glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Above any image that is worth it; glibc allows no more.
_THRESHOLD_BYTES = 32 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Tells the C library to keep freed memory up to a bound, where it is glibc.

    By default it gives every block of an image's size back to the system, and each time the
    system hands it out again, page by page, it clears it: a fifth of the time that it takes to
    write an image through.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _THRESHOLD_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


@functools.cache
def ignore_imported_garbage() -> None:
    """Takes all objects that exist by now out of the garbage collector's rounds.

    What has been imported, half a million objects with Beam, stays anyway, and would be looked
    through again and again while records are made.
    """
    gc.freeze()
