"""Beam's job server for Spark on this machine, with Spark inside of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest
from apache_beam.runners.portability.spark_runner import SPARK_JAR_JOB_SERVER_JVM_ARGS

from tests.runners.flink import TIMEOUT_S, free_port, write_worker
from tests.runners.tools import TOOLS, find_tool

_HOST = "127.0.0.1"
_MAIN = "org.apache.beam.runners.spark.SparkJobServerDriver"


@contextlib.contextmanager
def spark_job_server(folder: Path) -> Iterator[str]:
    """Runs a job server whose files are in `folder`; skips the test where it cannot be had.

    Yields:
        Where it listens, `HOST:PORT`.
    """
    find_tool("java")
    jars = TOOLS / "spark"
    if not jars.is_dir():
        pytest.skip("Spark's jars are not here; `make runner-tools` gets them")
    port = free_port()
    log = folder / "job-server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                *("java", "-Xmx600m", f"-Djava.io.tmpdir={folder}", *SPARK_JAR_JOB_SERVER_JVM_ARGS),
                *("-cp", f"{jars}/*", _MAIN, "--spark-master-url", "local[2]"),
                *("--job-host", _HOST, "--job-port", str(port)),
                *("--artifact-port", "0", "--expansion-port", "0"),
                *("--artifacts-dir", str(folder / "artifacts")),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with grpc.insecure_channel(f"{_HOST}:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=TIMEOUT_S)
        yield f"{_HOST}:{port}"
    finally:
        # Its Python workers are in its group.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def spark_flags(endpoint: str, *, folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns flags that send a build to a job server.

    Args:
        endpoint: Where it listens.
        folder: For the program that starts workers.
        environment: Variables that workers have beyond the job server's.
    """
    (folder / "tmp").mkdir()
    command = {"command": str(write_worker(folder)), "env": dict(environment)}
    return (
        "--runner=PortableRunner",
        f"--job_endpoint={endpoint}",
        "--environment_type=PROCESS",
        f"--environment_config={json.dumps(command)}",
        # Without this, each stage starts Python workers of its own.
        "--environment_cache_millis=30000",
        "--sdk_worker_parallelism=2",
    )
