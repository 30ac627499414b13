"""Beam's logs, on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys

from shardbeam.pipelines.json_log import JsonHandler

# Beam warns of each server that it starts and ends.
_NOISE = ("Really starting service", "Really destroying service")
# Our own errors, which the command says in one line: a worker's traceback tells users nothing.
_OUR_ERRORS = ("InputError", "RefusedError")


def configure_logging(*, as_json: bool = False) -> None:
    """Sends warnings and errors to stderr, but not the ones that mean nothing to a user.

    Args:
        as_json: Whether each of them is one JSON object, for programs.
    """
    handler: logging.Handler = JsonHandler() if as_json else _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_is_news)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def log_everything() -> None:
    """Sends informational messages, too, and filters nothing."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in root.handlers:
        handler.removeFilter(_is_news)


class _StderrHandler(logging.Handler):
    """Writes to what stderr is at the moment: a live progress line replaces it for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        # Where stderr is gone, there is nobody to tell.
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{self.format(record)}\n")


def _is_news(record: logging.LogRecord) -> bool:
    if not record.name.startswith("apache_beam"):
        return True
    error_type = record.exc_info[0] if record.exc_info else None
    if error_type is not None and error_type.__name__ in _OUR_ERRORS:
        return False
    message = record.getMessage()
    return not any(text in message for text in (*_OUR_ERRORS, *_NOISE))
