"""Logs for programs: each line on stderr is one JSON object, as Cloud Logging reads it.

Its keys (https://cloud.google.com/logging/docs/structured-logging):
    severity: `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`.
    message: What happened, in words.
    time: When, UTC, RFC 3339.
    logger: Which logger of Python's said it; `shardbeam` is the command itself.
    step: The step of the graph that a worker was at, or the phase of the run (`list`, `write`,
        `summary`), where that is known.
    stack_trace: The traceback of an error.

Progress and summary have counts besides.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

LOG_FORMAT = "--log-format"
TEXT, JSON = "text", "json"
OWN_LOGGER = "shardbeam"

_SEVERITIES = {
    logging.CRITICAL: "CRITICAL",
    logging.ERROR: "ERROR",
    logging.WARNING: "WARNING",
    logging.INFO: "INFO",
}
_STATE_SAMPLER = "apache_beam.runners.worker.statesampler"
_lock = threading.Lock()
_log = logging.getLogger(OWN_LOGGER)


def wants_json_log(arguments: Sequence[str]) -> bool:
    """Says whether a command line asks for JSON logs: also one that cannot be understood."""
    values = [
        following if word == LOG_FORMAT else word.removeprefix(f"{LOG_FORMAT}=")
        for word, following in itertools.pairwise([*arguments, ""])
        if word == LOG_FORMAT or word.startswith(f"{LOG_FORMAT}=")
    ]
    return values[-1:] == [JSON]


def render_line(
    message: str,
    *,
    severity: str = "INFO",
    logger: str = OWN_LOGGER,
    created_s: float | None = None,
    **fields: Any,  # noqa: ANN401  # Whatever JSON can hold.
) -> str:
    """Renders one log line, in ASCII; whatever the message holds, it stays one line.

    Args:
        message: What happened.
        severity: How bad it is.
        logger: Who says so.
        created_s: When, in seconds since 1970; now where None.
        fields: Further keys; those that are empty strings are left out.
    """
    utc = datetime.timezone.utc
    when = (
        datetime.datetime.now(tz=utc)
        if created_s is None
        else datetime.datetime.fromtimestamp(created_s, tz=utc)
    )
    line = {
        "severity": severity,
        # Names of files need not be valid Unicode, but strict parsers want just that.
        "message": message.encode("utf-8", "backslashreplace").decode(),
        "time": when.isoformat(timespec="milliseconds"),
        "logger": logger,
        **{key: value for key, value in fields.items() if value != ""},
    }
    return json.dumps(line, default=str) + "\n"


def write_line(
    message: str,
    *,
    stream: TextIO | None = None,
    **fields: Any,  # noqa: ANN401  # As above.
) -> None:
    """Writes a log line to stderr, or to a stream, as `render_line` makes it."""
    line = render_line(message, **fields)
    # Where stderr is gone, there is nobody to tell.
    with _lock, contextlib.suppress(OSError):
        stream = stream or sys.stderr
        stream.write(line)
        stream.flush()


class JsonHandler(logging.Handler):
    """Writes log records as JSON lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        try:
            write_line(**_describe(record))
        except Exception:  # noqa: BLE001  # As in logging itself: a bad record ends nothing.
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Says that a record cannot be shown; its arguments do not fit its text."""
        write_line(f"cannot be formatted: {record.msg!r}", severity="WARNING", logger=record.name)


@contextlib.contextmanager
def everything_as_json() -> Iterator[None]:
    """Makes log records of what Python prints by itself: warnings, and errors of threads."""
    before = threading.excepthook, sys.unraisablehook

    def log_thread_error(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
            _log.error("a thread failed", exc_info=arguments.exc_value)

    def log_unraisable(arguments: sys.UnraisableHookArgs) -> None:
        _log.error(
            arguments.err_msg or "an error was ignored",
            exc_info=arguments.exc_value,
        )

    logging.captureWarnings(True)
    threading.excepthook, sys.unraisablehook = log_thread_error, log_unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before
        logging.captureWarnings(False)


def _describe(record: logging.LogRecord) -> dict[str, Any]:
    trace = record.exc_text or ""
    if record.exc_info and not trace:
        trace = "".join(traceback.format_exception(*record.exc_info))
    if record.stack_info:
        trace = f"{trace}\n{record.stack_info}".strip()
    return {
        "message": record.getMessage(),
        "severity": _severity(record.levelno),
        "logger": record.name,
        "created_s": record.created,
        "step": _current_step(),
        "stack_trace": trace,
    }


def _severity(level: int) -> str:
    return next((name for least, name in _SEVERITIES.items() if level >= least), "DEBUG")


def _current_step() -> str:
    """Names the step of the graph that this thread is at, if it is one of a Beam worker."""
    # Not imported: where nothing has imported it, there are no workers.
    sampler = sys.modules.get(_STATE_SAMPLER)
    tracker = sampler.get_current_tracker() if sampler is not None else None
    state = tracker.current_state() if tracker is not None else None
    context = getattr(state, "name_context", None)
    return str(getattr(context, "step_name", None) or "")
