"""The commands `build` and `plan`: the messages, the progress and the exit code of a run."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, TextIO

import msgspec

from shardbeam.pipelines.cli.commands import BuildArguments, RunArguments
from shardbeam.pipelines.cli.logging import end_progress
from shardbeam.pipelines.cli.progress import (
    POLL_S,
    REMOTE_POLL_S,
    Written,
    watch_job,
    watch_staging,
)
from shardbeam.pipelines.cli.summary import print_summary
from shardbeam.pipelines.execute import Build, Watcher, read_outcome
from shardbeam.pipelines.failures import OWN_LOGGER
from shardbeam.pipelines.interrupts import NOTHING_WRITTEN, say_when_interrupted
from shardbeam.pipelines.library import plan_build
from shardbeam.pipelines.own_folders import own_temporary_files
from shardbeam.pipelines.preview import foresee_memory
from shardbeam.pipelines.result import PlanResult
from shardbeam.pipelines.runners.options import CLUSTER_RUNNERS, make_options
from shardbeam.transforms.core.memory import peak_bytes
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.dataset.outcome import PlannedCounts, Status, WriteProgress
from shardbeam.transforms.staging.lease import Lease
from shardbeam.transforms.staging.staging import TOTALS, Staging
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.pipelines.runners.dataflow import Job

# How long an interrupted run waits for its lease to be released.
_RELEASE_S = 0.7

_EXIT_CODES = {
    Status.APPROVED: 0,
    Status.COMMITTED: 0,
    Status.SUBMITTED: 0,
    Status.REFUSED: 3,
    Status.FAILED: 1,
    Status.NOT_REPAIRED: 5,
}


def run_build(arguments: BuildArguments) -> int:
    """Runs `build` or `plan`, with progress on stderr and a summary on stdout.

    Returns:
        The exit code.

    Raises:
        ShardbeamError: As `build` and `plan` in `pipelines.library` raise it.
    """
    logging.getLogger(OWN_LOGGER).info(
        "%s of %s into %s",
        arguments.command,
        arguments.config.name,
        escape(arguments.config.output.path),
    )
    if arguments.command == "plan":
        own_temporary_files()
        planned = plan_build(
            arguments.config,
            options=make_options(arguments.beam_options),
            overwrite=arguments.overwrite,
            if_changed=arguments.if_changed,
            reuse=arguments.reuse,
            resources=_resources(arguments),
        )
        memory_bytes = foresee_memory(
            planned.splits,
            plan_bytes=peak_bytes(),
            processes=planned.processes,
        )
        planned = msgspec.structs.replace(planned, memory_bytes=memory_bytes)
        return _finish(planned, arguments=arguments)
    return run_to_end(
        Build(
            config=arguments.config,
            options=make_options(arguments.beam_options),
            if_changed=arguments.if_changed,
            reuse=arguments.reuse,
            damage=arguments.damage,
        ),
        arguments=arguments,
    )


def run_to_end(build: Build, *, arguments: RunArguments) -> int:
    """Runs a build with the settings of a run, and prints its result.

    Returns:
        The exit code.

    Raises:
        ShardbeamError: As `build` in `pipelines.library` raises it.
    """
    say_when_interrupted(NOTHING_WRITTEN)
    own_temporary_files(outlived=arguments.beam_options.get("runner") in CLUSTER_RUNNERS)
    result = dataclasses.replace(
        build,
        watcher=_StderrWatcher(),
        overwrite=arguments.overwrite,
        resources=_resources(arguments),
        wait=_is_terminal(sys.stderr) if arguments.wait is None else arguments.wait,
    ).run()
    end_progress()
    if result.status is Status.SUBMITTED:
        from shardbeam.pipelines.cli.job_messages import print_job

        print_job(result.job, output=result.output, as_json=arguments.json)
        return 0
    return _finish(result, arguments=arguments)


def _resources(arguments: RunArguments) -> Resources:
    return Resources(
        processes=arguments.processes,
        threads=arguments.threads,
        memory_mb=arguments.memory,
        read_ahead=arguments.read_ahead,
    )


def _is_terminal(stream: TextIO) -> bool:
    # Until version 15, the stream that Rich puts in place of stderr says that it is none.
    try:
        return os.isatty(stream.fileno())
    except OSError:
        return False


def _finish(result: PlanResult, *, arguments: RunArguments) -> int:
    exit_code = _EXIT_CODES[result.status]
    if result.status is Status.COMMITTED:
        # Until now, an interrupt would have asked a job or a cluster.
        say_when_interrupted(f"interrupted; the dataset is committed: {result.output}")
    print_summary(result, exit_code=exit_code, as_json=arguments.json)
    return exit_code


class _StderrWatcher(Watcher):
    def begin(self, staging: Staging, *, lease: Lease) -> None:
        is_remote = storage_for(staging.root).is_remote
        watch_staging(StagedProgress(staging).read, every_s=REMOTE_POLL_S if is_remote else POLL_S)
        say_when_interrupted(
            "interrupted; the same command goes on with the shards that are finished",
            ask=functools.partial(_end_early, staging, lease=lease),
        )

    def submitted(self, job: Job) -> None:
        from shardbeam.pipelines.cli.job_messages import announce_job

        announce_job(job)

    change_words = staticmethod(say_when_interrupted)
    started = staticmethod(watch_job)
    ended = staticmethod(end_progress)


class StagedProgress:
    """Reads the progress that workers write to staging; reads only files that have changed."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._totals: PlannedCounts | None = None
        self._seen: dict[str, tuple[str, WriteProgress]] = {}

    def read(self) -> Written:
        """Returns how far the run is."""
        self._totals = self._totals or self._staging.read_state(TOTALS, PlannedCounts)
        if self._totals is None:
            return Written()
        shards = self._staging.read_progress(self._seen)
        return Written(
            shards_done=sum(shard.finished for shard in shards),
            shards_total=self._totals.shards,
            images_done=sum(shard.examples for shard in shards),
            images_total=self._totals.examples,
            shards_resumed=sum(shard.resumed for shard in shards),
            images_resumed=sum(shard.examples for shard in shards if shard.resumed),
        )


def _end_early(staging: Staging, *, lease: Lease) -> str:
    """Releases the lease of a build in this process, and describes what is kept of the build."""
    # Release the lease first: threads go on for a moment, and must not commit after this.
    lease.release(wait_s=_RELEASE_S)
    recorded = read_outcome(staging)
    if recorded is not None and recorded.status is Status.COMMITTED:
        return f"interrupted; the dataset is committed: {staging.output}"
    done = StagedProgress(staging).read()
    if not done.shards_done:
        return "interrupted; no shard was finished: the same command starts again"
    if done.shards_done == done.shards_total:
        return "interrupted; all shards are finished, and the same command commits them"
    return (
        f"interrupted; {done.shards_done:,} of {done.shards_total:,} shards are finished, and the "
        "same command goes on with the others"
    )
