"""A stand-in of Dataflow's REST interface on loopback, as far as submitting and following go.

https://cloud.google.com/dataflow/docs/reference/rest
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2

from shardbeam.pipelines.runners.options import LocalRunner
from tests.support.gcs_server import FakeGcs

Json = dict[str, Any]

PROJECT = "pictures-project"
REGION = "us-central1"
JOB_ID = "2026-01-02_03_04_05-678"

_JOBS = re.compile(
    rf"/v1b3/projects/{PROJECT}/locations/{REGION}/jobs(?:/([^/?]+)(?:/(messages|metrics))?)?"
    r"(?:\?(?P<query>.*))?"
)


def run_staged(job: Json, *, gcs: FakeGcs) -> None:
    """Runs the very pipeline that was staged for a job, in this process.

    Raises:
        Exception: It failed.
    """
    staged = gcs.read(job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"])
    proto = beam_runner_api_pb2.Pipeline.FromString(staged)
    for environment in proto.components.environments.values():
        # The stand-in for a Dataflow container.
        environment.urn = python_urns.EMBEDDED_PYTHON
        environment.payload = b""
        del environment.dependencies[:]
    options = PipelineOptions([])
    runner = LocalRunner(options=options)
    beam.Pipeline.from_runner_api(proto, runner, options).run().wait_until_finish()


class DataflowService:
    """One job at a time, in states that the test decides.

    Attributes:
        job: The job as it was submitted; None before.
        requested: The states that were asked for, such as `JOB_STATE_CANCELLED`.
        states: The states that it goes through, one a request; the last stays.
        errors: The error messages that it has.
        lost: Whether the service does not know the job any more.
        refusal: What to answer to a submission instead: an HTTP status and a message.
        on_submit: Called with the job as soon as it is submitted.
        denial: What to answer to any question instead: an HTTP status and a message.
    """

    def __init__(self) -> None:
        self.job: Json | None = None
        self.requested: list[str] = []
        self.states: Sequence[str] = ("JOB_STATE_DONE",)
        self.errors: Sequence[str] = ()
        self.lost = False
        self.refusal: tuple[int, str] | None = None
        self.on_submit: Callable[[Json], None] = lambda job: None
        self.denial: tuple[int, str] | None = None

    def flags(self, *, port: int) -> tuple[str, ...]:
        """The flags of a build that submits its job here."""
        return (
            "--runner=DataflowRunner",
            f"--project={PROJECT}",
            f"--region={REGION}",
            f"--dataflow_endpoint=http://localhost:{port}",
            "--no_auth",
        )

    def run_jobs(self, *, gcs: FakeGcs) -> None:
        """Makes the service run what is staged, as Dataflow would."""

        def run(job: Json) -> None:
            try:
                run_staged(job, gcs=gcs)
            except Exception:  # noqa: BLE001  # Whatever it is, it is the job's.
                self.errors = [traceback.format_exc()]
                self.states = ["JOB_STATE_FAILED"]
            else:
                self.states = ["JOB_STATE_DONE"]

        def start(job: Json) -> None:
            self.states = ["JOB_STATE_RUNNING"]
            threading.Thread(target=run, args=(job,), daemon=True).start()

        self.on_submit = start

    def submit(self, job: Json) -> Json:
        self.job = job
        self.on_submit(job)
        return {"id": JOB_ID, "name": job["name"], "clientRequestId": job["clientRequestId"]}

    def describe(self) -> Json:
        state, *rest = self.states
        if rest:
            self.states = rest
        return {"id": JOB_ID, "currentState": state}

    def answer(self, what: str | None) -> Json:
        if what == "metrics":
            return {"metrics": []}
        return self.messages() if what == "messages" else self.describe()

    def messages(self) -> Json:
        return {
            "jobMessages": [
                {"messageText": text, "messageImportance": "JOB_MESSAGE_ERROR"}
                for text in self.errors
            ]
        }


def _handler(service: DataflowService) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if service.refusal is not None:
                self._answer(*_error(*service.refusal))
            else:
                self._answer(200, service.submit(body))

        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            service.requested.append(body["requestedState"])
            self._answer(200, {"id": JOB_ID})

        def do_GET(self) -> None:
            found = _JOBS.fullmatch(self.path)
            if service.denial is not None:
                self._answer(*_error(*service.denial))
            elif found is None or found[1] != JOB_ID or service.lost:
                self._answer(*_error(404, "no such job"))
            else:
                self._answer(200, service.answer(found[2]))

        def _answer(self, status: int, value: Mapping[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    return Handler


def _error(status: int, message: str) -> tuple[int, Json]:
    return status, {"error": {"code": status, "message": message}}


@contextlib.contextmanager
def dataflow_service() -> Iterator[tuple[DataflowService, tuple[str, ...]]]:
    """Runs a service while the context is entered.

    Yields:
        The service, and the flags of a build that submits its job to it.
    """
    service = DataflowService()
    server = http.server.ThreadingHTTPServer(("localhost", 0), _handler(service))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service, service.flags(port=server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
