"""Describes the values of a feature for people, such as the size of an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.filesize import decimal

from shardbeam.transforms.core.text import escape
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
    text = decode_text(value)
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


def decode_text(value: bytes) -> str | None:
    """Decodes UTF-8 text; None for other bytes, and for text with NULs, probably binary data."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
