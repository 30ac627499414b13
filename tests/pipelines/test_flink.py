"""What the command says about a job on Flink: a stand-in answers as Flink's REST interface."""

from __future__ import annotations

import http.server
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from shardbeam.pipelines.failures import RunError, explain_failure
from shardbeam.pipelines.runners import flink
from shardbeam.pipelines.runners.options import make_options, name_job

JAVA = (
    "org.apache.flink.runtime.JobException: Recovery is suppressed\n"
    "\tat org.apache.flink.Some.method(Some.java:1)\n"
    "Caused by: java.io.IOException: Insufficient number of network buffers: required 512\n"
)
PYTHON = (
    "java.lang.RuntimeException: Error received from SDK harness: Traceback\n"
    "InputError: a.json: cut off [while running 'ReadAnnotations']\n"
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where the stand-in listens, and `{path: what it answers}`."""
    answered: dict[str, Any] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answered.get(self.path)
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    monkeypatch.setattr(flink, "_POLL_S", 0.01)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", answered
        server.shutdown()
        thread.join()


def test_each_error_of_the_job_is_a_warning_once(
    answers: tuple[str, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    address, answered = answers
    options = make_options({"flink_master": address})
    name_job(options, name="My set")
    name = options.view_as(GoogleCloudOptions).job_name
    assert name.startswith("shardbeam-my-set-2")
    answered["/jobs/overview"] = {
        "jobs": [{"jid": "other", "name": "x"}, {"jid": "j1", "name": name}]
    }
    with caplog.at_level(logging.WARNING), flink.show_failures(options):
        # The interface may fail, and the newest error comes first.
        time.sleep(0.1)
        entries = [{"stacktrace": PYTHON}, {"stacktrace": JAVA}, {"stacktrace": JAVA}]
        answered["/jobs/j1/exceptions"] = {"exceptionHistory": {"entries": entries}}
        deadline = time.monotonic() + 20
        while len(caplog.records) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
    assert [record.getMessage() for record in caplog.records] == [
        "the job fails on the cluster, which may try again: java.io.IOException: Insufficient "
        "number of network buffers: required 512",
        "the job fails on the cluster, which may try again: a.json: cut off",
    ]


def test_without_an_address_nothing_is_asked() -> None:
    before = threading.active_count()
    with flink.show_failures(make_options({"flink_master": "[local]"})):
        assert threading.active_count() == before


def test_a_name_of_the_job_is_kept() -> None:
    options = make_options({"job_name": "mine"})
    name_job(options, name="coco")
    assert options.view_as(GoogleCloudOptions).job_name == "mine"


@pytest.mark.parametrize(
    "text",
    [
        "Pipeline job_1 failed in state CANCELLED: unknown error",
        "Pipeline job_1 failed in state FAILED: org.apache.flink.runtime.client."
        "JobCancellationException: Job was cancelled.",
    ],
)
def test_a_cancelled_job_says_what_to_do(text: str) -> None:
    explained = explain_failure(RuntimeError(text))
    assert isinstance(explained, RunError)
    assert str(explained) == (
        "the job was cancelled on its cluster; run the same command again, a build keeps its "
        "finished shards"
    )
