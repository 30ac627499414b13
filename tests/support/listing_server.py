"""A server on loopback that invents listings of `gs://` and `s3://`, of any length."""

from __future__ import annotations

import bisect
import contextlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

BUCKET = "scale"
ROOT = "objects"
# Greater than any character of a name.
_LAST = "\U0010ffff"
_SIZE_BYTES = 137_000
_GENERATION = 1_700_000_000_000_000


class Names(Sequence[str]):
    """Names of objects in order, made when they are asked for.

    Args:
        number: How many.
        folders: The number of folders that they lie in; 0 if they lie in none.
        above: The folders that all of them lie in, such as `a/b/`.
        root: The beginning of all names.
    """

    def __init__(
        self, number: int, *, folders: int = 0, above: str = "", root: str = f"{ROOT}/"
    ) -> None:
        self._number = number
        self._in_each = -(-number // folders) if folders else 0
        self._above = f"{root}{above}"

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401  # As a sequence has it.
        if not 0 <= index < self._number:
            raise IndexError(index)
        folder = f"n{index // self._in_each:08d}/" if self._in_each else ""
        return f"{self._above}{folder}{index:012d}.jpg"


class Page(NamedTuple):
    """A page of a listing.

    Attributes:
        objects: Names of objects.
        folders: Common prefixes.
        token: What the next page is asked for with; empty at the end.
    """

    objects: list[str]
    folders: list[str]
    token: str


def make_page(
    names: Sequence[str], *, prefix: str, first: str, end: str, delimiter: str, size: int
) -> Page:
    """Makes a page.

    Args:
        names: All names of the bucket, in order.
        prefix: The beginning of names.
        first: The name at which the page begins.
        end: The name before which the listing ends; empty for all.
        delimiter: What ends the names of folders; empty for the names of all objects.
        size: The most objects and folders on the page.
    """
    index = bisect.bisect_left(names, max(first, prefix))
    stop = bisect.bisect_left(names, f"{prefix}{_LAST}")
    stop = min(stop, bisect.bisect_left(names, end)) if end else stop
    page = Page([], [], "")
    while index < stop:
        name = names[index]
        if len(page.objects) + len(page.folders) == size:
            return page._replace(token=name)
        head, slash, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if slash:
            page.folders.append(f"{prefix}{head}{slash}")
            index = bisect.bisect_left(names, f"{page.folders[-1]}{_LAST}")
        else:
            page.objects.append(name)
            index += 1
    return page


class ListingServer(contextlib.AbstractContextManager["ListingServer"]):
    """The server, in threads of this process, while its context is entered.

    Args:
        names: The names of the only bucket, in order.
        page_size: The most names on a page.

    Attributes:
        requests: The number of requests.
    """

    def __init__(self, names: Sequence[str], *, page_size: int = 1000) -> None:
        self.names = names
        self.page_size = page_size
        self.requests = 0
        self._lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> ListingServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count(self) -> None:
        with self._lock:
            self.requests += 1

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process lists this server's bucket, by `gs://` or `s3://`."""
        return {
            "STORAGE_EMULATOR_HOST": self.host,
            "AWS_ENDPOINT_URL": self.host,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    server_of: ListingServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        parsed = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parsed.query, keep_blank_values=True))
        is_s3 = "list-type" in query
        after = query.get("start-after", "")
        page = make_page(
            self.server_of.names,
            prefix=query.get("prefix", ""),
            first=query.get("continuation-token" if is_s3 else "pageToken")
            or (f"{after}\0" if after else query.get("startOffset", "")),
            end=query.get("endOffset", ""),
            delimiter=query.get("delimiter", ""),
            size=self.server_of.page_size,
        )
        self.server_of.count()
        data = _as_xml(page) if is_s3 else _as_json(page)
        self.send_response(200)
        self.send_header("Content-Type", "application/xml" if is_s3 else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _as_json(page: Page) -> bytes:
    found: dict[str, object] = {
        "items": [
            {"name": name, "size": str(_SIZE_BYTES), "generation": str(_GENERATION)}
            for name in page.objects
        ],
        "prefixes": page.folders,
    }
    if page.token:
        found["nextPageToken"] = page.token
    return json.dumps(found).encode()


def _as_xml(page: Page) -> bytes:
    contents = "".join(
        f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{_GENERATION:032x}&quot;</ETag><Size>{_SIZE_BYTES}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for name in page.objects
    )
    folders = "".join(
        f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in page.folders
    )
    token = f"<NextContinuationToken>{escape(page.token)}</NextContinuationToken>"
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><IsTruncated>{str(bool(page.token)).lower()}</IsTruncated>"
        f"{contents}{folders}{token if page.token else ''}</ListBucketResult>"
    ).encode()
