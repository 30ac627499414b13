"""Charts of a dataset's statistics for the page: classes, sizes, keypoints."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.pipelines.histograms import HISTOGRAMS
from shardbeam.pipelines.tables import NO_NAME
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.dataset.read.count import count_shard, merge_counts, plan_counts
from shardbeam.transforms.dataset.read.dataset import StoredDataset
from shardbeam.transforms.dataset.read.findings import list_kinds
from shardbeam.transforms.dataset.statistics import (
    Statistics,
    merge_statistics,
    most_frequent_pairs,
)
from shardbeam.transforms.dataset.statistics_file import read_statistics
from shardbeam.transforms.examples.legend import Legend

# Rows of a chart that are shown at first, and altogether.
_FIRST, _MOST = 25, 1000
_PAIRS = 10
# More splits than these are shown as one.
MOST_SPLITS = 8
_FINDINGS = 50
_VISIBILITIES = (("2", "visible"), ("1", "hidden"), ("0", "not labelled"))


class Part(NamedTuple):
    """A bar of a row, or a piece of it.

    Attributes:
        number: Decides its colour: the number of its split, or of a keypoint's visibility.
        amount: How many.
        start: Where it begins, in percent of the row's width.
        width: How wide it is, in percent.
    """

    number: int
    amount: int
    start: float
    width: float


class Row(NamedTuple):
    """A row of a chart.

    Attributes:
        name: What is counted.
        total: How many in all.
        parts: Its bars.
    """

    name: str
    total: int
    parts: Sequence[Part]


class Chart(NamedTuple):
    """A chart of rows.

    Attributes:
        heading: What its rows are.
        rows: The rows that are seen at once.
        more: The rows after them.
        left_out: How many more there are.
    """

    heading: str
    rows: Sequence[Row]
    more: Sequence[Row] = ()
    left_out: int = 0

    @property
    def title(self) -> str:
        """The heading, with a capital."""
        return self.heading[:1].upper() + self.heading[1:]


class Charts(NamedTuple):
    """All charts of a dataset.

    Attributes:
        splits: The names of the splits that the charts show.
        classes: The classes, the most frequent first, with one bar for each split. A bar shows the
            class's share of the split, so that splits of different sizes can be compared.
        sizes: Histograms; each row has one piece for each split.
        keypoints: Keypoints; each row has a piece for visible, hidden and not labelled ones.
        pairs: `(class, class, images)` of the classes that occur together most often.
        findings: What is worth a look, one line each.
    """

    splits: Sequence[str]
    classes: Chart | None
    sizes: Sequence[Chart]
    keypoints: Chart | None
    pairs: Sequence[tuple[str, str, int]]
    findings: Sequence[str]


def load_statistics(dataset: StoredDataset, *, legend: Legend) -> Mapping[str, Statistics]:
    """Returns the statistics of each split, from `statistics.json`, or else from the shards.

    Raises:
        InputError: A file cannot be read, or is damaged.
    """
    is_whole = dataset.features is not None and legend.is_ours
    found = read_statistics(dataset.path) if is_whole else None
    if found is not None:
        return found
    counted = [count_shard(shard, legend=legend) for shard in plan_counts(dataset)]
    for shard in counted:
        if shard.problem:
            raise InputError(uri=dataset.path, problem=shard.problem)
    return merge_counts(counted, splits=[split.name for split in dataset.splits])


def make_charts(splits: Mapping[str, Statistics], *, manifest: Manifest | None = None) -> Charts:
    """Makes the charts of a dataset.

    Args:
        splits: `{split: what is in it}`, in the order of the splits' colours.
        manifest: The dataset's manifest, if Shardbeam has written it.
    """
    total = merge_statistics(splits.values())
    findings = [
        f"usual here: {each.describe()}" if each.usual else each.describe()
        for each in list_kinds(splits, manifest=manifest)[:_FINDINGS]
    ]
    if len(splits) > MOST_SPLITS:
        splits = {"all splits": total}
    return Charts(
        splits=list(splits),
        classes=_chart_classes(splits, total=total),
        sizes=list(_chart_sizes(splits)),
        keypoints=_chart_keypoints(total),
        pairs=[
            (first or NO_NAME, second or NO_NAME, count)
            for first, second, count in itertools.islice(most_frequent_pairs(total), _PAIRS)
        ],
        findings=findings,
    )


def _chart_classes(splits: Mapping[str, Statistics], *, total: Statistics) -> Chart | None:
    heading, field = "objects", "objects_by_class"
    if not total.objects_by_class:
        heading, field = "images", "images_by_class"
    totals: Mapping[str, int] = getattr(total, field)
    counts = [getattr(split, field) for split in splits.values()]
    sums = [sum(each.values()) or 1 for each in counts]
    widest = max(
        (each[name] / whole for each, whole in zip(counts, sums, strict=True) for name in each),
        default=0,
    )
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    rows = [
        Row(
            name or NO_NAME,
            totals[name],
            [
                Part(number, each.get(name, 0), 0, 100 * each.get(name, 0) / whole / widest)
                for number, (each, whole) in enumerate(zip(counts, sums, strict=True))
            ],
        )
        for name in ordered[:_MOST]
    ]
    return _chart(heading, rows, number=len(ordered))


def _chart_sizes(splits: Mapping[str, Statistics]) -> Iterator[Chart]:
    for histogram in HISTOGRAMS:
        counts = [getattr(split, histogram.field) for split in splits.values()]
        found = {key for each in counts for key in each}
        rows = [
            (words or NO_NAME, [each.get(key, 0) for each in counts])
            for key, words in histogram.bins(found)
        ]
        chart = _stack(histogram.heading, rows)
        if chart is not None:
            yield chart


def _chart_keypoints(total: Statistics) -> Chart | None:
    rows = [
        (name or NO_NAME, [counts.get(code, 0) for code, _ in _VISIBILITIES])
        for name, counts in sorted(total.keypoints.items(), key=_numbers_as_such)
    ]
    return _stack("keypoint", rows)


def _numbers_as_such(named: tuple[str, object]) -> list[str | int]:
    """Returns a sort key that puts `left_2` before `left_10`."""
    parts = re.split(r"(\d+)", named[0])
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _stack(heading: str, rows: Sequence[tuple[str, Sequence[int]]]) -> Chart | None:
    """Makes a chart of stacked bars."""
    widest = max((sum(counts) for _, counts in rows), default=0) or 1
    stacked = []
    for name, counts in rows[:_MOST]:
        starts = itertools.accumulate(counts, initial=0)
        parts = [
            Part(number, count, 100 * start / widest, 100 * count / widest)
            for number, (count, start) in enumerate(zip(counts, starts, strict=False))
        ]
        stacked.append(Row(name, sum(counts), parts))
    return _chart(heading, stacked, number=len(rows))


def _chart(heading: str, rows: Sequence[Row], *, number: int) -> Chart | None:
    if not rows:
        return None
    return Chart(heading, rows[:_FIRST], rows[_FIRST:], left_out=number - len(rows))
