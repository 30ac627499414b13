"""Lines of progress for logs: text for people, or JSON for programs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

from shardbeam.pipelines.cli.logging import render_line

_EVERY_S = 10.0


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


class LogLines:
    """Writes a line about every ten seconds, and the last one of a build at the end."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float], as_json: bool) -> None:
        self._stream = stream
        self._clock = clock
        self._as_json = as_json
        self._next_s = clock() + _EVERY_S
        self._last = ""

    def show(self, line: Line, *, elapsed_s: float) -> None:
        """Writes the line if it is time for one."""
        text = _render(line, elapsed_s, as_json=self._as_json)
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + _EVERY_S
            self._write(text)
        elif line.step == "write" and line.done > 0:
            self._last = text

    def close(self) -> None:
        """Writes the last line of a build, unless it was written."""
        if self._last:
            self._write(self._last)

    def _write(self, text: str) -> None:
        self._last = ""
        self._stream.write(text)
        self._stream.flush()


def _render(line: Line, elapsed_s: float, *, as_json: bool) -> str:
    if as_json:
        return render_line(line.text, step=line.step, elapsed_s=round(elapsed_s, 1), **line.numbers)
    elapsed = "" if line.numbers else f", {duration(elapsed_s)}"
    return f"shardbeam: {line.text}{elapsed}\n"


def duration(seconds: float) -> datetime.timedelta:
    """Returns what is printed as `0:01:40`."""
    return datetime.timedelta(seconds=round(seconds))
