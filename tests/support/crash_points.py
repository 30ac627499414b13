"""Every state of a folder that a run leaves behind if it is killed."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.dataset import (
    Tree,
    read_tree,
)

# Audit events (https://docs.python.org/3/library/audit_events.html) of what changes a folder;
# they come before the change, whatever code makes it.
_EVENTS = frozenset(
    {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
)

# `make faults` tries every moment.
LONG = os.environ.get("SHARDBEAM_FAULTS") == "long"


class _Recorder:
    """Reads a folder each time that something is about to change."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.states: list[Tree] = []
        # Reading the folder opens files, too.
        self._lock = threading.Lock()

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is not None and (event in _EVENTS or _opens_to_write(event, arguments)):
            self.record(self.folder)

    def record(self, folder: Path) -> None:
        with self._lock:
            state = _settled_state(folder)
            if not self.states or state != self.states[-1]:
                self.states.append(state)


def _opens_to_write(event: str, arguments: tuple[Any, ...]) -> bool:
    return event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))


@functools.cache
def _recorder() -> _Recorder:
    recorder = _Recorder()
    # For good: a hook cannot be taken away.
    sys.addaudithook(recorder.see)
    return recorder


@contextlib.contextmanager
def record_states(folder: Path) -> Iterator[list[Tree]]:
    """Collects all states that a folder goes through, from before the first change to the last.

    They are what a kill leaves: nothing that an `except` or a `finally` would do is done. An empty
    folder is an entry that ends in a slash.
    """
    recorder = _recorder()
    recorder.states = []
    recorder.folder = folder
    try:
        yield recorder.states
        recorder.record(folder)
    finally:
        recorder.folder = None


def restore(folder: Path, state: Tree) -> None:
    """Makes a folder what it was in a state."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in state.items():
        file = folder / path
        if path.endswith("/"):
            file.mkdir(parents=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def _settled_state(folder: Path) -> Tree:
    """Reads a folder until it is the same twice.

    What another thread was recorded before, it may do while this one reads: a file that it moves
    would be seen in neither place.
    """
    before = None
    while True:
        state = None
        with contextlib.suppress(FileNotFoundError):
            state = _read_state(folder)
        if state is not None and state == before:
            return state
        before = state


def _read_state(folder: Path) -> Tree:
    empty = [
        f"{path.relative_to(folder).as_posix()}/"
        for path in folder.rglob("*")
        if path.is_dir() and not any(path.iterdir())
    ]
    files = read_tree(folder)
    # Another thread may have put something into one meanwhile.
    empty = [path for path in empty if not any(name.startswith(path) for name in files)]
    return {**files, **dict.fromkeys(empty, b"")}


def finished_shards(state: Tree) -> int:
    return sum(path.startswith(".staging/") and path.endswith("/done") for path in state)


def moments(states: list[Tree], *, every: int = 1) -> list[Tree]:
    """Picks states to go on from: all of them, or in the short tests each that may matter.

    What a run keeps for itself, and temporary files, no later run looks at.
    """
    if LONG:
        return states
    distinct = []
    seen = None
    for state in states:
        shared = {
            path: data
            for path, data in state.items()
            if not (path.startswith(".staging/") and ("/runs/" in path or path.endswith(".tmp")))
        }
        if shared != seen:
            distinct.append(state)
        seen = shared
    return distinct[random.Random(0).randrange(every) :: every]
