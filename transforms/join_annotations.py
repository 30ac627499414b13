"""JoinAnnotations: joins each image with its annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection
from apache_beam.transforms.combiners import Count, ToDict

from shardbeam.transforms.beam.records import RECORDS, REJECTS, GiveRecordsFn, RecordOutput
from shardbeam.transforms.beam.stages import CENSUS, CensusFn, flatten, typed_outputs
from shardbeam.transforms.core.counters import BlockCount, counters
from shardbeam.transforms.core.edges import (
    CLASSES,
    PLACES,
    POINTS,
    TO_CUT_SPLITS,
    TO_SAMPLE,
    Edges,
    lost_error,
)
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import AnnotationEntry, ListedImage, Reject
from shardbeam.transforms.core.sharding import (
    Border,
    SplitAssignment,
    SplitCuts,
    SplitSample,
    bin_of,
    find_borders,
)
from shardbeam.transforms.dataset.census import Census, SourceCensus
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.join.join import (
    JoinedKey,
    JoinSettings,
    find_similar,
    join_key,
    without_loose,
)
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.formats.join.values import decode_join_key, decode_join_value

_MAIN = "main"

# (source and join text, value), as `formats.join.values` encodes them
_JoinValue: TypeAlias = tuple[bytes, bytes]


# A split's sample, and the counts of what has arrived for it.
_Sampled: TypeAlias = tuple[SplitSample, Edges]


class JoinResult(NamedTuple):
    """The result of `JoinAnnotations`.

    Attributes:
        records: A `Record` for each image to write, in batches (`shards.record_batches`).
        rejects: A `Reject` for each input that cannot be used.
        census: One PCollection for each step, with a `Census` of each bundle.
    """

    records: PCollection[bytes]
    rejects: PCollection[Reject]
    census: tuple[PCollection[Census], ...]


@dataclasses.dataclass(eq=False, kw_only=True)
class JoinAnnotations(beam.PTransform[Any, JoinResult]):
    """Joins listed images and annotation entries by source and join text, in one GroupByKey.

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
        # (source and join text in lower case, [value, ...])
        grouped = flatten(*inputs) | beam.GroupByKey()
        settings, splits = self.settings, self.settings.splits
        census: tuple[PCollection[Census], ...] = ()
        cuts: tuple[pvalue.AsSingleton, ...] = ()
        if splits.exact:
            cut, counted = self._cut_splits(grouped)
            census += counted
            cuts = (pvalue.AsSingleton(cut),)
        samples = {}
        if settings.limit is not None:
            place_fn = _PlaceFn(sources=self.sources, settings=settings)
            # (split, (place, classes))
            places = typed_outputs(
                grouped
                | "JoinToSample" >> beam.ParDo(place_fn, *cuts).with_outputs(CENSUS, main=_MAIN)
            )
            # (split, (the places of its sample, Census))
            chosen = places[_MAIN] | "Sample" >> beam.CombinePerKey(_SampleFn(settings.limit))
            samples["samples"] = pvalue.AsDict(chosen | "GiveSample" >> beam.Map(_give_sample))
            counted = chosen | "CountPlaces" >> beam.Map(_give_census).with_output_types(Census)
            census += (places[CENSUS], counted)
        join_fn = _JoinFn(sources=self.sources, settings=settings)
        joined = typed_outputs(
            grouped
            | "Join"
            >> beam.ParDo(join_fn, *cuts, **samples).with_outputs(RECORDS, REJECTS, CENSUS),
            records=bytes,
            rejects=Reject,
        )
        return JoinResult(joined[RECORDS], joined[REJECTS], (*census, joined[CENSUS]))

    def _cut_splits(
        self, grouped: PCollection[tuple[bytes, Iterable[bytes]]]
    ) -> tuple[PCollection[SplitCuts], tuple[PCollection[Census], ...]]:
        """Finds where splits of exact sizes end, from counts of all points and from a few points.

        No worker gets a list of all points: it would have 8 bytes for each image.
        """
        splits = self.settings.splits
        # (classes, point)
        point_fn = _PointFn(sources=self.sources, settings=self.settings)
        points = typed_outputs(
            grouped | "JoinToCount" >> beam.ParDo(point_fn).with_outputs(CENSUS, main=_MAIN)
        )
        # {class: number of images}
        images = pvalue.AsDict(
            points[_MAIN]
            | "GiveClasses" >> beam.FlatMap(_give_classes).with_output_types(str)
            | "CountImages" >> Count.PerElement()
        )
        # (stratum, [(bin, number of points), ...])
        bins = (
            points[_MAIN]
            | "FindBin" >> beam.Map(_find_bin, images).with_output_types(tuple[str, int])
            | "CountBins" >> Count.PerElement()
            | "KeyByStratum"
            >> beam.Map(_key_by_stratum).with_output_types(tuple[str, tuple[int, int]])
            | "GatherBins" >> beam.GroupByKey()
        )
        # one {stratum: how many points are before the end of each split}
        ranks = (
            bins
            | "CountStratum" >> beam.Map(_count_stratum).with_output_types(tuple[str, int])
            | "GatherStrata" >> ToDict()
            | "RankEnds" >> beam.Map(splits.rank_ends)
        )
        # (stratum, the bins in which splits end)
        found = typed_outputs(
            bins
            | "FindBorders"
            >> beam.ParDo(_BorderFn(), pvalue.AsSingleton(ranks)).with_outputs(CENSUS, main=_MAIN)
        )
        borders = pvalue.AsDict(found[_MAIN])
        # one SplitCuts
        cut = typed_outputs(
            points[_MAIN]
            | "KeepEndPoints"
            >> beam.FlatMap(_keep_end_points, images, borders).with_output_types(tuple[str, bytes])
            | "CountEndPoints" >> Count.PerElement()
            | "GatherEndPoints" >> ToDict()
            | "CutSplits"
            >> beam.ParDo(
                _CutFn(splits=splits), images, borders, pvalue.AsSingleton(ranks)
            ).with_outputs(CENSUS, main=_MAIN)
        )
        return cut[_MAIN], (points[CENSUS], found[CENSUS], cut[CENSUS])


def _give_classes(element: tuple[tuple[str, ...], bytes]) -> tuple[str, ...]:
    return element[0]


def _find_bin(element: tuple[tuple[str, ...], bytes], images: Mapping[str, int]) -> tuple[str, int]:
    classes, point = element
    return SplitCuts({}, images).stratum(classes), bin_of(point)


def _key_by_stratum(element: tuple[tuple[str, int], int]) -> tuple[str, tuple[int, int]]:
    (stratum, index), size = element
    return stratum, (index, size)


def _count_stratum(element: tuple[str, Iterable[tuple[int, int]]]) -> tuple[str, int]:
    stratum, bins = element
    return stratum, sum(size for _, size in bins)


def _keep_end_points(
    element: tuple[tuple[str, ...], bytes],
    images: Mapping[str, int],
    borders: Mapping[str, Sequence[Border]],
) -> Iterator[tuple[str, bytes]]:
    stratum, index = _find_bin(element, images)
    if any(border.bin == index for border in borders.get(stratum, ())):
        yield stratum, element[1]


class _SampleFn(beam.CombineFn):
    """Chooses a split's sample by places and classes, and counts the places."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def create_accumulator(self) -> _Sampled:
        return SplitSample(self._limit), Edges()

    def add_input(self, sampled: _Sampled, element: tuple[bytes, tuple[str, ...]]) -> _Sampled:
        sample, edges = sampled
        place, classes = element
        sample.add(place, classes)
        edges.receive(PLACES, place)
        return sampled

    def merge_accumulators(self, parts: Iterable[_Sampled]) -> _Sampled:
        merged, edges = self.create_accumulator()
        for sample, more in parts:
            merged.merge(sample)
            edges.add(more)
        return merged, edges

    def extract_output(self, sampled: _Sampled) -> tuple[frozenset[bytes], Census]:
        sample, edges = sampled
        return sample.chosen(), Census(edges=edges)


def _give_sample(
    element: tuple[str, tuple[frozenset[bytes], Census]],
) -> tuple[str, frozenset[bytes]]:
    split, (chosen, _) = element
    return split, chosen


def _give_census(element: tuple[str, tuple[frozenset[bytes], Census]]) -> Census:
    _, (_, census) = element
    return census


@beam.typehints.with_output_types(tuple[str, list[Border]])
class _BorderFn(CensusFn):
    """Finds the bins of a stratum in which splits end, and counts the points of all its bins."""

    def process(
        self,
        element: tuple[str, Iterable[tuple[int, int]]],
        ranks: Mapping[str, Sequence[int]],
    ) -> Iterator[tuple[str, list[Border]]]:
        stratum, bins = element
        for index, size in bins:
            self.edges.receive(POINTS, _encode_bin(index), times=size)
        if stratum not in ranks:
            raise lost_error([POINTS])
        yield stratum, find_borders(dict(bins), ranks[stratum])


@beam.typehints.with_output_types(SplitCuts)
@dataclasses.dataclass(eq=False, kw_only=True)
class _CutFn(CensusFn):
    """Finds where splits of exact sizes end, and counts the classes it receives."""

    splits: SplitAssignment

    def process(
        self,
        points: Mapping[tuple[str, bytes], int],
        images: Mapping[str, int],
        borders: Mapping[str, Sequence[Border]],
        ranks: Mapping[str, Sequence[int]],
    ) -> Iterator[SplitCuts]:
        for name, count in images.items():
            self.edges.receive(CLASSES, name.encode(), times=count)
        if borders.keys() != ranks.keys():
            raise lost_error([POINTS])
        yield self.splits.cut(points, borders=borders, images=images)


def _encode_bin(index: int) -> bytes:
    return index.to_bytes(2, "big")


class _Found(NamedTuple):
    """The result for one text, with its images and annotation entries.

    Attributes:
        listed: The number of its inputs.
    """

    joined: JoinedKey
    source: str
    key: str
    images: list[ListedImage]
    entries: Sequence[AnnotationEntry]
    listed: int


@dataclasses.dataclass(eq=False, kw_only=True)
class _KeyFn(GiveRecordsFn):
    """Joins one text at a time; each pass over the texts counts its own input."""

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
        to: str = "",
    ) -> Iterator[_Found]:
        """Joins the values of texts that differ in case alone, one text at a time.

        A pass before the join counts edges with the suffix `to`.
        """
        identity, values = element
        source, folded = decode_join_key(identity)
        # {text: its images and entries}
        texts: dict[str, tuple[list[ListedImage], list[AnnotationEntry]]] = {}
        for value in values:
            edge, text, item = decode_join_value(value, folded=folded)
            self.edges.receive(edge + to, identity, value)
            images, entries = texts.setdefault(text, ([], []))
            if isinstance(item, ListedImage):
                images.append(item)
            else:
                entries.append(item)
        for text, (images, found) in sorted(texts.items()):
            yield self._join_text(
                text,
                source=source,
                images=images,
                entries=without_loose(found, is_listed=bool(images)),
                similar=find_similar(text, texts) if len(texts) > 1 else (),
                settings=settings,
            )

    def _join_text(
        self,
        text: str,
        *,
        source: str,
        images: list[ListedImage],
        entries: Sequence[AnnotationEntry],
        similar: Sequence[str],
        settings: JoinSettings,
    ) -> _Found:
        # In a table without images, the rows are the inputs.
        listed = 1 if Kind.ROWS in self._formats[source].kinds else len(images)
        self._seen.add(listed)
        # A missing image has the name that the annotations give it.
        key = min((entry.key for entry in entries), default=text)
        joined = join_key(
            source=source,
            key=key,
            images=images,
            entries=entries,
            source_format=self._formats[source],
            settings=settings,
            similar=similar,
        )
        return _Found(joined, source, key, images, entries, listed)


@beam.typehints.with_output_types(tuple[tuple[str, ...], bytes])
class _PointFn(_KeyFn):
    """Finds each record's classes and its point, before the ends of splits are known."""

    def begin_count(self) -> BlockCount:
        return BlockCount(counters.cut)

    def process(
        self, element: tuple[bytes, Iterable[bytes]]
    ) -> Iterator[tuple[tuple[str, ...], bytes]]:
        splits = self.settings.splits
        about = msgspec.structs.replace(
            self.settings, splits=msgspec.structs.replace(splits, exact=False, stratify=False)
        )
        for found in self.join(element, settings=about, to=TO_CUT_SPLITS):
            record = found.joined.record
            if record is None:
                continue
            classes = self.settings.classes_of(record.annotations) if splits.stratify else ()
            source, key = self.settings.group_of(source=record.source, key=record.key)
            point = splits.point_of(source=source, key=key)
            self.edges.send(POINTS, _encode_bin(bin_of(point)))
            for name in classes:
                self.edges.send(CLASSES, name.encode())
            yield classes, point


@beam.typehints.with_output_types(tuple[str, tuple[bytes, tuple[str, ...]]])
class _PlaceFn(_KeyFn):
    """Finds each record's split, its place there and its classes, before a sample is chosen."""

    def begin_count(self) -> BlockCount:
        return BlockCount(counters.sampled)

    def process(
        self, element: tuple[bytes, Iterable[bytes]], cuts: SplitCuts | None = None
    ) -> Iterator[tuple[str, tuple[bytes, tuple[str, ...]]]]:
        settings = _with_cuts(self.settings, cuts)
        for found in self.join(element, settings=settings, to=TO_SAMPLE):
            joined = found.joined
            if joined.record is not None:
                place = self.hash_of(joined.record)
                self.edges.send(PLACES, place)
                yield joined.split, (place, settings.shown_classes(joined.record.annotations))


class _JoinFn(_KeyFn):
    """Joins images and entries, and sends the records and the rejects on."""

    def process(
        self,
        element: tuple[bytes, Iterable[bytes]],
        cuts: SplitCuts | None = None,
        samples: Mapping[str, frozenset[bytes]] | None = None,
    ) -> Iterator[RecordOutput]:
        for found in self.join(element, settings=_with_cuts(self.settings, cuts)):
            yield from self._give_found(found, samples=samples)

    def _give_found(
        self, found: _Found, *, samples: Mapping[str, frozenset[bytes]] | None
    ) -> Iterator[RecordOutput]:
        joined, source, key, images, entries, listed = found
        if samples is not None and joined.record is not None:
            if joined.split not in samples:
                raise lost_error([PLACES])
            if self.hash_of(joined.record) not in samples[joined.split]:
                joined = msgspec.structs.replace(
                    joined, record=None, unannotated=False, excluded=Exclusion.BEYOND_LIMIT
                )
        first_pixel = self._formats[source].first_pixel
        if joined.record is not None and first_pixel is not None:
            seen = self.census.sources.setdefault(source, SourceCensus())
            seen.add_boxes(joined.record.annotations, first_pixel=first_pixel)
        # The join text may be shorter than the name; messages show the name.
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
