"""A Beam job that reads the shards of a dataset and returns one result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.passwords import hide_passwords
from shardbeam.pipelines.cli.commands import StatsArguments, VerifyArguments
from shardbeam.pipelines.cli.job_messages import announce_job
from shardbeam.pipelines.cli.progress import watch_job
from shardbeam.pipelines.failures import RunError, UsageError, blaming, explain_failure
from shardbeam.pipelines.interrupts import say_when_interrupted
from shardbeam.pipelines.overlap import check_replaceable
from shardbeam.pipelines.own_folders import own_temporary_files, temporary_folder
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import Mark
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import read_optional

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions


S = TypeVar("S")
T = TypeVar("T", bound=msgspec.Struct)

_MARK = "made_by"
_INTERRUPTED = "interrupted; nothing was changed"


class ShardJob(NamedTuple):
    """The job of a command that reads all shards of a dataset, and the file with its result.

    Attributes:
        name: The command; a job in the cloud is named after it.
        mark: The mark of the file with the result.
        arguments: The command's arguments.
    """

    name: str
    mark: Mark
    arguments: StatsArguments | VerifyArguments

    def check_report(self) -> None:
        """Makes sure that `--report` can be written, and removes the result of an earlier run.

        Raises:
            UsageError: It cannot be written, or would replace something else.
        """
        uri = self.arguments.report
        if not uri:
            return
        check_replaceable(
            uri,
            flag="--report",
            start=f'{{"{_MARK}":'.encode(),
            mark=self.mark,
            overwrite=self.arguments.overwrite,
            inputs=[self.arguments.path],
        )
        with blaming(f"--report: {uri}"):
            _write_result({}, uri=uri, mark=self.mark)
            storage_for(uri).delete(uri)

    def write_report(self, result: msgspec.Struct) -> None:
        """Writes the command's result to `--report`, if that is given.

        Raises:
            OSError: It cannot be written.
        """
        if self.arguments.report:
            _write_result(result, uri=self.arguments.report, mark=self.mark)

    def run(
        self,
        shards: Sequence[Any],
        read: Callable[[Any], S],
        *,
        merge: Callable[[Sequence[S]], T],
        types: tuple[type[S], type[T]],
        path: str,
    ) -> T:
        """Runs the job, and reads what it has written.

        Args:
            shards: A task for each shard, with the file as `data`.
            read: Makes the result of a task.
            merge: Makes the result of the job of all results of tasks.
            types: The types of a task's result and of the job's.
            path: The dataset.

        Raises:
            InputError: Beam cannot hold the name of a shard.
            RunError: A worker could not read the dataset or wrote the result out of reach, or the
                runner does not answer.
            UsageError: A cluster's workers need a `--report`.
        """
        import apache_beam as beam
        from apache_beam.transforms.combiners import ToList

        from shardbeam.pipelines.runners.flink import show_failures
        from shardbeam.pipelines.runners.options import (
            CLUSTER_RUNNERS,
            DATAFLOW_RUNNER,
            LocalRunner,
            check_runner,
            make_options,
            make_runner,
            name_job,
        )
        from shardbeam.transforms.read_shards import ReadShards

        options = make_options(self.arguments.beam_options)
        runner = make_runner(options)
        report = self.arguments.report
        if not report and not isinstance(runner, LocalRunner):
            raise UsageError(
                f"--runner={type(runner).__name__}: needs --report URI, a file for the result that "
                "its workers and this machine can reach"
            )
        on_dataflow = type(runner).__name__ == DATAFLOW_RUNNER
        if on_dataflow:
            _prepare_job(options, name=self.name, path=path, report=report or "")
        check_runner(options)
        say_when_interrupted(_INTERRUPTED)
        own_temporary_files(outlived=type(runner).__name__ in CLUSTER_RUNNERS)
        counters.shard_bytes.expect(sum(shard.data.size_bytes for shard in shards))
        with temporary_folder() as folder:
            if not isinstance(runner, LocalRunner):
                say_when_interrupted(f"{_INTERRUPTED}; the cluster may go on with the job")
                name_job(options, name=self.name)
            uri = report or join_uri(folder, "report.json")
            pipeline = beam.Pipeline(runner=runner, options=options)
            write = functools.partial(_write_merged, merge=merge, uri=uri, mark=self.mark)
            read_shards = ReadShards(read=read, result_type=types[0])
            try:
                created = pipeline | beam.Create(shards)
                created | read_shards | ToList() | "WriteReport" >> beam.Map(write)
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
                    with show_failures(options):
                        result.wait_until_finish()
            except Exception as error:  # noqa: BLE001  # Runners change an error's type.
                failed = error
            if failed is not None:
                raise explain_failure(failed)
            data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
            if data is None:
                raise RunError(
                    f"--report: {uri}: a worker has written it, but this machine does not see it; "
                    "name a file in a folder that all machines share, or in object storage"
                )
            return JsonDecoder(types[1]).decode(data)


def _write_merged(
    results: Sequence[Any],
    *,
    merge: Callable[[Sequence[Any]], msgspec.Struct],
    uri: str,
    mark: Mark,
) -> None:
    _write_result(merge(results), uri=uri, mark=mark)


def _write_result(result: msgspec.Struct | Mapping[str, object], *, uri: str, mark: Mark) -> None:
    """Writes a result as JSON; its first key says what it is."""
    document = msgspec.json.encode({_MARK: mark.text, **msgspec.to_builtins(result)})
    storage_for(uri).replace(uri, hide_passwords(document.decode()).encode())


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
