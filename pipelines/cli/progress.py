"""Shows on stderr how far a command is."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TextIO

from shardbeam.pipelines.cli.log_lines import Line, LogLines, duration
from shardbeam.pipelines.cli.logging import end_before_results
from shardbeam.transforms.core.counters import IMAGES, ROWS, counters

if TYPE_CHECKING:
    from shardbeam.pipelines.cli.terminal_line import TerminalLine

POLL_S = 2.0
# In object storage each look is a request, which is billed.
REMOTE_POLL_S = 5.0
_RATE_WINDOW_S = 30.0
# The first images may take longer than the others, so they predict nothing.
_ETA_AFTER_S, _ETA_AFTER_SHARE = 10.0, 0.01
_ETA_ALWAYS_AFTER_S = 60.0
# Long enough to read the last state, short enough not to hold up the end of the run.
_STOP_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class Written(NamedTuple):
    """How far a build has written its shards.

    Attributes:
        shards_done: Shards written.
        shards_total: All shards; None until the number is known.
        images_done: Images processed, rejects included; in tables without images, rows.
        images_total: All images; None until the number is known.
        shards_resumed: Shards that an earlier run wrote.
        images_resumed: Images of these shards; they do not count for the speed.
    """

    shards_done: int = 0
    shards_total: int | None = None
    images_done: int = 0
    images_total: int | None = None
    shards_resumed: int = 0
    images_resumed: int = 0


class _Step(NamedTuple):
    """A step that counts.

    Attributes:
        name: Its name, for programs.
        words: Its name, for people.
        counts: `(name of the counter, what it counts)` each.
    """

    name: str
    words: str
    counts: tuple[tuple[str, str], ...]


# In the order in which they follow each other.
_STEPS = (
    _Step("list", "listing", (("files", "files"),)),
    _Step("scan", "scanning annotations", (("scanned_bytes", "bytes"),)),
    _Step(
        "read",
        "reading annotations",
        (("annotation_bytes", "bytes"), ("annotation_files", "files"), ("entries", "entries")),
    ),
    _Step("cut", "choosing splits", (("cut", "images"),)),
    _Step("sample", "choosing the sample", (("sampled", "images"),)),
    _Step("join", "joining", (("joined", "images"),)),
    _Step("shard", "sorting into shards", (("sharded", "images"),)),
    _Step("shards", "reading shards", (("shard_bytes", "bytes"),)),
    _Step("indexes", "reading indexes", (("indexes", "indexes"),)),
    _Step("draw", "drawing", (("pictures", "pictures"),)),
    _Step("export", "exporting", (("exported", "images"),)),
)
# Words for tables without images.
_TABLE_WORDS = {"read": "reading tables", "join": "checking"}
# Steps whose outputs the runner groups before the next one begins.
_GROUPED = frozenset({"list", "read", "cut", "sample"})
# Counts of the join and of the passes before it, which have the same total.
_OF_THE_JOIN = frozenset({"cut", "sampled", "joined"})


class ProgressMonitor:
    """Shows the progress of a command from a thread, until it is closed.

    On a terminal it shows a live line; otherwise it writes a line about every ten seconds, and one
    at the end of a build. Errors are logged at debug level and never reach the command.

    Args:
        stream: Where to show it, such as `sys.stderr`.
        clock: Returns the time in seconds.
        poll_s: Seconds from one look to the next.
        as_json: Whether lines are JSON objects, also on a terminal.
    """

    def __init__(
        self,
        *,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
        as_json: bool = False,
    ) -> None:
        self._clock = clock
        self._poll_s = poll_s
        self._began_s = clock()
        self._display = _make_display(stream, clock=clock, as_json=as_json)
        self._steps = _Steps()
        self._speed = _Speed(clock=clock)
        self._read_written: Callable[[], Written] | None = None
        self._ask_state: Callable[[], str] | None = None
        self._ask_every_s = REMOTE_POLL_S
        self._next_ask_s = 0.0
        self._written_line: Line | None = None
        self._waiting_line = Line("start", "starting", {})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> ProgressMonitor:
        # Not left to the thread, which has to wait while this one imports Beam.
        self._attempt(self._show)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shows the last state, and removes a live line; only the first call does anything."""
        self._stopped.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def watch_staging(self, read: Callable[[], Written], *, every_s: float) -> None:
        """Shows what a build has written, as soon as its totals are known.

        Args:
            read: Returns how far it is; called in the thread.
            every_s: The least seconds from one call to the next.
        """
        self._ask_every_s = every_s
        self._next_ask_s = self._clock() + every_s
        self._read_written = read

    def watch_job(self, ask_state: Callable[[], str]) -> None:
        """Shows the state of a job until there is something to count.

        Args:
            ask_state: Returns Beam's name of the state; called in the thread.
        """
        self._ask_state = ask_state

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            self._attempt(self._show)
        self._attempt(self._show)
        self._attempt(self._display.close)

    def _show(self) -> None:
        self._display.show(self._line(), elapsed_s=self._clock() - self._began_s)

    def _line(self) -> Line:
        # The last state is worth a question at any time.
        if self._clock() >= self._next_ask_s or self._stopped.is_set():
            self._next_ask_s = self._clock() + self._ask_every_s
            self._attempt(self._ask)
        counted = self._steps.read()
        if self._written_line is not None and (self._written_line.done or counted is None):
            return self._written_line
        return counted or self._waiting_line

    def _ask(self) -> None:
        """Asks staging and the job how far they are."""
        written = Written() if self._read_written is None else self._read_written()
        # After the commit has cleared staging, the last line stays.
        if written.images_total is not None:
            self._written_line = describe(written, *self._speed.update(written))
        elif self._ask_state is not None:
            self._waiting_line = Line("job", f"the job is {self._ask_state().lower()}", {})

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001
            # Files come and go while they are read, and stderr may be closed: neither is worth a
            # message, and the next attempt may succeed.
            _log.debug("progress cannot be shown", exc_info=True)


# The monitor of the command that runs.
_monitor: ProgressMonitor | None = None


@contextlib.contextmanager
def show_progress(*, as_json: bool = False) -> Iterator[None]:
    """Shows the progress of a command inside the context, until it writes its result.

    Args:
        as_json: As for `ProgressMonitor`.
    """
    global _monitor
    outer = _monitor
    counters.begin()
    with ProgressMonitor(stream=sys.stderr, as_json=as_json) as monitor:
        _monitor = monitor
        try:
            with end_before_results(monitor.close):
                yield
        finally:
            _monitor = outer


def watch_staging(read: Callable[[], Written], *, every_s: float) -> None:
    """Calls `ProgressMonitor.watch_staging`, if the command shows its progress."""
    if _monitor is not None:
        _monitor.watch_staging(read, every_s=every_s)


def watch_job(ask_state: Callable[[], str]) -> None:
    """Calls `ProgressMonitor.watch_job`, if the command shows its progress."""
    if _monitor is not None:
        _monitor.watch_job(ask_state)


def _make_display(
    stream: TextIO, *, clock: Callable[[], float], as_json: bool
) -> TerminalLine | LogLines:
    if as_json or not stream.isatty():
        return LogLines(stream, clock=clock, as_json=as_json)
    # Imported here: only terminals need Rich.
    from shardbeam.pipelines.cli.terminal_line import TerminalLine

    return TerminalLine(stream)


def describe(written: Written, images_per_s: float | None, eta_s: int | None) -> Line:
    """Describes how far a build has written its shards, once its totals are known.

    Args:
        written: How far it is.
        images_per_s: Its speed, if that is known.
        eta_s: The seconds that are left, if they can be told.
    """
    noun = counters.noun
    parts = [f"{written.images_done:,}/{written.images_total or 0:,} {noun}"]
    is_written = written.shards_done == written.shards_total
    if images_per_s is not None and not is_written:
        parts.append(f"{images_per_s:,.0f} {noun}/s")
    if eta_s is not None:
        parts.append(f"ETA {duration(eta_s)}")
    resumed = f" ({written.shards_resumed:,} resumed)" if written.shards_resumed else ""
    parts.append(f"{written.shards_done:,}/{written.shards_total:,} shards{resumed}")
    return Line(
        step="write",
        text=f"{'committing' if is_written else 'writing'}: {', '.join(parts)}",
        numbers={
            **written._asdict(),
            "images_per_s": None if images_per_s is None else round(images_per_s, 1),
            "eta_s": eta_s,
        },
        done=written.images_done,
        total=written.images_total,
    )


class _Steps:
    """Finds the step that works, by the counts that have changed since the last look."""

    def __init__(self) -> None:
        self._before: dict[str, list[int]] = {}
        self._current: _Step | None = None

    def read(self) -> Line | None:
        """Describes the last step that works or has worked; None before the first one."""
        has_moved = False
        for step in _STEPS:
            done = [getattr(counters, name).done for name, _ in step.counts]
            if any(done) and done != self._before.get(step.name):
                self._current = step
                has_moved = True
            self._before[step.name] = done
        if self._current is None or not any(self._before[self._current.name]):
            return None
        return _describe_step(self._current, has_moved=has_moved)


def _describe_step(step: _Step, *, has_moved: bool) -> Line:
    nouns = {} if counters.noun == IMAGES else {"entries": ROWS, "images": ROWS}
    amounts: list[str] = []
    numbers: dict[str, int] = {}
    bar: tuple[int, int | None] = (0, None)
    for name, unit in step.counts:
        done, total = _read(name)
        if not done:
            continue
        numbers[f"{unit}_done"] = done
        if total is not None:
            numbers[f"{unit}_total"] = total
            if not amounts:
                bar = done, total
        written = _bytes if unit == "bytes" else "{:,}".format
        noun = "" if unit == "bytes" else f" {nouns.get(unit, unit)}"
        amounts.append("/".join(written(each) for each in (done, total) if each is not None) + noun)
    words = step.words if counters.noun == IMAGES else _TABLE_WORDS.get(step.name, step.words)
    # Our steps are done; the runner is grouping their outputs, and counts nothing meanwhile. If a
    # step has just counted something, this may only be the moment between two bundles.
    bundles = counters.bundles
    if step.name in _GROUPED and not has_moved and 0 < bundles.total == bundles.done:
        amounts.append("grouping")
    return Line(step.name, f"{words}: {', '.join(amounts)}", numbers, *bar)


def _read(name: str) -> tuple[int, int | None]:
    """Returns what a counter has counted, and its total if that is known."""
    count = getattr(counters, name)
    total = count.total
    if name in _OF_THE_JOIN:
        # Each row of a table without images is an input of the join.
        total = counters.joined.total if counters.noun == IMAGES else counters.entries.done
    # Some bytes are counted twice, such as the header of each part of a table.
    return (min(count.done, total), total) if total else (count.done, None)


def _bytes(number: int) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"


class _Speed:
    """Computes images per second over the last half minute, and when the build will be written."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        # (time, images that this run has written), from the last moment without an image on
        self._samples: deque[tuple[float, int]] = deque()
        self._began_s = 0.0

    def update(self, written: Written) -> tuple[float | None, int | None]:
        """Takes the latest state.

        Returns:
            Images per second, and the seconds that are left; None where that is not known.
        """
        now_s = self._clock()
        done = written.images_done - written.images_resumed
        if not done:
            self._samples.clear()
        if not self._samples:
            self._began_s = now_s
        self._samples.append((now_s, done))
        while self._samples[0][0] < now_s - _RATE_WINDOW_S:
            self._samples.popleft()
        since_s, before = self._samples[0]
        if not done or since_s == now_s:
            return None, None
        images_per_s = (done - before) / (now_s - since_s)
        left = (written.images_total or 0) - written.images_done
        if not (left > 0 and images_per_s > 0 and self._can_predict(done, done + left)):
            return images_per_s, None
        return images_per_s, round(left / images_per_s)

    def _can_predict(self, done: int, total: int) -> bool:
        wrote_s = self._clock() - self._began_s
        return wrote_s >= _ETA_ALWAYS_AFTER_S or (
            wrote_s >= _ETA_AFTER_S and done >= _ETA_AFTER_SHARE * total
        )
