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
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.formats.names import normalize_for_match

# First byte of a value: what it is, and whether the join key follows.
_SIDES = {IMAGES: 0, MASKS: 1, ENTRIES: 2}
_WHAT = {side: what for what, side in _SIDES.items()}
_HAS_KEY = 0x80
_LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_image_decoder = MsgpackDecoder(ListedImage)
_entry_decoder = MsgpackDecoder(AnnotationEntry)


def find_join_key(name: str, *, source_format: Format) -> str:
    """Returns the part of a name that images and entries are joined by: the format's `match`."""
    if Kind.ROWS in source_format.kinds:
        return name
    return normalize_for_match(name, getattr(source_format, "match", "path"))


def encode_join_value(
    item: ListedImage | AnnotationEntry, *, name: str, what: str, source: Source
) -> tuple[bytes, bytes]:
    """Encodes an item for the join as `(source and join key, value)`.

    Join keys that differ in case alone meet in the join, which compares them: so the first part has
    the join key in lower case, and the value has the join key itself if that differs.

    Args:
        item: A listed image, or an entry about an image.
        name: What the item is joined by, before the format's `match` is applied.
        what: `IMAGES`, `MASKS` or `ENTRIES`.
        source: Its source.
    """
    key = find_join_key(name, source_format=source.format)
    folded = key.casefold()
    side, exact = _SIDES[what], b""
    if folded != key:
        encoded = key.encode()
        side, exact = side | _HAS_KEY, _LENGTH.pack(len(encoded)) + encoded
    value = bytes([side]) + exact + _encoder.encode(item)
    return f"{source.name}\0{folded}".encode(), value


def decode_join_key(key: bytes) -> tuple[str, str]:
    """Splits the key of a value into the source's name and the join key in lower case."""
    source, _, folded = key.decode().partition("\0")
    return source, folded


class JoinValue(NamedTuple):
    """A decoded value.

    Attributes:
        what: `IMAGES`, `MASKS` or `ENTRIES`.
        join_key: Its join key.
        item: A listed image, or an entry about an image.
    """

    what: str
    join_key: str
    item: ListedImage | AnnotationEntry


def decode_join_value(value: bytes, *, folded: str) -> JoinValue:
    """Decodes a value; `folded` is its join key in lower case."""
    what, join_key, start = _WHAT[value[0] & ~_HAS_KEY], folded, 1
    if value[0] & _HAS_KEY:
        (length,) = _LENGTH.unpack_from(value, 1)
        start = 1 + _LENGTH.size + length
        join_key = value[1 + _LENGTH.size : start].decode()
    payload = memoryview(value)[start:]
    item = (_image_decoder if what == IMAGES else _entry_decoder).decode(payload)
    return JoinValue(what, join_key, item)
