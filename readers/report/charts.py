"""Charts of a dataset's statistics for the page: classes, sizes, keypoints, heat maps of boxes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.readers.open.make_index import plan_counts
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.readers.report.histograms import HISTOGRAMS, Histogram, lift
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import NO_NAME, counted
from shardbeam.transforms.dataset.collectors.grids import GRID_SIDE, read_grid
from shardbeam.transforms.dataset.collectors.statistics import (
    Statistics,
    merge_statistics,
    most_frequent_pairs,
)
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.shards.count import count_shard, merge_counts

# How many rows of a chart are shown at first, and altogether.
_FIRST, _MOST = 25, 1000
_PAIRS = 10
# If there are more splits, they are shown as one.
MOST_SPLITS = 8
# Of keypoints: visible, hidden and not labelled.
_VISIBILITIES = ("2", "1", "0")
# Histograms that say nothing if all images have the same size.
_OF_SIZE = ("widths", "heights", "aspects")
# The first word of a bar of two classes.
_PAIR = "pair"
# Above this ratio of the largest to the smallest count, a log scale is offered.
_LOG_RATIO = 100
# Where COCO's sizes of objects begin, as a bin of `areas` and in words.
_SIZES = (
    ("small", 0, "below 32² px"),
    ("medium", 32**2, "from 32² px"),
    ("large", 96**2, "from 96² px"),
)
# Shades of a heat map of boxes. The square root of a cell's count decides, so that rare cells are
# seen.
_SHADES = 8
# Rows and columns of the table beside a heat map, each of four rows or columns of the grid.
_PARTS = 4
_QUARTERS = ("0 to 25 %", "25 to 50 %", "50 to 75 %", "75 to 100 %")
_OCTAVES = ("to 1.6 %", "to 6.3 %", "to 25 %", "to 100 %")


class Row(NamedTuple):
    """A row of a chart.

    Attributes:
        name: What is counted.
        counts: The length of each of its bars: by split, or by the visibility of a keypoint.
        bar: Its number among the bars that lead to pictures; -1 for a class or a facet.
        threshold: What begins with this row; may be empty.
    """

    name: str
    counts: Sequence[int]
    bar: int = -1
    threshold: str = ""

    @property
    def total(self) -> int:
        """How many in all."""
        return sum(self.counts)


class Chart(NamedTuple):
    """A chart of rows.

    Attributes:
        heading: What its rows are.
        title: What is counted, and by what.
        unit: What is counted.
        rows: The rows that are seen at once.
        more: The rows after them.
        left_out: How many more there are.
        widest: The count of the longest bar.
        summary: The least, the median and the most; empty if they say nothing.
    """

    heading: str
    title: str
    unit: str
    rows: Sequence[Row]
    more: Sequence[Row]
    left_out: int
    widest: int
    summary: str = ""

    @property
    def has_log(self) -> bool:
        """Whether the largest count is more than 100 times the smallest."""
        counts = [row.total for row in (*self.rows, *self.more) if row.total]
        return bool(counts) and max(counts) > _LOG_RATIO * min(counts)


class Bars:
    """Numbers the bars that lead to pictures."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def number(self, *bar: str) -> int:
        """Returns the number of a bar: of a field and a bin, or of two classes."""
        return self._numbers.setdefault(bar, len(self._numbers))

    def of_picture(self, statistics: Statistics, classes: frozenset[str]) -> list[int]:
        """Lists the bars that count a picture.

        Args:
            statistics: The statistics of its Example alone.
            classes: Its classes.
        """
        return [
            number
            for bar, number in self._numbers.items()
            if (
                classes.issuperset(bar[1:])
                if bar[0] == _PAIR
                else bar[1] in getattr(statistics, bar[0])
            )
        ]


class Pair(NamedTuple):
    """Two classes that occur together, in how many images, and against chance (`lift`)."""

    first: str
    second: str
    images: int
    bar: int
    lift: float


class HeatMap(NamedTuple):
    """A heat map of all boxes.

    Attributes:
        name: Its name in the page's script.
        title: What it shows.
        axes: What its columns and rows are.
        grid: Its counts, as the script reads them.
        columns: Headings of the table's columns, from the left, and of its rows.
        middle: Where the rows and columns of the grid that `words` names begin, and where they end.
        words: What is said of these cells.
        ends: What is written below the left end, the middle and the right end; may be empty.
        rises: Whether its first row is at the bottom.
    """

    name: str
    title: str
    axes: str
    grid: str
    columns: Sequence[str]
    middle: tuple[int, int]
    words: str
    ends: Sequence[str] = ()
    rises: bool = False

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The boxes in each cell, (rows, columns)."""
        return np.array(read_grid(self.grid)).reshape(GRID_SIDE, GRID_SIDE)

    @property
    def share(self) -> str:
        """How many percent of the boxes are in the cells that `words` names."""
        middle = slice(*self.middle)
        return _percent(self.counts[middle, middle].sum(), self.counts.sum())

    @property
    def paths(self) -> Sequence[str]:
        """The cells of each shade, from the lightest, in SVG."""
        shades = np.ceil(_SHADES * np.sqrt(self.counts / self.counts.max()))
        return [
            "".join(
                f"M{column} {GRID_SIDE - 1 - row if self.rises else row}h1v1h-1z"
                for row, column in np.argwhere(shades == shade)
            )
            for shade in range(1, _SHADES + 1)
        ]

    @property
    def rows(self) -> Sequence[tuple[str, Sequence[str]]]:
        """`(heading, percent of the boxes in each column)` of the table's rows, from the top."""
        side = GRID_SIDE // _PARTS
        sums = self.counts.reshape(_PARTS, side, _PARTS, side).sum(axis=(1, 3))
        rows = [
            (heading, [_percent(each, self.counts.sum()) for each in row])
            for heading, row in zip(self.columns, sums, strict=True)
        ]
        return rows[::-1] if self.rises else rows


class HeatClass(NamedTuple):
    """The grids of one class."""

    name: str
    objects: int
    centres: str
    sizes: str


class HeatMaps(NamedTuple):
    """The heat maps of a dataset, and the grids of its largest classes."""

    boxes: int
    maps: Sequence[HeatMap]
    classes: Sequence[HeatClass]
    all_classes: int


class Charts(NamedTuple):
    """All charts of a dataset.

    Attributes:
        splits: The names of the splits that the charts show.
        classes: The classes, the most frequent first, with one bar for each split.
        sizes: Histograms; each row has one piece for each split.
        same: What is the same for all images, or all objects, one line each.
        keypoints: Keypoints; each row has a piece for visible, hidden and not labelled ones.
        pairs: The classes that occur together most often.
        heat: Heat maps of boxes; None without boxes.
        facets: The values of texts that the source adds, a chart for each key.
        facets_left_out: The keys of other texts.
        bars: The bars that lead to pictures.
    """

    splits: Sequence[str]
    classes: Chart | None
    sizes: Sequence[Chart]
    same: Sequence[str]
    keypoints: Chart | None
    pairs: Sequence[Pair]
    heat: HeatMaps | None
    facets: Sequence[Chart]
    facets_left_out: Sequence[str]
    bars: Bars


def count_statistics(
    dataset: StoredDataset, *, feature_map: FeatureMap
) -> Mapping[str, Statistics]:
    """Reads all shards of a dataset, and counts the statistics of each split.

    Raises:
        InputError: A file cannot be read, or is damaged.
    """
    counted = [count_shard(shard, feature_map=feature_map) for shard in plan_counts(dataset)]
    for shard in counted:
        if shard.problem:
            raise InputError(uri=dataset.path, problem=shard.problem)
    return merge_counts(counted, splits=[split.name for split in dataset.splits])


def make_charts(splits: Mapping[str, Statistics]) -> Charts:
    """Makes the charts of a dataset.

    Args:
        splits: `{split: what is in it}`, in the order of the splits' colours.
    """
    total = merge_statistics(splits.values())
    if len(splits) > MOST_SPLITS:
        splits = {"all splits": total}
    bars = Bars()
    sizes = list(_chart_sizes(splits, total=total, bars=bars))
    return Charts(
        splits=list(splits),
        classes=_chart_classes(splits, total=total),
        sizes=[each for each in sizes if isinstance(each, Chart)],
        same=[each for each in sizes if isinstance(each, str)],
        keypoints=_chart_keypoints(total, bars=bars),
        pairs=[
            Pair(
                first or NO_NAME,
                second or NO_NAME,
                count,
                bars.number(_PAIR, first, second),
                lift(total, first, second),
            )
            for first, second, count in itertools.islice(most_frequent_pairs(total), _PAIRS)
        ],
        heat=draw_heat_maps(total),
        facets=list(_chart_facets(splits, total=total)),
        facets_left_out=sorted(total.facets_left_out),
        bars=bars,
    )


def _chart_classes(splits: Mapping[str, Statistics], *, total: Statistics) -> Chart | None:
    unit, field = "objects", "objects_by_class"
    if not total.objects_by_class:
        unit, field = "images", "images_by_class"
    totals: Mapping[str, int] = getattr(total, field)
    counts = [getattr(split, field) for split in splits.values()]
    rows = [
        Row(name or NO_NAME, [each.get(name, 0) for each in counts])
        for name in sorted(totals, key=lambda name: (-totals[name], name))
    ]
    title = f"{unit.capitalize()} by class"
    return _stack("class", title, rows, unit=unit, is_stacked=False)


def _chart_sizes(
    splits: Mapping[str, Statistics], *, total: Statistics, bars: Bars
) -> Iterator[Chart | str]:
    """Yields a chart of each histogram, or a line where all are the same."""
    sides = (total.width_range, total.height_range)
    is_one_size = all(ends and ends[0] == ends[-1] for ends in sides)
    if is_one_size:
        size = " \N{MULTIPLICATION SIGN} ".join(f"{ends[0]:,}" for ends in sides)
        yield f"All {total.images:,} images have {size} pixels."
    for histogram in HISTOGRAMS:
        if is_one_size and histogram.field in _OF_SIZE:
            continue
        if histogram.field == "object_areas" and total.areas:
            # The chart of areas has their thresholds.
            continue
        counts = [getattr(split, histogram.field) for split in splits.values()]
        found = {key for each in counts for key in each}
        bins = list(histogram.bins(found, gaps=True))
        if len(bins) == 1:
            (_, words), number = bins[0], sum(sum(each.values()) for each in counts)
            yield f"All {number:,} {histogram.unit}: {histogram.heading} {words or NO_NAME}."
            continue
        rows = [
            Row(
                words or NO_NAME,
                [each.get(key, 0) for each in counts],
                bars.number(histogram.field, key),
            )
            for key, words in bins
        ]
        summary = _summarize(histogram, total)
        chart = _stack(
            histogram.heading, histogram.title, rows, unit=histogram.unit, summary=summary
        )
        if chart is not None:
            yield _mark_sizes(chart, bins, total=total) if histogram.field == "areas" else chart


def _mark_sizes(chart: Chart, bins: Sequence[tuple[str, str]], *, total: Statistics) -> Chart:
    """Marks where COCO's sizes begin in the chart of areas."""
    bounds = [int(key) for key, _ in bins]
    thresholds = {}
    for size, bound, words in _SIZES:
        place = next((place for place, lower in enumerate(bounds) if lower >= bound), None)
        if place is not None and total.object_areas.get(size):
            objects = counted(total.object_areas[size], "object")
            thresholds[place] = f"{size} (COCO), {words}: {objects}"
    rows = [
        row._replace(threshold=thresholds.get(place, "")) for place, row in enumerate(chart.rows)
    ]
    return chart._replace(rows=rows)


def _chart_facets(splits: Mapping[str, Statistics], *, total: Statistics) -> Iterator[Chart]:
    """Yields a chart of each facet: its values, the most frequent first, and where it has none."""
    for key, values in sorted(total.facets.items()):
        rows = [
            Row(value, [split.facets.get(key, {}).get(value, 0) for split in splits.values()])
            for value in sorted(values, key=lambda value: (-values[value], value))
        ]
        without = [
            max(0, split.examples - sum(split.facets.get(key, {}).values()))
            for split in splits.values()
        ]
        if any(without):
            rows.append(Row("(no value)", without))
        chart = _stack(key, key, rows, unit="examples")
        if chart is not None:
            yield chart


def _summarize(histogram: Histogram, total: Statistics) -> str:
    """Describes the least, median and greatest value of a histogram: exactly, or by bin."""
    if not histogram.is_ordered:
        return ""
    if histogram.field == "objects_per_image" and total.images_by_objects:
        exact = _ends_and_median(total.images_by_objects)
        least, median, most = (f"{int(value):,}" for value in exact)
        return f"least {least}, median {median}, most {most}"
    counts: Mapping[str, int] = getattr(total, histogram.field)
    words = dict(histogram.bins(counts))
    if not words:
        return ""
    least, median, most = _ends_and_median({key: counts[key] for key in words})
    ends = {"widths": total.width_range, "heights": total.height_range}.get(histogram.field)
    if ends:
        return f"least {ends[0]:,}, median {words[median]}, most {ends[-1]:,}"
    return f"least {words[least]}, median {words[median]}, most {words[most]}"


def _ends_and_median(counts: Mapping[str, int]) -> tuple[str, str, str]:
    """Returns the least, the middle and the greatest number, by how often each occurs."""
    values = sorted((value for value in counts if counts[value]), key=int)
    half, seen = sum(counts.values()) / 2, 0
    for value in values:
        seen += counts[value]
        if seen >= half:
            return values[0], value, values[-1]
    raise AssertionError("no values")


def _chart_keypoints(total: Statistics, *, bars: Bars) -> Chart | None:
    rows = [
        Row(
            name or NO_NAME,
            [counts.get(code, 0) for code in _VISIBILITIES],
            bars.number("keypoints", name),
        )
        for name, counts in sorted(total.keypoints.items(), key=_numbers_as_such)
    ]
    return _stack("keypoint", "Objects by keypoint", rows, unit="objects")


def _numbers_as_such(named: tuple[str, object]) -> list[str | int]:
    """Returns a sort key that puts `left_2` before `left_10`."""
    parts = re.split(r"([0-9]{1,18})", named[0])
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _stack(
    heading: str,
    title: str,
    rows: Sequence[Row],
    *,
    unit: str,
    summary: str = "",
    is_stacked: bool = True,
) -> Chart | None:
    """Makes a chart of bars that are stacked, or side by side."""
    if not rows:
        return None
    return Chart(
        heading,
        title,
        unit,
        rows[:_FIRST],
        rows[_FIRST:_MOST],
        left_out=max(0, len(rows) - _MOST),
        widest=max((sum if is_stacked else max)(row.counts) for row in rows) or 1,
        summary=summary,
    )


def draw_heat_maps(total: Statistics) -> HeatMaps | None:
    """Draws the heat maps of all boxes; None without boxes."""
    if not all(sum(read_grid(grid)) for grid in (total.box_centres, total.box_sizes)):
        return None
    centres = HeatMap(
        "centres",
        "Where boxes are",
        "centres",
        total.box_centres,
        columns=_QUARTERS,
        middle=(4, 12),
        words="in the middle half of the image's width and height",
    )
    sizes = HeatMap(
        "sizes",
        "How large boxes are",
        "shares of width and height, both axes log",
        total.box_sizes,
        columns=_OCTAVES,
        middle=(0, 12),
        words="narrower and lower than a quarter of the image",
        ends=("0.4 %", "6.3 %", "100 %"),
        rises=True,
    )
    by_objects = sorted(
        total.box_centres_by_class, key=lambda name: (-total.objects_by_class.get(name, 0), name)
    )
    classes = [
        HeatClass(
            name or NO_NAME,
            sum(read_grid(total.box_centres_by_class[name])),
            total.box_centres_by_class[name],
            total.box_sizes_by_class.get(name, ""),
        )
        for name in by_objects
    ]
    return HeatMaps(
        sum(read_grid(total.box_centres)),
        (centres, sizes),
        classes if len(classes) > 1 else (),
        len(total.objects_by_class),
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"
