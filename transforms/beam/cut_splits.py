"""CutSplits: finds where splits of exact sizes end."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection
from apache_beam.transforms import combiners

from shardbeam.transforms.core.counts import CUT, Count, check_arrived, lost_error, sum_counts
from shardbeam.transforms.core.sharding import (
    Border,
    SplitAssignment,
    SplitCuts,
    bin_of,
    find_borders,
)

# A record's classes, its point (`SplitAssignment.point_of`), and its own hash.
Point: TypeAlias = tuple[tuple[str, ...], bytes, bytes]

_Bins: TypeAlias = dict[int, Count]


class ClassCounts(msgspec.Struct):
    """Counts of the records whose points decide where splits end.

    Attributes:
        records: Their count by hashes.
        points: Their count by points; the records of a group have the same one.
        images: `{class: number of images with it}`.
    """

    records: Count = msgspec.field(default_factory=Count)
    points: Count = msgspec.field(default_factory=Count)
    images: dict[str, int] = {}


@dataclasses.dataclass(eq=False, kw_only=True)
class CutSplits(beam.PTransform[PCollection[Point], PCollection[SplitCuts]]):
    """Finds the ends of splits from counts of all points and from a few points.

    No worker gets a list of all points: it would have 8 bytes for each image.

    Args:
        splits: The splits.
        classes: One `ClassCounts` of these points; none if there are no points.

    Raises:
        InputError: (at run time) The runner lost or doubled points.
    """

    splits: SplitAssignment
    classes: PCollection[ClassCounts]

    def expand(self, points: PCollection[Point]) -> PCollection[SplitCuts]:
        """Adds the steps to a pipeline."""
        classes = pvalue.AsSingleton(self.classes, default_value=ClassCounts())
        # (stratum, {bin: count of its points})
        bins = (
            points
            | "FindStratum" >> beam.Map(_find_stratum, classes).with_output_types(tuple[str, bytes])
            | "CountBins" >> beam.CombinePerKey(_BinsFn())
        )
        # one {stratum: how many points are before the end of each split}
        ranks = pvalue.AsSingleton(
            bins
            | "CountStratum" >> beam.Map(_count_stratum).with_output_types(tuple[str, Count])
            | "GatherStrata" >> combiners.ToDict()
            | "RankEnds" >> beam.Map(_rank_ends, classes, splits=self.splits)
        )
        # (stratum, the bins in which splits end)
        borders = pvalue.AsDict(
            bins
            | "FindBorders"
            >> beam.Map(_find_borders, ranks).with_output_types(tuple[str, list[Border]])
        )
        return (
            points
            | "KeepEndPoints"
            >> beam.FlatMap(_keep_end_points, classes, borders).with_output_types(tuple[str, bytes])
            | "CountEndPoints" >> combiners.Count.PerElement()
            # one {(stratum, point): number of records}
            | "GatherEndPoints" >> combiners.ToDict()
            | "Cut"
            >> beam.Map(_cut, classes, ranks, borders, splits=self.splits).with_output_types(
                SplitCuts
            )
        )


class CountClassesFn(beam.CombineFn):
    """Counts points by their classes."""

    def create_accumulator(self) -> ClassCounts:
        """Starts with no points."""
        return ClassCounts()

    def add_input(self, counts: ClassCounts, element: Point) -> ClassCounts:
        """Counts a point."""
        classes, point, digest = element
        counts.records.add(digest)
        counts.points.add(point)
        for name in classes:
            counts.images[name] = counts.images.get(name, 0) + 1
        return counts

    def merge_accumulators(self, parts: Iterable[ClassCounts]) -> ClassCounts:
        """Adds counts up."""
        total, images = ClassCounts(), Counter[str]()
        for part in parts:
            total.records.merge(part.records)
            total.points.merge(part.points)
            images.update(part.images)
        return msgspec.structs.replace(total, images=dict(images))

    def extract_output(self, counts: ClassCounts) -> ClassCounts:
        """Returns the counts."""
        return counts


class _BinsFn(beam.CombineFn):
    """Counts the points of a stratum in each bin."""

    def create_accumulator(self) -> _Bins:
        return {}

    def add_input(self, bins: _Bins, point: bytes) -> _Bins:
        bins.setdefault(bin_of(point), Count()).add(point)
        return bins

    def merge_accumulators(self, parts: Iterable[_Bins]) -> _Bins:
        merged: _Bins = {}
        for part in parts:
            for index, count in part.items():
                merged.setdefault(index, Count()).merge(count)
        return merged

    def extract_output(self, bins: _Bins) -> _Bins:
        return bins


def _find_stratum(element: Point, classes: ClassCounts) -> tuple[str, bytes]:
    names, point, _ = element
    return SplitCuts({}, classes.images).stratum(names), point


def _count_stratum(element: tuple[str, _Bins]) -> tuple[str, Count]:
    stratum, bins = element
    return stratum, sum_counts(bins.values())


def _rank_ends(
    strata: Mapping[str, Count], classes: ClassCounts, *, splits: SplitAssignment
) -> dict[str, tuple[int, ...]]:
    check_arrived(CUT, sent=classes.points, received=sum_counts(strata.values()))
    return splits.rank_ends({stratum: count.number for stratum, count in strata.items()})


def _find_borders(
    element: tuple[str, _Bins], ranks: Mapping[str, Sequence[int]]
) -> tuple[str, list[Border]]:
    stratum, bins = element
    if stratum not in ranks:
        raise lost_error([CUT])
    return stratum, find_borders(bins, ranks[stratum])


def _keep_end_points(
    element: Point, classes: ClassCounts, borders: Mapping[str, Sequence[Border]]
) -> Iterator[tuple[str, bytes]]:
    stratum, point = _find_stratum(element, classes)
    if any(border.bin == bin_of(point) for border in borders.get(stratum, ())):
        yield stratum, point


def _cut(
    points: Mapping[tuple[str, bytes], int],
    classes: ClassCounts,
    ranks: Mapping[str, Sequence[int]],
    borders: Mapping[str, Sequence[Border]],
    *,
    splits: SplitAssignment,
) -> SplitCuts:
    if borders.keys() != ranks.keys():
        raise lost_error([CUT])
    return splits.cut(points, borders=borders, images=classes.images)
