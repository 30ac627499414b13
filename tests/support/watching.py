"""Imitates a terminal, the progress of a build, and the logger that a command finds."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

from shardbeam.pipelines.cli import logging as cli_logging
from shardbeam.pipelines.cli.progress import ProgressMonitor, Written


@contextlib.contextmanager
def bare_root() -> Iterator[None]:
    """The root logger without pytest's handlers, as a program finds it."""
    root, ours = logging.getLogger(), logging.getLogger("shardbeam")
    handlers, levels = root.handlers, (root.level, ours.level)
    root.handlers = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


WORKING = Written(shards_done=1, shards_total=4, images_done=1000, images_total=4000)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Steps:
    """Gives states one by one, then the last one forever, and advances a clock with each.

    Args:
        states: What staging says, or a function that changes the counters.
        seconds: What each of them takes.
    """

    def __init__(self, *states: Written | Callable[[], None], seconds: float = 1.0) -> None:
        self.now_s = 0.0
        self.exhausted = threading.Event()
        self._states = list(states)
        self._seconds = seconds

    def read(self) -> Written:
        if not self.exhausted.is_set():
            self.now_s += self._seconds
        state = self._states[0]
        if len(self._states) == 1:
            self.exhausted.set()
        else:
            self._states.pop(0)
        if isinstance(state, Written):
            return state
        state()
        return Written()

    def clock(self) -> float:
        return self.now_s


@contextlib.contextmanager
def show(
    stream: io.StringIO,
    *,
    clock: Callable[[], float] = time.monotonic,
    as_json: bool = False,
    every_s: float = 0,
    read_written: Callable[[], Written] = Written,
    ask_state: Callable[[], str] | None = None,
) -> Iterator[None]:
    """Shows progress on a stream inside the context; it looks 1,000 times a second."""
    with (
        contextlib.redirect_stderr(stream),
        mock.patch.object(cli_logging, "_writes_json", as_json),
        contextlib.closing(ProgressMonitor(clock=clock, poll_s=0.001)) as monitor,
    ):
        monitor.read_written, monitor.ask_state = read_written, ask_state
        monitor.ask_every_s = every_s
        monitor.start()
        yield


def watch(steps: Steps, stream: io.StringIO, *, as_json: bool = False) -> str:
    """Shows the states on a stream, and returns what was written."""
    with show(stream, clock=steps.clock, as_json=as_json, read_written=steps.read):
        assert steps.exhausted.wait(30)
    return stream.getvalue()
