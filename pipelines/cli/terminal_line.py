"""A line on a terminal that changes until it goes away."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from shardbeam.pipelines.cli.log_lines import Line

# Rich's ten take twice the CPU, and no eye needs them.
_REFRESHES_PER_S = 5.0
_BAR_WIDTH = 20


class TerminalLine:
    """Shows the time, a text, and a bar if the end is known."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            _Text(table_column=Column(no_wrap=True)),
            _Bar(),
            console=_Console(file=stream),
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            # The live line is on stderr, so that output on stdout need not be redirected.
            redirect_stdout=False,
        )
        # A task without an end: Rich stops the clock of one that has reached its total.
        self._task = self._progress.add_task("", total=None, line=None)

    def show(self, line: Line, *, elapsed_s: float) -> None:
        """Changes the line; Rich has a clock of its own, which goes on between two calls."""
        del elapsed_s
        self._progress.update(self._task, description=line.text, line=line)
        self._progress.start()

    def close(self) -> None:
        """Removes the line."""
        self._progress.stop()


class _Text(TimeElapsedColumn):
    """The time and the text; if a terminal is narrow, only the bar gives way."""

    def render(self, task: Task) -> Text:
        return super().render(task).append(f" {task.description}", style="default")


class _Bar(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        line: Line | None = task.fields["line"]
        # Without colours, Rich's pulse for an unknown total looks like the bar of finished work.
        if line is None or not line.total:
            return ""
        return ProgressBar(total=line.total, completed=line.done, width=_BAR_WIDTH)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # The base class would close stdout as well, and the summary would be lost.
        self.quiet = True
