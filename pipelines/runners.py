"""Beam's runners: the flags that choose and set one, and the one that runs without any."""

from __future__ import annotations

import argparse
from collections.abc import Container
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.runners.runner import PipelineRunner, create_runner

from shardbeam.configs.nearest import suggest
from shardbeam.pipelines.flags import FlagParser, UsageError

_TEST_FLAG = "is for Beam's own tests"
_STREAMING_FLAG = "is for streaming jobs, and a build is a batch job"
# {flag that would break a build, or has no meaning in it: why}
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


class LocalRunner(fn_runner.FnApiRunner):
    """Beam's in-process FnApiRunner, which needs nothing but pip.

    Beam's own `DirectRunner` first tries to download a Prism binary; Prism is used by its own name
    only.

    Args:
        options: The pipeline's options. Without them, steps would see no options at all.
    """

    def __init__(self, *, options: PipelineOptions) -> None:
        encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
        provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        super().__init__(provision_info=fn_runner.ExtendedProvisionInfo(provision))


def make_runner(options: PipelineOptions) -> PipelineRunner:
    """Makes the runner that the options name; in-process without a name or as `DirectRunner`."""
    name = options.view_as(StandardOptions).runner
    if name in (None, "DirectRunner"):
        return LocalRunner(options=options)
    return create_runner(name)


def beam_parser() -> argparse.ArgumentParser:
    """Makes a parser that holds the options of all of Beam's `PipelineOptions`."""
    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    return parsers[0]


def refuse_flags(parser: FlagParser) -> None:
    """Makes an error of each flag of Beam that makes no sense for a build."""
    for flag, reason in REFUSED_FLAGS.items():
        parser.refuse(flag, reason=reason)


def beam_options(
    namespace: argparse.Namespace, *, parser: FlagParser, ours: Container[str]
) -> dict[str, Any]:
    """Picks Beam's options out of a parsed command line.

    Args:
        namespace: The parsed command line.
        parser: What parsed it.
        ours: The options that are not Beam's.

    Returns:
        Keyword arguments of `PipelineOptions`: every option that is not as by default.

    Raises:
        UsageError: There is no such runner, or the in-process runner is to start Beam's processes.
    """
    options = {
        name: value
        for name, value in vars(namespace).items()
        if name not in ours and value != parser.get_default(name)
    }
    if "runner" in options:
        options["runner"] = _runner_name(options["runner"])
    if options.get("direct_running_mode") == "multi_processing":
        raise UsageError(
            "--direct_running_mode=multi_processing is refused: a build hangs where one of Beam's "
            "worker processes is killed; --processes=N writes shards in N processes"
        )
    return options


def _runner_name(name: str) -> str:
    """Spells a runner's name as its class; Beam also takes `direct` or `directrunner`."""
    known: dict[str, str] = {
        runner.lower(): runner for runner in StandardOptions.KNOWN_RUNNER_NAMES
    }
    for spelling in (name.lower(), f"{name.lower()}runner"):
        if spelling in known:
            return known[spelling]
    if "." in name:
        return name
    hint = suggest(name, known.values()) or f"; known: {', '.join(known.values())}"
    raise UsageError(f"--runner: unknown runner {name!r}{hint}")
