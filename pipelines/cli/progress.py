"""Shows on stderr how far a command is."""

from __future__ import annotations

import contextlib
import datetime
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from shardbeam.pipelines.cli.logging import end_before_results, write_line, writes_json
from shardbeam.transforms.core.counters import IMAGES, ROWS, counters

POLL_S = 2.0
# In object storage each look is a request, which is billed.
REMOTE_POLL_S = 5.0
# Without a terminal.
_LINE_EVERY_S = 10.0
# The images per second are those of this time.
_SPEED_OF_S = 30.0
# The first images may take longer than the others, so they predict nothing.
_ETA_AFTER_S, _ETA_AFTER_SHARE = 10.0, 0.01
_ETA_ALWAYS_AFTER_S = 60.0
# Long enough to read the last state, short enough not to hold up the end of the run.
_STOP_TIMEOUT_S = 5.0
# Rich's ten take twice the CPU, and no eye needs them.
_REFRESHES_PER_S = 5.0
_BAR_WIDTH = 20

_log = logging.getLogger(__name__)


class Line(NamedTuple):
    """What is shown at one moment.

    Attributes:
        step: Name of the step, for programs.
        text: The text for people.
        numbers: The numbers in it, for programs; empty if there are none yet.
        done: How much of the step is done, for a bar.
        total: How much there is; None if that is not known.
    """

    step: str
    text: str
    numbers: Mapping[str, Any]
    done: int = 0
    total: int | None = None


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


class _TimeAndText(TimeElapsedColumn):
    """The time and the text; if a terminal is narrow, only the bar gives way."""

    def render(self, task: Task) -> Text:
        return super().render(task).append(f" {task.description}", style="default")


class _Bar(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        done, total = task.fields["shown"]
        # Without colours, Rich's pulse for an unknown total looks like the bar of finished work.
        return ProgressBar(total=total, completed=done, width=_BAR_WIDTH) if total else ""


class ProgressMonitor:
    """Shows the progress of a command from a thread, until it is closed.

    On a terminal it shows a live line; otherwise it writes a line about every ten seconds, and one
    at the end of a build. Errors are logged at debug level and never reach the command.

    Args:
        clock: Returns the time in seconds.
        poll_s: Seconds from one look to the next.

    Attributes:
        read_written: Returns how far a build is; its totals are None before they are known.
        ask_state: Returns Beam's name of a job's state, which is shown until there is something
            to count.
        ask_every_s: The least seconds between calls of these two, which the thread makes.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, poll_s: float = POLL_S
    ) -> None:
        self._clock = clock
        self._poll_s = poll_s
        self._next_line_s = clock() + _LINE_EVERY_S
        self._last_line: Line | None = None
        self._is_live = sys.stderr.isatty() and not writes_json()
        self._progress = Progress(
            SpinnerColumn(),
            _TimeAndText(table_column=Column(no_wrap=True)),
            _Bar(),
            console=Console(file=sys.stderr),
            disable=not self._is_live,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            speed_estimate_period=_SPEED_OF_S,
            get_time=clock,
            # The live line is on stderr, so that output on stdout need not be redirected.
            redirect_stdout=False,
        )
        # What is shown, and the images that this run writes, which starts with the first one. They
        # have no total, because Rich stops the clock of a task that has reached it.
        self._progress.add_task("", total=None, shown=(0, None))
        self._progress.add_task("", total=None, start=False, visible=False)
        self._shown, self._images = self._progress.tasks
        self._steps = _Steps()
        self.read_written: Callable[[], Written] = Written
        self.ask_state: Callable[[], str] | None = None
        self.ask_every_s = POLL_S
        self._next_ask_s = 0.0
        self._written_line: Line | None = None
        self._waiting_line = Line("start", "starting", {})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def start(self) -> None:
        """Shows the first state, and begins to watch."""
        # Not left to the thread, which has to wait while this one imports Beam.
        self._attempt(self._show)
        self._thread.start()

    def close(self) -> None:
        """Shows the last state, and removes a live line; only the first call does anything."""
        self._stopped.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            self._attempt(self._show)
        self._attempt(self._show)
        self._attempt(self._end)

    def _show(self) -> None:
        line = self._line()
        if self._is_live:
            self._progress.update(
                self._shown.id, description=line.text, shown=(line.done, line.total)
            )
            self._progress.start()
        elif self._clock() >= self._next_line_s:
            self._next_line_s = self._clock() + _LINE_EVERY_S
            self._write(line)
        elif line.step == "write" and line.done > 0:
            self._last_line = line

    def _end(self) -> None:
        if self._last_line is not None:
            self._write(self._last_line)
        if self._is_live:
            self._progress.stop()

    def _write(self, line: Line) -> None:
        self._last_line = None
        elapsed_s = self._shown.elapsed or 0.0
        # A text without numbers would stay the same for a long time.
        is_bare = not line.numbers and not writes_json()
        text = f"{line.text}, {_duration(elapsed_s)}" if is_bare else line.text
        write_line(text, step=line.step, elapsed_s=round(elapsed_s, 1), **line.numbers)

    def _line(self) -> Line:
        # The last state is worth a question at any time.
        if self._clock() >= self._next_ask_s or self._stopped.is_set():
            self._next_ask_s = self._clock() + self.ask_every_s
            self._attempt(self._ask)
        counted = self._steps.read()
        if self._written_line is not None and (self._written_line.done or counted is None):
            return self._written_line
        return counted or self._waiting_line

    def _ask(self) -> None:
        written = self.read_written()
        # After the commit has cleared staging, the last line stays.
        if written.images_total is not None:
            self._written_line = describe(written, *self._measure(written))
        elif self.ask_state is not None:
            self._waiting_line = Line("job", f"the job is {self.ask_state().lower()}", {})

    def _measure(self, written: Written) -> tuple[float | None, int | None]:
        """Returns images per second, and the seconds left; None where that is not known."""
        done = written.images_done - written.images_resumed
        left = (written.images_total or 0) - written.images_done
        self._progress.update(self._images.id, completed=done)
        if done and not self._images.started:
            self._progress.start_task(self._images.id)
        speed, wrote_s = self._images.speed, self._images.elapsed or 0.0
        is_predictable = wrote_s >= _ETA_ALWAYS_AFTER_S or (
            wrote_s >= _ETA_AFTER_S and done >= _ETA_AFTER_SHARE * (done + left)
        )
        return speed, round(left / speed) if speed and left > 0 and is_predictable else None

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
def show_progress() -> Iterator[None]:
    """Shows the progress of a command inside the context, until it writes its result."""
    global _monitor
    outer = _monitor
    counters.begin()
    monitor = _monitor = ProgressMonitor()
    try:
        with contextlib.closing(monitor), end_before_results(monitor.close):
            monitor.start()
            yield
    finally:
        _monitor = outer


def watch_staging(read: Callable[[], Written], *, every_s: float) -> None:
    """Shows what a build has written, if the command shows its progress.

    Args:
        read: Returns how far it is; called in a thread.
        every_s: The least seconds from one call to the next.
    """
    if _monitor is not None:
        _monitor.read_written, _monitor.ask_every_s = read, every_s


def watch_job(ask_state: Callable[[], str]) -> None:
    """Shows the state of a job until there is something to count.

    Args:
        ask_state: Returns Beam's name of the state; called in a thread.
    """
    if _monitor is not None:
        _monitor.ask_state = ask_state


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
        parts.append(f"ETA {_duration(eta_s)}")
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
        written = decimal if unit == "bytes" else "{:,}".format
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


def _duration(seconds: float) -> datetime.timedelta:
    """Returns what is printed as `0:01:40`."""
    return datetime.timedelta(seconds=round(seconds))
