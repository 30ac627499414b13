"""A Beam job that reads the shards of a dataset and returns one result."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.placeholders import hide_passwords
from shardbeam.pipelines.cli.logging import write_line, write_stdout, writes_json
from shardbeam.pipelines.cli.progress import watch_job
from shardbeam.pipelines.failures import RunError, UsageError, blaming, explain_failure
from shardbeam.pipelines.interrupts import (
    own_temporary_files,
    say_when_interrupted,
    temporary_folder,
)
from shardbeam.pipelines.overlap import check_replaceable
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import Mark, escape
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from shardbeam.pipelines.runners.dataflow import Job


T = TypeVar("T", bound=msgspec.Struct)

_MARK = "made_by"
_INTERRUPTED = "interrupted; nothing was changed"


def run_shard_job(
    shards: Sequence[Any],
    transform: beam.PTransform[Any, Any],
    *,
    merge: Callable[[Sequence[Any]], T],
    mark: Mark,
    name: str,
    path: str,
    report: str | None,
    beam_options: Mapping[str, Any],
    result_type: type[T],
) -> T:
    """Runs a job, and reads what it has written.

    Args:
        shards: A task for each shard, with the file as `data`.
        transform: Makes results of the tasks.
        merge: Makes the result of the job of all results.
        mark: The mark of the file with the result.
        name: The command; a job in the cloud is named after it.
        path: The dataset.
        report: Where the result goes; None for a temporary file.
        beam_options: Keyword arguments of Beam's `PipelineOptions`.
        result_type: Type of the result.

    Raises:
        InputError: Beam cannot hold the name of a shard.
        RunError: A worker could not read the dataset or wrote the result out of reach, or the
            runner does not answer.
        UsageError: A cluster's workers need a `--report`.
    """
    import apache_beam as beam
    from apache_beam.transforms.combiners import ToList

    from shardbeam.pipelines.runners.options import (
        CLUSTER_RUNNERS,
        DATAFLOW_RUNNER,
        LocalRunner,
        check_runner,
        make_options,
        make_runner,
    )

    options = make_options(beam_options)
    runner = make_runner(options)
    if not report and not isinstance(runner, LocalRunner):
        raise UsageError(
            f"--runner={type(runner).__name__}: needs --report URI, a file for the result that its "
            "workers and this machine can reach"
        )
    on_dataflow = type(runner).__name__ == DATAFLOW_RUNNER
    if on_dataflow:
        _prepare_job(options, name=name, path=path, report=report or "")
    check_runner(options)
    say_when_interrupted(_INTERRUPTED)
    own_temporary_files(outlived=type(runner).__name__ in CLUSTER_RUNNERS)
    counters.shard_bytes.expect(sum(shard.data.size_bytes for shard in shards))
    with temporary_folder() as folder:
        if not isinstance(runner, LocalRunner):
            say_when_interrupted(f"{_INTERRUPTED}; the cluster may go on with the job")
        uri = report or join_uri(folder, "report.json")
        pipeline = beam.Pipeline(runner=runner, options=options)
        write = functools.partial(_write_merged, merge=merge, uri=uri, mark=mark)
        try:
            created = pipeline | beam.Create(shards)
            created | transform | ToList() | "WriteReport" >> beam.Map(write)
        except UnicodeEncodeError as error:
            problem = "its path, or a shard's name, is not valid UTF-8; rename it"
            raise InputError(uri=path, problem=problem) from error
        failed: Exception | None = None
        try:
            if on_dataflow:
                _follow_job(pipeline, options=options)
            else:
                result = pipeline.run()
                watch_job(lambda: str(result.state))
                result.wait_until_finish()
        except Exception as error:  # noqa: BLE001  # Runners change an error's type.
            failed = error
        if failed is not None:
            raise explain_failure(failed)
        try:
            data = storage_for(uri).read_small(uri, max_bytes=limits.METADATA_BYTES)
        except FileNotFoundError as error:
            raise RunError(
                f"--report: {uri}: a worker has written it, but this machine does not see it; name "
                "a file in a folder that all machines share, or in object storage"
            ) from error
        return JsonDecoder(result_type).decode(data)


def _write_merged(
    results: Sequence[Any],
    *,
    merge: Callable[[Sequence[Any]], msgspec.Struct],
    uri: str,
    mark: Mark,
) -> None:
    write_report(merge(results), uri=uri, mark=mark)


def _prepare_job(options: PipelineOptions, *, name: str, path: str, report: str) -> None:
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    # Imported here: Dataflow's clients take a while, and no other runner needs them.
    from shardbeam.pipelines.runners.dataflow import prepare_job

    if options.view_as(GoogleCloudOptions).template_location:
        raise UsageError(
            f"--template_location: {name} reads the result of a job, not of a template"
        )
    prepare_job(
        options,
        name=name,
        folders={},
        files={"--report": report},
        read={path: "copy it to gs://"},
    )


def _follow_job(pipeline: beam.Pipeline, *, options: PipelineOptions) -> None:
    from shardbeam.pipelines.runners.dataflow import submit_job

    job = submit_job(pipeline, runner=pipeline.runner, options=options)
    assert job is not None
    announce_job(job)
    watch_job(lambda: str(job.result.state))
    job.follow(kept="")


def check_report(uri: str, *, mark: Mark, overwrite: bool, dataset: str) -> None:
    """Makes sure that a result can be written, and removes the result of an earlier run.

    Args:
        uri: The file.
        mark: The mark in the file.
        overwrite: Whether a file that is no such result may be replaced, too.
        dataset: What the command reads.

    Raises:
        UsageError: It cannot be written, or would replace something else.
    """
    start = f'{{"{_MARK}":'.encode()
    check_replaceable(
        uri, flag="--report", start=start, mark=mark, overwrite=overwrite, inputs=[dataset]
    )
    with blaming(f"--report: {uri}"):
        write_report({}, uri=uri, mark=mark)
        storage_for(uri).delete(uri)


def write_report(report: msgspec.Struct | Mapping[str, object], *, uri: str, mark: Mark) -> None:
    """Writes a result as JSON; its first key says what it is.

    Raises:
        OSError: It cannot be written.
    """
    document = msgspec.json.encode({_MARK: mark.text, **msgspec.to_builtins(report)})
    storage_for(uri).replace(uri, hide_passwords(document.decode()).encode())


# What the command says about a job on Dataflow: where it runs, and how to cancel it.


def announce_job(job: Job) -> None:
    """Writes to stderr where a job runs, before the command waits for its end."""
    say_when_interrupted(
        f"interrupted; job {job.id} goes on without this command. To cancel it: "
        f"{job.cancel_command}"
    )
    write_line(f"job {job.id}: {job.console}")


def print_job(job: Job | None, *, output: str, as_json: bool) -> None:
    """Prints what was submitted, if the command does not wait for its end.

    Args:
        job: The job; None if a template was written instead.
        output: The dataset's folder.
        as_json: Whether to print one JSON object on one line: `status` (`submitted` or
            `template`), `exit_code`, `output`, and of a job `job_id`, `console` and `cancel`.
    """
    value: dict[str, Any] = {"status": "submitted" if job else "template"}
    value |= {"exit_code": 0, "output": output}
    lines = [f"template written; it builds {escape(output)}"]
    if job is not None:
        value |= {"job_id": job.id, "console": job.console, "cancel": job.cancel_command}
        lines = [
            f"submitted, for: {escape(output)}",
            f"job: {job.id}",
            f"console: {job.console}",
            f"to cancel it: {job.cancel_command}",
        ]
    if as_json or not writes_json():
        write_stdout(json.dumps(value) + "\n" if as_json else "\n".join(lines) + "\n")
    if writes_json():
        write_line(lines[0], step="summary", **value)
