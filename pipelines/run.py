"""Running the graphs: what comes before, while and after."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineRunner

from pipelines.arguments import BuildArguments
from pipelines.beam_options import PipelineViews
from pipelines.build import build_dataset
from pipelines.flags import DATAFLOW_RUNNER
from pipelines.local_runner import LocalRunner, make_runner
from pipelines.output_state import OutputError, check_apart, is_committed
from pipelines.plan import Plan, make_plan
from pipelines.preview import list_inputs, preview_dataset
from pipelines.previous import find_previous
from pipelines.progress import ProgressMonitor
from pipelines.run_error import RunError
from pipelines.staged_progress import StagedProgress
from pipelines.summary import Summary, print_job, print_summary
from pipelines.usage import UsageMeter, forecast_usage
from transforms.errors import InputError
from transforms.output.commit import DATASET_INFO
from transforms.output.dataset import RunRecord, RunSettings, read_runs, run_path
from transforms.output.listing import ListingSummary
from transforms.output.outcome import Outcome, Status
from transforms.output.staging import Staging
from transforms.storage import join_uri, storage_for
from transforms.usage import StorageUsage

if TYPE_CHECKING:
    from pipelines.dataflow import Job

# Beam's job server takes the order to cancel, and Flink may finish the job all the same.
_CLUSTER_RUNNERS = ("FlinkRunner", "PortableRunner", "SparkRunner")
_CLUSTER_WORDS = (
    "interrupted; the job server was told to cancel the job, but the cluster may go on with it: "
    "look there before the same command is started again"
)

T = TypeVar("T", Outcome, ListingSummary)

_EXIT_CODES = {Status.APPROVED: 0, Status.COMMITTED: 0, Status.REFUSED: 3, Status.FAILED: 1}

# How an error of ours looks in the text of a runner's error, which has lost its type.
_INPUT_ERROR = re.compile(r"\bInputError: (?P<message>[^\n]+)")
# What Flink's job server says of a job that failed, and what Beam makes of it.
_JOB_FAILED = re.compile(r"Pipeline \S+ failed in state (?P<state>\w+): (?P<cause>[^\n]+)")
# And what Beam's local runner says of a worker process that was killed.
_WORKER_LOST = "RuntimeError: Channel closed prematurely"
_WHILE_RUNNING = re.compile(r" \[while running '[^\n]*$")


def run_build(arguments: BuildArguments) -> int:
    """Builds a dataset, showing progress on stderr and a summary on stdout.

    Returns:
        The exit code.

    Raises:
        UsageError: A job that Dataflow could not run as asked, or nothing there to reuse.
        OutputError: The output folder cannot be used as asked.
        InputError: The input cannot be used.
        RunError: The same, found out by a worker.
        KeyboardInterrupt: The run was interrupted; started again it goes on.
    """
    meter = UsageMeter()
    plan = make_plan(arguments.config)
    # Without an empty list of flags Beam would read the program's own command line.
    previous = find_previous(arguments.reuse, own=[plan.output]) if arguments.reuse else ""
    options = PipelineViews([], **arguments.beam_options)
    on_dataflow = options.view_as(StandardOptions).runner == DATAFLOW_RUNNER
    if on_dataflow:
        # Imported here: its clients take a while, and no other runner needs them.
        from pipelines.dataflow import prepare_job

        prepare_job(options, plan=plan, previous=previous)
    check_apart(plan.output, sources=plan.sources)
    annotation_files = _stat_annotation_files(plan)
    started = datetime.datetime.now(tz=datetime.timezone.utc)
    started_s = time.monotonic()
    if is_committed(plan.output):
        current = _current_run(plan, annotation_files) if arguments.if_changed else None
        if current is not None:
            Staging(output=plan.output, plan=plan.digest, run_id="").clear()
            message = "nothing to do: inputs and config are as they were"
            outcome = msgspec.structs.replace(current.outcome, message=message, reuse=None)
            return _finish(
                arguments,
                plan,
                outcome=outcome,
                started_s=started_s,
                usage=meter.usage(),
                current=True,
            )
        if not arguments.overwrite:
            changed = "; inputs or config have changed" if arguments.if_changed else ""
            raise OutputError(
                f"{plan.output}: holds a committed dataset already{changed}; add --overwrite to "
                "replace it, or choose another output.path"
            )

    run_id = f"{started:%Y%m%dT%H%M%S.%fZ}"
    staging = Staging(output=plan.output, plan=plan.digest, run_id=run_id)
    runner = make_runner(options)
    pipeline = beam.Pipeline(runner=runner, options=options)
    build_dataset(
        pipeline,
        plan=plan,
        staging=staging,
        run=RunSettings(
            started_at=started.isoformat(),
            runner=type(runner).__name__,
            annotation_files=annotation_files,
            previous=previous,
        ),
        threads=arguments.threads,
        read_ahead=arguments.read_ahead,
    )
    follow = functools.partial(_run_to_end, pipeline, meter=meter)
    words = _CLUSTER_WORDS if type(runner).__name__ in _CLUSTER_RUNNERS else ""
    if on_dataflow:
        job = _submit(pipeline, runner=runner, options=options)
        if job is None or not _waits(arguments):
            print_job(job, output=plan.output, as_json=arguments.json)
            return 0
        follow = functools.partial(_follow, job, meter=meter)
        words = (
            f"interrupted; job {job.id} goes on without this command. To cancel it: "
            f"{job.cancel_command}"
        )
    progress = StagedProgress(staging)
    monitor = ProgressMonitor(read=progress.read, stream=sys.stderr, poll_s=progress.poll_s)
    with _interrupted_with(words), monitor:
        error = _catch(follow)
    recorded = _read_outcome(staging)
    if recorded is None or recorded.status is Status.APPROVED:
        # It ended before its gate, or after it and before it was committed.
        raise _failure(error)
    return _finish(arguments, plan, outcome=recorded, started_s=started_s, usage=meter.usage())


def run_plan(arguments: BuildArguments) -> int:
    """Lists and joins as a build would, and prints what it would write.

    Returns:
        The exit code.

    Raises:
        InputError: The input cannot be used.
        RunError: The same, found out by a worker.
    """
    plan = make_plan(arguments.config)
    started_s = time.monotonic()
    annotation_files = _stat_annotation_files(plan)
    outcome = _run_locally(functools.partial(preview_dataset, plan=plan), Outcome)
    if isinstance(outcome, Exception):
        raise _failure(outcome)
    forecast = forecast_usage(plan, outcome, annotation_files=annotation_files)
    return _finish(arguments, plan, outcome=outcome, started_s=started_s, usage=forecast)


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
    )
    print_summary(summary, as_json=arguments.json)
    return exit_code


def _stat_annotation_files(plan: Plan) -> tuple[tuple[str, int, str], ...]:
    """Describes annotation files, and those of formats: `(uri, size in bytes, version)` each."""
    files = []
    for source in plan.sources:
        path, own_format, _ = source.format.rpartition(".py:")
        formats = [f"{path}.py"] if own_format else []
        for uri in (*source.load_format().annotation_files(), *formats):
            stored = storage_for(uri).stat(uri)
            if stored is None:
                raise InputError(uri=uri, problem="no such file")
            files.append((uri, stored.size_bytes, stored.version))
    return tuple(files)


def _current_run(
    plan: Plan, annotation_files: tuple[tuple[str, int, str], ...]
) -> RunRecord | None:
    """Returns the run that committed what is there, if its inputs and config are as now."""
    runs = read_runs(plan.output)
    if not runs:
        return None
    last = max(runs, key=lambda run: run.finished_at)
    if last.plan != plan.digest or last.annotation_files != annotation_files:
        return None
    listing = _run_locally(functools.partial(list_inputs, plan=plan), ListingSummary)
    # Only a build counts the images inside containers.
    if isinstance(listing, Exception):
        return None
    return last if listing.fingerprint == last.listing.fingerprint else None


def _run_locally(build: Callable[..., None], result_type: type[T]) -> T | Exception:
    """Runs a graph that ends in one small result, in this process; returns that or the error."""
    options = PipelineViews([])
    with tempfile.TemporaryDirectory(prefix="shardbeam-") as folder:
        uri = join_uri(folder, "result.json")
        pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
        build(pipeline, result_uri=uri)
        error = _catch(functools.partial(_run_to_end, pipeline))
        if error is not None:
            return error
        return msgspec.json.decode(Path(uri).read_bytes(), type=result_type)


def _waits(arguments: BuildArguments) -> bool:
    return sys.stderr.isatty() if arguments.wait is None else arguments.wait


def _submit(
    pipeline: beam.Pipeline, *, runner: PipelineRunner, options: PipelineOptions
) -> Job | None:
    from pipelines.dataflow import submit_job

    words = "interrupted while the job was submitted; the console says whether it runs all the same"
    with _interrupted_with(words), _interruptible():
        return submit_job(pipeline, runner=runner, options=options)


def _follow(job: Job, *, meter: UsageMeter) -> None:
    sys.stderr.write(f"shardbeam: job {job.id}: {job.console}\n")
    job.follow()
    meter.add_result(job.result)


@contextlib.contextmanager
def _interrupted_with(words: str) -> Iterator[None]:
    """Says what an interrupt within the context means, where it is not what it means at home."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(words) from None


def _run_to_end(pipeline: beam.Pipeline, *, meter: UsageMeter | None = None) -> None:
    result = pipeline.run()
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        # Where this process runs the job, there is nothing left to cancel.
        with contextlib.suppress(Exception):
            result.cancel()
        raise
    if meter is not None:
        meter.add_result(result)


def _catch(run: Callable[[], None]) -> Exception | None:
    """Runs a pipeline to its end; returns the error it ended with.

    Raises:
        KeyboardInterrupt: The process got SIGINT or SIGTERM.
    """
    with _interruptible() as interrupted:
        try:
            run()
        except Exception as error:  # Of whatever type: runners change it.
            if interrupted.is_set():
                raise KeyboardInterrupt from error
            return error
    return None


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Notes SIGINT and SIGTERM, whose KeyboardInterrupt a runner may turn into another error."""
    interrupted = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        interrupted.set()
        # Each step that it hits on its way out would be an error to Beam.
        logging.disable()
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        logging.disable(logging.NOTSET)


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


def _failure(error: Exception | None) -> Exception:
    """Returns what to raise for a run that could not record its outcome.

    A `RunError` where there is something that a user could mend, and otherwise `error` itself:
    all of it is to be seen.
    """
    if error is None:
        return RuntimeError("the run ended without an error and without an outcome")
    text = "".join(traceback.format_exception(error))
    found = _INPUT_ERROR.search(text)
    if found is not None:
        return RunError(_WHILE_RUNNING.sub("", found["message"]))
    if isinstance(error, RunError):
        return RunError(_one_line(str(error)))
    failed = _JOB_FAILED.search(text)
    if failed is not None:
        return RunError(f"the job ended as {failed['state']}: {failed['cause']}")
    if _WORKER_LOST in text:
        return RunError(
            "a worker process ended before its work was done, perhaps for lack of memory; run the "
            "same command again, finished shards are kept"
        )
    return error


def _one_line(text: str) -> str:
    """Leaves a traceback out, and puts what is left on one line."""
    before, _, trace = text.partition("Traceback (most recent call last)")
    last = trace.strip().rpartition("\n")[2]
    return " ".join(f"{before} {last}".split())
