"""How long a failing request is repeated, and what its error says, whatever the storage."""

from __future__ import annotations

from collections.abc import Callable

from google.api_core import retry

# To connect, and between two bytes of an answer.
TIMEOUT_S = (10.0, 30.0)
# Between the first attempt and the last.
DEADLINE_S = 300.0
_INITIAL_WAIT_S = 0.3
_MAX_WAIT_S = 20.0

_MAX_WORDS = 200


def make_retry(may_pass: Callable[[BaseException], bool]) -> retry.Retry:
    """Makes the rule of retries: waits that double, with jitter, up to the deadline."""
    return retry.Retry(
        predicate=may_pass,
        initial=_INITIAL_WAIT_S,
        maximum=_MAX_WAIT_S,
        timeout=DEADLINE_S,
    )


def one_line(error: BaseException) -> str:
    """Says in a line, and not a long one, what an error is about."""
    # Errors of connections come wrapped, and each layer repeats the whole address.
    while isinstance(
        inner := getattr(error, "reason", None) or (error.args or ("",))[0], Exception
    ):
        error = inner
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}..."
