"""Placeholders in a path: `{name}`, with `{{` and `}}` for the braces themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shardbeam.configs.problem import did_you_mean

VERSION, DATE, FINGERPRINT = "version", "date", "fingerprint"
# Placeholders that `output.path` may contain.
OUTPUT_PLACEHOLDERS = (VERSION, DATE, FINGERPRINT)

_TOKEN = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[^{}]*)\}|[{}]|[^{}]+")


class TemplateError(ValueError):
    """A path's braces do not match; the message has the position."""


class Part(NamedTuple):
    """A piece of a path: plain text, or a placeholder's name."""

    text: str
    is_placeholder: bool


def parse_template(template: str) -> Iterator[Part]:
    """Splits a path into text and placeholders.

    Raises:
        TemplateError: A brace has no partner.
    """
    for token in _TOKEN.finditer(template):
        if token["name"] is not None:
            yield Part(token["name"], is_placeholder=True)
        elif token[0] in "{}":
            raise TemplateError(
                f"unmatched {token[0]!r} at character {token.start() + 1}; write "
                f"{token[0] * 2!r} for the character itself"
            )
        else:
            yield Part(token[0][0] if token["brace"] else token[0], is_placeholder=False)


def placeholders(template: str) -> set[str]:
    """Returns the names of the placeholders in a path."""
    return {part.text for part in parse_template(template) if part.is_placeholder}


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replaces placeholders by their values; every placeholder must have one."""
    return "".join(
        values[part.text] if part.is_placeholder else part.text for part in parse_template(template)
    )


def check_output_template(template: str) -> None:
    """Checks an `output.path`.

    Raises:
        TemplateError: A brace has no partner, or a placeholder is unknown.
    """
    for part in parse_template(template):
        if part.is_placeholder and part.text not in OUTPUT_PLACEHOLDERS:
            known = ", ".join(f"{{{name}}}" for name in OUTPUT_PLACEHOLDERS)
            hint = did_you_mean(part.text, OUTPUT_PLACEHOLDERS, show=str) or f"; there are {known}"
            raise TemplateError(
                f"unknown placeholder {{{part.text}}}{hint} (and {{{{ and }}}} for braces)"
            )


# Hides passwords in URIs from messages and from the files of a dataset.

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
