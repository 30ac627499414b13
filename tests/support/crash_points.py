"""Collects every state of a folder that a killed run can leave behind."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dataset import Tree

# Audit events (https://docs.python.org/3/library/audit_events.html) of calls that change a folder.
# Python raises them before the change, whatever code makes it.
_EVENTS = frozenset(
    {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
)

_TICK_NS = 50_000_000

# `make faults` tries every moment.
LONG = os.environ.get("SHARDBEAM_FAULTS") == "long"


class _Recorder:
    """Reads a folder each time before something in it changes."""

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
    # The hook stays for good, because Python cannot remove one.
    sys.addaudithook(recorder.see)
    return recorder


@contextlib.contextmanager
def record_states(folder: Path) -> Iterator[list[Tree]]:
    """Collects all states of a folder from before the first change to after the last.

    A kill can leave each of them, because no `except` or `finally` has run yet. An empty folder is
    an entry that ends with a slash.
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
    """Restores a folder to one of its states."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in state.items():
        file = folder / path
        if path.endswith("/"):
            file.mkdir(parents=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def _settled_state(folder: Path) -> Tree:
    """Reads a folder until two reads are equal.

    Another thread may make its change while this one reads: a file that it moves could then be
    missed in both places.
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
    """Reads a folder's files and its empty folders; a file that stays as it is, only once."""
    state = {}
    now_ns = time.time_ns()
    for parent, folders, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            found = path.stat()
            # A change within a tick of the file system's clock would not show in the time.
            is_old = now_ns - found.st_ctime_ns > _TICK_NS
            data = _read_once(path, found.st_ctime_ns) if is_old else path.read_bytes()
            state[path.relative_to(folder).as_posix()] = data
        if not folders and not names and Path(parent) != folder:
            state[f"{Path(parent).relative_to(folder).as_posix()}/"] = b""
    return dict(sorted(state.items()))


@functools.lru_cache(1024)
def _read_once(path: Path, changed_ns: int) -> bytes:
    del changed_ns
    return path.read_bytes()


def finished_shards(state: Tree) -> int:
    return sum(path.startswith(".staging/") and path.endswith("/done") for path in state)


def moments(states: list[Tree], *, every: int = 1) -> list[Tree]:
    """Picks states to continue from: all of them, or in the short tests those that differ.

    Differences in temporary files and in a run's own files do not count: later runs ignore them.
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
    picked = distinct[random.Random(0).randrange(every) :: every]
    assert picked
    return picked


def each_moment(*, quick: int, slow: int) -> pytest.MarkDecorator:
    """Gives a test its `every`, one more where the test is slow; `make faults` needs only one."""
    more = () if LONG else (pytest.param(slow, marks=pytest.mark.slow),)
    return pytest.mark.parametrize("every", [quick, *more])
