"""Describes the values of a feature for people, such as the size of an image, and as JSON."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from rich.filesize import decimal

from shardbeam.transforms.core.text import escape
from shardbeam.transforms.examples.example_pb2 import Feature
from shardbeam.transforms.examples.features import feature_values
from shardbeam.transforms.images.read_header import recognize_image

# This much fits beside the keys on a usual terminal.
_VALUES_CHARACTERS = 64
_HEX_BYTES = 8
_SEPARATOR = ", "
_MORE = "…"
_TIMES = "\N{MULTIPLICATION SIGN}"


def describe_values(values: Sequence[bytes | int | float]) -> str:
    """Describes the values of a feature in about a line."""
    described: list[str] = []
    room = _VALUES_CHARACTERS
    for value in values:
        text = _describe_value(value)
        room -= len(text) + len(_SEPARATOR)
        if described and room < 0:
            return f"{_SEPARATOR.join([*described, _MORE])} ({len(values):,})"
        described.append(text)
    return _SEPARATOR.join(described)


def _describe_value(value: bytes | int | float) -> str:
    if isinstance(value, bytes):
        return _describe_bytes(value)
    # The shortest text of a 32-bit float.
    return str(np.float32(value)) if isinstance(value, float) else str(value)


def _describe_bytes(value: bytes) -> str:
    text = _decode_text(value)
    if text is not None:
        if len(text) > _VALUES_CHARACTERS:
            return f"'{escape(text[:_VALUES_CHARACTERS])}{_MORE} ({len(text):,})"
        return f"'{escape(text)}'"
    image = recognize_image(value)
    size = decimal(len(value))
    if image is None:
        more = f" {_MORE}" if len(value) > _HEX_BYTES else ""
        return f"{size}: {value[:_HEX_BYTES].hex(' ')}{more}"
    file_format, header = image
    sides = "" if header is None else f" {header.width}{_TIMES}{header.height}"
    return f"{file_format.value}{sides}, {size}"


def _decode_text(value: bytes) -> str | None:
    """Decodes UTF-8 text; None for other bytes, and for text with NULs, probably binary data."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def feature_to_json(feature: Feature) -> dict[str, object]:
    """Describes a feature for programs: files are described by their digests."""
    kind, values = feature_values(feature)
    return {
        "kind": None if kind is None else kind.value,
        "values": [_json_value(value) for value in values],
    }


def _json_value(value: bytes | int | float) -> object:
    if isinstance(value, float):
        # The shortest text of a 32-bit float; JSON knows only 64-bit floats.
        return float(str(np.float32(value))) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value
    text = _decode_text(value)
    if text is not None:
        return text
    described: dict[str, object] = {
        "bytes": len(value),
        "sha256": hashlib.sha256(value).hexdigest(),
    }
    image = recognize_image(value)
    if image is not None:
        file_format, header = image
        described["format"] = file_format.value
        if header is not None:
            described |= {"width": header.width, "height": header.height}
    return described
