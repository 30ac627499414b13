"""Running the graphs: what comes before, while and after."""

from __future__ import annotations

import contextlib
import datetime
import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.runner import PipelineRunner

from shardbeam.pipelines.arguments import BuildArguments
from shardbeam.pipelines.build import build_dataset
from shardbeam.pipelines.failures import UsageError, ended_as_failed, explain_failure
from shardbeam.pipelines.interrupts import NOTHING_WRITTEN, say_when_interrupted
from shardbeam.pipelines.json_log import write_line
from shardbeam.pipelines.output import hold_output, read_latest
from shardbeam.pipelines.plan import Plan, make_plan
from shardbeam.pipelines.preview import Preview, list_inputs, preview_dataset
from shardbeam.pipelines.previous import find_previous
from shardbeam.pipelines.progress import ProgressMonitor
from shardbeam.pipelines.runners import DATAFLOW_RUNNER, LocalRunner, UsageMeter, make_runner
from shardbeam.pipelines.staged_progress import StagedProgress
from shardbeam.pipelines.summary import Summary, print_job, print_summary
from shardbeam.pipelines.versions import (
    Inputs,
    check_versions,
    name_output,
    place_output,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.census import ListingSummary
from shardbeam.transforms.dataset.commit import DATASET_INFO
from shardbeam.transforms.dataset.dataset import RunRecord, RunSettings, run_path
from shardbeam.transforms.dataset.lease import Lease, LeaseLostError
from shardbeam.transforms.dataset.outcome import Outcome, Resumed, Status
from shardbeam.transforms.dataset.pointer import write_pointer
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.usage import StorageUsage

if TYPE_CHECKING:
    from shardbeam.pipelines.dataflow import Job

# How long an interrupted run waits for its lease to be released.
_RELEASE_S = 0.7

_CLUSTER_RUNNERS = ("FlinkRunner", "PortableRunner", "SparkRunner")
_CLUSTER_WORDS = (
    "the cluster may go on with the job: look there before the same command is started again"
)

T = TypeVar("T", Preview, ListingSummary)

_EXIT_CODES = {Status.APPROVED: 0, Status.COMMITTED: 0, Status.REFUSED: 3, Status.FAILED: 1}


def run_build(arguments: BuildArguments) -> int:
    """Builds a dataset, showing progress on stderr and a summary on stdout.

    Returns:
        The exit code.

    Raises:
        LeaseError: Another run writes to the output, or has taken it over from this one.
        UsageError: A job that Dataflow could not run as asked, or nothing there to reuse.
        OutputError: The output folder cannot be used as asked.
        InputError: The input cannot be used.
        RunError: The same, found out by a worker.
    """
    meter = UsageMeter()
    plan = make_plan(arguments.config)
    own = [path for path in (name_output(plan), plan.latest) if path]
    previous = find_previous(arguments.reuse, own=own) if arguments.reuse else ""
    # Without an empty list of flags Beam would read the program's own command line.
    options = PipelineOptions([], **arguments.beam_options)
    on_dataflow = options.view_as(StandardOptions).runner == DATAFLOW_RUNNER
    if on_dataflow:
        # Imported here: its clients take a while, and no other runner needs them.
        try:
            from shardbeam.pipelines.dataflow import prepare_job
        except ImportError as error:
            raise UsageError(
                f"--runner={DATAFLOW_RUNNER}: a package that only Dataflow needs is missing "
                f"({error}); run: pip install 'shardbeam[dataflow]'"
            ) from error

        prepare_job(options, plan=plan, previous=previous)
    check_versions(plan, if_changed=arguments.if_changed)
    started = datetime.datetime.now(tz=datetime.timezone.utc)
    started_s = time.monotonic()
    runner = make_runner(options)
    inputs = Inputs(
        plan=plan.digest,
        annotation_files=_stat_annotation_files(plan),
        list_images=functools.partial(_list_images, plan),
    )
    lease, found = hold_output(
        plan,
        inputs=inputs,
        started=started,
        overwrite=arguments.overwrite,
        if_changed=arguments.if_changed,
        runner=type(runner).__name__,
    )
    plan = found.plan
    with lease:
        if found.current is None:
            return _build(
                arguments,
                plan,
                annotation_files=inputs.annotation_files,
                previous=previous,
                options=options,
                runner=runner,
                lease=lease,
                meter=meter,
                started=started,
                started_s=started_s,
            )
        message = found.message
        if found.left is not None:
            found.left.clear()
        if found.is_pointer_stale:
            # Perhaps a run was killed after its commit.
            write_pointer(plan.latest, folder=plan.output)
            message += f"; {plan.latest} names this version again"
        lease.release()
        return _finish(
            arguments,
            plan,
            outcome=msgspec.structs.replace(
                found.current.outcome, message=message, reuse=None, resumed=Resumed()
            ),
            started_s=started_s,
            usage=meter.usage(),
            current=True,
        )


def _build(
    arguments: BuildArguments,
    plan: Plan,
    *,
    annotation_files: tuple[tuple[str, int, str], ...],
    previous: str,
    options: PipelineOptions,
    runner: PipelineRunner,
    lease: Lease,
    meter: UsageMeter,
    started: datetime.datetime,
    started_s: float,
) -> int:
    """Builds, with the lease in hand; see `run_build`."""
    on_dataflow = type(runner).__name__ == DATAFLOW_RUNNER
    run_id = f"{started:%Y%m%dT%H%M%S.%fZ}"
    staging = Staging(
        output=plan.output, plan=plan.digest, run_id=run_id, lease=lease.claim(is_job=on_dataflow)
    )
    say_when_interrupted(
        "interrupted; the same command goes on with the shards that are finished",
        ask=functools.partial(_end_early, staging, lease=lease),
    )
    pipeline = beam.Pipeline(runner=runner, options=options)
    build_dataset(
        pipeline,
        plan=plan,
        staging=staging,
        run=RunSettings(
            started_at=started.isoformat(),
            runner=type(runner).__name__,
            annotation_files=annotation_files,
            latest=plan.latest,
            previous=previous,
        ),
        processes=arguments.processes or _count_processes(runner, options=options),
        threads=arguments.threads,
        read_ahead=arguments.read_ahead,
    )
    follow = functools.partial(_run_to_end, pipeline, runner=runner, meter=meter)
    if on_dataflow:
        job = _submit(pipeline, runner=runner, options=options)
        _hand_over(lease, job, options=options)
        if job is None or not _waits(arguments):
            lease.leave()
            print_job(job, output=plan.output, as_json=arguments.json, json_log=arguments.json_log)
            return 0
        follow = functools.partial(_follow, job, meter=meter, json_log=arguments.json_log)
        say_when_interrupted(
            f"interrupted; job {job.id} goes on without this command. To cancel it: "
            f"{job.cancel_command}"
        )
    progress = StagedProgress(staging)
    monitor = ProgressMonitor(
        read=progress.read,
        stream=sys.stderr,
        poll_s=progress.poll_s,
        as_json=arguments.json_log,
    )
    error: Exception | None = None
    with monitor:
        try:
            follow()
        except Exception as raised:  # noqa: BLE001  # Runners change an error's type.
            error = raised
    if error is not None and not _has_ended(error, runner=runner):
        lease.leave()
    recorded = _read_outcome(staging)
    if recorded is None or recorded.status is Status.APPROVED:
        # It ended before its gate, or after it and before it was committed.
        raise explain_failure(error)
    # Before the requests are added up.
    lease.release()
    return _finish(arguments, plan, outcome=recorded, started_s=started_s, usage=meter.usage())


def _end_early(staging: Staging, *, lease: Lease) -> str:
    """Releases the lease of a build in this process; returns what of the build is kept."""
    # First, so that what goes on here for a moment more cannot commit after this.
    lease.release(wait_s=_RELEASE_S)
    recorded = _read_outcome(staging)
    if recorded is not None and recorded.status is Status.COMMITTED:
        return f"interrupted; the dataset is committed: {staging.output}"
    done = StagedProgress(staging).read()
    if not done.shards_done:
        return "interrupted; no shard was finished: the same command starts anew"
    return (
        f"interrupted; {done.shards_done:,} of {done.shards_total:,} shards are finished, and the "
        "same command goes on with the others"
    )


def _run_to_end(pipeline: beam.Pipeline, *, runner: PipelineRunner, meter: UsageMeter) -> None:
    """Runs a pipeline to its end, and adds up what its workers counted."""
    on_cluster = type(runner).__name__ in _CLUSTER_RUNNERS
    if on_cluster:
        say_when_interrupted(f"interrupted; {_CLUSTER_WORDS}")
    result = pipeline.run()
    if on_cluster:

        def cancel() -> str:
            # Beam's job server takes the order, and Flink may finish the job all the same.
            result.cancel()
            return f"interrupted; the job server was told to cancel the job, but {_CLUSTER_WORDS}"

        say_when_interrupted(f"interrupted; {_CLUSTER_WORDS}", ask=cancel)
    result.wait_until_finish()
    meter.add_result(result)


def _count_processes(runner: PipelineRunner, *, options: PipelineOptions) -> int:
    """Says how many processes write shards for each worker; 0 for as many as are worth it."""
    direct = options.view_as(DirectOptions)
    is_alone = direct.direct_num_workers == 1 and direct.direct_running_mode == "in_memory"
    return 0 if isinstance(runner, LocalRunner) and is_alone else 1


def _ends_with_process(runner: PipelineRunner) -> bool:
    return type(runner).__name__ not in (DATAFLOW_RUNNER, *_CLUSTER_RUNNERS)


def _has_ended(error: Exception, *, runner: PipelineRunner) -> bool:
    """Says whether a run that this process follows no more, because of an error, has ended."""
    if _ends_with_process(runner):
        return True
    if type(runner).__name__ == DATAFLOW_RUNNER:
        from shardbeam.pipelines.dataflow import JobEndedError

        return isinstance(error, JobEndedError)
    return ended_as_failed(error)


def run_plan(arguments: BuildArguments) -> int:
    """Lists and joins as a build would, and prints what it would write.

    Returns:
        The exit code.

    Raises:
        InputError: The input cannot be used.
        RunError: The same, found out by a worker.
    """
    plan = make_plan(arguments.config)
    check_versions(plan, if_changed=arguments.if_changed)
    # Only so that its errors are shown.
    read_latest(plan)
    started = datetime.datetime.now(tz=datetime.timezone.utc)
    started_s = time.monotonic()
    annotation_files = _stat_annotation_files(plan)
    preview = _run_locally(functools.partial(preview_dataset, plan=plan), Preview)
    if isinstance(preview, Exception):
        raise explain_failure(preview)
    inputs = Inputs(
        plan=plan.digest,
        annotation_files=annotation_files,
        list_images=lambda: preview.listing,
    )
    plan = place_output(plan, inputs=inputs, started=started)
    return _finish(
        arguments, plan, outcome=preview.outcome, started_s=started_s, usage=StorageUsage()
    )


def _finish(
    arguments: BuildArguments,
    plan: Plan,
    *,
    outcome: Outcome,
    started_s: float,
    usage: StorageUsage,
    current: bool = False,
) -> int:
    exit_code = _EXIT_CODES[outcome.status]
    summary = Summary(
        outcome=outcome,
        output=plan.output,
        exit_code=exit_code,
        current=current,
        usage=usage,
        wall_time_s=time.monotonic() - started_s,
        latest=plan.latest if outcome.status is Status.COMMITTED else "",
    )
    print_summary(summary, as_json=arguments.json, json_log=arguments.json_log)
    return exit_code


def _stat_annotation_files(plan: Plan) -> tuple[tuple[str, int, str], ...]:
    """Describes annotation files, and those of formats: `(uri, size in bytes, version)` each."""
    files = []
    for source in plan.sources:
        path, own_format, _ = source.format.format.rpartition(".py:")
        formats = [f"{path}.py"] if own_format else []
        for uri in (*source.format.annotation_files(), *formats):
            stored = storage_for(uri).stat(uri)
            if stored is None:
                raise InputError(uri=uri, problem="no such file")
            files.append((uri, stored.size_bytes, stored.version))
    return tuple(files)


def _list_images(plan: Plan) -> ListingSummary:
    listing = _run_locally(functools.partial(list_inputs, plan=plan), ListingSummary)
    if isinstance(listing, Exception):
        raise explain_failure(listing)
    return listing


def _run_locally(build: Callable[..., None], result_type: type[T]) -> T | Exception:
    """Runs a graph that ends in one small result, in this process; returns that or the error."""
    options = PipelineOptions([])
    with tempfile.TemporaryDirectory(prefix="shardbeam-") as folder:
        say_when_interrupted(NOTHING_WRITTEN, ask=functools.partial(_clear, folder))
        uri = join_uri(folder, "result.json")
        pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
        build(pipeline, result_uri=uri)
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:  # noqa: BLE001  # Runners change an error's type.
            return error
        return msgspec.json.decode(Path(uri).read_bytes(), type=result_type)


def _clear(folder: str) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    return NOTHING_WRITTEN


def _waits(arguments: BuildArguments) -> bool:
    return sys.stderr.isatty() if arguments.wait is None else arguments.wait


def _submit(
    pipeline: beam.Pipeline, *, runner: PipelineRunner, options: PipelineOptions
) -> Job | None:
    from shardbeam.pipelines.dataflow import submit_job

    say_when_interrupted(
        "interrupted while the job was submitted; the console says whether it runs all the same"
    )
    return submit_job(pipeline, runner=runner, options=options)


def _hand_over(lease: Lease, job: Job | None, *, options: PipelineOptions) -> None:
    """Makes a job, or the one that a template is going to start, the holder of the lease."""
    name = options.view_as(GoogleCloudOptions).job_name
    try:
        lease.hand_over(f"job {job.id}" if job else f"a job named {name}")
    except LeaseLostError as error:
        if job is None:
            raise
        raise LeaseLostError(
            f"{error}. Job {job.id} was submitted all the same, and will not commit; to cancel "
            f"it: {job.cancel_command}"
        ) from error


def _follow(job: Job, *, meter: UsageMeter, json_log: bool) -> None:
    message = f"job {job.id}: {job.console}"
    if json_log:
        write_line(message)
    else:
        sys.stderr.write(f"shardbeam: {message}\n")
    job.follow()
    meter.add_result(job.result)


def _read_outcome(staging: Staging) -> Outcome | None:
    """Returns a run's outcome: from `runs/` once it is committed, from staging before."""
    storage = storage_for(staging.output)
    # The finish may have failed between the two files.
    if storage.stat(join_uri(staging.output, DATASET_INFO)) is not None:
        with contextlib.suppress(FileNotFoundError):
            data = storage.read(join_uri(staging.output, run_path(staging.run_id)))
            return msgspec.json.decode(data, type=RunRecord).outcome
    with contextlib.suppress(FileNotFoundError):
        return msgspec.json.decode(storage.read(staging.outcome_uri), type=Outcome)
    return None
