"""Running the graphs: what comes before, while and after."""

from __future__ import annotations

import contextlib
import datetime
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineRunner

from shardbeam.configs.passwords import hide_passwords
from shardbeam.pipelines.build import build_dataset, gather_records, list_inputs
from shardbeam.pipelines.commands import BuildArguments
from shardbeam.pipelines.failures import (
    NotStartedError,
    ended_as_failed,
    explain_failure,
)
from shardbeam.pipelines.interrupts import (
    NOTHING_WRITTEN,
    say_when_interrupted,
)
from shardbeam.pipelines.output import (
    Inputs,
    Output,
    check_versions,
    find_previous,
    hold_output,
    place_output,
    read_latest,
)
from shardbeam.pipelines.plan import Plan, make_plan
from shardbeam.pipelines.progress import ProgressMonitor, StagedProgress
from shardbeam.pipelines.runners import (
    CLUSTER_RUNNERS,
    DATAFLOW_RUNNER,
    LocalRunner,
    UsageMeter,
    check_runner,
    make_runner,
    submit,
)
from shardbeam.pipelines.summary import Summary, print_summary
from shardbeam.pipelines.temporary import own_temporary_files, temporary_folder
from shardbeam.transforms.core.labels import build_label_map
from shardbeam.transforms.dataset.census import Census, ListingSummary
from shardbeam.transforms.dataset.commit import CommitSettings
from shardbeam.transforms.dataset.judge import (
    count_sources,
    describe_left_out,
    find_warnings,
    name_classes,
)
from shardbeam.transforms.dataset.lease import Lease, LeaseLostError
from shardbeam.transforms.dataset.manifest import DATASET_INFO
from shardbeam.transforms.dataset.outcome import Outcome, Resumed, SplitOutcome, Status
from shardbeam.transforms.dataset.pointer import write_pointer
from shardbeam.transforms.dataset.runs import RunRecord, RunSettings, run_path
from shardbeam.transforms.dataset.shard_plan import no_examples, plan_shards
from shardbeam.transforms.dataset.staging import OUTCOME, Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.usage import StorageUsage

if TYPE_CHECKING:
    from shardbeam.pipelines.dataflow import Job

# How long an interrupted run waits for its lease to be released.
_RELEASE_S = 0.7

_CLUSTER_WORDS = (
    "the cluster may go on with the job: look there before the same command is started again"
)
_EXIT_CODES = {
    Status.APPROVED: 0,
    Status.COMMITTED: 0,
    Status.REFUSED: 3,
    Status.FAILED: 1,
    Status.NOT_REPAIRED: 5,
}


def run_build(arguments: BuildArguments) -> int:
    """Builds a dataset, showing progress on stderr and a summary on stdout.

    Returns:
        The exit code.

    Raises:
        LeaseError: Another run writes to the output, or has taken it over from this one.
        UsageError: A job that Dataflow could not run as asked, nothing there to reuse, or an output
            folder that cannot be used as asked.
        InputError: The input cannot be used.
        RunError: The same, found out by a worker.
    """
    own_temporary_files(outlived=arguments.beam_options.get("runner") in CLUSTER_RUNNERS)
    return _Run(arguments).build()


def run_plan(arguments: BuildArguments) -> int:
    """Lists and joins as a build would, and prints what it would write.

    Returns:
        The exit code.

    Raises:
        UsageError: The output folder cannot be used as asked.
        InputError: The input cannot be used.
        RunError: The same, found out by a worker.
    """
    plan = make_plan(arguments.config)
    check_versions(plan, if_changed=arguments.if_changed)
    # Only so that its errors are shown.
    read_latest(plan)
    started = _now()
    started_s = time.monotonic()
    annotation_files = _stat_annotation_files(plan)
    own_temporary_files()
    census = _take_census(lambda pipeline: gather_records(pipeline, plan=plan).census)
    outcome = _preview(census, plan=plan)
    inputs = Inputs(
        plan=plan.digest, annotation_files=annotation_files, list_images=lambda: census.listing
    )
    plan = place_output(plan, inputs=inputs, started=started)
    return _finish(arguments, plan, outcome=outcome, started_s=started_s, usage=StorageUsage())


class _Run:
    """A build, from its command line to its exit code."""

    def __init__(self, arguments: BuildArguments) -> None:
        self._arguments = arguments
        self._meter = UsageMeter()
        self._plan = make_plan(arguments.config)
        self._previous = find_previous(arguments.reuse, plan=self._plan) if arguments.reuse else ""
        # Without an empty list of flags Beam would read the program's own command line.
        self._options = PipelineOptions([], **arguments.beam_options)
        self._on_dataflow = self._options.view_as(StandardOptions).runner == DATAFLOW_RUNNER
        if self._on_dataflow:
            _prepare_job(self._options, plan=self._plan, previous=self._previous)
        check_versions(self._plan, if_changed=arguments.if_changed)
        self._started = _now()
        self._started_s = time.monotonic()
        self._runner = make_runner(self._options)
        self._inputs = Inputs(
            plan=self._plan.digest,
            annotation_files=_stat_annotation_files(self._plan),
            list_images=functools.partial(_list_images, self._plan),
        )

    def build(self) -> int:
        """Builds where there is anything to do; returns the exit code."""
        lease, found = hold_output(
            self._plan,
            inputs=self._inputs,
            started=self._started,
            overwrite=self._arguments.overwrite,
            if_changed=self._arguments.if_changed,
            damage=self._arguments.damage,
            runner=type(self._runner).__name__,
        )
        self._plan = found.plan
        if found.damage:
            self._previous = found.plan.output
        with lease:
            if found.current is not None:
                return self._keep(found.current, found, lease=lease)
            run_id = f"{self._started:%Y%m%dT%H%M%S.%fZ}"
            claim = lease.claim(is_job=self._on_dataflow)
            staging = Staging(
                output=self._plan.output, plan=self._plan.digest, run_id=run_id, lease=claim
            )
            say_when_interrupted(
                "interrupted; the same command goes on with the shards that are finished",
                ask=functools.partial(_end_early, staging, lease=lease),
            )
            pipeline = self._make_pipeline(staging)
            if not self._on_dataflow:
                follow = functools.partial(
                    _run_to_end, pipeline, runner=self._runner, meter=self._meter
                )
                return self._follow(follow, staging=staging, lease=lease)
            job = self._submit(pipeline, lease=lease)
            if job is not None and self._waits():
                follow = functools.partial(self._follow_job, job)
                return self._follow(follow, staging=staging, lease=lease)
            lease.leave()
            from shardbeam.pipelines.dataflow import print_job

            print_job(
                job,
                output=self._plan.output,
                as_json=self._arguments.json,
                json_log=self._arguments.json_log,
            )
            return 0

    def _keep(self, current: RunRecord, found: Output, *, lease: Lease) -> int:
        """Leaves a dataset as it is, and mends what a kill after its commit has left."""
        message = found.message
        if found.left is not None:
            msgspec.structs.replace(found.left, lease=lease.claim()).clear()
        if found.is_pointer_stale:
            write_pointer(self._plan.latest, folder=self._plan.output)
            message += f"; {self._plan.latest} names this version again"
        lease.release()
        outcome = msgspec.structs.replace(
            current.outcome, message=message, reuse=None, resumed=Resumed()
        )
        return self._finish(outcome, current=True)

    def _make_pipeline(self, staging: Staging) -> beam.Pipeline:
        pipeline = beam.Pipeline(runner=self._runner, options=self._options)
        direct = self._options.view_as(DirectOptions)
        is_alone = direct.direct_num_workers == 1 and direct.direct_running_mode == "in_memory"
        # As many as are worth it, where no other worker is on this machine.
        processes = 0 if isinstance(self._runner, LocalRunner) and is_alone else 1
        build_dataset(
            pipeline,
            plan=self._plan,
            commit=CommitSettings(
                dataset=self._plan.dataset,
                run=RunSettings(
                    started_at=self._started.isoformat(),
                    runner=type(self._runner).__name__,
                    annotation_files=self._inputs.annotation_files,
                    latest=self._plan.latest,
                    previous=self._previous,
                ),
                staging=staging,
                repairs=bool(self._arguments.damage),
            ),
            processes=self._arguments.processes or processes,
            threads=self._arguments.threads,
            memory_mb=self._arguments.memory,
            read_ahead=self._arguments.read_ahead,
        )
        return pipeline

    def _submit(self, pipeline: beam.Pipeline, *, lease: Lease) -> Job | None:
        """Submits a job to Dataflow, and makes it the holder of the lease.

        Returns:
            The job; None where a template was written instead, which is going to start it.

        Raises:
            LeaseLostError: Another run has the lease.
        """
        from shardbeam.pipelines.dataflow import submit_job

        say_when_interrupted(
            "interrupted while the job was submitted; the console says whether it runs all the same"
        )
        job = submit_job(pipeline, runner=self._runner, options=self._options)
        name = self._options.view_as(GoogleCloudOptions).job_name
        try:
            lease.hand_over(f"job {job.id}" if job else f"a job named {name}")
        except LeaseLostError as error:
            if job is None:
                raise
            raise LeaseLostError(
                f"{error}. Job {job.id} was submitted all the same, and will not commit; to cancel "
                f"it: {job.cancel_command}"
            ) from error
        return job

    def _waits(self) -> bool:
        wait = self._arguments.wait
        return sys.stderr.isatty() if wait is None else wait

    def _follow_job(self, job: Job) -> None:
        job.follow(json_log=self._arguments.json_log)
        self._meter.add_result(job.result)

    def _follow(self, follow: Callable[[], None], *, staging: Staging, lease: Lease) -> int:
        """Shows the progress of what `follow` waits for, and then what came of it."""
        progress = StagedProgress(staging)
        error: Exception | None = None
        with ProgressMonitor(
            read=progress.read,
            stream=sys.stderr,
            poll_s=progress.poll_s,
            as_json=self._arguments.json_log,
        ):
            try:
                follow()
            except Exception as raised:  # noqa: BLE001  # Runners change an error's type.
                error = raised
        if error is not None and not _has_ended(error, runner=self._runner):
            lease.leave()
        recorded = _read_outcome(staging)
        if recorded is None or recorded.status is Status.APPROVED:
            # It ended before its gate, or after it and before it was committed.
            raise explain_failure(error)
        if recorded.status is Status.NOT_REPAIRED and not self._on_dataflow:
            staging.clear()
        # Before the requests are added up.
        lease.release()
        return self._finish(recorded)

    def _finish(self, outcome: Outcome, *, current: bool = False) -> int:
        return _finish(
            self._arguments,
            self._plan,
            outcome=outcome,
            started_s=self._started_s,
            usage=self._meter.usage(),
            current=current,
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
    if outcome.status is Status.COMMITTED:
        # Whatever a job or a cluster was still asked until now.
        say_when_interrupted(f"interrupted; the dataset is committed: {plan.output}")
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


def _now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.timezone.utc)


def _prepare_job(options: PipelineOptions, *, plan: Plan, previous: str) -> None:
    # Imported here: its clients take a while, and no other runner needs them.
    from shardbeam.pipelines.dataflow import prepare_job

    read = {previous: "name a dataset on gs:// for --reuse"} if previous else {}
    for source in plan.sources:
        module, own_format, _ = source.format.format.rpartition(".py:")
        if own_format:
            read[f"{module}.py"] = (
                "put the format into a package of their image, and name it package.module:Class"
            )
        for uri in (*source.format.roots(), *source.format.annotation_files()):
            read.setdefault(uri, "copy it to gs://")
    for file in (plan.join.exclude, plan.join.groups):
        if file is not None:
            read.setdefault(file.uri, "copy it to gs://")
    prepare_job(
        options,
        name=plan.dataset.name,
        folders={"output.path": plan.output},
        files={"output.latest": plan.latest},
        read=read,
    )


def _run_to_end(pipeline: beam.Pipeline, *, runner: PipelineRunner, meter: UsageMeter) -> None:
    """Runs a pipeline to its end, and adds up what its workers counted."""
    check_runner(pipeline.options)
    on_cluster = type(runner).__name__ in CLUSTER_RUNNERS
    if on_cluster:
        say_when_interrupted(f"interrupted; {_CLUSTER_WORDS}")
    result = submit(pipeline, runner=runner)
    if on_cluster:

        def cancel() -> str:
            # Beam's job server takes the order, and Flink may finish the job all the same.
            result.cancel()
            return f"interrupted; the job server was told to cancel the job, but {_CLUSTER_WORDS}"

        say_when_interrupted(f"interrupted; {_CLUSTER_WORDS}", ask=cancel)
    result.wait_until_finish()
    meter.add_result(result)


def _has_ended(error: Exception, *, runner: PipelineRunner) -> bool:
    """Says whether a run that this process follows no more, because of an error, has ended."""
    name = type(runner).__name__
    if name == DATAFLOW_RUNNER:
        from shardbeam.pipelines.dataflow import JobEndedError

        return isinstance(error, JobEndedError)
    if isinstance(error, NotStartedError):
        return True
    return name not in CLUSTER_RUNNERS or ended_as_failed(error)


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


def _read_outcome(staging: Staging) -> Outcome | None:
    """Returns a run's outcome: from `runs/` once it is committed, from staging before."""
    storage = storage_for(staging.output)
    # The finish may have failed between the two files.
    if storage.stat(join_uri(staging.output, DATASET_INFO)) is not None:
        with contextlib.suppress(FileNotFoundError):
            path = join_uri(staging.output, run_path(staging.run_id))
            data = storage.read_small(path, max_bytes=limits.METADATA_BYTES)
            return msgspec.json.decode(data, type=RunRecord).outcome
    return staging.read_state(OUTCOME, Outcome)


def _stat_annotation_files(plan: Plan) -> tuple[tuple[str, int, str], ...]:
    """Describes annotation files, and those of formats: `(uri, size in bytes, version)` each."""
    files = []
    for source in plan.sources:
        path, own_format, _ = source.format.format.rpartition(".py:")
        formats = [f"{path}.py"] if own_format else []
        for uri in (*source.format.annotation_files(), *formats):
            stored = storage_for(uri).find(uri)
            # Another password is no other file.
            files.append((hide_passwords(uri), stored.size_bytes, stored.version))
    return tuple(files)


def _list_images(plan: Plan) -> ListingSummary:
    return _take_census(functools.partial(list_inputs, plan=plan)).listing


def _take_census(graph: Callable[[beam.Pipeline], PCollection[Census]]) -> Census:
    """Runs a graph that ends in a census, in this process.

    Raises:
        RunError: The input cannot be used.
    """
    options = PipelineOptions([])
    say_when_interrupted(NOTHING_WRITTEN)
    with temporary_folder() as folder:
        path = Path(folder, "census")
        pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
        graph(pipeline) | "WriteCensus" >> beam.Map(_write_census, path=path)
        failed: Exception | None = None
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:  # noqa: BLE001  # Runners change an error's type.
            failed = error
        if failed is not None:
            raise explain_failure(failed)
        return msgspec.msgpack.decode(path.read_bytes(), type=Census)


def _write_census(census: Census, *, path: Path) -> None:
    path.write_bytes(msgspec.msgpack.encode(census))


def _preview(census: Census, *, plan: Plan) -> Outcome:
    """Says what a build would write.

    Raises:
        InputError: A split has no examples.
    """
    if not any(census.splits.get(split, SplitOutcome()).images for split in plan.splits.names):
        raise no_examples(plan.splits.names[0], census=census)
    shards = plan_shards(
        census,
        splits=plan.splits.names,
        num_shards=plan.num_shards,
        shard_size_bytes=plan.shard_size_bytes,
    )
    counts = {
        split: msgspec.structs.replace(
            joined,
            listed=census.listing.files.get(split, joined.listed),
            shards=shards.num_shards[split],
        )
        for split in plan.splits.names
        for joined in [census.splits.get(split, SplitOutcome())]
    }
    label_map = build_label_map(
        categories=census.categories.values(), settings=plan.labels, objects=plan.objects
    )
    return Outcome(
        status=Status.APPROVED,
        splits=counts,
        sources=count_sources(census, dataset=plan.dataset),
        warnings=find_warnings(census, splits=counts, label_map=label_map, dataset=plan.dataset),
        notes=describe_left_out(census, dataset=plan.dataset),
        **name_classes(label_map),
    )
