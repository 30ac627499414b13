"""Prints what a run did on stdout: as tables for people or as JSON for programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from shardbeam.pipelines.cli.logging import (
    logged_warnings,
    write_error,
    write_line,
    write_stdout,
    writes_json,
)
from shardbeam.pipelines.cli.tables import (
    PLAIN,
    Layout,
    make_table,
    render_table,
    stdout_layout,
    table_width,
)
from shardbeam.pipelines.failures import RunError
from shardbeam.pipelines.result import PlanResult
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.memory import machine_bytes
from shardbeam.transforms.core.reasons import Reason, correction_unit
from shardbeam.transforms.core.sharding import NO_SPLIT
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.dataset.findings import most_notable
from shardbeam.transforms.dataset.outcome import (
    ROWS_ALONE,
    DuplicateCounts,
    Outcome,
    Reuse,
    SplitOutcome,
    Status,
)
from shardbeam.transforms.staging.lease import LeaseError
from shardbeam.transforms.storage.usage import StorageUsage

# Findings that the summary names.
_FINDINGS = 3


def print_summary(
    result: PlanResult,
    *,
    as_json: bool,
    exit_code: int = 0,
    trace: str = "",
) -> None:
    """Prints a result on stdout; the reason of a failure is the last line on stderr.

    If stdout cannot be written, stderr says that a dataset is committed. The last line of a JSON
    log is the result. Then stdout gets no table, because log collectors read both.

    Args:
        result: The result.
        exit_code: The command's exit code.
        as_json: Whether stdout gets one JSON object instead of a table.
        trace: The traceback of an unexpected error.

    Raises:
        RunError: The summary of a plan cannot be written.
    """
    is_read, problem = True, ""
    try:
        if as_json:
            is_read = write_stdout(render_json(result, exit_code=exit_code))
        elif not writes_json():
            is_read = write_stdout(render_text(result, layout=stdout_layout()))
    except RunError as error:
        if result.status is Status.APPROVED:
            raise
        is_read, problem = False, str(error)
    if not writes_json():
        if exit_code:
            write_error(_reason(result, in_short=is_read and not as_json))
        elif not is_read and result.status is Status.COMMITTED:
            write_line(_join(_heading(result), problem))
        return
    fields = _json_fields(result, exit_code=exit_code)
    del fields["message"]
    write_line(
        _join(_reason(result), problem),
        severity=_severity(exit_code),
        step="summary",
        stack_trace=trace,
        **fields,
    )


def _severity(exit_code: int) -> str:
    """Returns the severity of a command's last line, a severity of Cloud Logging."""
    # Nothing is wrong if another run writes to the output: the next one goes on.
    return {0: "INFO", LeaseError.exit_code: "WARNING"}.get(exit_code, "ERROR")


def _reason(result: PlanResult, *, in_short: bool = False) -> str:
    """Describes in one line how a run ended and why; in short if stdout has the whole reason."""
    # Without counts, this is an error's message, whose line ends belong to a name.
    first, *more = result.message.split("\n") if result.splits else [result.message]
    # The message of a failure begins with the name of a file, so it needs no heading.
    heading = "" if first and result.status is Status.FAILED else _heading(result)
    if in_short and result.splits:
        first, more = first.partition(": ")[0], ["the summary on stdout says why"]
    return _join(heading, first, *more)


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def render_json(result: PlanResult, *, exit_code: int = 0) -> str:
    """Renders a summary as one JSON object on one line, in ASCII.

    Its keys are the fields of `PlanResult`, `exit_code`, and `images_per_s`; each split has its
    `reject_ratio`, too.
    """
    return json.dumps(_json_fields(result, exit_code=exit_code)) + "\n"


def _json_fields(result: PlanResult, *, exit_code: int) -> dict[str, Any]:
    known = {name: getattr(result, name) for name in PlanResult.__struct_fields__}
    fields = {"status": "", "exit_code": exit_code, **msgspec.to_builtins(known)}
    fields["warnings"] = [*logged_warnings(), *result.warnings]
    for name, split in result.splits.items():
        fields["splits"][name]["reject_ratio"] = split.reject_ratio
    fields["wall_time_s"] = round(result.wall_time_s, 3)
    fields["images_per_s"] = round(result.images_per_s, 1)
    return fields


def render_text(result: PlanResult, *, layout: Layout = PLAIN) -> str:
    """Renders a summary for people."""
    counts = _counts_table(result)
    if counts.rows and table_width(counts) > layout.columns:
        counts = _counts_table(result, upright=True)
    tables = [counts, codes_table(result.splits)]
    parts = [render_table(table, layout=layout) for table in tables if table.rows]
    first = [result.tolerated] if result.tolerated else []
    first += [ROWS_ALONE] if ROWS_ALONE in result.notes else []
    head = (f"{escape(line)}\n" for line in first)
    return "\n".join([*head, *parts, "\n".join(_closing_lines(result))]) + "\n"


_COLUMNS: dict[str, Callable[[SplitOutcome], str]] = {
    "examples": lambda split: f"{split.examples:,}",
    "shards": lambda split: f"{split.shards:,}",
    "bytes": lambda split: decimal(split.num_bytes),
    "rejected": lambda split: f"{sum(split.rejected.values()):,}",
    "excluded": lambda split: f"{sum(split.excluded.values()):,}",
    "corrections": lambda split: f"{sum(split.corrections.values()):,}",
    "missing": lambda split: f"{split.rejected.get(Reason.MISSING_IMAGE.value, 0):,}",
    "unannotated": lambda split: f"{split.unannotated:,}",
    "rejects so far": lambda split: f"{sum(split.rejected.values()):,}",
}
_BUILD_COLUMNS = ("examples", "shards", "bytes", "rejected", "excluded", "corrections")
_PLAN_COLUMNS = ("examples", "bytes", "shards", "missing", "unannotated", "rejects so far")


def _counts_table(outcome: Outcome, *, upright: bool = False) -> Table:
    """Makes the table of counts: one line for each split, or one column for narrow terminals."""
    columns = _PLAN_COLUMNS if outcome.status is Status.APPROVED else _BUILD_COLUMNS
    rows = [
        (_split_name(name), split)
        for name, split in outcome.splits.items()
        if name != NO_SPLIT or any(_COLUMNS[column](split)[0] != "0" for column in columns)
    ]
    if len(rows) > 1:
        total = SplitOutcome()
        for _, split in rows:
            total.add(split)
        rows.append((Text("total"), total))
    if upright:
        table = make_table("split", numbers=(name.plain for name, _ in rows))
        for column in columns:
            table.add_row(column, *(_COLUMNS[column](split) for _, split in rows))
        return table
    table = make_table("split", numbers=columns)
    for name, split in rows:
        table.add_row(name, *(_COLUMNS[column](split) for column in columns))
    return table


def _split_name(name: str) -> Text:
    return Text(escape(name) if name != NO_SPLIT else "(no split)")


def codes_table(splits: Mapping[str, SplitOutcome]) -> Table:
    """Makes the table of rejects, exclusions and corrections by their reasons."""
    table = make_table("split", "what", "why", numbers=["count"])
    for name, split in splits.items():
        for what, counts, unit in (
            ("rejected", split.rejected, None),
            ("excluded", split.excluded, None),
            ("corrected", split.corrections, correction_unit),
        ):
            for code, count in counts.items():
                units = unit(code) if unit else "inputs"
                counted = f"{count:,} {units if count != 1 else units.removesuffix('s')}"
                table.add_row(_split_name(name), what, Text(escape(code)), counted)
    return table


def _closing_lines(result: PlanResult) -> Iterator[str]:
    yield escape(_heading(result))
    yield from map(escape, result.message.splitlines())
    for name in ("replaced", "latest", "rejects", "corrections"):
        if path := getattr(result, name):
            yield f"{name}: {escape(path)}"
    if result.sources:
        counts = ", ".join(f"{count:,} from {name}" for name, count in result.sources.items())
        yield f"images to read: {escape(counts)}"
    if result.num_classes:
        names = list_classes(result.classes, number=result.num_classes)
        yield escape(f"{counted(result.num_classes, 'class', 'classes')}: {names}")
    yield from (escape(note) for note in result.notes if note != ROWS_ALONE)
    yield from _describe_duplicates(result.duplicates)
    yield from map(escape, _describe_findings(result))
    for warning in result.warnings:
        yield f"warning: {escape(warning)}"
    shards = sum(split.shards for split in result.splits.values())
    if result.resumed.shards:
        yield (
            f"resumed: {result.resumed.shards:,} of {shards:,} shards with "
            f"{result.resumed.examples:,} examples, written by an earlier run"
        )
    if result.reuse is not None:
        yield from _describe_reuse(result.reuse, shards=shards)
    if result.storage:
        yield f"object storage: {_describe_usage(result.storage)}"
    if result.memory_bytes:
        yield _describe_memory(result, machine=machine_bytes())
    # A plan writes no image.
    speed = "" if result.status is Status.APPROVED else f", {result.images_per_s:,.0f} images/s"
    yield f"wall time: {result.wall_time_s:.1f} s{speed}"


def _describe_usage(usage: StorageUsage) -> str:
    parts = []
    if usage.requests:
        received, sent = decimal(usage.bytes_received), decimal(usage.bytes_sent)
        parts.append(", ".join(f"{count:,} {kind}" for kind, count in usage.requests.items()))
        parts.append(f"{received} received, {sent} sent")
    if usage.repeated:
        repeated = f"{usage.repeated:,} repeated"
        if usage.throttled:
            repeated += (
                f", {usage.throttled:,} of them because the storage wanted fewer requests "
                f"({usage.throttled_s:,} s of waiting)"
            )
        parts.append(repeated)
    return "; ".join(parts)


def _describe_memory(result: PlanResult, *, machine: int | None) -> str:
    size_bytes, more = result.memory_bytes, ""
    if machine is not None and size_bytes > machine:
        more = (
            f" This machine has {decimal(machine)}: use Flink or Dataflow (docs/guide/runners.md)."
        )
    return (
        f"memory: a build in {counted(result.processes, 'process', 'processes')} of this machine "
        f"takes about {decimal(size_bytes)}, a command that submits a job 200 MB.{more}"
    )


def _describe_duplicates(counts: DuplicateCounts | None) -> Iterator[str]:
    if counts is None:
        return
    limit = (
        ""
        if counts.near
        else " (nearly equal pictures are found with image.verify: decode and duplicates.near)"
    )
    yield f"duplicates: {counts.describe_groups()}{limit}"
    if counts.crowded:
        yield (
            f"{counts.crowded:,} pictures each look roughly like more than a thousand others, and "
            "were not compared with all of them"
        )
    if counts.unlisted:
        yield f"duplicates.parquet has no room for {counts.unlisted:,} more images"


def _describe_findings(result: PlanResult) -> Iterator[str]:
    """Yields the findings that the most images have, and where the others are."""
    shown = most_notable(result.findings, number=_FINDINGS)
    for each in shown:
        yield f"worth a look: {each.describe()}"
    if shown and result.status is Status.COMMITTED:
        yield f"all findings: shardbeam show {shlex.quote(result.output)} --findings"


def _heading(result: PlanResult) -> str:
    status = result.status
    what = {
        Status.COMMITTED: "unchanged" if result.current else "committed",
        Status.APPROVED: "plan only, nothing written",
        Status.NOT_REPAIRED: "not repaired, still damaged",
    }.get(status, f"{status.value}, nothing committed")
    return f"{what}: {result.output}"


def _describe_reuse(reuse: Reuse, *, shards: int) -> Iterator[str]:
    yield (
        f"reused: {reuse.copied_shards:,} of {shards:,} shards copied from "
        f"{escape(reuse.previous)}, {reuse.unread_images:,} images not read"
    )
    if reuse.damaged_shards:
        yield f"shards damaged or missing there, and written again: {reuse.damaged_shards:,}"
    elif not reuse.copied_shards:
        yield (
            "no shard could be copied: the number of shards, the settings or the versions of "
            "codecs may differ from the previous dataset's; output.num_shards fixes the number"
        )
