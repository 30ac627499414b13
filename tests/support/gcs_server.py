"""Starts fake-gcs-server on loopback for the tests, and stops it.

`go install github.com/fsouza/fake-gcs-server@v1.56.1` installs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.dataset import Tree, dataset_files
from tests.support.gcs_proxy import GcsProxy, running_proxy

VARIABLE = "SHARDBEAM_FAKE_GCS_SERVER"
NAME = "fake-gcs-server"
# The folder in which `.ci/run` installs it.
TOOLS = Path(__file__).parents[2] / ".tools" / "bin"
_START_TIMEOUT_S = 30.0
# Another process may take a free port before the server listens there.
_ATTEMPTS = 3
_PR_SET_PDEATHSIG = 1


def find_server() -> str | None:
    """Finds the program by the environment variable, on PATH, or in Go's folder."""
    return (
        os.environ.get(VARIABLE)
        or shutil.which(NAME)
        or shutil.which(NAME, path=f"{TOOLS}{os.pathsep}{Path.home() / 'go' / 'bin'}")
    )


class FakeGcs:
    """A server that tests fill and read without the proxy, so that these requests do not count.

    Args:
        server_port: The server's port.
        public_port: The port at which clients see it.
    """

    def __init__(self, *, server_port: int, public_port: int) -> None:
        self._server = f"http://127.0.0.1:{server_port}"
        self._public = f"127.0.0.1:{public_port}"

    def make_bucket(self, bucket: str) -> str:
        """Makes a bucket; returns its URI."""
        self._call("POST", "/storage/v1/b?project=test", json.dumps({"name": bucket}).encode())
        return f"gs://{bucket}"

    def write(self, uri: str, data: bytes) -> None:
        bucket, name = _split(uri)
        quoted = urllib.parse.quote(name, safe="")
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quoted}"
        self._call("POST", path, data)

    def write_tree(self, root: str, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            self.write(f"{root}/{path}", data)

    def write_folder(self, root: str, folder: Path) -> None:
        """Copies a folder."""
        self.write_tree(
            root,
            {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            },
        )

    def read(self, uri: str) -> bytes:
        bucket, name = _split(uri)
        quoted = urllib.parse.quote(name, safe="")
        return self._call("GET", f"/storage/v1/b/{bucket}/o/{quoted}?alt=media")

    def delete(self, uri: str) -> None:
        bucket, name = _split(uri)
        self._call("DELETE", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}")

    def names(self, root: str) -> list[str]:
        """Names of the objects below a root, relative to it."""
        bucket, prefix = _split(f"{root}/")
        names: list[str] = []
        token = ""
        while True:
            query = urllib.parse.urlencode({"prefix": prefix, "pageToken": token})
            page = json.loads(self._call("GET", f"/storage/v1/b/{bucket}/o?{query}"))
            names += [item["name"].removeprefix(prefix) for item in page.get("items", [])]
            token = page.get("nextPageToken", "")
            if not token:
                return names

    def read_tree(self, root: str) -> dict[str, bytes]:
        """Reads all objects below a root."""
        return {name: self.read(f"{root}/{name}") for name in self.names(root)}

    def read_dataset(self, root: str) -> Tree:
        """Reads the files that must be equal in every run, and checks that staging is empty."""
        tree = self.read_tree(root)
        assert not [path for path in tree if path.startswith(".staging")]
        return dataset_files(tree)

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self._server}{path}", data=body, method=method)
        # The server only accepts requests for the host name that it was started with.
        request.add_header("Host", self._public)
        with urllib.request.urlopen(request, timeout=60) as response:
            data: bytes = response.read()
            return data


def _split(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


class ProxiedGcs(FakeGcs):
    """A server with a proxy in front of it.

    Attributes:
        proxy: The proxy, which clients talk to.
    """

    def __init__(self, *, proxy: GcsProxy, server_port: int) -> None:
        super().__init__(server_port=server_port, public_port=proxy.port)
        self.proxy = proxy


@contextlib.contextmanager
def running_server(program: str) -> Iterator[ProxiedGcs]:
    """Runs a server and a proxy while the context is entered."""
    with running_proxy() as proxy, start_server(program, public_port=proxy.port) as port:
        proxy.upstream = ("127.0.0.1", port)
        yield ProxiedGcs(proxy=proxy, server_port=port)


@contextlib.contextmanager
def start_server(program: str, *, public_port: int) -> Iterator[int]:
    """Runs a server while the context is entered.

    Args:
        program: The server's program.
        public_port: The port that clients use, for the addresses in its answers.

    Yields:
        The server's own port.
    """
    public = f"127.0.0.1:{public_port}"
    for _ in range(_ATTEMPTS):
        port = _free_port()
        process = subprocess.Popen(
            [
                *(program, "-backend", "memory", "-scheme", "http", "-log-level", "error"),
                *("-host", "127.0.0.1", "-port", str(port)),
                *("-public-host", public, "-external-url", f"http://{public}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,
        )
        try:
            if _listens(process, port=port):
                yield port
                return
        finally:
            process.kill()
            process.wait()
    raise RuntimeError(f"{program} does not start")


def _listens(process: subprocess.Popen[bytes], *, port: int) -> bool:
    """Waits until a server listens; returns False if it ends or takes too long."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.02)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_with_parent() -> None:
    # Also if the tests themselves are killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
