"""Which failures of Google Cloud Storage pass by themselves, and words for the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import requests
from google.api_core import exceptions, retry
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from urllib3.exceptions import HTTPError

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.gcs.client import is_anonymous

T = TypeVar("T")

# To connect, and between two bytes of an answer.
TIMEOUT_S = (10.0, 30.0)
# Between the first attempt and the last.
DEADLINE_S = 300.0
_INITIAL_WAIT_S = 0.3
_MAX_WAIT_S = 20.0

_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_TRANSIENT_TYPES = (
    ConnectionError,
    # Refused, reset and hanging connections, truncated bodies and broken JSON.
    requests.RequestException,
    HTTPError,
    DataCorruption,
)

# {what is done: the permission it takes, and a role that has it}
_PERMISSIONS = {
    "list": ("storage.objects.list", "roles/storage.objectViewer"),
    "get": ("storage.objects.get", "roles/storage.objectViewer"),
    "insert": ("storage.objects.create and storage.objects.delete", "roles/storage.objectUser"),
    "rewrite": ("storage.objects.create and storage.objects.delete", "roles/storage.objectUser"),
    "delete": ("storage.objects.delete", "roles/storage.objectUser"),
}
_NO_BUCKET = re.compile(r"bucket does not exist|invalid bucket name", re.IGNORECASE)
_OTHER_CHECKSUM = re.compile(r"(crc32c|md5).*match", re.IGNORECASE)
_MAX_WORDS = 200


def is_transient(error: BaseException) -> bool:
    """Says whether a failed request may well succeed when it is repeated."""
    if isinstance(error, exceptions.BadRequest):
        # What was sent did not arrive as it was.
        return _OTHER_CHECKSUM.search(error.message or "") is not None
    if isinstance(error, exceptions.GoogleAPICallError):
        return error.code in _TRANSIENT_STATUSES
    if isinstance(error, InvalidResponse):
        return error.response.status_code in _TRANSIENT_STATUSES
    if isinstance(error, RefreshError):
        return bool(error.retryable)
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidHeader):
        return False
    return isinstance(error, (*_TRANSIENT_TYPES, TransportError))


def make_retry() -> retry.Retry:
    """Makes the rule of retries: exponential back-off with jitter, up to the deadline."""
    return retry.Retry(
        predicate=is_transient,
        initial=_INITIAL_WAIT_S,
        maximum=_MAX_WAIT_S,
        multiplier=2.0,
        timeout=DEADLINE_S,
    )


def attempt(function: Callable[[], T], *, uri: str, operation: str) -> T:
    """Calls a function that makes one request, again and again while its failures are transient.

    Args:
        function: The request, without retries of its own.
        uri: The object or prefix concerned, for errors.
        operation: What is done: `list`, `get`, `insert`, `rewrite` or `delete`.

    Raises:
        NotFound: There is no such object.
        PreconditionFailed: A precondition does not hold.
        RequestRangeNotSatisfiable: The object is shorter than that.
        InputError: All else.
    """
    try:
        return make_retry()(function)()
    except (
        exceptions.PreconditionFailed,
        exceptions.RequestRangeNotSatisfiable,
    ):
        raise
    except exceptions.NotFound as error:
        if _NO_BUCKET.search(error.message or ""):
            raise no_bucket(uri) from error
        raise
    except (
        exceptions.GoogleAPIError,
        GoogleAuthError,
        InvalidResponse,
        requests.RequestException,
    ) as error:
        raise explain(error, uri=uri, operation=operation) from error


def concerns_all_uploads(error: Exception) -> bool:
    """Says whether an upload that failed for good would fail under another name as well."""
    return isinstance(
        error,
        (
            exceptions.Forbidden,
            exceptions.Unauthorized,
            exceptions.RetryError,
            GoogleAuthError,
            InputError,
        ),
    )


def explain(error: Exception, *, uri: str, operation: str) -> InputError:
    """Makes an error of ours, in one line that names the object, the cause and the fix."""
    if isinstance(error, InputError):
        return error
    return InputError(uri=uri, problem=_in_words(error, uri=uri, operation=operation))


def no_bucket(uri: str) -> InputError:
    """Makes the error of a bucket that is not there."""
    return InputError(
        uri=uri, problem=f"there is no bucket {_bucket(uri)!r}; is its name spelled right?"
    )


def _in_words(error: Exception, *, uri: str, operation: str) -> str:
    permission, role = _PERMISSIONS[operation]
    bucket = _bucket(uri)
    if isinstance(error, exceptions.RetryError):
        last = one_line(error.cause) if error.cause is not None else ""
        return (
            f"no answer from Google Cloud Storage within {DEADLINE_S:.0f} s (last: {last}); run "
            "the same command again"
        )
    if isinstance(error, exceptions.Forbidden):
        return (
            f"access denied, {permission} is needed; grant {role} on the bucket {bucket!r} to the "
            f"account that runs this ({one_line(error)})"
        )
    if isinstance(error, exceptions.Unauthorized | GoogleAuthError):
        # Whoever is refused tries to renew the credentials, and it is that which fails.
        if is_anonymous():
            return f"the bucket {bucket!r} is not public; run without --anonymous"
        return (
            f"the credentials were refused, {permission} is needed on the bucket {bucket!r}; run "
            f"`gcloud auth application-default login` ({one_line(error)})"
        )
    return f"Google Cloud Storage refuses to {operation}: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """Says in a line, and not a long one, what an error is about."""
    # Errors of connections come wrapped, and each layer repeats the whole address.
    while isinstance(
        inner := getattr(error, "reason", None) or (error.args or ("",))[0], Exception
    ):
        error = inner
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}..."


def _bucket(uri: str) -> str:
    return uri.removeprefix("gs://").partition("/")[0]
