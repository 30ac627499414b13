"""`shardbeam verify`: reads a dataset to its last byte, and says what is wrong with it."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable

import msgspec
from rich.filesize import decimal

from shardbeam.configs.load import Override
from shardbeam.pipelines.cli.commands import BuildArguments, VerifyArguments
from shardbeam.pipelines.cli.logging import write_error, write_stdout
from shardbeam.pipelines.cli.progress import show_progress
from shardbeam.pipelines.cli.shard_job import ShardJob
from shardbeam.pipelines.config_file import load_config
from shardbeam.pipelines.failures import RunError, UsageError
from shardbeam.readers.open.stored_dataset import dataset_name
from shardbeam.readers.verify.verify import Checks, plan_checks
from shardbeam.transforms.core.text import Mark, ascii_json, counted, escape
from shardbeam.transforms.shards.verify_shard import CheckReport, check_shard, merge_reports
from shardbeam.transforms.staging.staging import holds_staging

WHOLE, DAMAGED = 0, 5
# Problems that are printed; the report has more.
_PRINTED = 100


def run_verify(arguments: VerifyArguments) -> int:
    """Verifies a dataset, and prints what is wrong.

    Returns:
        The exit code: 0 if nothing is wrong, otherwise 5, or that of the build that repairs the
        dataset.

    Raises:
        ConfigError: `--repair` does not name a valid config.
        InputError: There is no dataset.
        RunError: A worker could not read it.
        UsageError: `--report` is missing, which a cluster's workers need; or the dataset cannot be
            repaired.
    """
    mark = Mark("result of verify", dataset_name(arguments.path))
    job = ShardJob("verify", mark, arguments)
    # Notice early if the report cannot be written; an older report is replaced.
    job.check_report()
    checks = plan_checks(arguments.path)
    repair = _plan_repair(checks, arguments=arguments) if arguments.repair else None
    found = CheckReport(count=len(checks.problems), problems=checks.problems)
    if not arguments.quick:
        read = job.run(
            checks.shards,
            functools.partial(check_shard, decode=arguments.decode),
            merge=_merge_in_order,
            types=(CheckReport, CheckReport),
            path=checks.path,
        )
        found = merge_reports([found, read])
    job.write_report(found)
    try:
        _print(found, checks=checks, arguments=arguments)
    except RunError:
        # Damage matters more than a stdout that cannot be written.
        if not found.count:
            raise
    damage = _find_repairable(found, checks=checks)
    if repair is None or not damage:
        if found.count:
            write_error(f"damaged: {checks.path}: {counted(found.count, 'problem')}")
            return DAMAGED
        # A repair that was interrupted after its commit has left files, which a build clears up.
        if repair is None or not holds_staging(checks.path):
            return WHOLE
    from shardbeam.pipelines.cli.run import run_build

    # The result of verify has ended the progress of this command.
    with show_progress():
        return run_build(msgspec.structs.replace(repair, damage=damage))


def _find_repairable(found: CheckReport, *, checks: Checks) -> list[str]:
    """Returns the problems that a build can repair."""
    strays = set(checks.strays)
    return [str(problem) for problem in found.problems if problem not in strays]


def _plan_repair(checks: Checks, *, arguments: VerifyArguments) -> BuildArguments:
    """Returns the arguments of the build that repairs a dataset in place."""
    if not checks.is_ours:
        raise UsageError(f"--repair: {checks.path}: it has no manifest that says how it was built")
    path = checks.path.replace("{", "{{").replace("}", "}}")
    # The pointer stays as it is.
    overrides = [Override(("output", "path"), path), Override(("output", "latest"), None)]
    return BuildArguments(
        command="build",
        config=load_config(arguments.repair or "", overrides=overrides),
        beam_options=arguments.beam_options,
        if_changed=True,
        # The exit code is the result of the repair.
        wait=True,
        json=arguments.json,
    )


def _merge_in_order(reports: Iterable[CheckReport]) -> CheckReport:
    return merge_reports(sorted(reports, key=lambda report: list(map(str, report.problems))))


def _print(found: CheckReport, *, checks: Checks, arguments: VerifyArguments) -> None:
    path = checks.path
    if arguments.json:
        report = {"path": path, **msgspec.to_builtins(found)}
        write_stdout(ascii_json(msgspec.json.encode(report)))
        return
    for problem in found.problems[:_PRINTED]:
        write_stdout(f"{escape(str(problem))}\n")
    if found.count > _PRINTED:
        write_stdout(f"... and {found.count - _PRINTED:,} more\n")
    read = (
        "compared names and sizes only"
        if arguments.quick
        else f"shards: {found.shards:,}, examples: {found.examples:,}, {decimal(found.num_bytes)}"
    )
    if found.count:
        write_stdout(f"damaged: {escape(path)}: {counted(found.count, 'problem')} ({read})\n")
        if checks.is_ours and not arguments.repair and _find_repairable(found, checks=checks):
            command = f"shardbeam verify {shlex.quote(escape(path))} --repair CONFIG.yaml"
            write_stdout(f"to repair it with the config that it was built from: {command}\n")
    else:
        write_stdout(f"whole: {escape(path)}: {read}\n")
