"""Python's garbage collector while modules are imported."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


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
