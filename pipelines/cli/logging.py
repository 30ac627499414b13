"""What the command writes besides its result: text for people, or JSON lines for programs.

docs/guide/scheduling.md lists the keys of a JSON line.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

import msgspec

from shardbeam.configs.passwords import hide_passwords
from shardbeam.pipelines.failures import OWN_LOGGER, RunError, is_news
from shardbeam.pipelines.interrupts import EXIT_CODE
from shardbeam.transforms.core.text import escape, escape_lines

_LOG_FORMAT = "--log-format"
_LOG_LINE = "%(levelname)s %(name)s: %(message)s"

# Python's levels are ten apart; a level between two belongs to the lower severity.
_SEVERITIES = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_STATE_SAMPLER = "apache_beam.runners.worker.statesampler"
_lock = threading.Lock()
# What ends the progress line, if there is one.
_endings: list[Callable[[], None]] = []
# Whether stderr gets JSON lines.
_writes_json = False
# Our warnings of this command so far.
_warnings: list[str] = []
_log = logging.getLogger(OWN_LOGGER)


def write_stdout(text: str) -> bool:
    """Writes to stdout, whatever its encoding; passwords in URIs are hidden.

    It ends the progress line: a result is complete when it is written.

    Returns:
        Whether a reader is left; it is no error if the reader has gone.

    Raises:
        RunError: Writing failed, for example because the disk is full.
    """
    end_progress()
    encoding = sys.stdout.encoding or "utf-8"
    shown = hide_passwords(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        _write(sys.stdout, shown)
    except BrokenPipeError:
        return False
    except OSError as error:
        raise RunError(f"stdout: {error.strerror or error}") from error
    return True


def write_json(document: Mapping[str, object]) -> None:
    """Writes a result for programs to stdout, as `write_stdout` does: JSON in one line of ASCII."""
    # json, not msgspec, because names of files need not be valid Unicode.
    write_stdout(json.dumps(msgspec.to_builtins(document), ensure_ascii=True) + "\n")


@contextlib.contextmanager
def end_before_results(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end`, once or several times, before results are written inside the context."""
    _endings.append(end)
    try:
        yield
    finally:
        _endings.remove(end)


def end_progress() -> None:
    """Ends the progress line, if there is one, because a result follows."""
    for end in _endings:
        end()


def write_stderr(text: str) -> None:
    """Writes to the current `sys.stderr`; passwords in URIs are hidden.

    A live progress line replaces `sys.stderr` for a while.
    """
    # If stderr is gone, nobody is left to read this.
    with _lock, contextlib.suppress(OSError):
        _write(sys.stderr, hide_passwords(text))


def write_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Writes a traceback as the interpreter does, without passwords; for `sys.excepthook`."""
    write_stderr(escape_lines("".join(traceback.format_exception(kind, error, trace))))


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # At its end the interpreter flushes again, which must not fail once more.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
        raise


def open_standard_streams() -> None:
    """Opens those of stdin, stdout and stderr that are closed.

    Otherwise the next opened file would take the number, and prints would go into it. A closed
    stdout becomes a pipe without a reader.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        # It gets the lowest free number, which child processes inherit.
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if 1 in closed:
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.close(reader)
        os.close(writer)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if 2 in closed:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def wants_json_log(arguments: Sequence[str]) -> bool:
    """Whether a command line, valid or not, asks for JSON logs."""
    values = [
        following if word == _LOG_FORMAT else word.removeprefix(f"{_LOG_FORMAT}=")
        for word, following in itertools.pairwise([*arguments, ""])
        if word == _LOG_FORMAT or word.startswith(f"{_LOG_FORMAT}=")
    ]
    return values[-1:] == ["json"]


def logged_warnings() -> tuple[str, ...]:
    """Returns the warnings of ours that this command has logged, for its JSON."""
    return tuple(_warnings)


def writes_json() -> bool:
    """Whether stderr gets JSON lines now."""
    return _writes_json


def write_line(message: str, *, severity: str = "INFO", **fields: Any) -> None:  # noqa: ANN401  # Whatever JSON can hold.
    """Writes what happened to stderr as one line: text, or JSON with further keys."""
    if _writes_json:
        line = render_json_line(message, severity=severity, **fields)
    else:
        line = f"shardbeam: {'' if severity == 'INFO' else 'error: '}{escape(message)}"
    write_stderr(f"{line}\n")


def write_error(message: str) -> None:
    """Writes the reason why the command failed as one line on stderr."""
    write_line(message, severity="ERROR")


def render_interrupt(words: str) -> str:
    """Renders the line about a signal, which may come before `configure_logging` is called."""
    if wants_json_log(sys.argv[1:]):
        return render_json_line(
            words, severity="WARNING", step="summary", status="interrupted", exit_code=EXIT_CODE
        )
    return f"shardbeam: error: {escape(words)}"


def render_json_line(
    message: str,
    *,
    severity: str = "INFO",
    logger: str = OWN_LOGGER,
    created_s: float | None = None,
    **fields: Any,  # noqa: ANN401  # As above.
) -> str:
    """Renders one line of a JSON log in ASCII, without its end, whatever the message holds.

    Args:
        message: What happened.
        severity: A severity of Cloud Logging.
        logger: The logger's name.
        created_s: The time, in seconds since 1970; None for now.
        fields: Further keys; empty strings are left out.
    """
    when = datetime.datetime.fromtimestamp(
        time.time() if created_s is None else created_s, tz=datetime.timezone.utc
    )
    line = {
        "severity": severity,
        # Strict parsers want valid Unicode, which file names need not be.
        "message": message.encode("utf-8", "backslashreplace").decode(),
        "time": when.isoformat(timespec="milliseconds"),
        "logger": logger,
        **{key: value for key, value in fields.items() if value != ""},
    }
    return hide_passwords(json.dumps(line, default=str))


@contextlib.contextmanager
def configure_logging(*, as_json: bool = False) -> Iterator[None]:
    """Sends warnings and errors to stderr, without those that mean nothing to users.

    Args:
        as_json: Whether each line on stderr is one JSON object, for programs. Then what Python
            itself prints, warnings and errors of threads, becomes log records inside the context.
    """
    global _writes_json
    before = _writes_json
    _writes_json = as_json
    _warnings.clear()
    handler = _StderrHandler()
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter(_LOG_LINE))
    handler.addFilter(is_news)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    collector = _WarningCollector(logging.WARNING)
    _log.addHandler(collector)
    try:
        with _everything_as_records() if as_json else contextlib.nullcontext():
            yield
    finally:
        _writes_json = before
        _log.removeHandler(collector)


def log_everything() -> None:
    """Also sends informational messages and our debug messages, and filters nothing."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    _log.setLevel(logging.DEBUG)
    for handler in root.handlers:
        handler.removeFilter(is_news)


@contextlib.contextmanager
def _everything_as_records() -> Iterator[None]:
    before = threading.excepthook, sys.unraisablehook

    def log_thread_error(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
            _log.error("a thread failed", exc_info=arguments.exc_value)

    def log_unraisable(arguments: sys.UnraisableHookArgs) -> None:
        _log.error(arguments.err_msg or "an error was ignored", exc_info=arguments.exc_value)

    logging.captureWarnings(True)
    threading.excepthook, sys.unraisablehook = log_thread_error, log_unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before
        logging.captureWarnings(False)


class _StderrHandler(logging.Handler):
    """Writes each record, with its line end, to what `sys.stderr` is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_stderr(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  # Like logging itself: a bad record ends nothing.
            # The record's arguments do not fit its text.
            message = f"cannot be formatted: {record.msg!r}"
            write_line(message, severity="WARNING", logger=record.name)


class _WarningCollector(logging.Handler):
    """Keeps warnings for `logged_warnings`."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            _warnings.append(record.getMessage())


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        # Our messages have one line; those of libraries may be tracebacks.
        is_ours = record.name.partition(".")[0] == OWN_LOGGER
        return (escape if is_ours else escape_lines)(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: ANN401  # The base class's.
        return escape_lines(super().formatException(ei))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        return render_json_line(
            record.getMessage(),
            severity=_SEVERITIES[max(0, min(record.levelno // 10, len(_SEVERITIES)) - 1)],
            logger=record.name,
            created_s=record.created,
            step=_current_step(),
            stack_trace=f"{trace}\n{record.stack_info or ''}".strip(),
        )


def _current_step() -> str:
    """Names the step of the graph that this thread runs, if it belongs to a Beam worker."""
    # Not imported here: if nothing else has imported it, there are no workers.
    sampler = sys.modules.get(_STATE_SAMPLER)
    tracker = sampler.get_current_tracker() if sampler is not None else None
    state = tracker.current_state() if tracker is not None else None
    context = getattr(state, "name_context", None)
    return str(getattr(context, "step_name", None) or "")
