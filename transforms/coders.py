"""Beam coders of the value classes that cross a shuffle."""

from __future__ import annotations

from typing import Any

import msgspec
from apache_beam.coders.coders import Coder
from apache_beam.coders.typecoders import registry

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageRef,
    ListedFile,
    ListedImage,
    Record,
    Reject,
)
from shardbeam.transforms.dataset.commit import Move
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.dataset.tally import JoinTally


class StructCoder(Coder):
    """Encodes a msgspec struct type as MessagePack.

    Deterministic as long as the struct holds no sets; mappings are written in sorted order.
    """

    def __init__(self, struct_type: type[msgspec.Struct]) -> None:
        super().__init__()
        self._struct_type = struct_type
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self._decoder = msgspec.msgpack.Decoder(struct_type)

    @classmethod
    def from_type_hint(cls, typehint: type[msgspec.Struct], registry: object) -> Any:  # noqa: ANN401  # As Beam has it.
        """Makes the coder that Beam's registry asks for."""
        del registry
        return cls(typehint)

    def encode(self, value: msgspec.Struct) -> bytes:
        """Encodes a struct of the type."""
        return self._encoder.encode(value)

    def decode(self, encoded: bytes) -> msgspec.Struct:
        """Decodes what `encode` returned."""
        return self._decoder.decode(encoded)

    def is_deterministic(self) -> bool:
        """Always so."""
        return True

    def to_type_hint(self) -> type[msgspec.Struct]:
        """Returns the struct type."""
        return self._struct_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructCoder) and self._struct_type is other._struct_type

    def __hash__(self) -> int:
        return hash((StructCoder, self._struct_type))

    def __reduce__(self) -> tuple[Any, ...]:
        # Encoders and decoders do not pickle; they are made again where the coder arrives.
        return (StructCoder, (self._struct_type,))


def register_coders() -> None:
    """Makes these the coders of their types; every stage module whose elements they are does so."""
    for struct_type in (
        AnnotationEntry,
        Category,
        ImageRef,
        JoinTally,
        LabelMap,
        ListedFile,
        ListedImage,
        Move,
        Record,
        Reject,
        ShardResult,
    ):
        registry.register_coder(struct_type, StructCoder)
