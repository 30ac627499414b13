"""Requests to Google Cloud Storage: counts them, repeats failed ones, and explains their errors.

Requests use Application Default Credentials, or none if `SHARDBEAM_ANONYMOUS` is set.
`STORAGE_EMULATOR_HOST` is respected.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import google.auth
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import (
    DefaultCredentialsError,
    GoogleAuthError,
    RefreshError,
    TransportError,
)
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from urllib3.exceptions import HTTPError

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import failures
from shardbeam.transforms.storage.base import is_anonymous
from shardbeam.transforms.storage.failures import one_line
from shardbeam.transforms.storage.usage import usage_counter

T = TypeVar("T")

_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# More connections than a worker has threads; a connection is opened when it is first used.
_CONNECTIONS = 256

# (method, address, kind) of requests to the JSON API; the first match counts.
_KINDS = (
    ("POST", re.compile(r"/upload/"), "insert"),
    ("PUT", re.compile(r"/upload/|[?&]upload_id="), "upload"),
    ("POST", re.compile(r"/rewriteTo/"), "rewrite"),
    ("DELETE", re.compile(r"/b/[^/?]+/o/[^/?]+"), "delete"),
    ("GET", re.compile(r"/b/[^/?]+/o/[^/?]+"), "get"),
    ("GET", re.compile(r"/b/[^/?]+/o(\?|$)"), "list"),
)

_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_TRANSIENT_TYPES = (
    ConnectionError,
    # Refused, reset and hanging connections, truncated bodies and broken JSON.
    requests.RequestException,
    HTTPError,
    DataCorruption,
    TransportError,
)

# {operation: the permission that it needs, and a role that has it}
_CHANGES = ("storage.objects.create and storage.objects.delete", "roles/storage.objectUser")
_PERMISSIONS = {
    "list": ("storage.objects.list", "roles/storage.objectViewer"),
    "get": ("storage.objects.get", "roles/storage.objectViewer"),
    "insert": _CHANGES,
    "rewrite": _CHANGES,
    "delete": ("storage.objects.delete", "roles/storage.objectUser"),
}
_NO_BUCKET = re.compile(r"bucket does not exist|invalid bucket name", re.IGNORECASE)
_OTHER_CHECKSUM = re.compile(r"(crc32c|md5).*match", re.IGNORECASE)


def gcs_client() -> storage.Client:
    """Returns this process's client.

    Raises:
        InputError: There are no credentials.
    """
    return _make_client(
        process=os.getpid(),
        anonymous=is_anonymous(),
        emulator=os.environ.get(_EMULATOR_VARIABLE),
    )


@functools.lru_cache(maxsize=2)
def _make_client(*, process: int, anonymous: bool, emulator: str | None) -> storage.Client:
    # A client must not be used after a fork, nor for another server.
    del process
    credentials = AnonymousCredentials() if anonymous or emulator else _default_credentials()
    session = AuthorizedSession(credentials)
    adapter = _CountingAdapter(pool_connections=8, pool_maxsize=_CONNECTIONS)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    # Requests for objects need no project, and without a name the client would search for one.
    client = storage.Client(project="<none>", credentials=credentials, _http=session)
    # With this cache, the client would request each bucket's metadata for its traces.
    client._bucket_metadata_cache = None
    return client


def _default_credentials() -> Credentials:
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        raise InputError(
            uri="gs://",
            problem="no credentials found; run `gcloud auth application-default login`, or give "
            "the machine a service account; --anonymous reads public buckets without any",
        ) from error
    return credentials


class _CountingAdapter(requests.adapters.HTTPAdapter):
    """Counts every request that is sent, repeated ones included."""

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,  # noqa: ANN401  # As requests has it.
        verify: bool | str = True,
        cert: Any = None,  # noqa: ANN401
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        received = 0
        try:
            response = super().send(
                request, stream=stream, timeout=timeout, verify=verify, cert=cert, proxies=proxies
            )
            received = int(response.headers.get("Content-Length") or 0)
            return response
        finally:
            usage_counter.count(
                request_kind(request.method or "", request.url or ""),
                bytes_received=received,
                bytes_sent=int(request.headers.get("Content-Length") or 0),
            )


def request_kind(method: str, url: str) -> str:
    """Returns the kind of a request (`storage.usage.REQUEST_KINDS`) by its method and address."""
    for kinds_method, pattern, kind in _KINDS:
        if method == kinds_method and pattern.search(url):
            return kind
    return "other"


def attempt(function: Callable[[], T], *, uri: str, operation: str) -> T:
    """Calls a function that makes one request, and repeats it while the failures are transient.

    Args:
        function: Makes the request, without retrying by itself.
        uri: The object or prefix, for errors.
        operation: `list`, `get`, `insert`, `rewrite` or `delete`, for errors.

    Raises:
        NotFound: There is no such object.
        PreconditionFailed: A precondition does not hold.
        RequestRangeNotSatisfiable: The range begins behind the object's end.
        InputError: Any other failure.
    """
    try:
        return failures.make_retry(is_transient)(function)()
    except (exceptions.PreconditionFailed, exceptions.RequestRangeNotSatisfiable):
        raise
    except exceptions.NotFound as error:
        if _NO_BUCKET.search(error.message or ""):
            raise no_bucket(uri) from error
        raise
    except (exceptions.GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
        raise explain(error, uri=uri, operation=operation) from error


def is_transient(error: BaseException) -> bool:
    """Returns whether a failed request may succeed when it is repeated."""
    if isinstance(error, exceptions.BadRequest):
        # The content was damaged on the way.
        return _OTHER_CHECKSUM.search(error.message or "") is not None
    if isinstance(error, exceptions.GoogleAPICallError):
        return error.code in _TRANSIENT_STATUSES
    if isinstance(error, InvalidResponse):
        return error.response.status_code in _TRANSIENT_STATUSES
    if isinstance(error, RefreshError):
        return bool(error.retryable)
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidHeader):
        return False
    return isinstance(error, _TRANSIENT_TYPES)


def no_bucket(uri: str) -> InputError:
    """Makes the error for a bucket that does not exist."""
    return InputError(
        uri=uri, problem=f"there is no bucket {_bucket(uri)!r}; is its name spelled right?"
    )


def explain(error: Exception, *, uri: str, operation: str) -> InputError:
    """Turns a client's error into an InputError that names the object, the cause and the fix."""
    if isinstance(error, InputError):
        return error
    return InputError(uri=uri, problem=_in_words(error, uri=uri, operation=operation))


def _in_words(error: Exception, *, uri: str, operation: str) -> str:
    permission, role = _PERMISSIONS[operation]
    bucket = _bucket(uri)
    if isinstance(error, exceptions.RetryError):
        last = one_line(error.cause) if error.cause is not None else ""
        return (
            f"no answer from Google Cloud Storage within {failures.DEADLINE_S:.0f} s (last: "
            f"{last}); run the same command again"
        )
    if isinstance(error, exceptions.Forbidden):
        return (
            f"access denied, {permission} is needed; grant {role} on the bucket {bucket!r} to the "
            f"account that runs this ({one_line(error)})"
        )
    if isinstance(error, exceptions.Unauthorized | GoogleAuthError):
        # When access is refused, the client renews the credentials, and that can fail, too.
        if is_anonymous():
            return f"the bucket {bucket!r} is not public; run without --anonymous"
        return (
            f"the credentials were refused, {permission} is needed on the bucket {bucket!r}; run "
            f"`gcloud auth application-default login` ({one_line(error)})"
        )
    return f"Google Cloud Storage refuses to {operation}: {one_line(error)}"


def _bucket(uri: str) -> str:
    return uri.removeprefix("gs://").partition("/")[0]
