"""Serializes Examples without copying their images.

Protobuf copies an image three times, into new memory each time, which takes longer than all the
rest of encoding. So protobuf only serializes the other features, and the image's own bytes are put
between them.

Wire format: https://protobuf.dev/programming-guides/encoding; messages: `example.proto`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from shardbeam.transforms.examples import example_pb2
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.encode.schema import FeaturePlan
from shardbeam.transforms.examples.features import FeatureSpec

# Tags of the length-delimited fields 1 and 2.
_FIELD_1 = b"\x0a"
_FIELD_2 = b"\x12"

# Bytes that are serialized with one message; its memory grows with them until it is freed.
_MESSAGE_BYTES = 1_000_000


# A feature, its default key, and its values if it is a constant.
_Feature: TypeAlias = tuple[FeatureSpec, str, Sequence[Any]]


class ExampleLayout:
    """Serializes Examples with the same features; threads may share a layout.

    Args:
        plan: The features.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        image = plan.defaults.get(IMAGE)
        self._image_key = None if image is None else image.key.encode()
        # Each feature as written, with its default key or, for a constant, with its values.
        before: list[_Feature] = []
        after: list[_Feature] = []
        for spec, default_key, constant in (
            *((spec, default_key, ()) for default_key, spec in plan.defaults.items()),
            *((spec, "", values) for spec, values in plan.constants.items()),
        ):
            # Protobuf sorts a map's keys by their bytes.
            is_before = self._image_key is not None and spec.key.encode() < self._image_key
            if default_key != IMAGE:
                (before if is_before else after).append((spec, default_key, constant))
        self._before, self._after = _Form(before), _Form(after)
        self._features = (*before, *after)

    def features(
        self, values: Mapping[str, Sequence[Any]], *, image: bytes
    ) -> dict[str, Sequence[Any]]:
        """Returns `{key as written: values}` of the Example that `serialize` writes."""
        named: dict[str, Sequence[Any]] = {
            spec.key: values[default_key] if default_key else constant
            for spec, default_key, constant in self._features
        }
        if self._image_key is not None:
            named[self._image_key.decode()] = (image,)
        return named

    def serialize(self, values: Mapping[str, Sequence[Any]], *, image: bytes) -> tuple[bytes, ...]:
        """Serializes an Example.

        Args:
            values: `{default key: values}` of all features but the image.
            image: The encoded image.

        Returns:
            The Example's bytes in parts, one of them the image if it is written. Joined, they are
            equal to protobuf's deterministic serialization.
        """
        before, after = self._before.serialize(values), self._after.serialize(values)
        if self._image_key is None:
            return (_header(_FIELD_1, len(after)) + after,)
        bytes_list = _header(_FIELD_1, len(image))
        bytes_field = _header(_FIELD_1, len(bytes_list) + len(image)) + bytes_list
        feature = _header(_FIELD_2, len(bytes_field) + len(image)) + bytes_field
        entry = _header(_FIELD_1, len(self._image_key)) + self._image_key + feature
        features = before + _header(_FIELD_1, len(entry) + len(image)) + entry
        size = len(features) + len(image) + len(after)
        return _header(_FIELD_1, size) + features, image, after


class _Form(threading.local):
    """A message that is filled in again for each Example, since making one takes much longer.

    Each thread has its own message.
    """

    def __init__(self, features: Iterable[_Feature]) -> None:
        self._features = features
        self._start()

    def _start(self) -> None:
        self._message = example_pb2.Features()
        self._room_bytes = _MESSAGE_BYTES
        self._lists = []
        for spec, default_key, constant in self._features:
            filled = getattr(self._message.feature[spec.key], f"{spec.kind.value}_list")
            # Also write an empty list, so that readers see a feature of its kind.
            filled.SetInParent()
            filled.value.extend(constant)
            if default_key:
                self._lists.append((filled.value, default_key))

    def serialize(self, values: Mapping[str, Sequence[Any]]) -> bytes:
        for filled, default_key in self._lists:
            filled[:] = values[default_key]
        data = self._message.SerializeToString(deterministic=True)
        self._room_bytes -= len(data)
        if self._room_bytes < 0:
            self._start()
        return data


def _header(tag: bytes, length: int) -> bytes:
    """Encodes a field's tag and its length as a varint."""
    encoded = bytearray(tag)
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
