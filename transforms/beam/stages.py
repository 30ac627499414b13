"""Beam code of all stages: a coder for structs, the counts of each bundle, counts of requests."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import apache_beam as beam
import msgspec
from apache_beam import coders, pvalue
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.counts import IMAGES, RECORDS, REJECTS, Count
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.core.sharding import example_hash
from shardbeam.transforms.dataset.input_counts import InputCounts, merge_inputs
from shardbeam.transforms.dataset.record_batches import RecordBatcher
from shardbeam.transforms.formats.join.join import JoinedKey
from shardbeam.transforms.formats.join.sources import JoinSettings
from shardbeam.transforms.storage.usage import usage_counter

T = TypeVar("T")
RecordOutput: TypeAlias = pvalue.TaggedOutput[str, Any]

# The tags of a step's main output, and of a `CountingFn`'s extra one.
MAIN, COUNTS = "main", "counts"

# The namespace of the counters that runners' pages show.
COUNTERS = "shardbeam"
USAGE_NAMESPACE = "storage"
REQUESTS = "requests_"
# {field of `StorageUsage`: counter}. The last name is the one by which Beam's own connectors tell a
# runner that requests were throttled (`apache_beam.io.components.adaptive_throttler`).
USAGE_COUNTERS = {
    "bytes_received": "bytes_received",
    "bytes_sent": "bytes_sent",
    "repeated": f"{REQUESTS}repeated",
    "throttled": f"{REQUESTS}throttled",
    "throttled_s": "cumulativeThrottlingSeconds",
}

_encoder = msgspec.msgpack.Encoder(order="deterministic")


@functools.cache
def _decoder(struct_type: type[msgspec.Struct]) -> MsgpackDecoder[Any]:
    return MsgpackDecoder(struct_type)


class StructCoder(coders.Coder):
    """Encodes Shardbeam's structs as MessagePack, deterministically: mappings and sets are sorted.

    Importing this module makes it Beam's coder for all of these structs.
    """

    def __init__(self, struct_type: type[msgspec.Struct]) -> None:
        self._struct_type = struct_type

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: object) -> Any:  # noqa: ANN401  # As Beam has it.
        """Makes the coder for a type; after a TypeError, Beam tries another kind of coder."""
        del registry
        if not issubclass(typehint, msgspec.Struct) or typehint.__module__[:10] != "shardbeam.":
            raise TypeError(f"{typehint} is not a struct of Shardbeam")
        return cls(typehint)

    def encode(self, value: msgspec.Struct) -> bytes:
        """Encodes one struct."""
        return _encoder.encode(value)

    def decode(self, encoded: bytes) -> msgspec.Struct:
        """Decodes one struct."""
        struct: msgspec.Struct = _decoder(self._struct_type).decode(encoded)
        return struct

    def is_deterministic(self) -> bool:
        """Returns True."""
        return True

    def to_type_hint(self) -> type[msgspec.Struct]:
        """Returns the struct type."""
        return self._struct_type


registry.register_fallback_coder(StructCoder)


def in_global_window(output: Any) -> Any:  # noqa: ANN401  # Any element.
    """Puts an output of `finish_bundle`, tagged or not, into a window, as Beam requires there."""
    if isinstance(output, pvalue.TaggedOutput):
        return pvalue.TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
    return GlobalWindows.windowed_value(output)


class CountingFn(beam.DoFn):
    """A step that counts: each bundle outputs the `InputCounts` of its elements, tagged `COUNTS`.

    If Beam repeats a bundle, it drops the outputs of the failed attempt and with them its counts,
    so nothing is counted twice.
    """

    def start_bundle(self) -> None:
        """Starts new counts."""
        counters.bundles.expect(1)
        self.inputs = InputCounts()
        self.counts = self.inputs.counts

    def finish_bundle(self) -> Iterator[Any]:
        """Outputs the counts, and reports the bundle's requests to object storage."""
        yield in_global_window(pvalue.TaggedOutput(COUNTS, self.inputs))
        for split in self.inputs.splits.values():
            count_images(rejected=split.rejected, excluded=split.excluded)
        counters.joined.expect(self.counts.sent.get(IMAGES, Count()).number)
        report_usage()
        counters.bundles.add()


@dataclasses.dataclass(eq=False, kw_only=True)
class GiveRecordsFn(CountingFn):
    """A step that outputs records, in batches (`dataset.record_batches`), and rejects.

    The outputs' tags are `RECORDS` and `REJECTS`.
    """

    settings: JoinSettings

    def start_bundle(self) -> None:
        """Starts new counts and a new batch."""
        super().start_bundle()
        self._batcher = RecordBatcher()

    def finish_bundle(self) -> Iterator[Any]:
        """Outputs the last batch and the counts."""
        for batch in self._batcher.finish():
            yield in_global_window(pvalue.TaggedOutput(RECORDS, batch))
        yield from super().finish_bundle()

    def give(
        self, joined: JoinedKey, *, source: str, key: str, listed: int, referenced: int | None
    ) -> Iterator[RecordOutput]:
        """Counts the result for one key, and outputs its record and its rejects.

        Args:
            joined: The result.
            source: The source of the key.
            key: The key.
            listed: How many listed files have it.
            referenced: How many annotation entries name it; None if the source has no entries.
        """
        self.inputs.add_joined(joined, source=source, key=key, listed=listed, referenced=referenced)
        record = joined.record
        if record is not None:
            if self.settings.masks:
                self.inputs.samples.masks.add_record(record)
            digest = self.hash_of(record)
            self.counts.send(RECORDS, digest)
            for batch in self._batcher.add(record, example_hash=digest):
                yield pvalue.TaggedOutput(RECORDS, batch)
        for reject in joined.rejects:
            yield pvalue.TaggedOutput(REJECTS, reject)

    def hash_of(self, record: Record) -> bytes:
        """Hashes a record's identity (`core.sharding.example_hash`)."""
        return example_hash(seed=self.settings.splits.seed, source=record.source, key=record.key)


def flatten(*collections: PCollection[T], label: str = "Flatten") -> PCollection[T]:
    """Makes one PCollection of several; one alone needs no step."""
    return collections | label >> beam.Flatten() if len(collections) > 1 else collections[0]


def add_step(
    label: str,
    step: beam.DoFn,
    elements: PCollection[Any],
    *,
    types: Mapping[str, Any] | None = None,
    **sides: pvalue.AsSideInput,
) -> Any:  # noqa: ANN401  # Beam exports no type.
    """Adds a step with several outputs to a pipeline.

    Args:
        label: Its name in the graph.
        step: The step.
        elements: Its input.
        types: `{tag: type}` of its outputs beside the main one and a `CountingFn`'s counts.
        sides: Its side inputs, by the arguments of its `process`.

    Returns:
        `{tag: output}`, with the main output as `MAIN` and the counts as `COUNTS`.
    """
    types = {**(types or {}), **({COUNTS: InputCounts} if isinstance(step, CountingFn) else {})}
    outputs = elements | label >> beam.ParDo(step, **sides).with_outputs(*types, main=MAIN)
    for tag, element_type in types.items():
        outputs[tag].element_type = element_type
    return outputs


class MergeCounts(beam.PTransform[tuple[PCollection[InputCounts], ...], PCollection[InputCounts]]):
    """Merges the counts of all bundles: `(listed.counts, …) | MergeCounts()` → one `InputCounts`.

    Each bundle of a step emits its counts. If Beam repeats a bundle, the new counts replace the
    old one, so that nothing is counted twice.
    """

    def expand(self, counts: tuple[PCollection[InputCounts], ...]) -> PCollection[InputCounts]:
        """Adds the step to a pipeline."""
        merge = beam.CombineGlobally(merge_inputs).with_input_types(InputCounts)
        return (
            counts
            | beam.Flatten()
            | "Merge" >> merge.with_output_types(InputCounts).without_defaults()
        )


def count_images(
    *,
    rejected: Mapping[str, int],
    excluded: Mapping[str, int],
    written: int = 0,
    num_bytes: int = 0,
) -> None:
    """Adds to Beam's counters, for the runner's page: they count a retried bundle twice.

    Args:
        rejected: `{reason: images}`.
        excluded: `{rule: images}`.
        written: Images that were written.
        num_bytes: Size of the shards that hold them.
    """
    counts = {
        "images_written": written,
        "images_excluded": sum(excluded.values()),
        "bytes_written": num_bytes,
        **{f"images_rejected_{reason}": count for reason, count in rejected.items()},
    }
    for name, count in counts.items():
        if count:
            Metrics.counter(COUNTERS, name).inc(count)


def report_usage() -> None:
    """Adds this process's requests to object storage since the last call to Beam's counters.

    A step calls this at its end, and while it waits, in Beam's own thread: Beam ignores counts of
    other threads.
    """
    usage = usage_counter.take()
    counts = {f"{REQUESTS}{kind}": count for kind, count in usage.requests.items()}
    counts.update({name: getattr(usage, field) for field, name in USAGE_COUNTERS.items()})
    for name, count in counts.items():
        if count:
            Metrics.counter(USAGE_NAMESPACE, name).inc(count)


def count_under_way(*, shards: int, images: int) -> None:
    """Adds to Beam's counters of what is being written now; what has ended is taken off.

    Args:
        shards: Shards that begin, or the negative number of those that end.
        images: Their images, in the same way.
    """
    Metrics.counter(COUNTERS, "shards_under_way").inc(shards)
    Metrics.counter(COUNTERS, "images_under_way").inc(images)


def counting(function: Callable[..., T]) -> Callable[..., T]:
    """Wraps a function so that its requests to object storage are counted."""

    @functools.wraps(function)
    def call(*arguments: object, **settings: object) -> T:
        result = function(*arguments, **settings)
        report_usage()
        return result

    return call
