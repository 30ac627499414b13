"""How far a run is, as a line on a terminal."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from shardbeam.pipelines.progress import ProgressSnapshot, describe


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # The base class would turn stdout off as well, and with it the summary.
        self.quiet = True


class LiveLine:
    """Shows progress as one line that changes, until it is closed.

    Args:
        stream: A terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            console=_Console(file=stream),
            transient=True,
            # Only what goes to stderr has to make way for the line.
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("", total=None)

    def show(self, snapshot: ProgressSnapshot, images_per_s: float) -> None:
        """Shows how far a run is."""
        self._progress.update(
            self._task,
            description=describe(snapshot, images_per_s),
            completed=snapshot.images_done,
            total=snapshot.images_total,
        )
        self._progress.start()

    def close(self) -> None:
        """Takes the line away."""
        self._progress.stop()
