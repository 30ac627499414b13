"""What every stage needs of Beam: a coder of structs, a census a bundle, counts of requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import apache_beam as beam
import msgspec
from apache_beam import coders, pvalue
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.window import GlobalWindows

from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.storage.usage import usage_counter

T = TypeVar("T")

# The output of a `CensusFn` beside its own.
CENSUS = "census"

USAGE_NAMESPACE = "storage"
BYTES_RECEIVED = "bytes_received"
BYTES_SENT = "bytes_sent"
REQUESTS = "requests_"

_encoder = msgspec.msgpack.Encoder(order="deterministic")


@functools.cache
def _decoder(struct_type: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(struct_type)


class StructCoder(coders.Coder):
    """Encodes a struct of Shardbeam's as MessagePack.

    Importing this module makes it Beam's coder of all of them. It is deterministic as long as
    the struct holds no sets: mappings are written in sorted order.
    """

    def __init__(self, struct_type: type[msgspec.Struct]) -> None:
        self._struct_type = struct_type

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: object) -> Any:  # noqa: ANN401  # As Beam has it.
        """Makes the coder of a type; after a TypeError, Beam asks for one of another kind."""
        del registry
        if not issubclass(typehint, msgspec.Struct) or typehint.__module__[:10] != "shardbeam.":
            raise TypeError(f"{typehint} is no struct of Shardbeam's")
        return cls(typehint)

    def encode(self, value: msgspec.Struct) -> bytes:
        """Encodes one struct."""
        return _encoder.encode(value)

    def decode(self, encoded: bytes) -> msgspec.Struct:
        """Decodes one struct."""
        struct: msgspec.Struct = _decoder(self._struct_type).decode(encoded)
        return struct

    def is_deterministic(self) -> bool:
        """Always so."""
        return True

    def to_type_hint(self) -> type[msgspec.Struct]:
        """Returns the struct type."""
        return self._struct_type


registry.register_fallback_coder(StructCoder)


def in_global_window(output: Any) -> Any:  # noqa: ANN401  # Any element.
    """Gives an output of `finish_bundle`, tagged or not, the window that Beam asks for there."""
    if isinstance(output, pvalue.TaggedOutput):
        return pvalue.TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
    return GlobalWindows.windowed_value(output)


class CensusFn(beam.DoFn):
    """A step that counts: each bundle gives a `Census` of its elements, tagged `CENSUS`.

    An attempt that Beam repeats gives another census instead of the first one, so that nothing is
    counted twice.
    """

    def start_bundle(self) -> None:
        """Begins a census."""
        self.census = Census()
        self.edges = self.census.edges

    def finish_bundle(self) -> Iterator[Any]:
        """Outputs the census, and reports what the bundle asked of object storage."""
        yield in_global_window(pvalue.TaggedOutput(CENSUS, self.census))
        report_usage()


def typed_outputs(outputs: Any, **types: Any) -> Any:  # noqa: ANN401  # Beam exports no types.
    """Gives the outputs of a `CensusFn` beside its main one their types: `{tag: type}`."""
    for tag, element_type in {CENSUS: Census, **types}.items():
        outputs[tag].element_type = element_type
    return outputs


def report_usage() -> None:
    """Counts what this process has asked of object storage since it last reported.

    A step calls it at its end, in Beam's own thread: Beam does not see what other threads count.
    """
    usage = usage_counter.take()
    for kind, count in usage.requests.items():
        Metrics.counter(USAGE_NAMESPACE, f"{REQUESTS}{kind}").inc(count)
    if usage:
        Metrics.counter(USAGE_NAMESPACE, BYTES_RECEIVED).inc(usage.bytes_received)
        Metrics.counter(USAGE_NAMESPACE, BYTES_SENT).inc(usage.bytes_sent)


def counting(function: Callable[..., T]) -> Callable[..., T]:
    """Makes a step of a function whose requests to object storage are to be reported."""

    @functools.wraps(function)
    def call(*arguments: object, **settings: object) -> T:
        result = function(*arguments, **settings)
        report_usage()
        return result

    return call
