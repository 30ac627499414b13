"""Encodes listed images and annotation entries, which travel to the join as bytes.

A CoGroupByKey of typed values costs nearly twice as much. The step that finds a value encodes it,
so that it is encoded once and counted as it is sent.
"""

from __future__ import annotations

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.edges import ENTRIES, IMAGES, MASKS
from shardbeam.transforms.core.records import AnnotationEntry, ListedImage
from shardbeam.transforms.formats.joining import join_text
from shardbeam.transforms.formats.sources import Source

# First byte of a value: its edge to the join.
_SIDES = {IMAGES: b"\x00", MASKS: b"\x01", ENTRIES: b"\x02"}
_EDGES = {side[0]: edge for edge, side in _SIDES.items()}

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_image_decoder = MsgpackDecoder(ListedImage)
_entry_decoder = MsgpackDecoder(AnnotationEntry)


def encode_join_value(
    item: ListedImage | AnnotationEntry, *, text: str, edge: str, source: Source
) -> tuple[bytes, bytes]:
    """Encodes an item for the join as `(source and join text, value)`.

    Args:
        item: A listed image, or an entry about an image.
        text: The text that the item is joined by, before `match` is applied.
        edge: `IMAGES`, `MASKS` or `ENTRIES`.
        source: Its source.
    """
    key = join_text(text, source_format=source.format)
    return f"{source.name}\0{key}".encode(), _SIDES[edge] + _encoder.encode(item)


def decode_join_key(key: bytes) -> tuple[str, str]:
    """Splits the key of a value into the source's name and the join text."""
    source, _, text = key.decode().partition("\0")
    return source, text


def decode_join_value(value: bytes) -> tuple[str, ListedImage | AnnotationEntry]:
    """Decodes a value; returns its edge and the item."""
    edge, payload = _EDGES[value[0]], memoryview(value)[1:]
    return edge, (_image_decoder if edge == IMAGES else _entry_decoder).decode(payload)
