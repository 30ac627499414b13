"""Retries of failing requests, and their errors in one line, for all remote storages."""

from __future__ import annotations

from collections.abc import Callable

from google.api_core import retry

# Limits for connecting, and for the wait between two bytes of an answer.
TIMEOUT_S = (10.0, 30.0)
# Time between the first attempt and the last.
DEADLINE_S = 300.0
_INITIAL_WAIT_S = 0.3
_MAX_WAIT_S = 20.0

_MAX_CHARACTERS = 200


def make_retry(may_pass: Callable[[BaseException], bool]) -> retry.Retry:
    """Makes the retry rule: repeat with doubling waits and jitter until the deadline.

    Args:
        may_pass: Whether an error may go away if the request is repeated.
    """
    return retry.Retry(
        predicate=may_pass,
        initial=_INITIAL_WAIT_S,
        maximum=_MAX_WAIT_S,
        timeout=DEADLINE_S,
    )


def one_line(error: BaseException) -> str:
    """Returns an error's message in one short line."""
    # Connection errors are nested, and each layer repeats the whole address.
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        inner = getattr(error, "reason", None) or (error.args or ("",))[0]
        error = inner if isinstance(inner, Exception) else error
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= _MAX_CHARACTERS else f"{words[:_MAX_CHARACTERS]}..."
