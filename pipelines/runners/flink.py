"""Shows why a job on a Flink cluster fails while Flink starts it again and again.

Beam's job server reports an error only after the last attempt.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
)

from shardbeam.pipelines.failures import find_cause
from shardbeam.pipelines.runners.options import ANSWER_S, HOST_PORT

_log = logging.getLogger(__name__)

_POLL_S = 5.0
_MAX_BYTES = 50_000_000


@contextlib.contextmanager
def show_failures(options: PipelineOptions) -> Iterator[None]:
    """Warns of each new reason why the options' job fails, while the context is entered.

    It asks Flink's REST interface at `--flink_master`; if there is none, it does nothing.
    """
    master = HOST_PORT.fullmatch(options.view_as(FlinkRunnerOptions).flink_master or "")
    if master is None:
        yield
        return
    over = threading.Event()
    name = str(options.view_as(GoogleCloudOptions).job_name)
    address = f"http://{master['host']}:{master['port']}"
    thread = threading.Thread(target=_show, args=(address, name, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(ANSWER_S)


def _show(address: str, name: str, over: threading.Event) -> None:
    shown: set[str] = set()
    while not over.wait(_POLL_S):
        # The job itself does not need this interface.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            for cause in _list_causes(address, name):
                if cause not in shown:
                    shown.add(cause)
                    _log.warning("the job fails on the cluster, which may try again: %s", cause)


def _list_causes(address: str, name: str) -> Iterator[str]:
    """Yields why a job has failed so far, the first reason first.

    https://nightlies.apache.org/flink/flink-docs-release-1.19/docs/ops/rest_api/
    """
    for job in _get(f"{address}/jobs/overview")["jobs"]:
        if job["name"] == name:
            history = _get(f"{address}/jobs/{job['jid']}/exceptions")["exceptionHistory"]
            for entry in reversed(history["entries"]):
                yield find_cause(entry["stacktrace"])


def _get(url: str) -> Any:  # noqa: ANN401  # JSON.
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        return json.loads(answer.read(_MAX_BYTES))
