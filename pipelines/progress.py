"""Shows on stderr how far a run is."""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from shardbeam.pipelines.logs import render_line
from shardbeam.transforms.dataset.outcome import Totals, WriteProgress
from shardbeam.transforms.dataset.staging import TOTALS, Staging
from shardbeam.transforms.storage.find import storage_for

_POLL_S = 0.5
# Listings in object storage are billed and slow.
_REMOTE_POLL_S = 5.0
_LOG_LINE_EVERY_S = 10.0
_RATE_WINDOW_S = 30.0
# Long enough to read the last state, short enough not to hold up the end of the run.
_STOP_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class ProgressSnapshot(NamedTuple):
    """How far a run is at one moment.

    Attributes:
        shards_done: Shards written.
        shards_total: All shards; None until the number is known, and if nothing writes shards.
        images_done: Images processed, rejects included.
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


class StagedProgress:
    """Reads the progress that workers write to staging; reads only files that have changed.

    Attributes:
        poll_s: Seconds from one reading to the next.
    """

    def __init__(self, staging: Staging) -> None:
        self.poll_s = _REMOTE_POLL_S if storage_for(staging.root).is_remote else _POLL_S
        self._staging = staging
        self._totals: Totals | None = None
        self._seen: dict[str, tuple[str, WriteProgress]] = {}

    def read(self) -> ProgressSnapshot:
        """Returns how far the run is."""
        self._totals = self._totals or self._staging.read_state(TOTALS, Totals)
        if self._totals is None:
            return ProgressSnapshot()
        shards = self._staging.read_progress(self._seen)
        return ProgressSnapshot(
            shards_done=sum(shard.finished for shard in shards),
            shards_total=self._totals.shards,
            images_done=sum(shard.examples for shard in shards),
            images_total=self._totals.examples,
            shards_resumed=sum(shard.resumed for shard in shards),
            images_resumed=sum(shard.examples for shard in shards if shard.resumed),
        )


class ProgressMonitor:
    """Shows a run's progress from a thread while the context is entered.

    On a terminal it shows a live line; otherwise it writes a line about every ten seconds and one
    at the end. Errors are logged at debug level and never reach the run.

    Args:
        read: Returns how far the run is; called in the thread.
        stream: Where to show it, such as `sys.stderr`.
        clock: Returns the time in seconds.
        poll_s: Seconds from one call of `read` to the next.
        as_json: Whether lines are JSON objects, also on a terminal.
    """

    def __init__(
        self,
        *,
        read: Callable[[], ProgressSnapshot],
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = _POLL_S,
        as_json: bool = False,
    ) -> None:
        self._read = read
        self._poll_s = poll_s
        self._rate = _Rate(clock=clock)
        self._display = (
            _LiveLine(stream)
            if stream.isatty() and not as_json
            else _LogLines(stream, clock=clock, as_json=as_json)
        )
        self._totals_known = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> ProgressMonitor:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            self._attempt(self._show)
        self._attempt(self._show)
        self._attempt(self._display.close)

    def _show(self) -> None:
        snapshot = self._read()
        if snapshot.images_total is None and self._totals_known:
            # After the commit has cleared staging, there is nothing left to read.
            return
        self._totals_known = snapshot.images_total is not None
        self._display.show(snapshot, self._rate.update(snapshot))

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001
            # Files come and go while they are read, and stderr may be closed: neither is worth a
            # message, and the next attempt may succeed.
            _log.debug("progress cannot be shown", exc_info=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # The base class would close stdout as well, and the summary would be lost.
        self.quiet = True


class _LiveLine:
    """Shows progress on a terminal as one line that changes, until it is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            console=_Console(file=stream),
            transient=True,
            # The live line is on stderr, so that output on stdout need not be redirected.
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("", total=None)

    def show(self, snapshot: ProgressSnapshot, images_per_s: float) -> None:
        self._progress.update(
            self._task,
            description=describe(snapshot, images_per_s),
            completed=snapshot.images_done,
            total=snapshot.images_total,
        )
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()


class _LogLines:
    """Writes a line about every ten seconds, and the last one at the end."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float], as_json: bool) -> None:
        self._stream = stream
        self._clock = clock
        self._as_json = as_json
        self._next_s = clock() + _LOG_LINE_EVERY_S
        self._last = ""

    def show(self, snapshot: ProgressSnapshot, images_per_s: float) -> None:
        line = _render(snapshot, images_per_s, as_json=self._as_json)
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + _LOG_LINE_EVERY_S
            self._write(line)
        elif snapshot.images_done > 0:
            self._last = line

    def close(self) -> None:
        if self._last:
            self._write(self._last)

    def _write(self, line: str) -> None:
        self._last = ""
        self._stream.write(line)
        self._stream.flush()


def _render(snapshot: ProgressSnapshot, images_per_s: float, *, as_json: bool) -> str:
    text = describe(snapshot, images_per_s)
    if not as_json:
        return f"shardbeam: {text}\n"
    if snapshot.images_total is None:
        return render_line(text, step="list")
    return render_line(
        text,
        step="write",
        **snapshot._asdict(),
        images_per_s=round(images_per_s, 1),
        eta_s=_eta_s(snapshot, images_per_s),
    )


def describe(snapshot: ProgressSnapshot, images_per_s: float) -> str:
    """Describes in one line how far a run is."""
    if snapshot.images_total is None:
        return "listing and joining..."
    parts = [
        f"{snapshot.images_done:,}/{snapshot.images_total:,} images",
        f"{images_per_s:,.0f} images/s",
    ]
    if snapshot.shards_total is not None:
        resumed = f" ({snapshot.shards_resumed:,} resumed)" if snapshot.shards_resumed else ""
        parts.insert(0, f"{snapshot.shards_done:,}/{snapshot.shards_total:,} shards{resumed}")
    eta_s = _eta_s(snapshot, images_per_s)
    if eta_s is not None:
        parts.append(f"ETA {datetime.timedelta(seconds=eta_s)}")
    return ", ".join(parts)


def _eta_s(snapshot: ProgressSnapshot, images_per_s: float) -> int | None:
    left = (snapshot.images_total or 0) - snapshot.images_done
    return round(left / images_per_s) if left > 0 and images_per_s > 0 else None


class _Rate:
    """Computes images per second over the last half minute."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, snapshot: ProgressSnapshot) -> float:
        now = self._clock()
        done = snapshot.images_done - snapshot.images_resumed
        self._samples.append((now, done))
        while self._samples[0][0] < now - _RATE_WINDOW_S:
            self._samples.popleft()
        since, images = self._samples[0]
        return (done - images) / (now - since) if now > since else 0.0
