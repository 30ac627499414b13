"""TakeRecords: turns the records of a program into the input of the join."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.beam.stages import COUNTS, MAIN, CountingFn, add_step, in_global_window
from shardbeam.transforms.core.counts import ENTRIES, GIVEN, IMAGES, REJECTS
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.map_ahead import map_many
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ListedImage,
    Record,
    Reject,
    decode_annotations,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.input_counts import InputCounts, fingerprint_file
from shardbeam.transforms.formats.join.sources import GIVEN_SOURCE, encode_join_value
from shardbeam.transforms.storage.find import storage_for

# Files whose size and version are requested at a time.
_FILES_AT_A_TIME = 64
_FILES_PER_BATCH = 256

# (source and join key, value), as `formats.join.values` encodes them
_JoinValue: TypeAlias = tuple[bytes, bytes]

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = MsgpackDecoder(Record)


class TakeResult(NamedTuple):
    """The result of `TakeRecords`.

    Attributes:
        values: `(source and join key, value)`: an image and its annotations for each record.
        rejects: A `Reject` for each record whose image is missing, or whose key another record has.
        counts: One PCollection for each step, with the counts of each bundle.
    """

    values: PCollection[_JoinValue]
    rejects: tuple[PCollection[Reject], ...]
    counts: tuple[PCollection[InputCounts], ...]


@dataclasses.dataclass(eq=False, kw_only=True)
class TakeRecords(beam.PTransform[PCollection[Record], TakeResult]):
    """Finds the images of records, and keeps one record of each key: `Record` → `TakeResult`.

    It takes the place of `ListImages` and `ReadAnnotations`: each record counts as listed.

    Args:
        splits: Finds the split of a record.

    Raises:
        InputError: (at run time) An element is not a `Record`, or names a split that the dataset
            does not have.
    """

    splits: SplitAssignment

    def expand(self, records: PCollection[Record]) -> TakeResult:
        """Adds the step to a pipeline."""
        # (key, encoded record)
        types = {REJECTS: Reject}
        found = add_step("FindImages", _FindFn(splits=self.splits), records, types=types)
        # (key, [encoded record, ...])
        by_key = found[MAIN] | beam.GroupByKey()
        taken = add_step("TakeOne", _TakeFn(splits=self.splits), by_key, types=types)
        return TakeResult(
            values=taken[MAIN],
            rejects=(found[REJECTS], taken[REJECTS]),
            counts=(found[COUNTS], taken[COUNTS]),
        )


@dataclasses.dataclass(eq=False, kw_only=True)
class _RecordFn(CountingFn):
    splits: SplitAssignment

    def reject(
        self, record: Record, reason: Reason, detail: str
    ) -> pvalue.TaggedOutput[str, Reject]:
        """Counts and outputs a reject."""
        reject = Reject(
            split=_split_of(record, splits=self.splits),
            source=GIVEN_SOURCE.name,
            key=record.key,
            stage="list",
            reason=reason,
            detail=detail,
            listed=True,
        )
        self.inputs.add_reject(reject)
        return pvalue.TaggedOutput(REJECTS, reject)


@beam.typehints.with_output_types(tuple[bytes, bytes])
class _FindFn(_RecordFn):
    """Counts each record, and finds the size and the version of its image."""

    def start_bundle(self) -> None:
        super().start_bundle()
        self._batch: list[Record] = []

    def process(self, record: Record) -> Iterator[Any]:
        _check(record, splits=self.splits)
        split = _split_of(record, splits=self.splits)
        self.inputs.listing.add_images(1, split=split)
        self._batch.append(record)
        if len(self._batch) == _FILES_PER_BATCH:
            yield from self._find()

    def finish_bundle(self) -> Iterator[Any]:
        for output in self._find():
            yield in_global_window(output)
        yield from super().finish_bundle()

    def _find(self) -> Iterator[Any]:
        batch, self._batch = self._batch, []
        for record, found in zip(
            batch, map_many(_find_image, batch, threads=_FILES_AT_A_TIME), strict=True
        ):
            if isinstance(found, Record):
                element = found.key.encode(), _encoder.encode(found)
                self.counts.send(GIVEN, *element)
                yield element
            else:
                yield self.reject(record, *found)


def _find_image(record: Record) -> Record | tuple[Reason, str]:
    assert record.image is not None
    uri = record.image.uri
    if record.image.version:
        return record
    try:
        file = storage_for(uri).stat(uri)
    except OSError as error:
        return Reason.IMAGE_UNREADABLE, f"{uri}: {error.strerror or error}"
    if file is None:
        return Reason.MISSING_IMAGE, f"{uri}: no such file"
    image = msgspec.structs.replace(record.image, size_bytes=file.size_bytes, version=file.version)
    return msgspec.structs.replace(record, image=image)


@beam.typehints.with_output_types(_JoinValue)
class _TakeFn(_RecordFn):
    """Takes one record of each key: always the same, whatever the order of arrival."""

    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[Any]:
        key, values = element
        for index, value in enumerate(sorted(values)):
            self.counts.receive(GIVEN, key, value)
            record = _decoder.decode(value)
            if index:
                yield self.reject(record, Reason.DUPLICATE_KEY, "another record has the same key")
            else:
                yield from self._take(record)

    def _take(self, record: Record) -> Iterator[_JoinValue]:
        assert record.image is not None
        self.inputs.listing.add_fingerprint(fingerprint_file(record.image))
        said = decode_annotations(record.annotations)
        self.inputs.classes.have_boxes |= bool(said.objects)
        for label in (*said.labels, *(item.label for item in said.objects)):
            self.inputs.classes.add_category(Category(name=label, origin="the records"))
        # A record is never unannotated: a program that gives no boxes says that there are none.
        entry = AnnotationEntry(key=record.key, annotations=record.annotations, split=record.split)
        image = ListedImage(key=record.key, image=record.image)
        for what, item in ((IMAGES, image), (ENTRIES, entry)):
            value = encode_join_value(item, name=record.key, what=what, source=GIVEN_SOURCE)
            self.counts.send(what, *value)
            yield value


def _check(record: Record, *, splits: SplitAssignment) -> None:
    if not isinstance(record, Record):
        raise InputError(
            uri="records", problem=f"expected shardbeam.Record.of(...), got {type(record).__name__}"
        )
    if record.image is None:
        raise InputError(uri=f"record {record.key!r}", problem="it has no image")
    if record.split and splits.fractions:
        raise InputError(
            uri=f"record {record.key!r}",
            problem=f"it has the split {record.split!r}, and fractions decide the splits; leave "
            "one of them out",
        )
    if record.split not in splits.names and (record.split or splits.predefined):
        has = f"the unknown split {record.split!r}" if record.split else "no split"
        raise InputError(
            uri=f"record {record.key!r}",
            problem=f"it has {has}; the splits are {', '.join(splits.names)}",
        )


def _split_of(record: Record, *, splits: SplitAssignment) -> str:
    return splits.split_of(source=GIVEN_SOURCE.name, key=record.key, predefined=record.split)
