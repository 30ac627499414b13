"""Reads names of classes from the file beside shards that other programs write."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from shardbeam.transforms.core.errors import reading
from shardbeam.transforms.core.labels import LABEL_MAP, LABELS
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

# The file for ImageNet-21k has 2 MB.
_MAX_LABELS_BYTES = 16_000_000
_ID_DIGITS = 19
# A text, a comment, a word, a number or a brace of a protobuf message in its text form. A text ends
# with its line at the latest, so that an open quote is not looked for again and again.
_TOKEN = re.compile(
    r""""([^"\\\n]*(?:\\.[^"\\\n]*)*)"?|'([^'\\\n]*(?:\\.[^'\\\n]*)*)'?"""
    r"""|\#[^\n]*|([A-Za-z_]\w*)|(-?\d+)|([{}])"""
)
# An escape in such a text: the bytes are written in octal or in hex, or as a letter.
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))"
)
_LETTERS = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))


def read_class_names(root: str) -> dict[int, str]:
    """Reads `{id: name}` from a file of names in a folder; empty where there is none.

    The file is a `label_map.pbtxt`, a `labels.txt` with one name a line, from 0, or else the only
    `.pbtxt` file in the folder.

    Raises:
        InputError: The file cannot be read.
    """
    for name, parse in ((LABEL_MAP, _parse_label_map), (LABELS, _parse_labels)):
        if (text := _read_names(root, name)) is not None:
            return dict(parse(text))
    try:
        others = [name for name in storage_for(root).names(root) if name.endswith(".pbtxt")]
    except OSError:
        return {}
    text = _read_names(root, others[0]) if len(others) == 1 else None
    return {} if text is None else dict(_parse_label_map(text))


def _read_names(root: str, name: str) -> str | None:
    uri = join_uri(root, name)
    with reading(uri):
        try:
            data = storage_for(uri).read(uri, size_bytes=_MAX_LABELS_BYTES)
        except FileNotFoundError:
            return None
    return data.decode(errors="replace")


def _parse_labels(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(line.strip() for line in text.splitlines())


def _parse_label_map(text: str) -> Iterator[tuple[int, str]]:
    """Reads a `StringIntLabelMap` of the TF Object Detection API in its text form."""
    depth, key = 0, ""
    label_id: int | None = None
    texts: dict[str, str] = {}
    for token in _TOKEN.finditer(text):
        double, single, word, number, brace = token.groups()
        if word is not None:
            key = word
        elif brace == "{":
            depth += 1
        elif brace == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if label_id is not None:
                    yield label_id, texts.get("display_name") or texts.get("name", "")
                label_id, texts = None, {}
        elif depth == 1 and number is not None and key == "id":
            # No id has more digits; int() refuses more than a few thousand.
            label_id = int(number[:_ID_DIGITS])
        elif depth == 1 and (double is not None or single is not None):
            texts[key] = _unescape(double if double is not None else single)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_escaped, text.encode()).decode(errors="replace")


def _escaped(escape: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, letter = escape.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if letter is not None:
        return bytes([_LETTERS[letter[0]]]) if letter[0] in _LETTERS else escape[0]
    number = int(short or long, 16)
    # No character has such a number; half of a pair is none, either.
    is_character = number <= sys.maxunicode and not 0xD800 <= number < 0xE000
    return chr(number if is_character else 0xFFFD).encode()
