"""The connection to Google Cloud Storage: one client a process, its connections pooled, counted.

Credentials are Application Default Credentials, or none at all where `SHARDBEAM_ANONYMOUS` is set;
`STORAGE_EMULATOR_HOST` is respected.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import google.auth
import requests
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import DefaultCredentialsError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE
from shardbeam.transforms.storage.usage import usage_counter

_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
# Without it the client asks about each bucket for the sake of its traces.
_NO_BUCKET_METADATA = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# More than the threads of a worker; those that are not used are never opened.
_CONNECTIONS = 256

# How the JSON API's addresses tell the kind of a request: the first that matches.
_KINDS = (
    ("POST", re.compile(r"/upload/"), "insert"),
    ("PUT", re.compile(r"/upload/|[?&]upload_id="), "upload"),
    ("POST", re.compile(r"/rewriteTo/"), "rewrite"),
    ("DELETE", re.compile(r"/b/[^/?]+/o/[^/?]+"), "delete"),
    ("GET", re.compile(r"/b/[^/?]+/o/[^/?]+"), "get"),
    ("GET", re.compile(r"/b/[^/?]+/o(\?|$)"), "list"),
)


def is_anonymous() -> bool:
    """Says whether requests go without credentials."""
    return bool(os.environ.get(ANONYMOUS_VARIABLE))


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
    # A client is neither for a forked process nor for another server.
    del process
    os.environ.setdefault(_NO_BUCKET_METADATA, "1")
    credentials = AnonymousCredentials() if anonymous or emulator else _default_credentials()
    session = AuthorizedSession(credentials)
    adapter = _CountingAdapter(pool_connections=8, pool_maxsize=_CONNECTIONS)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    # Objects need no project; asking for one would cost a search for it.
    return storage.Client(project="<none>", credentials=credentials, _http=session)


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
    """Counts each request as it goes out, repeated ones as well."""

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
    """Tells the kind of a request (`storage.usage.REQUEST_KINDS`) by method and address."""
    for kinds_method, pattern, kind in _KINDS:
        if method == kinds_method and pattern.search(url):
            return kind
    return "other"
