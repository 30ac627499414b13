"""The functions that programs call: `build` and `plan`, with all checks that a dataset needs.

The command uses `plan` and `execute.Build`, and adds messages, progress, signals and exit codes.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from apache_beam.options.pipeline_options import PipelineOptions

from shardbeam.configs.load import make_config
from shardbeam.configs.schema import Config
from shardbeam.pipelines.build import Records, begin_counting
from shardbeam.pipelines.execute import Build, check_job, is_on_dataflow
from shardbeam.pipelines.failures import OWN_LOGGER, UsageError, explain, is_news
from shardbeam.pipelines.output_folder import check_usable, read_latest
from shardbeam.pipelines.plan import make_plan
from shardbeam.pipelines.result import BuildResult, PlanResult, RefusedError
from shardbeam.pipelines.runners.options import check_runner, make_runner, read_options
from shardbeam.pipelines.versions import Inputs, check_versions, place_output
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.dataset.outcome import SplitOutcome, Status
from shardbeam.transforms.formats.base import find_format
from shardbeam.transforms.storage.base import read_anonymously

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
    reuse: str | None = None,
    runner: str | None = None,
    options: PipelineOptions | Mapping[str, Any] | None = None,
    processes: int | None = None,
    anonymous: bool = False,
) -> PlanResult:
    """Lists and joins as a build would, in this process, and says what it would write.

    Args:
        config: As for `build`.
        overwrite: As for `build`: without it, a warning says that a dataset is there already.
        if_changed: Checks that a build with `if_changed` could find the last version.
        reuse: Checks that there is such a dataset.
        runner: The runner of the build. What the build would check before it starts a job there,
            such as flags and buckets, is checked here.
        options: Other options of Beam's, as for `build`.
        processes: As for `build`.
        anonymous: As for `build`.

    Raises:
        ConfigError: The config cannot be used.
        UsageError: The output, the runner or an option cannot be used as asked.
        InputError: The input cannot be used.
        RunError: The run failed, or the runner does not answer.
    """
    with _called(), read_anonymously(anonymous):
        return plan_build(
            _read_config(config),
            options=read_options(runner, options),
            overwrite=overwrite,
            if_changed=if_changed,
            reuse=reuse,
            resources=_check_resources(Resources(processes=processes)),
        )


def plan_build(
    config: Config,
    *,
    options: PipelineOptions,
    overwrite: bool,
    if_changed: bool,
    reuse: str | None,
    resources: Resources,
) -> PlanResult:
    """Plans a build; see `plan` for the arguments."""
    # Imported here: a build needs none of it.
    from shardbeam.pipelines.preview import (
        count_inputs,
        describe_foreseen,
        estimate_sizes,
        foresee,
        preview,
        warn_of_pointers,
    )

    plan = make_plan(config)
    check_job(options, plan=plan, reuse=reuse)
    check_versions(plan, if_changed=if_changed)
    make_runner(options)
    check_runner(options)
    # Called only for its errors.
    read_latest(plan)
    started = datetime.datetime.now(tz=datetime.timezone.utc)
    started_s = time.monotonic()
    inputs = Inputs(plan, list_images=lambda: counted.listing)
    begin_counting(plan, annotation_files=inputs.annotation_files)
    counted = count_inputs(plan)
    outcome = preview(foresee(counted, plan=plan))
    plan = place_output(plan, inputs=inputs, started=started)
    problem = check_usable(plan, inputs=inputs, overwrite=overwrite, if_changed=if_changed)
    warnings = [*outcome.warnings, *warn_of_pointers(counted.samples.foreseen)]
    if problem:
        warnings.append(f"a build would be refused: {problem}")
    total = SplitOutcome()
    for split in outcome.splits.values():
        total.add(split)
    notes = [*outcome.notes, *describe_foreseen(counted)]
    if is_on_dataflow(options):
        # Imported here: Dataflow's clients take a while, and no other runner needs them.
        from shardbeam.pipelines.runners.dataflow import describe_cost

        notes.append(describe_cost(images=total.images, num_bytes=total.num_bytes))
    sizes = estimate_sizes(outcome.splits, inputs=counted, settings=plan.encoder.image)
    return PlanResult(
        **msgspec.structs.asdict(
            msgspec.structs.replace(
                outcome,
                splits=sizes.splits,
                warnings=tuple(warnings),
                notes=(*notes, *sizes.notes),
            )
        ),
        output=plan.output,
        wall_time_s=time.monotonic() - started_s,
        processes=resources.count_processes(shards=total.shards, num_bytes=total.num_bytes),
    )


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
    # Imported here: the other configs are no files.
    from shardbeam.pipelines.config_file import load_config

    return load_config(config)


def _check_resources(resources: Resources) -> Resources:
    for name, number in msgspec.structs.asdict(resources).items():
        if number is not None and number < 1:
            raise UsageError(f"{name}: expected a whole number from 1 up, got {number}")
    return resources
