"""`shardbeam stats`: prints a dataset's statistics as tables or as JSON."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.filesize import decimal
from rich.table import Table

from shardbeam.pipelines.cli.commands import StatsArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.cli.shard_job import ShardJob
from shardbeam.pipelines.cli.summary import codes_table
from shardbeam.pipelines.cli.tables import (
    PLAIN,
    PRINTED_CLASSES,
    Layout,
    add_rest,
    make_table,
    name_text,
    render_table,
    stdout_layout,
)
from shardbeam.pipelines.failures import RunError
from shardbeam.readers.open.find_findings import list_kinds
from shardbeam.readers.open.make_index import plan_counts
from shardbeam.readers.open.stored_dataset import (
    StoredDataset,
    dataset_name,
    open_dataset,
    read_feature_map,
)
from shardbeam.readers.report.histograms import HISTOGRAMS, Histogram, lift
from shardbeam.transforms.core.text import Mark, ascii_json, cut, escape
from shardbeam.transforms.dataset.collectors.statistics import (
    Statistics,
    merge_statistics,
    most_frequent_pairs,
)
from shardbeam.transforms.dataset.findings import KindFound
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.statistics_file import read_statistics
from shardbeam.transforms.shards.count import CountResult, count_shard, merge_counts

# Findings, and pairs of classes, that are printed; JSON has all.
_PRINTED_FINDINGS, _PRINTED_PAIRS = 50, 10
# Counts of the overview.
_COUNTS = (
    *("images", "unannotated", "labels", "objects", "crowds", "masks", "empty_masks", "captions"),
)
_VISIBILITIES = {"0": "not labelled", "1": "hidden", "2": "visible"}


class StatisticsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a dataset.

    Attributes:
        path: Its folder, or its only file.
        splits: `{split: what is in it}`.
        outcome: `{split: what became of its inputs}`, with rejects and corrections by reason; empty
            for files that Shardbeam has not written.
        findings: The findings, the most notable first and what is usual last.
    """

    path: str
    splits: Mapping[str, Statistics]
    outcome: Mapping[str, SplitOutcome] = {}
    findings: tuple[KindFound, ...] = ()


class _Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a job, and the first problem that it met."""

    splits: Mapping[str, Statistics]
    problem: str


def run_stats(arguments: StatsArguments) -> None:
    """Prints the statistics of a dataset, from its `statistics.json`, or from its shards.

    Raises:
        InputError: There is no dataset, or it is incomplete.
        RunError: A worker could not read it.
        UsageError: `--report` is missing, which a cluster's workers need.
    """
    mark = Mark("result of stats", dataset_name(arguments.path))
    job = ShardJob("stats", mark, arguments)
    job.check_report()
    dataset = open_dataset(arguments.path)
    # A single file has no manifest, even if it is a shard of a dataset.
    manifest = dataset.manifest
    splits: Mapping[str, Statistics] | None = None
    if manifest is not None and not arguments.recount:
        splits = read_statistics(dataset.path)
    if splits is None:
        splits = _count(dataset, job=job)
    splits = {split.name: splits[split.name] for split in dataset.splits if split.name in splits}
    report = StatisticsReport(
        path=dataset.path,
        splits=splits,
        outcome={}
        if manifest is None
        else {name: split.outcome for name, split in manifest.splits.items()},
        findings=tuple(list_kinds(splits, manifest=manifest)),
    )
    job.write_report(report)
    write_stdout(render_json(report) if arguments.json else render_text(report, stdout_layout()))


def _count(dataset: StoredDataset, *, job: ShardJob) -> Mapping[str, Statistics]:
    feature_map = read_feature_map(dataset)
    counts = job.run(
        plan_counts(dataset),
        functools.partial(count_shard, feature_map=feature_map),
        merge=functools.partial(_merge, splits=[split.name for split in dataset.splits]),
        types=(CountResult, _Counts),
        path=dataset.path,
    )
    if counts.problem:
        raise RunError(counts.problem)
    return counts.splits


def _merge(shards: Sequence[CountResult], *, splits: Sequence[str]) -> _Counts:
    problems = sorted(shard.problem for shard in shards if shard.problem)
    return _Counts(splits=merge_counts(shards, splits=splits), problem="".join(problems[:1]))


def render_json(report: StatisticsReport) -> str:
    """Renders a report as one JSON object on one line, in ASCII, with its keys sorted."""
    return ascii_json(msgspec.json.encode(report, order="sorted"))


def render_text(report: StatisticsReport, layout: Layout = PLAIN) -> str:
    """Renders a report for people."""
    splits = report.splits
    tables = [
        _overview_table(splits),
        _classes_table(splits),
        *(_histogram_table(each, splits) for each in HISTOGRAMS),
        _pixels_table(splits),
        _keypoints_table(splits),
        _pairs_table(splits),
        *_facet_tables(splits),
        codes_table(report.outcome),
    ]
    parts = [render_table(table, layout=layout) for table in tables if table.rows]
    lines = [
        f"{'usual here' if each.usual else 'worth a look'}: {escape(cut(each.describe()))}\n"
        for each in report.findings[:_PRINTED_FINDINGS]
    ]
    if len(report.findings) > _PRINTED_FINDINGS:
        left = len(report.findings) - _PRINTED_FINDINGS
        lines.append(f"... and {left:,} more (--json has all)\n")
    findings = "".join(lines)
    return "\n".join([*parts, findings] if findings else parts)


def _range(sides: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(map(str, sides))) + " px" if sides else ""


def _overview_table(splits: Mapping[str, Statistics]) -> Table:
    rows = [
        {
            "examples": f"{split.examples:,}",
            "bytes": decimal(split.num_bytes),
            **{name.replace("_", " "): f"{getattr(split, name):,}" for name in _COUNTS},
            "width": _range(split.width_range),
            "height": _range(split.height_range),
        }
        for split in splits.values()
    ]
    # Leave out columns that are empty for all splits, except those that every dataset has.
    shown = [
        name
        for name in (rows[0] if rows else ())
        if name in ("examples", "bytes") or any(row[name] not in ("0", "") for row in rows)
    ]
    table = make_table("split", numbers=shown)
    for split, row in zip(splits, rows, strict=True):
        table.add_row(name_text(split), *(row[name] for name in shown))
    return table


def _classes_table(splits: Mapping[str, Statistics]) -> Table:
    totals = merge_statistics(splits.values())
    has_objects = bool(totals.objects_by_class)
    headings = [
        f"{what} in {escape(name)}"
        for name in splits
        for what in (("images", "objects") if has_objects else ("images",))
    ]
    table = make_table("class", numbers=headings)
    order = totals.objects_by_class if has_objects else totals.images_by_class
    names = sorted(totals.images_by_class, key=lambda name: (-order.get(name, 0), name))
    for name in names[:PRINTED_CLASSES]:
        cells = []
        for split in splits.values():
            cells.append(f"{split.images_by_class.get(name, 0):,}")
            if has_objects:
                cells.append(f"{split.objects_by_class.get(name, 0):,}")
        table.add_row(name_text(name), *cells)
    add_rest(table, len(names) - PRINTED_CLASSES)
    return table


def _histogram_table(histogram: Histogram, splits: Mapping[str, Statistics]) -> Table:
    table = make_table(histogram.heading, numbers=[escape(name) for name in splits])
    counts = [getattr(split, histogram.field) for split in splits.values()]
    found = {key for each in counts for key in each}
    bins = list(histogram.bins(found))
    # Formats of images are texts from the data, so there may be any number of them.
    for key, words in bins[:PRINTED_CLASSES]:
        table.add_row(name_text(words), *(f"{each.get(key, 0):,}" for each in counts))
    add_rest(table, len(bins) - PRINTED_CLASSES)
    return table


def _pixels_table(splits: Mapping[str, Statistics]) -> Table:
    table = make_table("pixels of maps", numbers=[escape(name) for name in splits])
    totals = merge_statistics(splits.values()).pixels_by_class
    whole = {name: sum(split.pixels_by_class.values()) for name, split in splits.items()}
    for label in sorted(totals, key=lambda name: (-totals[name], name))[:PRINTED_CLASSES]:
        shares = (
            split.pixels_by_class.get(label, 0) / max(whole[name], 1)
            for name, split in splits.items()
        )
        table.add_row(name_text(label), *(f"{share:.2%}" for share in shares))
    add_rest(table, len(totals) - PRINTED_CLASSES)
    return table


def _keypoints_table(splits: Mapping[str, Statistics]) -> Table:
    table = make_table("split", "keypoint", numbers=_VISIBILITIES.values())
    for name, split in splits.items():
        keypoints = list(split.keypoints.items())
        for keypoint, counts in keypoints[:PRINTED_CLASSES]:
            cells = (f"{counts.get(visibility, 0):,}" for visibility in _VISIBILITIES)
            table.add_row(name_text(name), name_text(keypoint), *cells)
        add_rest(table, len(keypoints) - PRINTED_CLASSES)
    return table


def _facet_tables(splits: Mapping[str, Statistics]) -> Iterator[Table]:
    totals = merge_statistics(splits.values())
    for key, counts in sorted(totals.facets.items()):
        table = make_table(escape(key), numbers=[escape(name) for name in splits])
        for value in sorted(counts, key=lambda value: (-counts[value], value)):
            cells = (f"{split.facets.get(key, {}).get(value, 0):,}" for split in splits.values())
            table.add_row(name_text(value), *cells)
        yield table


def _pairs_table(splits: Mapping[str, Statistics]) -> Table:
    table = make_table("class", "together with", numbers=["images", "lift"])
    total = merge_statistics(splits.values())
    pairs = list(most_frequent_pairs(total))
    for first, second, count in pairs[:_PRINTED_PAIRS]:
        times = f"{lift(total, first, second):.2f}"
        table.add_row(name_text(first), name_text(second), f"{count:,}", times)
    add_rest(table, len(pairs) - _PRINTED_PAIRS)
    return table
