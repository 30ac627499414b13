"""`shardbeam verify`: reads a dataset to its last byte, and says what is wrong with it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from rich.filesize import decimal

from shardbeam.pipelines.arguments import load_config
from shardbeam.pipelines.commands import BuildArguments, VerifyArguments
from shardbeam.pipelines.failures import UsageError, explain_failure
from shardbeam.pipelines.interrupts import say_when_interrupted, temporary_folder
from shardbeam.pipelines.logs import escape, write_stdout
from shardbeam.transforms.dataset.verify import Checks, plan_checks
from shardbeam.transforms.dataset.verify_shard import ShardReport, merge_reports
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

WHOLE, DAMAGED = 0, 5
# A person reads no more; the report has them all.
_PRINTED = 100
_INTERRUPTED = "interrupted; nothing was changed"


def run_verify(arguments: VerifyArguments) -> int:
    """Verifies a dataset, and prints what is wrong.

    Returns:
        The exit code: 0 where nothing is, 5 otherwise, or that of the build that repairs it.

    Raises:
        ConfigError: What `--repair` names is no config.
        InputError: There is no dataset.
        RunError: A worker could not read it.
        UsageError: A cluster's workers need a `--report`; or the dataset cannot be repaired.
    """
    if arguments.report:
        # Whether it can be written shows now; what is there is of another look at the dataset.
        _write(ShardReport(), uri=arguments.report)
        storage_for(arguments.report).delete(arguments.report)
    checks = plan_checks(arguments.path)
    repair = _plan_repair(checks, arguments=arguments) if arguments.repair else None
    found = ShardReport(count=len(checks.problems), problems=checks.problems)
    if not arguments.quick:
        found = merge_reports([found, _check_shards(checks, arguments=arguments)])
    if arguments.report:
        _write(found, uri=arguments.report)
    _print(found, checks=checks, arguments=arguments)
    if not found.count:
        return WHOLE
    if repair is None:
        return DAMAGED
    from shardbeam.pipelines.run import run_build

    return run_build(msgspec.structs.replace(repair, damage=[str(each) for each in found.problems]))


def _plan_repair(checks: Checks, *, arguments: VerifyArguments) -> BuildArguments:
    """Makes the command that builds the damaged shards of a dataset anew, where it is."""
    if not checks.is_ours:
        raise UsageError(f"--repair: {checks.path}: no manifest says how this dataset was built")
    # Escapes of JSON are those of YAML up to U+FFFF.
    path = json.dumps(checks.path.replace("{", "{{").replace("}", "}}"), ensure_ascii=False)
    # Where readers are led to does not change.
    overrides = [f"output.path={path}", "output.latest=null"]
    return BuildArguments(
        command="build",
        config=load_config(arguments.repair or "", overrides=overrides),
        beam_options=arguments.beam_options,
        if_changed=True,
        json=arguments.json,
    )


def _check_shards(checks: Checks, *, arguments: VerifyArguments) -> ShardReport:
    # Imported here: a quick look needs no Beam.
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.transforms.combiners import ToList

    from shardbeam.pipelines.runners import DATAFLOW_RUNNER, LocalRunner, make_runner
    from shardbeam.transforms.verify_shards import VerifyShards

    options = PipelineOptions([], **arguments.beam_options)
    runner = make_runner(options)
    if not arguments.report and not isinstance(runner, LocalRunner):
        raise UsageError(
            f"--runner={type(runner).__name__}: name a file that its workers and this machine "
            "see, for the result: --report URI"
        )
    on_dataflow = type(runner).__name__ == DATAFLOW_RUNNER
    if on_dataflow:
        _prepare_job(options, checks=checks, report=arguments.report or "")
    with temporary_folder(_INTERRUPTED) as folder:
        if not isinstance(runner, LocalRunner):
            say_when_interrupted(f"{_INTERRUPTED}; the cluster may go on with the job")
        uri = arguments.report or join_uri(folder, "report.json")
        pipeline = beam.Pipeline(runner=runner, options=options)
        (
            pipeline
            | beam.Create(checks.shards)
            | VerifyShards(decode=arguments.decode)
            | ToList()
            | "WriteReport" >> beam.Map(_write_report, uri=uri)
        )
        try:
            if on_dataflow:
                _follow_job(pipeline, options=options)
            else:
                pipeline.run().wait_until_finish()
        except Exception as error:
            raise explain_failure(error) from error
        return msgspec.json.decode(storage_for(uri).read(uri), type=ShardReport)


def _prepare_job(options: PipelineOptions, *, checks: Checks, report: str) -> None:
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    # Imported here: its clients take a while, and no other runner needs them.
    from shardbeam.pipelines.dataflow import prepare_job

    if options.view_as(GoogleCloudOptions).template_location:
        raise UsageError("--template_location: verify reads the result of a job, not of a template")
    prepare_job(
        options,
        name="verify",
        folders={},
        files={"--report": report},
        read={checks.path: "copy it to gs://"},
    )


def _follow_job(pipeline: beam.Pipeline, *, options: PipelineOptions) -> None:
    from shardbeam.pipelines.dataflow import submit_job

    job = submit_job(pipeline, runner=pipeline.runner, options=options)
    assert job is not None
    job.follow()


def _write_report(reports: Iterable[ShardReport], *, uri: str) -> None:
    ordered = sorted(reports, key=lambda report: [str(problem) for problem in report.problems])
    _write(merge_reports(ordered), uri=uri)


def _write(report: ShardReport, *, uri: str) -> None:
    try:
        storage_for(uri).replace(uri, msgspec.json.encode(report))
    except OSError as error:
        raise UsageError(f"--report: {uri}: {error.strerror or error}") from error


def _print(found: ShardReport, *, checks: Checks, arguments: VerifyArguments) -> None:
    path = checks.path
    if arguments.json:
        report = {"path": path, **msgspec.to_builtins(found)}
        write_stdout(msgspec.json.encode(report).decode() + "\n")
        return
    for problem in found.problems[:_PRINTED]:
        write_stdout(f"{escape(str(problem))}\n")
    if found.count > _PRINTED:
        write_stdout(f"... and {found.count - _PRINTED:,} more\n")
    read = (
        "names and sizes alone"
        if arguments.quick
        else f"shards: {found.shards:,}, examples: {found.examples:,}, {decimal(found.num_bytes)}"
    )
    if found.count:
        problems = "1 problem" if found.count == 1 else f"{found.count:,} problems"
        write_stdout(f"damaged: {escape(path)}: {problems} ({read})\n")
        if checks.is_ours and not arguments.repair:
            command = f"shardbeam verify {shlex.quote(escape(path))} --repair CONFIG.yaml"
            write_stdout(f"to repair it, by the config that it was built by: {command}\n")
    else:
        write_stdout(f"whole: {escape(path)}: {read}\n")
