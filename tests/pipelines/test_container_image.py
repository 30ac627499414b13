"""What an image's registry tells of its versions, asked of a registry on loopback."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shardbeam.pipelines import container_image
from shardbeam.pipelines.container_image import Versions, check_image, own_versions, read_versions
from shardbeam.pipelines.flags import UsageError

LABELS = {"shardbeam.python": "3.10", "shardbeam.beam": "2.70.0"}
INDEX = {
    "manifests": [
        {"digest": "sha256:arm", "platform": {"architecture": "arm64"}},
        {"digest": "sha256:amd", "platform": {"architecture": "amd64"}},
    ]
}


def answers(labels: dict[str, str] | None) -> dict[str, Any]:
    """What a registry holds: an image for several machines, and one for one."""
    manifest = {"config": {"digest": "sha256:config"}}
    return {
        "/v2/team/shardbeam/manifests/latest": INDEX,
        "/v2/team/shardbeam/manifests/sha256:amd": manifest,
        "/v2/team/shardbeam/manifests/1.0": manifest,
        "/v2/team/shardbeam/blobs/sha256:config": {"config": {"Labels": labels}},
    }


@contextlib.contextmanager
def registry(values: dict[str, Any], *, token: str | None = None) -> Iterator[str]:
    """Runs a registry, which may want a token; gives its host."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers["Host"]
            if self.path.startswith("/token?"):
                self._answer(200, {"token": token})
            elif token and self.headers.get("Authorization") != f"Bearer {token}":
                challenge = f'Bearer realm="http://{host}/token",service="it",scope="pull"'
                self._answer(401, {}, challenge=challenge)
            elif self.path in values:
                self._answer(200, values[self.path])
            else:
                self._answer(404, {})

        def _answer(self, status: int, value: object, *, challenge: str = "") -> None:
            self.send_response(status)
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize("tag", ["", ":1.0", ":latest", "@sha256:amd", ":1.0@sha256:amd"])
def test_labels(tag: str, token: str | None) -> None:
    with registry(answers(LABELS), token=token) as host:
        assert read_versions(f"{host}/team/shardbeam{tag}") == Versions("3.10", "2.70.0")


def test_other_versions_are_refused() -> None:
    with registry(answers(LABELS)) as host, pytest.raises(UsageError) as caught:
        check_image(f"{host}/team/shardbeam")
    own = own_versions()
    assert str(caught.value) == (
        f"--sdk_container_image: {host}/team/shardbeam has Python 3.10 and Beam 2.70.0, and this "
        f"program runs on Python {own.python} and Beam {own.beam}; they must be the same"
    )


def test_the_same_versions_pass(caplog: pytest.LogCaptureFixture) -> None:
    python, beam = own_versions()
    labels = {container_image.PYTHON_LABEL: python, container_image.BEAM_LABEL: beam}
    with registry(answers(labels)) as host:
        check_image(f"{host}/team/shardbeam")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "labels", "reason"),
    [
        ("team/shardbeam", None, "no labels"),
        ("team/shardbeam", {"shardbeam.python": "3.10"}, "no labels"),
        ("team/other", LABELS, "404"),
    ],
)
def test_an_image_that_does_not_tell(
    name: str, labels: dict[str, str] | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with registry(answers(labels)) as host:
        check_image(f"{host}/{name}")
    (record,) = caplog.records
    assert "its versions cannot be read" in record.getMessage()
    assert reason in record.getMessage()


def test_a_name_without_a_registry(caplog: pytest.LogCaptureFixture) -> None:
    check_image("shardbeam")
    assert "without a registry" in caplog.text


@pytest.mark.parametrize("prefix", ["", "docker.io/", "example.com/mirror/"])
def test_names_of_beams_own_images(prefix: str) -> None:
    image = f"{prefix}apache/beam_python3.12_sdk:2.77.0"
    assert read_versions(image) == Versions("3.12", "2.77.0")
