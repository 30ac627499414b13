"""Hides passwords in URIs from messages and from the files of a dataset."""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = "***"
_PASSWORD = re.compile(
    r"""
    # One slash is enough: a `pathlib.Path` drops the second.
    (?<=:/)
    (?P<user>/?[^\s/?\#:@"'\\]*)
    :
    # A port in the middle of a sentence is not a password.
    (?!\d+[\s,;)"'])
    # Up to the last @ before the host ends. JSON escapes quotes and backslashes; HTML
    # escapes quotes.
    (?: [^/?\#"\\\n&] | \\(?:[\\"]|(?![\\"])) | &(?:\#x?[0-9a-fA-F]+;)? )*
    @
    """,
    re.VERBOSE,
)


def hide_passwords(text: str) -> str:
    """Replaces the password of each URI in a text (a message, a page, or JSON) by `***`."""
    return _PASSWORD.sub(rf"\g<user>:{_HIDDEN}@", text) if "@" in text else text


def hide_in(value: Any) -> Any:  # noqa: ANN401  # Plain data.
    """Hides the passwords in the texts of plain data."""
    if isinstance(value, str):
        return hide_passwords(value)
    if isinstance(value, dict):
        return {key: hide_in(each) for key, each in value.items()}
    return [hide_in(each) for each in value] if isinstance(value, (list, tuple)) else value
