"""JoinAnnotations: each image with what is said about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection
from apache_beam.transforms.combiners import Count, ToDict

from shardbeam.transforms.beam.stages import in_global_window
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import AnnotationEntry, ListedImage, Record, Reject
from shardbeam.transforms.core.sampling import SplitSample
from shardbeam.transforms.core.sharding import SplitCuts, example_hash
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.joining import JoinSettings, join_key, join_text
from shardbeam.transforms.formats.sources import Source

_REJECTS = "rejects"
_CENSUS = "census"

# A key and one side's value.
_Tagged = tuple[bytes, bytes]
# First byte of a value: which side of the join it comes from.
_IMAGE = b"\x00"
_ENTRY = b"\x01"

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_image_decoder = msgspec.msgpack.Decoder(ListedImage)
_entry_decoder = msgspec.msgpack.Decoder(AnnotationEntry)


class JoinResult(NamedTuple):
    """What `JoinAnnotations` gives.

    Attributes:
        records: `(split, Record)` for each image that goes on.
        rejects: A `Reject` for each input that cannot be used.
        census: A `Census` for each bundle: what became of everything.
    """

    records: PCollection[tuple[str, Record]]
    rejects: PCollection[Reject]
    census: PCollection[Census]


@dataclasses.dataclass(eq=False, kw_only=True)
class JoinAnnotations(beam.PTransform[Any, JoinResult]):
    """Joins listed images and annotation entries by (source, join), in one GroupByKey.

    The values are shuffled as bytes under one tag byte: a CoGroupByKey of typed values costs
    nearly twice as much. They become bytes where they are found, before they are put together:
    otherwise they would be encoded once more on the way.

    Where splits are to have exact sizes, keys are joined twice: first to learn which become
    records, and of which classes, since their hashes say where a split ends. Where only a sample
    is to go on, they are joined once more before, to choose it.

    Args:
        sources: The sources.
        settings: What the config says about the join.
    """

    sources: Sequence[Source]
    settings: JoinSettings

    def expand(
        self, inputs: tuple[PCollection[tuple[tuple[str, str], ListedImage | AnnotationEntry]], ...]
    ) -> JoinResult:
        """Adds the step: `(images, entries, …) | JoinAnnotations(...)`, in any order."""
        sources = {source.name: source for source in self.sources}
        grouped = (
            [
                values | f"Tag{number}" >> beam.Map(_tag, sources).with_output_types(_Tagged)
                for number, values in enumerate(inputs)
            ]
            | beam.Flatten()
            | beam.GroupByKey()
        )
        splits = self.settings.splits
        cuts: tuple[pvalue.AsSingleton, ...] = ()
        if splits.exact:
            about = msgspec.structs.replace(
                self.settings,
                splits=msgspec.structs.replace(splits, exact=False, stratify=False),
            )
            counted = grouped | "JoinToCount" >> beam.ParDo(
                _JoinFn(sources=self.sources, settings=about)
            ).with_outputs(main="records")
            # (classes, point)
            points = counted.records | "FindPoint" >> beam.Map(
                _find_point, settings=self.settings
            ).with_output_types(tuple[tuple[str, ...], bytes])
            images = pvalue.AsDict(
                points
                | "GiveClasses" >> beam.FlatMap(_give_classes).with_output_types(str)
                | "CountImages" >> Count.PerElement()
            )
            cuts = (
                pvalue.AsSingleton(
                    points
                    | "FindStratum"
                    >> beam.Map(_find_stratum, images).with_output_types(tuple[str, bytes])
                    | "GatherPoints" >> beam.CombinePerKey(_GatherFn())
                    | "GatherStrata" >> ToDict()
                    | "CutSplits" >> beam.Map(splits.cut, images).with_output_types(SplitCuts)
                ),
            )
        samples = {}
        if self.settings.limit is not None:
            listed = grouped | "JoinToSample" >> beam.ParDo(
                _JoinFn(sources=self.sources, settings=self.settings), *cuts
            ).with_outputs(main="records")
            # {split: the places of its sample}
            samples["samples"] = pvalue.AsDict(
                listed.records
                | "FindPlace" >> beam.Map(_find_place, settings=self.settings)
                | "Sample" >> beam.CombinePerKey(_SampleFn(self.settings.limit))
            )
        joined = grouped | "Join" >> beam.ParDo(
            _JoinFn(sources=self.sources, settings=self.settings), *cuts, **samples
        ).with_outputs(_REJECTS, _CENSUS, main="records")
        joined[_REJECTS].element_type = Reject
        joined[_CENSUS].element_type = Census
        return JoinResult(records=joined.records, rejects=joined[_REJECTS], census=joined[_CENSUS])


def _tag(
    element: tuple[tuple[str, str], ListedImage | AnnotationEntry], sources: Mapping[str, Source]
) -> tuple[bytes, bytes]:
    (source, text), value = element
    key = join_text(text, source_format=sources[source].format)
    side = _IMAGE if isinstance(value, ListedImage) else _ENTRY
    return f"{source}\0{key}".encode(), side + _encoder.encode(value)


class _GatherFn(beam.CombineFn):
    """Puts points one after the other: a function of Beam's would copy all for every ten."""

    def create_accumulator(self) -> bytearray:
        return bytearray()

    def add_input(self, gathered: bytearray, point: bytes) -> bytearray:
        gathered += point
        return gathered

    def merge_accumulators(self, accumulators: Iterable[bytearray]) -> bytearray:
        return bytearray().join(accumulators)

    def extract_output(self, gathered: bytearray) -> bytes:
        return bytes(gathered)


def _find_point(
    element: tuple[str, Record], *, settings: JoinSettings
) -> tuple[tuple[str, ...], bytes]:
    _, record = element
    classes = settings.classes_of(record.annotations) if settings.splits.stratify else ()
    source, key = settings.group_of(source=record.source, key=record.key)
    return classes, settings.splits.point_of(source=source, key=key)


def _give_classes(element: tuple[tuple[str, ...], bytes]) -> tuple[str, ...]:
    return element[0]


def _find_stratum(
    element: tuple[tuple[str, ...], bytes], images: Mapping[str, int]
) -> tuple[str, bytes]:
    classes, point = element
    return SplitCuts({}, images).stratum(classes), point


def _find_place(
    element: tuple[str, Record], *, settings: JoinSettings
) -> tuple[str, tuple[bytes, tuple[str, ...]]]:
    split, record = element
    return split, (_place(record, settings=settings), settings.shown_classes(record.annotations))


def _place(record: Record, *, settings: JoinSettings) -> bytes:
    return example_hash(seed=settings.splits.seed, source=record.source, key=record.key)


class _SampleFn(beam.CombineFn):
    """Chooses a split's sample, out of places and classes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def create_accumulator(self) -> SplitSample:
        return SplitSample(self._limit)

    def add_input(self, sample: SplitSample, element: tuple[bytes, tuple[str, ...]]) -> SplitSample:
        place, classes = element
        sample.add(place, classes)
        return sample

    def merge_accumulators(self, samples: Iterable[SplitSample]) -> SplitSample:
        merged = self.create_accumulator()
        for sample in samples:
            merged.merge(sample)
        return merged

    def extract_output(self, sample: SplitSample) -> frozenset[bytes]:
        return sample.chosen()


@beam.typehints.with_output_types(tuple[str, Record])
@dataclasses.dataclass(eq=False, kw_only=True)
class _JoinFn(beam.DoFn):
    sources: Sequence[Source]
    settings: JoinSettings

    def setup(self) -> None:
        self._formats = {source.name: source.format for source in self.sources}

    def start_bundle(self) -> None:
        self._census = Census()

    def process(
        self,
        element: tuple[bytes, Iterable[bytes]],
        cuts: SplitCuts | None = None,
        samples: Mapping[str, frozenset[bytes]] | None = None,
    ) -> Iterator[tuple[str, Record] | pvalue.TaggedOutput[str, Reject]]:
        settings = self.settings
        if cuts is not None:
            splits = msgspec.structs.replace(settings.splits, cuts=cuts)
            settings = msgspec.structs.replace(settings, splits=splits)
        identity, values = element
        source, _, key = identity.decode().partition("\0")
        images = []
        entries = []
        for value in values:
            payload = memoryview(value)[1:]
            if value.startswith(_IMAGE):
                images.append(_image_decoder.decode(payload))
            else:
                entries.append(_entry_decoder.decode(payload))
        # A missing image has the name by which the annotations know it.
        key = min((entry.key for entry in entries), default=key)
        joined = join_key(
            source=source,
            key=key,
            images=images,
            entries=entries,
            source_format=self._formats[source],
            settings=settings,
        )
        if samples is not None and joined.record is not None:
            place = _place(joined.record, settings=settings)
            if place not in samples[joined.split]:
                joined = msgspec.structs.replace(
                    joined, record=None, unannotated=False, excluded=Exclusion.BEYOND_LIMIT
                )
        # The inputs of a table without images are its rows.
        listed = 1 if Kind.ROWS in self._formats[source].kinds else len(images)
        # What is joined by less than the name is shown by its name.
        shown = min((image.key for image in images), default=key)
        self._census.add_joined(
            joined, source=source, key=shown, listed=listed, referenced=len(entries)
        )
        if joined.record is not None:
            yield joined.split, joined.record
        for reject in joined.rejects:
            yield pvalue.TaggedOutput(_REJECTS, reject)

    def finish_bundle(self) -> Iterator[pvalue.TaggedOutput[str, Any]]:
        yield in_global_window(pvalue.TaggedOutput(_CENSUS, self._census))
