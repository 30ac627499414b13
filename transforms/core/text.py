"""Texts from data as people see them, on a terminal, in a log, in a page or in a data card."""

from __future__ import annotations

import json
import re
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from shardbeam.configs.passwords import hide_passwords

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
# The characters of a text from data that are shown.
_CHARACTERS = 400

# A name from data is cut to this in an error.
_NAME_CHARACTERS = 80

# `{beginning of base64: what it encodes}`, and the least characters of a text to call it that.
_ENCODED = {
    "/9j/": "a JPEG",
    "iVBORw0KGgo": "a PNG",
    "R0lGOD": "a GIF",
    "UklGR": "a WebP",
    **dict.fromkeys(("eJ", "eN", "eA", "eF"), "zlib-compressed data"),
}
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{40,}={0,2}\s*", re.ASCII)

# U+200C and U+200D: whether letters or emoji on both sides are drawn as one.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"

# Shown for an empty name.
NO_NAME = "(no name)"


def escape(text: str) -> str:
    r"""Escapes characters that a terminal obeys or cannot show, as `\x1b` or `\udcff`.

    Among them are line ends and marks that change the direction of writing, so that a name from
    data stays one line, and in its place. Joiners of letters and emoji stay: without them, Persian
    words and families of emoji fall apart. It also hides passwords, because a table may fold a long
    URI before it is printed.
    """
    text = hide_passwords(text)
    return "".join(
        character
        if character.isprintable() or (character in _JOINERS and _is_joined(text, place))
        else character.encode("unicode_escape").decode()
        for place, character in enumerate(text)
    )


def _is_joined(text: str, place: int) -> bool:
    """Whether the characters on both sides can be joined: beyond ASCII, and seen themselves."""
    sides = text[max(0, place - 1) : place], text[place + 1 : place + 2]
    return all(side > "\x7f" and side.isprintable() for side in sides)


def escape_lines(text: str) -> str:
    """Escapes a text of ours of several lines, such as a traceback, which keeps its lines."""
    return "\n".join(map(escape, text.split("\n")))


def ascii_json(document: bytes) -> str:
    """Returns JSON as one line of ASCII: any terminal and any encoding can show it."""
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], document.decode()) + "\n"


def cut(text: str, characters: int = _CHARACTERS) -> str:
    """Cuts a long text, and says how long it is."""
    if len(text) <= characters:
        return text
    return f"{text[:characters]}… ({len(text):,} characters)"


def counted(number: int, one: str, several: str = "") -> str:
    """Writes a count in words: `1 annotation file`, `2,000 annotation files`."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def show_name(name: str) -> str:
    """Quotes a name from data, cut to a length that fits into an error."""
    return cut(repr(name), _NAME_CHARACTERS)


def describe_base64(text: str) -> str:
    """Describes what a text encodes, such as `a PNG as base64`; empty if nothing known."""
    head, marker, rest = text.partition(";base64,")
    text = rest if marker and head.startswith("data:") else text
    found = next((what for start, what in _ENCODED.items() if text.startswith(start)), "")
    return f"{found} as base64" if found and _BASE64.fullmatch(text) else ""


def describe_value(value: object) -> str:
    """Renders a value before or after a correction; empty if there is none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Mark(NamedTuple):
    """What a file of ours says about itself.

    Attributes:
        kind: What it is.
        name: The dataset's name.
    """

    kind: str
    name: str

    @property
    def text(self) -> str:
        """The text that is in the file: ASCII without quotes."""
        return f"Shardbeam {self.kind} ({quote(self.name, safe='', errors='backslashreplace')})"
