"""JoinAnnotations: each image with what is said about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.coders import register_coders
from shardbeam.transforms.core.records import AnnotationEntry, ListedImage, Record, Reject
from shardbeam.transforms.dataset.tally import JoinCounter, JoinTally, merge_tallies
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.joining import JoinSettings, join_key
from shardbeam.transforms.formats.sources import Source
from shardbeam.transforms.global_window import in_global_window

register_coders()

_REJECTS = "rejects"
_TALLIES = "tallies"

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
        records: A `Record` for each image that goes on.
        rejects: A `Reject` for each input that cannot be used.
        tally: One `JoinTally`: what became of everything.
    """

    records: PCollection[Record]
    rejects: PCollection[Reject]
    tally: PCollection[JoinTally]


@dataclasses.dataclass(eq=False, kw_only=True)
class JoinAnnotations(beam.PTransform[Any, JoinResult]):
    """Joins listed images and annotation entries by (source, join), in one GroupByKey.

    The values are shuffled as bytes under one tag byte: a CoGroupByKey of typed values costs
    nearly twice as much. They become bytes where they are found, before they are put together:
    otherwise they would be encoded once more on the way.

    Args:
        sources: The sources.
        settings: What the config says about the join.
    """

    sources: Sequence[Source]
    settings: JoinSettings

    def expand(
        self,
        inputs: tuple[
            tuple[PCollection[tuple[tuple[str, str], ListedImage]], ...],
            tuple[PCollection[tuple[tuple[str, str], AnnotationEntry]], ...],
        ],
    ) -> JoinResult:
        """Adds the step: `(images, entries) | JoinAnnotations(...)`, each a tuple of them."""
        images, entries = inputs
        tagged = [
            found | f"{label}{number}" >> beam.Map(tag).with_output_types(_Tagged)
            for label, tag, found_by_all in (
                ("TagImages", _tag_image, images),
                ("TagEntries", _tag_entry, entries),
            )
            for number, found in enumerate(found_by_all)
        ]
        joined = (
            tagged
            | beam.Flatten()
            | beam.GroupByKey()
            | "Join"
            >> beam.ParDo(_JoinFn(sources=self.sources, settings=self.settings)).with_outputs(
                _REJECTS, _TALLIES, main="records"
            )
        )
        joined[_REJECTS].element_type = Reject
        joined[_TALLIES].element_type = JoinTally
        return JoinResult(
            records=joined.records,
            rejects=joined[_REJECTS],
            tally=joined[_TALLIES]
            | "MergeTallies"
            >> beam.CombineGlobally(merge_tallies)
            .with_input_types(JoinTally)
            .with_output_types(JoinTally),
        )


def _tag_image(element: tuple[tuple[str, str], ListedImage]) -> tuple[bytes, bytes]:
    (source, key), image = element
    return f"{source}\0{key}".encode(), _IMAGE + _encoder.encode(image)


def _tag_entry(element: tuple[tuple[str, str], AnnotationEntry]) -> tuple[bytes, bytes]:
    (source, key), entry = element
    return f"{source}\0{key}".encode(), _ENTRY + _encoder.encode(entry)


@beam.typehints.with_output_types(Record)
class _JoinFn(beam.DoFn):
    def __init__(self, *, sources: Sequence[Source], settings: JoinSettings) -> None:
        self._sources = sources
        self._settings = settings

    def setup(self) -> None:
        self._formats = {source.name: source.load_format() for source in self._sources}

    def start_bundle(self) -> None:
        self._counter = JoinCounter()

    def process(
        self, element: tuple[bytes, Iterable[bytes]]
    ) -> Iterator[Record | pvalue.TaggedOutput[str, Reject]]:
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
        joined = join_key(
            source=source,
            key=key,
            images=images,
            entries=entries,
            source_format=self._formats[source],
            settings=self._settings,
        )
        # The inputs of a table without images are its rows.
        listed = 1 if Kind.ROWS in self._formats[source].kinds else len(images)
        # What is joined by less than the name is shown by its name.
        shown = min((image.key for image in images), default=key)
        self._counter.add(joined, source=source, key=shown, listed=listed, referenced=len(entries))
        if joined.record is not None:
            yield joined.record
        for reject in joined.rejects:
            yield pvalue.TaggedOutput(_REJECTS, reject)

    def finish_bundle(self) -> Iterator[pvalue.TaggedOutput[str, Any]]:
        yield in_global_window(pvalue.TaggedOutput(_TALLIES, self._counter.tally()))
