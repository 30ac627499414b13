"""Beam's runners: their flags, the local runner, workers' images, and requests to storage."""

from __future__ import annotations

import argparse
import datetime
import logging
import re
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import apache_beam
import grpc
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle, PortableRunner
from apache_beam.runners.runner import PipelineRunner, create_runner

from shardbeam.configs.problem import did_you_mean
from shardbeam.pipelines.failures import NotStartedError, RunError, UsageError, was_interrupted
from shardbeam.transforms.beam.stages import REQUESTS, USAGE_COUNTERS, USAGE_NAMESPACE
from shardbeam.transforms.storage.usage import StorageUsage, usage_counter

DATAFLOW_RUNNER = "DataflowRunner"
# Jobs of these runners may go on without the command.
CLUSTER_RUNNERS = ("FlinkRunner", "PortableRunner")
# Seconds to wait for a runner's answer, and for each read of a download.
ANSWER_S = 5
HOST_PORT = re.compile(r"(?:https?://)?(?P<host>[^/:\[\]]+):(?P<port>\d+)/?")
# {runner: the flag that names the file that Beam would download}
_LOCAL_FILES = {
    "PrismRunner": "--prism_location",
    "FlinkRunner": "--flink_job_server_jar",
}

_log = logging.getLogger(__name__)

_OptionsT = TypeVar("_OptionsT", bound=PipelineOptions)
# {options: {class: their view as this class}}
_views: WeakKeyDictionary[PipelineOptions, dict[type, Any]] = WeakKeyDictionary()

_TEST_FLAG = "is for Beam's own tests"
_STREAMING_FLAG = "is for streaming jobs, and a build is a batch job"
# {flag that would break a build or means nothing to it: why}
REFUSED_FLAGS = {
    "--dry_run": f"{_TEST_FLAG}; `shardbeam plan` shows what a build would do",
    "--on_success_matcher": _TEST_FLAG,
    "--wait_until_finish_duration": _TEST_FLAG,
    "--pubsub_root_url": _TEST_FLAG,
    "--direct_test_splits": _TEST_FLAG,
    "--direct_runner_bundle_repeat": _TEST_FLAG,
    "--streaming": _STREAMING_FLAG,
    "--update": _STREAMING_FLAG,
    "--update_compatibility_version": _STREAMING_FLAG,
    "--transform_name_mapping": _STREAMING_FLAG,
    "--create_from_snapshot": _STREAMING_FLAG,
    "--enable_streaming_engine": _STREAMING_FLAG,
    "--no_wait_until_finish": "would end the command before the build, whose result it reports",
    "--output_executable_path": "would make a jar and build nothing",
    "--save_main_session": "is not needed, as all code lies in installed modules",
}
# Runners on which builds were tried.
_RUNNERS = (
    *("DirectRunner", "FnApiRunner", "PrismRunner"),
    *("FlinkRunner", "PortableRunner", DATAFLOW_RUNNER),
)
# The version of Flink that the tests run.
FLINK_VERSION = "1.19"
# Runners that Beam's list of runners lacks.
_OTHER_RUNNERS = ("DaskRunner", "RayRunner", "RayFnApiRunner")
# {running mode of Beam's local runner: why it is not used}
_REFUSED_MODES = {
    "multi_processing": "a build hangs when one of Beam's worker processes is killed",
    "multi_threading": "Beam loses elements between its threads",
}
_BEAM_IMAGE = re.compile(r"(?:^|/)beam_python(?P<python>3\.\d+)_sdk:(?P<beam>\d+\.\d+\.\d+)")


class _Options(PipelineOptions):
    """Beam's options, with each view of them made once.

    Beam asks for a view about 500 times while it makes and runs the graph of a build, and parses
    flags each time: a third of the CPU time of a small build. All views share one dictionary of
    values.
    """

    def view_as(self, cls: type[_OptionsT]) -> _OptionsT:
        views = _views.setdefault(self, {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        view: _OptionsT = views[cls]
        return view


def make_options(given: Mapping[str, Any] | None = None) -> PipelineOptions:
    """Makes Beam's options from keyword arguments of `PipelineOptions`."""
    # Without an empty list of flags Beam would read the program's own command line.
    return _Options([], **(given or {}))


class LocalRunner(fn_runner.FnApiRunner):
    """Beam's in-process FnApiRunner, which needs nothing but pip.

    Beam's own `DirectRunner` first tries to download a Prism binary. Prism is used only by its own
    name.

    Args:
        options: The pipeline's options. Without them, steps would see no options.
    """

    def __init__(self, *, options: PipelineOptions) -> None:
        encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
        provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        super().__init__(provision_info=fn_runner.ExtendedProvisionInfo(provision))


def make_runner(options: PipelineOptions) -> PipelineRunner:
    """Makes the runner that the options name; no name and `DirectRunner` mean the local one.

    Raises:
        UsageError: The runner cannot be loaded.
    """
    name = options.view_as(StandardOptions).runner
    if name in (None, "DirectRunner"):
        return LocalRunner(options=options)
    try:
        runner = create_runner(name)
    except Exception as error:  # A full name may be that of any module, which runs when imported.
        # Imported here: no build on disk needs it.
        from shardbeam.transforms.storage.failures import one_line

        raise UsageError(
            f"--runner={name} cannot be loaded: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not isinstance(runner, PipelineRunner):
        raise UsageError(f"--runner={name} is not a runner of Beam")
    return runner


def check_runner(options: PipelineOptions) -> None:
    """Checks that the job server and the Flink master of the options answer.

    It warns if a cluster would use one process of Python on each machine.

    Raises:
        NotStartedError: One of them does not answer.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint and HOST_PORT.fullmatch(endpoint):
        with grpc.insecure_channel(endpoint) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
            except grpc.FutureTimeoutError:
                raise NotStartedError(
                    f"--job_endpoint: no job server answers at {endpoint}; start one there first"
                ) from None
    runner = options.view_as(StandardOptions).runner
    master = HOST_PORT.fullmatch(options.view_as(FlinkRunnerOptions).flink_master or "")
    if runner == "FlinkRunner" and master and not endpoint:
        try:
            with socket.create_connection((master["host"], int(master["port"])), ANSWER_S):
                pass
        except OSError as error:
            raise NotStartedError(
                f"--flink_master: no Flink answers at {master[0]} ({error}); start it there first"
            ) from error
    if runner not in CLUSTER_RUNNERS:
        return
    if "sdk_worker_parallelism" not in options.get_all_options(drop_default=True):
        _log.warning(
            "each machine of the cluster starts one Python worker, however many tasks run there; "
            "--sdk_worker_parallelism=N starts N of them (docs/guide/runners.md)"
        )


def name_job(options: PipelineOptions, *, name: str) -> None:
    """Names a job by its purpose and its start, unless the options name it.

    Dataflow allows small letters, digits and dashes.
    """
    google = options.view_as(GoogleCloudOptions)
    if not google.job_name:
        name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        google.job_name = f"shardbeam-{name}-{now:%Y%m%d-%H%M%S}"


def submit(pipeline: apache_beam.Pipeline, *, runner: PipelineRunner) -> Any:  # noqa: ANN401  # Each runner has its own class of results.
    """Hands a pipeline to its runner; a runner in this process also waits for its end.

    Raises:
        NotStartedError: The runner's own process cannot be started, for example without a network.
        RunError: Its job server stopped answering.
    """
    if not isinstance(runner, PortableRunner):
        return pipeline.run()
    name = type(runner).__name__
    timeout_s = socket.getdefaulttimeout()
    # If the network never answers, Beam's downloads would wait for minutes.
    socket.setdefaulttimeout(ANSWER_S)
    try:
        return pipeline.run()
    except grpc.RpcError as error:
        raise RunError(f"--runner={name}: its job server stopped answering: {error}") from error
    except (RuntimeError, NotImplementedError, OSError, ValueError) as error:
        flag = _LOCAL_FILES.get(name)
        hint = f"; without a network, give the file with {flag}" if flag else ""
        text = str(error).rstrip(".")
        raise NotStartedError(f"--runner={name} cannot be started: {text}{hint}") from error
    finally:
        socket.setdefaulttimeout(timeout_s)


def run_here(pipeline: apache_beam.Pipeline) -> Any:  # noqa: ANN401  # Each runner has its own class of results.
    """Runs a pipeline in this process.

    Raises:
        KeyboardInterrupt: The run was interrupted, and has ended.
    """
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except Exception as error:
        if was_interrupted(error):
            raise KeyboardInterrupt from error
        raise
    return result


def beam_parser() -> argparse.ArgumentParser:
    """Makes a parser with all options of Beam's `PipelineOptions`."""
    parsers: list[argparse.ArgumentParser] = []
    make_options().get_all_options(add_extra_args_fn=parsers.append)
    return parsers[0]


def read_options(
    runner: str | None, options: PipelineOptions | Mapping[str, Any] | None
) -> PipelineOptions:
    """Makes the options of a build from those that a program gives.

    Args:
        runner: Name of the runner; None for the one that `options` name, or the local one.
        options: Beam's options: `{name: value}`, or an object of Beam's.

    Raises:
        UsageError: An option is unknown or refused, there is no such runner, or both arguments
            name one.
    """
    if isinstance(options, PipelineOptions):
        options = options.get_all_options(drop_default=True)
    given = dict(options or {})
    known = {action.dest: action.option_strings for action in beam_parser()._actions}
    for name in given:
        if name not in known:
            raise UsageError(f"options: unknown option {name!r}{did_you_mean(name, known)}")
        for flag in known[name]:
            if flag in REFUSED_FLAGS:
                raise UsageError(f"options: {name} is refused: it {REFUSED_FLAGS[flag]}")
    if runner is not None:
        if given.get("runner") not in (None, runner):
            raise UsageError(f"options: name {given['runner']!r}, and runner is {runner!r}")
        given["runner"] = runner
    return make_options(check_beam_options(given))


def check_beam_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checks keyword arguments of `PipelineOptions`, and spells the runner as its class.

    On one machine, Flink without a version is the one that is tested.

    Raises:
        UsageError: There is no such runner, it is refused, or a mode of the local runner is.
    """
    checked = dict(options)
    if "runner" in checked:
        checked["runner"] = _runner_name(checked["runner"])
    if checked.get("num_workers") and checked.get("runner") in (None, "DirectRunner"):
        _log.warning(
            "--num_workers is for Dataflow, and changes nothing on this machine; --processes=N "
            "writes shards in N processes"
        )
    on_one_machine = checked.get("flink_master", MAGIC_HOST_NAMES[0]) in MAGIC_HOST_NAMES
    if checked.get("runner") == "FlinkRunner" and on_one_machine:
        # Beam would ask for the job server of its newest Flink. A cluster has a version of its own.
        checked.setdefault("flink_version", FLINK_VERSION)
    mode = checked.get("direct_running_mode")
    if mode in _REFUSED_MODES:
        raise UsageError(
            f"--direct_running_mode={mode} is refused: {_REFUSED_MODES[mode]}; --processes=N "
            "writes shards in N processes"
        )
    return checked


def _runner_name(name: str) -> str:
    """Spells a runner's name as its class; Beam also takes `direct` or `directrunner`."""
    names = {*StandardOptions.KNOWN_RUNNER_NAMES, *_RUNNERS, *_OTHER_RUNNERS}
    known = {_stem(runner): runner for runner in names}
    # A full name, `package.module.Class`, may be that of any runner.
    found = known.get(_stem(name.rpartition(".")[2]))
    if found == "SparkRunner":
        raise UsageError(
            f"--runner={found} is refused: start Beam's job server for Spark, and give "
            "--runner=PortableRunner --job_endpoint=HOST:8099 (docs/guide/runners.md#spark)"
        )
    if found is not None and found not in _RUNNERS:
        raise UsageError(
            f"--runner={found} is refused: no build was ever tried on it; choose one of "
            f"{', '.join(_RUNNERS)} (docs/guide/runners.md)"
        )
    if found is not None and ("." not in name or name in StandardOptions.ALL_KNOWN_RUNNERS):
        return found
    if "." in name:
        return name
    # All names end in the same word, which would make them alike.
    usable = {_stem(runner): runner for runner in _RUNNERS}
    hint = did_you_mean(_stem(name), usable, show=usable.__getitem__)
    hint = hint or f"; known: {', '.join(_RUNNERS)}"
    raise UsageError(f"--runner: unknown runner {name!r}{hint}")


def _stem(name: str) -> str:
    return name.lower().removesuffix("runner")


class Versions(NamedTuple):
    """Versions that workers need to unpickle what this program pickles; Python's is major.minor."""

    python: str
    beam: str


def own_versions() -> Versions:
    """Returns the versions of this program."""
    return Versions(python="{}.{}".format(*sys.version_info), beam=apache_beam.__version__)


def check_image(image: str) -> None:
    """Refuses an image of Beam's own whose name shows another Python or Beam.

    It does not look into other images.

    Raises:
        UsageError: The versions differ.
    """
    named = _BEAM_IMAGE.search(image)
    own = own_versions()
    if named is not None and Versions(**named.groupdict()) != own:
        raise UsageError(
            f"--sdk_container_image: {image} has Python {named['python']} and Beam "
            f"{named['beam']}, and this program runs on Python {own.python} and Beam {own.beam}; "
            "they must be the same"
        )


class UsageMeter:
    """Adds up the requests to object storage since it was made."""

    def __init__(self) -> None:
        self._before = usage_counter.total()
        self._taken_before = usage_counter.taken()
        self._elsewhere = StorageUsage()

    def add_result(self, result: Any) -> None:  # noqa: ANN401  # Each runner has its own class of results.
        """Adds what the workers of a pipeline have reported, in whichever process they ran."""
        try:
            reported = _reported(result)
        except Exception:  # noqa: BLE001  # Not every runner has metrics, none is worth a run.
            _log.debug("the runner reports no metrics", exc_info=True)
            return
        here = usage_counter.taken() - self._taken_before
        # The requests of this process are counted already.
        elsewhere = reported - here
        if all(count >= 0 for count in elsewhere.requests.values()):
            self._elsewhere = elsewhere

    def usage(self) -> StorageUsage:
        """Returns all requests so far; without those of workers whose run has failed."""
        return usage_counter.total() - self._before + self._elsewhere


def _reported(result: Any) -> StorageUsage:  # noqa: ANN401  # As above.
    counters = result.metrics().query(MetricsFilter().with_namespace(USAGE_NAMESPACE))["counters"]
    # Each step has a counter of this name.
    values: Counter[str] = Counter()
    for counter in counters:
        values[counter.key.metric.name] += counter.result or 0
    fields = {field: values.pop(name, 0) for field, name in USAGE_COUNTERS.items()}
    return StorageUsage(
        **fields,
        requests={name.removeprefix(REQUESTS): count for name, count in values.items()},
    )
