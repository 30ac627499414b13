"""What a command prints on stdout: what a run did, as tables for people or JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from shardbeam.pipelines.failures import RunError
from shardbeam.pipelines.logs import (
    escape,
    write_error,
    write_line,
    write_stderr,
    write_stdout,
)
from shardbeam.pipelines.tables import (
    PLAIN,
    Layout,
    make_table,
    render_table,
    stdout_layout,
    table_width,
)
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.reasons import Reason, correction_unit
from shardbeam.transforms.core.sharding import NO_SPLIT
from shardbeam.transforms.dataset.outcome import (
    DuplicateCounts,
    Outcome,
    Reuse,
    SplitOutcome,
    Status,
)
from shardbeam.transforms.storage.usage import StorageUsage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """A run that is over.

    Attributes:
        outcome: What it did; `Status.APPROVED` for a plan.
        output: The dataset's folder.
        exit_code: The command's.
        wall_time_s: How long it took, in seconds.
        current: Whether nothing was done, as inputs and config are those of the dataset there.
        usage: What was asked of object storage; for a plan, what a build would ask.
        latest: The pointer that names the dataset; empty if there is none.
        trace: The traceback of an error that nobody expected.
    """

    outcome: Outcome
    output: str
    exit_code: int
    wall_time_s: float
    current: bool = False
    usage: StorageUsage = dataclasses.field(default_factory=StorageUsage)
    latest: str = ""
    trace: str = ""

    @property
    def images_per_s(self) -> float:
        """Images that this run wrote, and did not copy, over the wall time; 0 where none were."""
        if self.current or self.wall_time_s <= 0:
            return 0.0
        reuse = self.outcome.reuse
        images = sum(split.images for split in self.outcome.splits.values())
        images -= self.outcome.resumed.images + (reuse.copied_images if reuse else 0)
        return images / self.wall_time_s


def print_summary(summary: Summary, *, as_json: bool, json_log: bool = False) -> None:
    """Prints a summary on stdout; the reason of a failure is the last line on stderr.

    If stdout cannot be written, stderr says that a dataset is committed.

    Args:
        summary: The summary.
        as_json: Whether stdout gets one JSON object instead of a table.
        json_log: Whether it is (also) the last line of a JSON log on stderr, and stdout gets no
            table: who gathers logs, gathers both.

    Raises:
        RunError: The summary of a plan cannot be written.
    """
    is_read, problem = True, ""
    try:
        if as_json:
            is_read = write_stdout(render_json(summary))
        elif not json_log:
            is_read = write_stdout(render_text(summary, layout=stdout_layout()))
    except RunError as error:
        if summary.outcome.status is Status.APPROVED:
            raise
        is_read, problem = False, str(error)
    if not json_log:
        if summary.exit_code:
            # A terminal has just shown all lines.
            write_error(_reason(summary, lines=1 if is_read and sys.stdout.isatty() else None))
        elif not is_read and summary.outcome.status is Status.COMMITTED:
            write_stderr(f"shardbeam: {escape(_join(_heading(summary), problem))}\n")
        return
    fields = _json_fields(summary)
    del fields["message"]
    write_line(
        _join(_reason(summary), problem),
        severity="ERROR" if summary.exit_code else "INFO",
        step="summary",
        stack_trace=summary.trace,
        **fields,
    )


def _reason(summary: Summary, *, lines: int | None = None) -> str:
    """Says in one line what a run has come to, and why: by the first lines of its message."""
    message = summary.outcome.message
    if message and summary.outcome.status is Status.FAILED:
        # What went wrong begins with the file that it concerns.
        return message
    return _join(_heading(summary), *message.split("\n")[:lines])


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def render_json(summary: Summary) -> str:
    """Renders a summary as one JSON object on one line, in ASCII.

    Its keys:
        status: `committed`, `refused`, `failed`, `not_repaired`, or `approved` for a plan.
        exit_code: The command's exit code.
        current: Whether nothing was done, as nothing had changed.
        output: The dataset's folder.
        latest: The pointer that names it now; empty if there is none.
        splits: `{split: counts}`, with the fields of `SplitOutcome` and `reject_ratio`.
        rejects: The folder of the rejects files; empty if there are none.
        corrections: The folder of the files of corrections; empty if there are none.
        wall_time_s: Seconds.
        images_per_s: Images a second, without those of shards that were copied or resumed.
        sources: `{source: images}` that go on to be read, where a split has several sources.
        message: What went wrong and how to mend it; empty if nothing.
        warnings: What is written and may not be meant.
        notes: Which images are left out because nothing names them.
        num_classes: How many classes the dataset has.
        classes: The names of the first ten, in the order of their ids.
        storage: What was (or, for a plan, would be) asked of object storage: `requests` by kind,
            `bytes_received` and `bytes_sent`.
        reuse: What was taken over from the previous version, with the fields of `Reuse`; null
            where none was named, or there was none.
        resumed: What was taken over from earlier runs that did not commit, with the fields of
            `Resumed`.
        duplicates: Pictures that are there several times, with the fields of `DuplicateCounts`;
            null where they were not looked for.
    """
    return json.dumps(_json_fields(summary)) + "\n"


def _json_fields(summary: Summary) -> dict[str, Any]:
    outcome = summary.outcome
    return {
        "status": outcome.status.value,
        "exit_code": summary.exit_code,
        "current": summary.current,
        "output": summary.output,
        "latest": summary.latest,
        "splits": {
            name: {**msgspec.structs.asdict(split), "reject_ratio": split.reject_ratio}
            for name, split in outcome.splits.items()
        },
        "sources": outcome.sources,
        "rejects": outcome.rejects,
        "corrections": outcome.corrections,
        "wall_time_s": round(summary.wall_time_s, 3),
        "images_per_s": round(summary.images_per_s, 1),
        "message": outcome.message,
        "warnings": outcome.warnings,
        "notes": outcome.notes,
        "num_classes": outcome.num_classes,
        "classes": outcome.classes,
        "storage": msgspec.to_builtins(summary.usage),
        "reuse": msgspec.to_builtins(outcome.reuse),
        "resumed": msgspec.to_builtins(outcome.resumed),
        "duplicates": msgspec.to_builtins(outcome.duplicates),
    }


def render_text(summary: Summary, *, layout: Layout = PLAIN) -> str:
    """Renders a summary for people."""
    counts = _counts_table(summary.outcome)
    if table_width(counts) > layout.columns:
        counts = _counts_table(summary.outcome, upright=True)
    tables = [counts, codes_table(summary.outcome.splits)]
    parts = [render_table(table, layout=layout) for table in tables if table.rows]
    return "\n".join([*parts, "\n".join(_closing_lines(summary))]) + "\n"


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
    """Makes the table of counts: a line a split or, for a narrow terminal, a column a split."""
    columns = _PLAN_COLUMNS if outcome.status is Status.APPROVED else _BUILD_COLUMNS
    rows = [(_split_name(name), split) for name, split in outcome.splits.items()]
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


def _closing_lines(summary: Summary) -> Iterator[str]:
    outcome = summary.outcome
    yield escape(_heading(summary))
    yield from map(escape, outcome.message.splitlines())
    if summary.latest:
        yield f"latest: {escape(summary.latest)}"
    if outcome.rejects:
        yield f"rejects: {escape(outcome.rejects)}"
    if outcome.corrections:
        yield f"corrections: {escape(outcome.corrections)}"
    if outcome.sources:
        counts = ", ".join(f"{count:,} from {name}" for name, count in outcome.sources.items())
        yield f"images, before they are read: {counts}"
    if outcome.num_classes:
        classes = "class" if outcome.num_classes == 1 else "classes"
        names = list_classes(outcome.classes, number=outcome.num_classes)
        yield escape(f"{outcome.num_classes:,} {classes}: {names}")
    yield from _describe_negatives(outcome)
    yield from map(escape, outcome.notes)
    yield from _describe_duplicates(outcome.duplicates)
    for warning in outcome.warnings:
        yield f"warning: {escape(warning)}"
    shards = sum(split.shards for split in outcome.splits.values())
    if outcome.resumed.shards:
        yield (
            f"resumed: {outcome.resumed.shards:,} of {shards:,} shards with "
            f"{outcome.resumed.examples:,} examples, written by an earlier run"
        )
    if outcome.reuse is not None:
        yield from _describe_reuse(outcome.reuse, shards=shards)
    if usage := summary.usage:
        requests = ", ".join(f"{count:,} {kind}" for kind, count in usage.requests.items())
        received, sent = decimal(usage.bytes_received), decimal(usage.bytes_sent)
        yield f"object storage: {requests}; {received} received, {sent} sent"
    yield f"wall time: {summary.wall_time_s:.1f} s, {summary.images_per_s:,.0f} images/s"


def _describe_negatives(outcome: Outcome) -> Iterator[str]:
    for name, split in outcome.splits.items():
        if split.unannotated:
            yield (
                f"{split.unannotated:,} of {split.listed_images:,} images of {escape(name)} have "
                "no annotations and are written as negatives"
            )


def _describe_duplicates(counts: DuplicateCounts | None) -> Iterator[str]:
    if counts is None:
        return
    what = "equal or nearly equal pictures" if counts.near else "equal files"
    limit = (
        ""
        if counts.near
        else " (nearly equal pictures are found with image.verify: decode and duplicates.near)"
    )
    if counts.groups:
        groups = "group" if counts.groups == 1 else "groups"
        different = f"{counts.contradictions:,} with different labels"
        if counts.near:
            different = (
                f"{counts.contradictions:,} with different labels of equal files, "
                f"{counts.near_contradictions:,} with different classes of nearly equal ones"
            )
        yield (
            f"duplicates: {counts.groups:,} {groups} of {counts.images:,} {what}, {counts.leaks:,} "
            f"in several splits, {different}{limit}"
        )
    else:
        yield f"duplicates: no {what}{limit}"
    if counts.crowded:
        yield (
            f"{counts.crowded:,} pictures look roughly like more than a thousand others each, and "
            "were not compared with all of these"
        )
    if counts.unlisted:
        yield f"{counts.unlisted:,} images are not listed in duplicates.parquet: they are too many"


def _heading(summary: Summary) -> str:
    status = summary.outcome.status
    what = {
        Status.COMMITTED: "unchanged" if summary.current else "committed",
        Status.APPROVED: "plan only, nothing written",
        Status.NOT_REPAIRED: "not repaired, still damaged",
    }.get(status, f"{status.value}, nothing committed")
    return f"{what}: {summary.output}"


def _describe_reuse(reuse: Reuse, *, shards: int) -> Iterator[str]:
    yield (
        f"reused: {reuse.copied_shards:,} of {shards:,} shards copied from "
        f"{escape(reuse.previous)}, {reuse.unread_images:,} images not read"
    )
    if reuse.damaged_shards:
        yield f"damaged there or gone, and written anew: {reuse.damaged_shards:,}"
    elif not reuse.copied_shards:
        yield (
            "no shard is as it was there: where splits have another number of shards, other "
            "settings or other versions of codecs, none can be; output.num_shards keeps the number"
        )
