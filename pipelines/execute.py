"""One build, from its config to its result, on any runner."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.runner import PipelineRunner

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.schema import Config
from shardbeam.pipelines.build import Records, begin_counting, build_dataset
from shardbeam.pipelines.failures import NotStartedError, ended_as_failed, explain_failure
from shardbeam.pipelines.output_folder import Output, hold_output
from shardbeam.pipelines.plan import Plan, make_plan
from shardbeam.pipelines.result import BuildResult
from shardbeam.pipelines.runners.options import (
    CLUSTER_RUNNERS,
    DATAFLOW_RUNNER,
    LocalRunner,
    UsageMeter,
    check_runner,
    make_runner,
    name_job,
    run_here,
    submit,
)
from shardbeam.pipelines.versions import (
    Inputs,
    check_versions,
    check_without_listing,
    find_previous,
)
from shardbeam.transforms.commit.commit import CommitSettings
from shardbeam.transforms.commit.pointer import write_pointer
from shardbeam.transforms.commit.runs import RunRecord, RunSettings
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.dataset.file_names import DATASET_INFO, run_path
from shardbeam.transforms.dataset.input_counts import ListingSummary
from shardbeam.transforms.dataset.outcome import Outcome, Resumed, Status
from shardbeam.transforms.formats.join.sources import GIVEN_SOURCE, Source
from shardbeam.transforms.staging.lease import Lease, LeaseLostError
from shardbeam.transforms.staging.staging import LAUNCHED, OUTCOME, Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.pipelines.runners.dataflow import Job


_CLUSTER_WORDS = (
    "the cluster may go on with the job: check it before you run the same command again"
)


class Watcher:
    """Follows a build. This class does nothing; the command's subclass writes to stderr."""

    def begin(self, staging: Staging, *, lease: Lease) -> None:
        """Called when the build begins to write to staging."""

    def change_words(self, words: str, *, ask: Callable[[], str] | None = None) -> None:
        """Called when an interrupt has another effect from now on.

        Args:
            words: What to say about an interrupt.
            ask: Finds out more when it happens.
        """

    def submitted(self, job: Job) -> None:
        """Called when a job was submitted and the build waits for its end."""

    def ended(self) -> None:
        """Called when the run has ended, before its outcome is read."""

    def started(self, ask_state: Callable[[], str]) -> None:
        """Called when a runner outside of this process has the pipeline.

        Args:
            ask_state: Returns the state that Beam's `PipelineState` names.
        """


@dataclasses.dataclass(kw_only=True)
class Build:
    """A build, from its config to its result; see `build` for the arguments.

    Attributes:
        watcher: Follows the build.
        damage: What is wrong with the dataset there, if it is to be repaired.
        sources: The sources, if the config names only splits.
    """

    config: Config
    options: PipelineOptions
    watcher: Watcher = dataclasses.field(default_factory=Watcher)
    overwrite: bool = False
    if_changed: bool = False
    reuse: str | None = None
    records: Records | None = None
    resources: Resources = dataclasses.field(default_factory=Resources)
    wait: bool = True
    damage: Sequence[str] = ()
    sources: tuple[Source, ...] = ()

    def run(self) -> BuildResult:
        """Builds if there is anything to do.

        Returns:
            The result, also if the gate refused to commit.
        """
        self._meter = UsageMeter()
        sources = self.sources if self.records is None else (GIVEN_SOURCE,)
        self._plan = make_plan(self.config, sources=sources)
        self._previous = check_job(self.options, plan=self._plan, reuse=self.reuse)
        self._on_dataflow = is_on_dataflow(self.options)
        check_versions(self._plan, if_changed=self.if_changed)
        if self.records is not None:
            check_without_listing(self._plan, if_changed=self.if_changed)
        self._started = datetime.datetime.now(tz=datetime.timezone.utc)
        self._started_s = time.monotonic()
        self._runner = make_runner(self.options)
        self._inputs = Inputs(self._plan, list_images=functools.partial(_list_images, self._plan))
        lease, found = hold_output(
            self._plan,
            inputs=self._inputs,
            started=self._started,
            overwrite=self.overwrite,
            if_changed=self.if_changed,
            damage=self.damage,
            runner=type(self._runner).__name__,
        )
        self._plan = found.plan
        if found.damage:
            self._previous = found.plan.output
        self._replaces = found.replaces
        with lease:
            if found.current is not None:
                return self._keep(found.current, found, lease=lease)
            return self._write(lease)

    def _keep(self, current: RunRecord, found: Output, *, lease: Lease) -> BuildResult:
        """Keeps a dataset, and clears up after a run that was killed after its commit."""
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
        return self._result(outcome, current=True)

    def _write(self, lease: Lease) -> BuildResult:
        staging = Staging(
            output=self._plan.output,
            plan=self._plan.digest,
            run_id=f"{self._started:%Y%m%dT%H%M%S.%fZ}",
            lease=lease.claim(is_job=self._on_dataflow),
            # Workers of the local runner are on this machine.
            mark="" if isinstance(self._runner, LocalRunner) else LAUNCHED,
        )
        self.watcher.begin(staging, lease=lease)
        pipeline = self._make_pipeline(staging)
        if not self._on_dataflow:
            follow = functools.partial(self._run_to_end, pipeline)
            return self._follow(follow, staging=staging, lease=lease)
        job = self._submit(pipeline, lease=lease)
        if job is not None and self.wait:
            self.watcher.submitted(job)
            follow = functools.partial(self._follow_job, job)
            return self._follow(follow, staging=staging, lease=lease)
        lease.leave()
        return self._result(Outcome(status=Status.SUBMITTED, splits={}), job=job)

    def _make_pipeline(self, staging: Staging) -> beam.Pipeline:
        if not isinstance(self._runner, LocalRunner):
            name_job(self.options, name=self._plan.dataset.name)
        pipeline = beam.Pipeline(runner=self._runner, options=self.options)
        direct = self.options.view_as(DirectOptions)
        is_alone = direct.direct_num_workers == 1 and direct.direct_running_mode == "in_memory"
        resources = self.resources
        if not (resources.processes or (isinstance(self._runner, LocalRunner) and is_alone)):
            # Beside other workers on its machine, each is one process.
            resources = msgspec.structs.replace(resources, processes=1)
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
                repairs=bool(self.damage),
            ),
            resources=resources,
            records=self.records,
        )
        return pipeline

    def _run_to_end(self, pipeline: beam.Pipeline) -> None:
        """Runs a pipeline to its end, and adds up what its workers counted."""
        check_runner(pipeline.options)
        if isinstance(self._runner, LocalRunner):
            self._meter.add_result(run_here(pipeline))
            return
        on_cluster = type(self._runner).__name__ in CLUSTER_RUNNERS
        if on_cluster:
            self.watcher.change_words(f"interrupted; {_CLUSTER_WORDS}")
        result = submit(pipeline, runner=self._runner)
        self.watcher.started(lambda: str(result.state))

        def cancel() -> str:
            # Beam's job server accepts this, but Flink may still finish the job.
            result.cancel()
            return f"interrupted; the job server was asked to cancel the job, but {_CLUSTER_WORDS}"

        if on_cluster:
            self.watcher.change_words(f"interrupted; {_CLUSTER_WORDS}", ask=cancel)
        # Imported here: only clusters need it.
        from shardbeam.pipelines.runners.flink import show_failures

        try:
            with show_failures(pipeline.options) if on_cluster else contextlib.nullcontext():
                result.wait_until_finish()
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                cancel()
            raise
        self._meter.add_result(result)

    def _submit(self, pipeline: beam.Pipeline, *, lease: Lease) -> Job | None:
        """Submits a job to Dataflow, and makes it the holder of the lease.

        Returns:
            The job; None if a template was written instead, which will start it.

        Raises:
            LeaseLostError: Another run has the lease.
        """
        from shardbeam.pipelines.runners.dataflow import submit_job

        self.watcher.change_words(
            "interrupted while the job was submitted; the console says whether it runs anyway"
        )
        job = submit_job(pipeline, runner=self._runner, options=self.options)
        name = self.options.view_as(GoogleCloudOptions).job_name
        try:
            lease.hand_over(f"job {job.id}" if job else f"a job named {name}")
        except LeaseLostError as error:
            if job is None:
                raise
            raise LeaseLostError(
                f"{error}. Job {job.id} was submitted anyway, and will not commit; to cancel "
                f"it: {job.cancel_command}"
            ) from error
        return job

    def _follow_job(self, job: Job) -> None:
        self.watcher.started(lambda: str(job.result.state))
        job.follow()
        self._meter.add_result(job.result)

    def _follow(self, follow: Callable[[], None], *, staging: Staging, lease: Lease) -> BuildResult:
        """Waits for the end of a run, and reads its outcome."""
        error: Exception | None = None
        begin_counting(self._plan, annotation_files=self._inputs.annotation_files)
        try:
            staging.write_mark()
            follow()
        except Exception as raised:  # noqa: BLE001  # Runners change an error's type.
            error = raised
        except BaseException:
            if not isinstance(self._runner, LocalRunner):
                lease.leave()
            raise
        # The watcher makes requests, too: it ends before they are counted.
        self.watcher.ended()
        is_over = error is None or _has_ended(error, runner=self._runner)
        if not is_over:
            lease.leave()
        try:
            if is_over:
                staging.remove_mark()
            recorded = read_outcome(staging)
        except (InputError, OSError):
            # The run's own error may be why, and says more.
            if error is None:
                raise
            recorded = None
        if recorded is None or recorded.status is Status.APPROVED:
            # The run ended before its gate, or between its gate and its commit.
            raise explain_failure(error)
        if recorded.status is Status.NOT_REPAIRED and not self._on_dataflow:
            staging.clear()
        # Release the lease first, so that its requests are counted, too.
        lease.release()
        return self._result(recorded)

    def _result(
        self, outcome: Outcome, *, current: bool = False, job: Job | None = None
    ) -> BuildResult:
        return BuildResult(
            **msgspec.structs.asdict(outcome),
            output=self._plan.output,
            latest=self._plan.latest if outcome.status is Status.COMMITTED else "",
            replaced=self._replaces if outcome.status is Status.COMMITTED else "",
            current=current,
            storage=self._meter.usage(),
            wall_time_s=time.monotonic() - self._started_s,
            job=job,
        )


def read_outcome(staging: Staging) -> Outcome | None:
    """Returns a run's outcome: from `runs/` once it is committed, from staging before."""
    storage = storage_for(staging.output)
    # The last step of the commit may have failed between the two files.
    if storage.stat(join_uri(staging.output, DATASET_INFO)) is not None:
        with contextlib.suppress(FileNotFoundError):
            path = join_uri(staging.output, run_path(staging.run_id))
            data = storage.read_small(path, max_bytes=limits.METADATA_BYTES)
            return JsonDecoder(RunRecord).decode(data).outcome
    return staging.read_state(OUTCOME, Outcome)


def is_on_dataflow(options: PipelineOptions) -> bool:
    """Whether the options name Dataflow's runner."""
    return bool(options.view_as(StandardOptions).runner == DATAFLOW_RUNNER)


def check_job(options: PipelineOptions, *, plan: Plan, reuse: str | None) -> str:
    """Checks what a job needs before it starts, and completes the options of one on Dataflow.

    Args:
        options: Beam's options.
        plan: What to build.
        reuse: A dataset's folder, or a file that names it, as for `build`.

    Returns:
        The folder of the dataset to reuse; empty without one.

    Raises:
        UsageError: There is no such dataset, or the job could not run on Dataflow.
    """
    previous = find_previous(reuse, plan=plan) if reuse else ""
    if is_on_dataflow(options):
        _prepare_job(options, plan=plan, previous=previous)
    return previous


def _prepare_job(options: PipelineOptions, *, plan: Plan, previous: str) -> None:
    # Imported here: Dataflow's clients take a while, and no other runner needs them.
    from shardbeam.pipelines.runners.dataflow import prepare_job

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


def _list_images(plan: Plan) -> ListingSummary:
    # Imported here: most builds list images only once, in the graph that builds.
    from shardbeam.pipelines.preview import list_images

    return list_images(plan)


def _has_ended(error: Exception, *, runner: PipelineRunner) -> bool:
    """Whether a run has ended, after an error that keeps this process from following it."""
    name = type(runner).__name__
    if name == DATAFLOW_RUNNER:
        from shardbeam.pipelines.runners.dataflow import JobEndedError

        return isinstance(error, JobEndedError)
    if isinstance(error, NotStartedError):
        return True
    return name not in CLUSTER_RUNNERS or ended_as_failed(error)
