"""Encodes listed images and annotation entries, which travel to the join as bytes.

A CoGroupByKey of typed values costs nearly twice as much. The step that finds a value encodes it,
so that it is encoded once and counted as it is sent.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.counts import ENTRIES, IMAGES, MASKS
from shardbeam.transforms.core.records import AnnotationEntry, ListedImage
from shardbeam.transforms.formats.join.join import join_text
from shardbeam.transforms.formats.join.sources import Source

# First byte of a value: what it is, and whether the join text follows.
_SIDES = {IMAGES: 0, MASKS: 1, ENTRIES: 2}
_WHAT = {side: what for what, side in _SIDES.items()}
_HAS_TEXT = 0x80
_LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_image_decoder = MsgpackDecoder(ListedImage)
_entry_decoder = MsgpackDecoder(AnnotationEntry)


def encode_join_value(
    item: ListedImage | AnnotationEntry, *, text: str, what: str, source: Source
) -> tuple[bytes, bytes]:
    """Encodes an item for the join as `(source and join text, value)`.

    Texts that differ in case alone meet in the join, which compares them: so the first part has the
    text in lower case, and the value has the text itself if that differs.

    Args:
        item: A listed image, or an entry about an image.
        text: The text that the item is joined by, before `match` is applied.
        what: `IMAGES`, `MASKS` or `ENTRIES`.
        source: Its source.
    """
    key = join_text(text, source_format=source.format)
    folded = key.casefold()
    side, exact = _SIDES[what], b""
    if folded != key:
        encoded = key.encode()
        side, exact = side | _HAS_TEXT, _LENGTH.pack(len(encoded)) + encoded
    value = bytes([side]) + exact + _encoder.encode(item)
    return f"{source.name}\0{folded}".encode(), value


def decode_join_key(key: bytes) -> tuple[str, str]:
    """Splits the key of a value into the source's name and the join text in lower case."""
    source, _, text = key.decode().partition("\0")
    return source, text


class JoinValue(NamedTuple):
    """A decoded value.

    Attributes:
        what: `IMAGES`, `MASKS` or `ENTRIES`.
        text: The text that it is joined by.
        item: A listed image, or an entry about an image.
    """

    what: str
    text: str
    item: ListedImage | AnnotationEntry


def decode_join_value(value: bytes, *, folded: str) -> JoinValue:
    """Decodes a value; `folded` is the join text of its key."""
    what, text, start = _WHAT[value[0] & ~_HAS_TEXT], folded, 1
    if value[0] & _HAS_TEXT:
        (length,) = _LENGTH.unpack_from(value, 1)
        start = 1 + _LENGTH.size + length
        text = value[1 + _LENGTH.size : start].decode()
    payload = memoryview(value)[start:]
    item = (_image_decoder if what == IMAGES else _entry_decoder).decode(payload)
    return JoinValue(what, text, item)
