"""The functions that programs call: `build` and `plan`, with all checks that a dataset needs.

The command uses `Build` and `plan`, and adds messages, progress, signals and exit codes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from shardbeam.configs.decoding import JsonDecoder, MsgpackDecoder
from shardbeam.configs.load import make_config
from shardbeam.configs.passwords import hide_passwords
from shardbeam.configs.schema import Config
from shardbeam.pipelines.build import Records, build_dataset, gather_records, list_inputs
from shardbeam.pipelines.config_file import load_config
from shardbeam.pipelines.failures import (
    OWN_LOGGER,
    NotStartedError,
    UsageError,
    ended_as_failed,
    explain,
    explain_failure,
    is_news,
    was_interrupted,
)
from shardbeam.pipelines.foresee import describe_foreseen, warn_of_pointers
from shardbeam.pipelines.output_folder import (
    Inputs,
    Output,
    check_usable,
    check_versions,
    check_without_listing,
    find_previous,
    hold_output,
    place_output,
    read_latest,
)
from shardbeam.pipelines.plan import Plan, make_plan
from shardbeam.pipelines.result import BuildResult, PlanResult, RefusedError
from shardbeam.pipelines.runners.options import (
    CLUSTER_RUNNERS,
    DATAFLOW_RUNNER,
    LocalRunner,
    UsageMeter,
    check_runner,
    make_options,
    make_runner,
    read_options,
    submit,
)
from shardbeam.pipelines.temporary import temporary_folder
from shardbeam.transforms.commit.commit import CommitSettings
from shardbeam.transforms.commit.gate import count_sources, name_classes
from shardbeam.transforms.commit.notes import make_notes
from shardbeam.transforms.commit.pointer import write_pointer
from shardbeam.transforms.commit.runs import RunRecord, RunSettings
from shardbeam.transforms.commit.warnings import find_warnings
from shardbeam.transforms.core.counters import IMAGES, ROWS, counters
from shardbeam.transforms.core.errors import InputError, naming
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import build_label_map
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.dataset.census import Census, ListingSummary
from shardbeam.transforms.dataset.manifest import DATASET_INFO, run_path
from shardbeam.transforms.dataset.outcome import (
    Outcome,
    Resumed,
    SplitOutcome,
    Status,
    add_counts,
)
from shardbeam.transforms.dataset.shard_plan import no_examples, plan_shards
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.formats.load import find_format
from shardbeam.transforms.staging.lease import Lease, LeaseLostError
from shardbeam.transforms.staging.staging import LAUNCHED, OUTCOME, Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri, read_anonymously
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.pipelines.runners.dataflow import Job

_CLUSTER_WORDS = (
    "the cluster may go on with the job: check it before you run the same command again"
)

# Beam's loggers that get the traceback of whatever ends a step.
_BEAM_LOGGERS = ("apache_beam.runners.common", "apache_beam.runners.worker.sdk_worker")
# One item for each call that has not returned yet.
_calls: list[None] = []
_calls_lock = threading.Lock()


def build(
    config: str | Path | Mapping[str, Any] | Config,
    *,
    overwrite: bool = False,
    if_changed: bool = False,
    reuse: str | None = None,
    records: Records | None = None,
    runner: str | None = None,
    options: PipelineOptions | Mapping[str, Any] | None = None,
    processes: int | None = None,
    threads: int | None = None,
    memory_mb: int | None = None,
    read_ahead: int | None = None,
    anonymous: bool = False,
    wait: bool = True,
) -> BuildResult:
    """Builds a dataset and commits it.

    It holds the output while it runs, refuses a folder with files that are not Shardbeam's, and
    replaces a committed dataset only with `overwrite`. It writes nothing to stdout, and leaves
    log handlers, signal handlers, `os.environ` and the temporary folder as they are. Any thread
    may call it.

    Args:
        config: A config file, what such a file holds, or what `load_config` returns.
        overwrite: Replaces a committed dataset that is there, if it has the same name or formats.
        if_changed: Does nothing if inputs and config are those of the dataset there, and repairs
            it if files of it are missing or truncated.
        reuse: A dataset's folder, or a file that names it: shards that would come out the same are
            copied from there.
        records: A transform that gives a `Record` for each image, for steps of your own before
            ours; then the config names no source.
        runner: Name of a Beam runner; without one, the build runs in this process.
        options: Other options of Beam's.
        processes: Processes that write shards, in each worker process.
        threads: Threads that read images, in each of these processes.
        memory_mb: Memory for decoding images, in each of these processes (MB of 10⁶ bytes).
        read_ahead: Images that each of these processes reads from object storage at a time. Builds
            that run at the same time share threads, memory and read-ahead of the first one.
        anonymous: Reads public buckets without credentials. Until the build ends, the whole
            process reads all buckets like that.
        wait: On Dataflow, waits for the job's end. Otherwise the result holds the submitted job.

    Returns:
        What was committed; or, without waiting, the submitted job.

    Raises:
        ConfigError: The config cannot be used.
        UsageError: The output, the runner or an option cannot be used as asked.
        LeaseError: Another run writes to the output.
        InputError: The input cannot be used.
        RunError: The run failed.
        RefusedError: The gate refused to commit what was built; its `result` says why.
        KeyboardInterrupt: The build was interrupted. Its threads and processes have ended, and the
            output is free. A job on a cluster or on Dataflow may go on.
    """
    with _called(), read_anonymously(anonymous):
        result = Build(
            config=_read_config(config),
            options=read_options(runner, options),
            overwrite=overwrite,
            if_changed=if_changed,
            reuse=reuse,
            records=records,
            resources=_check_resources(
                Resources(
                    processes=processes,
                    threads=threads,
                    memory_mb=memory_mb,
                    read_ahead=read_ahead,
                )
            ),
            wait=wait,
        ).run()
    if result.status not in (Status.COMMITTED, Status.SUBMITTED):
        raise RefusedError(result)
    return result


def plan(
    config: str | Path | Mapping[str, Any] | Config,
    *,
    overwrite: bool = False,
    if_changed: bool = False,
    anonymous: bool = False,
) -> PlanResult:
    """Lists and joins as a build would, in this process, and says what it would write.

    Args:
        config: As for `build`.
        overwrite: As for `build`: without it, a warning says that a dataset is there already.
        if_changed: Checks that a build with `if_changed` could find the last version.
        anonymous: As for `build`.

    Raises:
        ConfigError: The config cannot be used.
        UsageError: The output cannot be used as asked.
        InputError: The input cannot be used.
        RunError: The run failed.
    """
    with _called(), read_anonymously(anonymous):
        plan = make_plan(_read_config(config))
        check_versions(plan, if_changed=if_changed)
        # Called only for its errors.
        read_latest(plan)
        started, started_s = _now(), time.monotonic()
        annotation_files = _stat_annotation_files(plan)
        _begin_counting(plan, annotation_files=annotation_files)
        census = take_census(plan)
        outcome = preview(census, plan=plan)
        inputs = Inputs(
            plan=plan.digest, annotation_files=annotation_files, list_images=lambda: census.listing
        )
        plan = place_output(plan, inputs=inputs, started=started)
        problem = check_usable(plan, inputs=inputs, overwrite=overwrite, if_changed=if_changed)
        warnings = [*outcome.warnings, *warn_of_pointers(census.foreseen)]
        if problem:
            warnings.append(f"a build would be refused: {problem}")
        outcome = msgspec.structs.replace(
            outcome,
            warnings=tuple(warnings),
            notes=(*outcome.notes, *describe_foreseen(census)),
        )
        return PlanResult(
            **msgspec.structs.asdict(outcome),
            output=plan.output,
            wall_time_s=time.monotonic() - started_s,
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
    sources: Sequence[Source] = ()

    def run(self) -> BuildResult:
        """Builds if there is anything to do.

        Returns:
            The result, also if the gate refused to commit.
        """
        self._meter = UsageMeter()
        self._plan = make_plan(self.config, records=self.records is not None, sources=self.sources)
        self._previous = find_previous(self.reuse, plan=self._plan) if self.reuse else ""
        self._on_dataflow = self.options.view_as(StandardOptions).runner == DATAFLOW_RUNNER
        if self._on_dataflow:
            _prepare_job(self.options, plan=self._plan, previous=self._previous)
        check_versions(self._plan, if_changed=self.if_changed)
        if self.records is not None:
            check_without_listing(self._plan, if_changed=self.if_changed)
        self._started, self._started_s = _now(), time.monotonic()
        self._runner = make_runner(self.options)
        self._inputs = Inputs(
            plan=self._plan.digest,
            annotation_files=_stat_annotation_files(self._plan),
            list_images=functools.partial(_list_images, self._plan),
        )
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
            self._meter.add_result(_run_here(pipeline))
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
        try:
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
        _begin_counting(self._plan, annotation_files=self._inputs.annotation_files)
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


@contextlib.contextmanager
def _called() -> Iterator[None]:
    """Keeps the program's logging as it is, and raises our errors for errors of the machine."""
    with _calls_lock:
        if not _calls:
            _change_logging()
        _calls.append(None)
    try:
        yield
    except Exception as raised:
        error = explain(raised)
        if error is raised:
            raise
        raise error from raised
    finally:
        with _calls_lock:
            _calls.pop()
            if not _calls:
                _restore_logging()


def _change_logging() -> None:
    """Silences Beam's tracebacks of errors that a call raises to the program.

    Beam adds a handler, for good, to a root logger that has none; so while any build runs, such a
    root logger has one that prints what Python would print without any handler.
    """
    for name in _BEAM_LOGGERS:
        logging.getLogger(name).addFilter(is_news)
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(_last_resort)


def _restore_logging() -> None:
    for name in _BEAM_LOGGERS:
        logging.getLogger(name).removeFilter(is_news)
    logging.getLogger().removeHandler(_last_resort)


class _LastResort(logging.Handler):
    """Prints warnings as Python does without handlers. The logger `shardbeam` prints none."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.lastResort is not None and record.name.partition(".")[0] != OWN_LOGGER:
            logging.lastResort.emit(record)


_last_resort = _LastResort(logging.WARNING)


def _read_config(config: str | Path | Mapping[str, Any] | Config) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return make_config(config, origin="config", find_format=find_format)
    return load_config(config)


def _check_resources(resources: Resources) -> Resources:
    for name, number in msgspec.structs.asdict(resources).items():
        if number is not None and number < 1:
            raise UsageError(f"{name}: expected a whole number from 1 up, got {number}")
    return resources


def _now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.timezone.utc)


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


def _has_ended(error: Exception, *, runner: PipelineRunner) -> bool:
    """Whether a run has ended, after an error that keeps this process from following it."""
    name = type(runner).__name__
    if name == DATAFLOW_RUNNER:
        from shardbeam.pipelines.runners.dataflow import JobEndedError

        return isinstance(error, JobEndedError)
    if isinstance(error, NotStartedError):
        return True
    return name not in CLUSTER_RUNNERS or ended_as_failed(error)


def _stat_annotation_files(plan: Plan) -> tuple[tuple[str, int, str], ...]:
    """Describes annotation files and files of formats: `(uri, size in bytes, version)` each."""
    files = []
    for source in plan.sources:
        path, own_format, _ = source.format.format.rpartition(".py:")
        formats = [f"{path}.py"] if own_format else []
        for uri in (*source.format.annotation_files(), *formats):
            stored = storage_for(uri).find(uri)
            # The same file with another password is the same file.
            files.append((hide_passwords(uri), stored.size_bytes, stored.version))
    return tuple(files)


def _begin_counting(plan: Plan, *, annotation_files: Sequence[tuple[str, int, str]] = ()) -> None:
    """Begins to count what a graph does, in case that somebody watches."""
    counters.begin(
        noun=ROWS if Kind.ROWS in plan.encoder.kinds else IMAGES,
        annotation_bytes=sum(size_bytes for _, size_bytes, _ in annotation_files),
    )


def _list_images(plan: Plan) -> ListingSummary:
    _begin_counting(plan)
    return _take_census(functools.partial(list_inputs, plan=plan)).listing


def take_census(plan: Plan) -> Census:
    """Lists and joins in this process, and returns what was counted.

    Raises:
        RunError: The input cannot be used.
    """
    return _take_census(functools.partial(_gather_census, plan=plan))


def _gather_census(pipeline: beam.Pipeline, *, plan: Plan) -> PCollection[Census]:
    return gather_records(pipeline, plan=plan).census


def _take_census(graph: Callable[[beam.Pipeline], PCollection[Census]]) -> Census:
    """Runs a graph in this process, and returns the census at its end.

    Raises:
        RunError: The input cannot be used.
    """
    options = make_options()
    with temporary_folder() as folder:
        path = Path(folder, "census")
        pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
        graph(pipeline) | "WriteCensus" >> beam.Map(_write_census, path=path)
        failed: Exception | None = None
        try:
            _run_here(pipeline)
        except Exception as error:  # noqa: BLE001  # Runners change an error's type.
            failed = error
        if failed is not None:
            raise explain_failure(failed)
        return MsgpackDecoder(Census).decode(path.read_bytes())


def _write_census(census: Census, *, path: Path) -> None:
    with naming(str(path)):
        path.write_bytes(msgspec.msgpack.encode(census))


def _run_here(pipeline: beam.Pipeline) -> Any:  # noqa: ANN401  # Beam does not export the type.
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


def preview(census: Census, *, plan: Plan) -> Outcome:
    """Returns what a build would write; its counts include the rejects that are foreseen.

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
            examples=joined.examples - census.foreseen.examples.get(split, 0),
            images=joined.images - census.foreseen.undecodable.get(split, 0),
            rejected=add_counts(joined.rejected, census.foreseen.rejects(split)),
        )
        for split in plan.splits.names
        for joined in [census.splits.get(split, SplitOutcome())]
    }
    label_map = build_label_map(
        categories=census.categories.values(),
        settings=plan.labels,
        objects=plan.objects,
        lost=census.lost,
    )
    return Outcome(
        status=Status.APPROVED,
        splits=counts,
        sources=count_sources(census, dataset=plan.dataset),
        warnings=find_warnings(census, splits=counts, label_map=label_map, dataset=plan.dataset),
        notes=make_notes(census, dataset=plan.dataset, label_map=label_map),
        **name_classes(label_map),
    )
