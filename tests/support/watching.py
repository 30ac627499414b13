"""Imitates a terminal, the progress of a build, and the logger that a command finds."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator

from shardbeam.pipelines.progress import ProgressMonitor, ProgressSnapshot


@contextlib.contextmanager
def bare_root() -> Iterator[None]:
    """The root logger without pytest's handlers, as a program finds it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


WORKING = ProgressSnapshot(shards_done=1, shards_total=4, images_done=1000, images_total=4000)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Steps:
    """Returns snapshots one by one, then the last one forever, and advances a clock with each."""

    def __init__(self, *snapshots: ProgressSnapshot, seconds: float = 1.0) -> None:
        self.now_s = 0.0
        self.exhausted = threading.Event()
        self._snapshots = list(snapshots)
        self._seconds = seconds

    def read(self) -> ProgressSnapshot:
        if not self.exhausted.is_set():
            self.now_s += self._seconds
        if len(self._snapshots) == 1:
            self.exhausted.set()
            return self._snapshots[0]
        return self._snapshots.pop(0)

    def clock(self) -> float:
        return self.now_s


def watch(steps: Steps, stream: io.StringIO) -> str:
    with ProgressMonitor(read=steps.read, stream=stream, clock=steps.clock, poll_s=0.001):
        assert steps.exhausted.wait(30)
    return stream.getvalue()
