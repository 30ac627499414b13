r"""Jinja's templates, for the page and for a file of one picture.

Texts of the dataset can never become markup: Jinja escapes them, and control characters (also those
that change the direction of writing) are written like `\x1b`. The content security policy of a page
allows only its own script and style, which are named by their digests, and no requests.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import jinja2
import markupsafe
from markupsafe import Markup
from rich.filesize import decimal

from shardbeam.readers.report.styles import write_number
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.text import describe_value, escape

# The most characters of a text that are shown.
_TEXT_CHARACTERS = 400


class Lines(str):
    """A text whose line ends are kept, not escaped."""


@functools.cache
def environment() -> jinja2.Environment:
    """Returns what renders the templates of this folder."""
    made = jinja2.Environment(
        autoescape=True,
        finalize=_as_text,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    filters: Mapping[str, Callable[..., object]] = {
        "breakable": _breakable,
        "with_code": _with_code,
        "line": markupsafe.escape,
        "value": describe_value,
        "lines": Lines,
        "classes": list_classes,
        "px": write_number,
        "file_size": decimal,
    }
    made.filters.update(filters)
    return made


@functools.cache
def macro(name: str) -> Callable[..., str]:
    """Returns what renders a macro of the parts of the page."""
    render: Callable[..., str] = getattr(environment().get_template("parts.html.j2").module, name)
    return render


def _as_text(value: object) -> object:
    """Shortens a text and escapes control characters; afterwards Jinja escapes markup."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if isinstance(value, Lines):
        return "\n".join(map(escape, value.split("\n")))
    if len(value) > _TEXT_CHARACTERS:
        value = f"{value[:_TEXT_CHARACTERS]}… ({len(value):,} characters)"
    return escape(value)


def _breakable(name: str) -> Markup:
    """Lets a long name wrap after `/` and `_`, but not within a word."""
    parts = re.split(r"(?<=[/_])(?=[^/_])", str(_as_text(name)))
    return Markup("<wbr>").join(parts)


def _with_code(text: str) -> Markup:
    """Sets what is between backticks as code."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(markupsafe.escape(text))))


@functools.cache
def asset(name: str) -> str:
    """Reads a style or a script of this folder."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """Returns the content security policy of a document with one style and one script."""
    return (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; "
        f"script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
