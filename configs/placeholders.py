"""Placeholders in a path: `{name}`, with `{{` and `}}` for the braces themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

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
