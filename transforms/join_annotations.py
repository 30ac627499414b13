"""JoinAnnotations: joins each image with its annotations."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection
from apache_beam.transforms import combiners

from shardbeam.transforms.beam.stages import (
    COUNTS,
    MAIN,
    GiveRecordsFn,
    RecordOutput,
    add_step,
    flatten,
)
from shardbeam.transforms.core.counters import BlockCount, counters
from shardbeam.transforms.core.counts import (
    CUT,
    RECORDS,
    REJECTS,
    SAMPLED,
    Count,
    Counts,
    check_arrived,
    lost_error,
    sum_counts,
)
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import Record, Reject
from shardbeam.transforms.core.sharding import (
    Border,
    SplitAssignment,
    SplitCuts,
    SplitSample,
    bin_of,
    find_borders,
)
from shardbeam.transforms.dataset.first_sizes import FirstSizes
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.formats.join.join import (
    FoundKey,
    join_items,
)
from shardbeam.transforms.formats.join.sources import (
    JoinSettings,
    Source,
    decode_join_key,
    decode_join_value,
)

# (source and join key, value), as `formats.join.values` encodes them
_JoinValue: TypeAlias = tuple[bytes, bytes]
# A record's classes, its point (`SplitAssignment.point_of`), and its own hash.
_Point: TypeAlias = tuple[tuple[str, ...], bytes, bytes]
# {bin: the points in it}
_Bins: TypeAlias = dict[int, Count]
# A record's place in the order of its split, and its classes.
_Place: TypeAlias = tuple[bytes, tuple[str, ...]]
# A split's sample, and the count of the records that it was chosen from.
_Sampling: TypeAlias = tuple[SplitSample, Count]
_Sample: TypeAlias = tuple[frozenset[bytes], Count]


class JoinResult(NamedTuple):
    """The result of `JoinAnnotations`.

    Attributes:
        records: A `Record` for each image to write, in batches (`dataset.record_batches`).
        rejects: A `Reject` for each input that cannot be used.
        counts: One PCollection for each step, with the counts of each bundle.
    """

    records: PCollection[bytes]
    rejects: PCollection[Reject]
    counts: tuple[PCollection[InputCounts], ...]


@dataclasses.dataclass(eq=False, kw_only=True)
class JoinAnnotations(beam.PTransform[Any, JoinResult]):
    """Joins listed images and annotation entries by source and join key, in one GroupByKey.

    Splits of exact sizes take a pass over the keys before the join: it counts the hashes and
    classes of all records, which decide where splits end. A sample takes another pass, which
    chooses its images.

    Args:
        sources: The sources.
        settings: The config's settings of the join.
    """

    sources: Sequence[Source]
    settings: JoinSettings

    def expand(self, inputs: tuple[PCollection[_JoinValue], ...]) -> JoinResult:
        """Adds the step: `(listed.values, read.values) | JoinAnnotations(...)`, in any order."""
        # (source and join key in lower case, [value, ...])
        grouped = flatten(*inputs) | beam.GroupByKey()
        settings, splits = self.settings, self.settings.splits
        counts: tuple[PCollection[InputCounts], ...] = ()
        # The arguments of the steps that need to know what the passes before have found.
        known: dict[str, Any] = {}
        if splits.exact:
            # (classes, point, hash)
            point_fn = _PointFn(sources=self.sources, settings=settings)
            points = add_step("JoinToCut", point_fn, grouped)[MAIN]
            # one `_ClassCounts`; none if there are no points
            classes = (
                points
                | "CountClasses"
                >> beam.CombineGlobally(_CountClassesFn())
                .with_output_types(_ClassCounts)
                .without_defaults()
            )
            known["cuts"] = pvalue.AsSingleton(points | CutSplits(splits=splits, classes=classes))
            counts += (classes | "CountCut" >> beam.Map(_count_cut).with_output_types(InputCounts),)
        if settings.limit is not None:
            # (split, (place, classes))
            place_fn = _PlaceFn(sources=self.sources, settings=settings)
            places = add_step("JoinToSample", place_fn, grouped, **known)[MAIN]
            # (split, (the places of its sample, count of all places))
            chosen = places | "Sample" >> beam.CombinePerKey(_SampleFn(settings.limit))
            known["samples"] = pvalue.AsDict(chosen)
            counts += (
                chosen | "CountSampled" >> beam.Map(_count_sampled).with_output_types(InputCounts),
            )
        join_fn = _JoinFn(sources=self.sources, settings=settings)
        types = {RECORDS: bytes, REJECTS: Reject}
        joined = add_step("Join", join_fn, grouped, types=types, **known)
        return JoinResult(joined[RECORDS], joined[REJECTS], (*counts, joined[COUNTS]))


class _SampleFn(beam.CombineFn):
    """Chooses a split's sample by places and classes, and counts the records."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def create_accumulator(self) -> _Sampling:
        return SplitSample(self._limit), Count()

    def add_input(self, sampling: _Sampling, element: _Place) -> _Sampling:
        sample, count = sampling
        sample.add(*element)
        count.add(element[0])
        return sampling

    def merge_accumulators(self, parts: Iterable[_Sampling]) -> _Sampling:
        merged, total = self.create_accumulator()
        for sample, count in parts:
            merged.merge(sample)
            total.merge(count)
        return merged, total

    def extract_output(self, sampling: _Sampling) -> _Sample:
        sample, count = sampling
        return sample.chosen(), count


def _count_sampled(element: tuple[str, _Sample]) -> InputCounts:
    _, (_, count) = element
    return InputCounts(counts=Counts(received={SAMPLED: count}))


def _count_cut(classes: _ClassCounts) -> InputCounts:
    return InputCounts(counts=Counts(received={CUT: classes.records}))


@dataclasses.dataclass(eq=False, kw_only=True)
class _KeyFn(GiveRecordsFn):
    """Joins one join key at a time.

    Records may be joined in a pass before, which decides where splits end, or which records are in
    a sample. What the join sends is compared with what that pass has counted.
    """

    sources: Sequence[Source]

    def setup(self) -> None:
        self._formats = {source.name: source.format for source in self.sources}

    def start_bundle(self) -> None:
        super().start_bundle()
        self._seen = self.begin_count()

    def finish_bundle(self) -> Iterator[Any]:
        self._seen.flush()
        yield from super().finish_bundle()

    def begin_count(self) -> BlockCount:
        """Returns what counts the images of this pass."""
        return BlockCount(counters.joined)

    def join(
        self,
        element: tuple[bytes, Iterable[bytes]],
        *,
        settings: JoinSettings,
    ) -> Iterator[FoundKey]:
        """Joins values whose join keys differ in case alone, one join key at a time."""
        identity, values = element
        source, folded = decode_join_key(identity)
        items = []
        for value in values:
            what, join_key, item = decode_join_value(value, folded=folded)
            self.counts.receive(what, identity, value)
            items.append((join_key, item))
        for found in join_items(
            items, source=source, source_format=self._formats[source], settings=settings
        ):
            self._seen.add(found.listed)
            yield found


@beam.typehints.with_output_types(_Point)
class _PointFn(_KeyFn):
    """Finds each record's classes and its point, before the ends of splits are known."""

    def begin_count(self) -> BlockCount:
        return BlockCount(counters.cut)

    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[_Point]:
        splits = self.settings.splits
        about = msgspec.structs.replace(
            self.settings, splits=msgspec.structs.replace(splits, exact=False, stratify=False)
        )
        for found in self.join(element, settings=about):
            if found.joined.record is not None:
                yield self._find_point(found.joined.record)

    def _find_point(self, record: Record) -> _Point:
        settings, splits = self.settings, self.settings.splits
        classes = settings.classes_of(record.annotations) if splits.stratify else ()
        source, key = settings.group_of(source=record.source, key=record.key)
        return classes, splits.point_of(source=source, key=key), self.hash_of(record)


@beam.typehints.with_output_types(tuple[str, _Place])
class _PlaceFn(_KeyFn):
    """Finds each record's split, its place there and its classes, before a sample is chosen."""

    def begin_count(self) -> BlockCount:
        return BlockCount(counters.sampled)

    def process(
        self, element: tuple[bytes, Iterable[bytes]], cuts: SplitCuts | None = None
    ) -> Iterator[tuple[str, _Place]]:
        settings = _with_cuts(self.settings, cuts)
        for found in self.join(element, settings=settings):
            joined = found.joined
            if joined.record is not None:
                classes = settings.shown_classes(joined.record.annotations)
                yield joined.split, (self.hash_of(joined.record), classes)


class _JoinFn(_KeyFn):
    """Joins images and entries, and sends the records and the rejects on."""

    def setup(self) -> None:
        super().setup()
        # Of all bundles: an image that is none of the first here is none of the first at all.
        self._first_sizes = FirstSizes()

    def process(
        self,
        element: tuple[bytes, Iterable[bytes]],
        cuts: SplitCuts | None = None,
        samples: Mapping[str, _Sample] | None = None,
    ) -> Iterator[RecordOutput]:
        for found in self.join(element, settings=_with_cuts(self.settings, cuts)):
            yield from self._give_found(found, samples=samples)

    def _give_found(
        self, found: FoundKey, *, samples: Mapping[str, _Sample] | None
    ) -> Iterator[RecordOutput]:
        joined, source, key, images, entries, listed = found
        if joined.record is not None and self.settings.splits.exact:
            self.counts.send(CUT, self.hash_of(joined.record))
        # Also if it is beyond the limit, so that a sample is read like the whole.
        if joined.record is not None and self._first_sizes.add_record(joined.record):
            self.inputs.first_sizes.add_record(joined.record)
        if joined.record is not None and samples is not None:
            place = self.hash_of(joined.record)
            self.counts.send(SAMPLED, place)
            if joined.split not in samples:
                raise lost_error([SAMPLED])
            chosen, _ = samples[joined.split]
            if place not in chosen:
                joined = msgspec.structs.replace(
                    joined, record=None, unannotated=False, excluded=Exclusion.BEYOND_LIMIT
                )
        first_pixel = self._formats[source].first_pixel
        if joined.record is not None and first_pixel is not None:
            seen = self.inputs.samples.source(source)
            seen.add_boxes(joined.record.annotations, first_pixel=first_pixel)
        # The join key may be shorter than the name; messages show the name.
        shown = min((image.key for image in images), default=key)
        yield from self.give(
            joined, source=source, key=shown, listed=listed, referenced=len(entries)
        )


def _with_cuts(settings: JoinSettings, cuts: SplitCuts | None) -> JoinSettings:
    if cuts is None:
        return settings
    return msgspec.structs.replace(
        settings, splits=msgspec.structs.replace(settings.splits, cuts=cuts)
    )


class _ClassCounts(msgspec.Struct):
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
class CutSplits(beam.PTransform[PCollection[_Point], PCollection[SplitCuts]]):
    """Finds the ends of splits from counts of all points and from a few points.

    No worker gets a list of all points: it would have 8 bytes for each image.

    Args:
        splits: The splits.
        classes: One `_ClassCounts` of these points; none if there are no points.

    Raises:
        InputError: (at run time) The runner lost or doubled points.
    """

    splits: SplitAssignment
    classes: PCollection[_ClassCounts]

    def expand(self, points: PCollection[_Point]) -> PCollection[SplitCuts]:
        """Adds the steps to a pipeline."""
        classes = pvalue.AsSingleton(self.classes, default_value=_ClassCounts())
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


class _CountClassesFn(beam.CombineFn):
    """Counts points by their classes."""

    def create_accumulator(self) -> _ClassCounts:
        """Starts with no points."""
        return _ClassCounts()

    def add_input(self, counts: _ClassCounts, element: _Point) -> _ClassCounts:
        """Counts a point."""
        classes, point, digest = element
        counts.records.add(digest)
        counts.points.add(point)
        for name in classes:
            counts.images[name] = counts.images.get(name, 0) + 1
        return counts

    def merge_accumulators(self, parts: Iterable[_ClassCounts]) -> _ClassCounts:
        """Adds counts up."""
        total, images = _ClassCounts(), Counter[str]()
        for part in parts:
            total.records.merge(part.records)
            total.points.merge(part.points)
            images.update(part.images)
        return msgspec.structs.replace(total, images=dict(images))

    def extract_output(self, counts: _ClassCounts) -> _ClassCounts:
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


def _find_stratum(element: _Point, classes: _ClassCounts) -> tuple[str, bytes]:
    names, point, _ = element
    return SplitCuts({}, classes.images).stratum(names), point


def _count_stratum(element: tuple[str, _Bins]) -> tuple[str, Count]:
    stratum, bins = element
    return stratum, sum_counts(bins.values())


def _rank_ends(
    strata: Mapping[str, Count], classes: _ClassCounts, *, splits: SplitAssignment
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
    element: _Point, classes: _ClassCounts, borders: Mapping[str, Sequence[Border]]
) -> Iterator[tuple[str, bytes]]:
    stratum, point = _find_stratum(element, classes)
    if any(border.bin == bin_of(point) for border in borders.get(stratum, ())):
        yield stratum, point


def _cut(
    points: Mapping[tuple[str, bytes], int],
    classes: _ClassCounts,
    ranks: Mapping[str, Sequence[int]],
    borders: Mapping[str, Sequence[Border]],
    *,
    splits: SplitAssignment,
) -> SplitCuts:
    if borders.keys() != ranks.keys():
        raise lost_error([CUT])
    return splits.cut(points, borders=borders, images=classes.images)
