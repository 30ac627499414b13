"""Retries of failing requests, which are counted, and their errors in one line."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from google.api_core import retry

from shardbeam.transforms.storage.usage import usage_counter

P = ParamSpec("P")
R = TypeVar("R")

# Limits for connecting, and for the wait between two bytes of an answer.
TIMEOUT_S = (10.0, 30.0)
# Time between the first attempt and the last.
DEADLINE_S = 300.0
_INITIAL_WAIT_S = 0.3
_MAX_WAIT_S = 20.0

_MAX_CHARACTERS = 200

# Statuses of a storage that wants fewer requests.
_THROTTLED_STATUSES = frozenset({429, 503})


class _CountingRetry(retry.Retry):
    """Also counts what it repeats (`storage.usage`)."""

    def __call__(
        self, func: Callable[P, R], on_error: Callable[[Exception], object] | None = None
    ) -> Callable[P, R]:
        """Wraps a function that makes one request."""
        # Whether the attempt before was throttled; None if there was none.
        throttled: bool | None = None
        failed_at_s = 0.0

        def attempt(*arguments: P.args, **options: P.kwargs) -> R:
            nonlocal throttled, failed_at_s
            if throttled:
                usage_counter.count_throttled(waited_s=time.monotonic() - failed_at_s)
            elif throttled is not None:
                usage_counter.count_repeated()
            try:
                return func(*arguments, **options)
            except Exception as error:
                throttled, failed_at_s = _is_throttled(error), time.monotonic()
                raise

        return super().__call__(attempt, on_error)


def _is_throttled(error: Exception) -> bool:
    # Errors of Google's client have a code, those of its uploads a response. s3fs turns S3's
    # "SlowDown" into EBUSY.
    response = getattr(error, "response", None)
    status = getattr(error, "code", None) or getattr(response, "status_code", None)
    return status in _THROTTLED_STATUSES or getattr(error, "errno", None) == errno.EBUSY


def make_retry(may_pass: Callable[[BaseException], bool]) -> retry.Retry:
    """Makes the retry rule: repeat with doubling waits and jitter until the deadline.

    Args:
        may_pass: Whether an error may go away if the request is repeated.
    """
    return _CountingRetry(
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
