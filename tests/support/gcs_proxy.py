"""A proxy in front of fake-gcs-server that counts requests, adds faults and enforces preconditions.

fake-gcs-server honours `ifGenerationMatch` only on uploads; the proxy checks it on all other
requests, like the real storage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import json
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from shardbeam.transforms.storage.gcs.client import request_kind

_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
# Longer than any client in the tests waits.
_HANG_S = 3.0
_METADATA = re.compile(rb"\{[^{}]*\"name\"[^{}]*\}")


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that the proxy received.

    Attributes:
        kind: Its kind (`shardbeam.transforms.storage.usage.REQUEST_KINDS`).
        method: Its method.
        path: Its path, decoded.
        query: Its query, decoded.
    """

    kind: str
    method: str
    path: str
    query: dict[str, str]

    @property
    def name(self) -> str:
        """The object's name; empty if the request names none."""
        _, _, name = self.path.partition("/o/")
        return self.query.get("name", name)

    @property
    def is_media(self) -> bool:
        """Whether the request is for an object's content."""
        return self.kind == "get" and self.query.get("alt") == "media"


# The fault of a request: a status such as `503`, or one of the words in `FAULTS`.
Fault = str
STATUSES = ("408", "429", "500", "502", "503", "504")
# closed: the connection ends without an answer. hang: nothing comes. lost: the request is carried
# out, and the answer lost. reset and truncate: it breaks off. corrupt: a byte of it is another.
FAULTS = (*STATUSES, "closed", "hang", "lost", "reset", "truncate", "corrupt")
# Chooses the fault of a request; it may have other effects, too.
Decide = Callable[[Request], Fault | None]


class GcsProxy:
    """The proxy, in threads of this process.

    Attributes:
        requests: The requests it received, in order.
        decide: Chooses the fault of a request; by default there are none.
        meet: Like `decide`, but called for several requests at a time, so that it may wait for
            others.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.decide: Decide | None = None
        self.meet: Decide | None = None
        self.upstream = ("127.0.0.1", 0)
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

            def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
                """Logs nothing: here, connections end in all ways."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counter[str]:
        """Counts the requests since the last reset by kind."""
        return Counter(request.kind for request in self.requests)

    def reset(self) -> None:
        self.requests = []
        self.decide = self.meet = None

    def receive(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            if self.decide is not None:
                return self.decide(request)
        return None if self.meet is None else self.meet(request)


@contextlib.contextmanager
def running_proxy() -> Iterator[GcsProxy]:
    """Runs a proxy while the context is entered."""
    proxy = GcsProxy()
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: GcsProxy
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are two packets, and the second must not wait for the first.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._upstream: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parsed = urllib.parse.urlsplit(self.path)
        request = Request(
            kind=request_kind(self.command, self.path),
            method=self.command,
            path=urllib.parse.unquote(parsed.path),
            query=dict(urllib.parse.parse_qsl(parsed.query, keep_blank_values=True)),
        )
        if request.kind == "insert" and (metadata := _METADATA.search(body)):
            # The metadata come before the content.
            request.query["name"] = json.loads(metadata[0])["name"]
        fault = self.owner.receive(request)
        if fault is not None and fault.isdecimal():
            self._answer(int(fault), {}, json.dumps({"error": {"message": "a fault"}}).encode())
            return
        if fault == "closed":
            self.close_connection = True
            return
        if fault == "hang":
            time.sleep(_HANG_S)
            self.close_connection = True
            return
        failed = self._failed_precondition(request)
        if failed:
            self._answer(412, {}, json.dumps({"error": {"message": failed}}).encode())
            return
        status, headers, data = self._forward(self.command, self.path, body, dict(self.headers))
        if fault == "lost":
            self.close_connection = True
            return
        if request.kind == "list" and status == 200 and "fields" in request.query:
            data = _only_fields(data, request.query["fields"])
        if fault == "corrupt" and data:
            # The first byte, so that JSON is broken.
            middle = 0 if data[:1] in (b"{", b"[") else len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 0x20]) + data[middle + 1 :]
        self._answer(status, headers, data, cut=fault if fault in ("reset", "truncate") else None)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

    def _failed_precondition(self, request: Request) -> str:
        """Checks the preconditions that fake-gcs-server ignores; returns what is wrong."""
        checks = []
        if request.kind in ("get", "delete") and "ifGenerationMatch" in request.query:
            checks.append((request.path, request.query["ifGenerationMatch"]))
        if request.kind == "rewrite":
            source, _, destination = request.path.partition("/rewriteTo")
            if "ifSourceGenerationMatch" in request.query:
                checks.append((source, request.query["ifSourceGenerationMatch"]))
            if "ifGenerationMatch" in request.query:
                checks.append((f"/storage/v1{destination}", request.query["ifGenerationMatch"]))
        for path, expected in checks:
            bucket, _, name = path.partition("/o/")
            quoted = f"{bucket}/o/{urllib.parse.quote(name, safe='')}"
            status, _, data = self._forward("GET", quoted, b"", {"Host": self.headers["Host"]})
            current = json.loads(data)["generation"] if status == 200 else None
            # For a missing source, the server itself answers 404.
            if current is not None and current != expected:
                return f"generation is {current}, expected {expected}"
        return ""

    def _forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        if self._upstream is None:
            self._upstream = http.client.HTTPConnection(*self.owner.upstream, timeout=60)
            self._upstream.connect()
            self._upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.request(method, path, body=body, headers=headers)
        response = self._upstream.getresponse()
        data = response.read()
        return response.status, dict(response.getheaders()), data

    def _answer(
        self, status: int, headers: dict[str, str], data: bytes, *, cut: Fault | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if cut is None:
            self.wfile.write(data)
            return
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        self.close_connection = True
        if cut == "reset":
            # Close without a handshake, so that the other side gets an error at once.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()


def _only_fields(data: bytes, fields: str) -> bytes:
    """Removes unrequested fields from a listing, as the real storage does."""
    wanted = re.fullmatch(r"(?:prefixes,)?items\(([\w,]+)\),nextPageToken", fields)
    assert wanted, fields
    page = json.loads(data)
    names = wanted[1].split(",")
    page["items"] = [{name: item[name] for name in names} for item in page.get("items", [])]
    return json.dumps(page).encode()
