"""The default runner: Beam's in-process FnApiRunner, which needs nothing but pip.

Beam's own `DirectRunner` first tries to download a Prism binary; Prism is used by its own name
only.
"""

from __future__ import annotations

import contextlib
import shlex
import threading

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_provision_api_pb2, beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.runners.runner import PipelineRunner, create_runner
from apache_beam.runners.worker import sdk_worker
from apache_beam.utils.sentinel import Sentinel

from shardbeam.pipelines.brisk_beam import brisk_beam
from shardbeam.transforms.core.process import python_command

# What a worker process runs. It ends when the program does, even if that is killed. And it prints
# nothing: an error's text reaches the program all the same.
_WORKER = """\
import os, threading, time
def end_with(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
sys.stderr = open(os.devnull, "w")
import runpy
runpy.run_module("apache_beam.runners.worker.sdk_worker_main", run_name="__main__")
"""


def _print_nothing(*values: object, **options: object) -> None:
    del values, options


# What a worker thread prints are tracebacks of errors that it logs and reports as well.
vars(sdk_worker)["print"] = _print_nothing


@worker_handlers.WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)
class _WorkerProcess(worker_handlers.SubprocessSdkWorkerHandler):
    """A worker process that nobody waits for in vain.

    Where a run ends before the worker has connected, Beam does not tell the worker to end, and
    waits for it; where a worker dies before it has connected, Beam waits for its answer.
    """

    def start_worker(self) -> None:
        super().start_worker()
        threading.Thread(target=self._end_with_process, name="worker", daemon=True).start()

    def _end_with_process(self) -> None:
        self.worker_thread.join()
        # The connection's own error, which whoever waits at its other end gets, too.
        with contextlib.suppress(grpc.RpcError):
            self.data_conn.close()

    def stop_worker(self) -> None:
        self.control_conn.push(Sentinel.sentinel)
        super().stop_worker()


class LocalRunner(fn_runner.FnApiRunner):
    """Runs a pipeline in this process, or in processes of this machine.

    `--direct_running_mode` and `--direct_num_workers` say how, as with Beam's DirectRunner.
    """

    def __init__(self, *, options: PipelineOptions) -> None:
        # Without them the workers would see no options at all.
        encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
        super().__init__(
            provision_info=fn_runner.ExtendedProvisionInfo(
                beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
            )
        )

    def run_pipeline(
        self, pipeline: beam.Pipeline, options: PipelineOptions
    ) -> fn_runner.RunnerResult:
        """Runs a pipeline to its end."""
        mode = options.view_as(DirectOptions).direct_running_mode
        with brisk_beam(in_memory=mode != "multi_processing"):
            return super().run_pipeline(pipeline, options)

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> fn_runner.RunnerResult:
        """Starts worker processes so that they import what this process imports."""
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                environment.payload = _worker_command().encode()
        return super().run_via_runner_api(pipeline_proto, options)


def _worker_command() -> str:
    # Signals that a terminal sends to all processes are for the program alone. And with `exec`, no
    # shell stands between the worker and the program.
    return f"trap '' INT TERM; exec {shlex.join(python_command(_WORKER))}"


def make_runner(options: PipelineOptions) -> PipelineRunner:
    """Makes the runner that the options name; in-process without a name or as `DirectRunner`."""
    name = options.view_as(StandardOptions).runner
    if name in (None, "DirectRunner"):
        return LocalRunner(options=options)
    return create_runner(name)
