"""Makes docs/reference/config.md from the schema: `make config-page`."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from shardbeam.configs.convert import describe_type
from shardbeam.configs.keys import Key, keys_of
from shardbeam.configs.schema import Config
from shardbeam.transforms.formats.base import built_in_formats

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"
# The page's text above this line is written by hand.
_MARKER = "<!-- `make config-page` writes the rest from configs/schema.py and the formats. -->\n"
_SECTIONS = {
    "image": "More: [checks](rejects.md), [limits](limits.md), "
    "[frames](../internals/design.md#frames) (`annotated_as`, `annotated_size`).",
    "labels": "More: [COCO's category 0](formats/coco.md#category-0).",
    "output": "More: [paths of versions](../guide/scheduling.md#versions), "
    "[containers](output.md#containers).",
    "duplicates": "More: [duplicates](../guide/duplicates.md).",
    "expect": "Otherwise nothing is committed, and the exit code is 3. More: "
    "[statistics](statistics.md#what-a-dataset-must-contain).",
}
_SOURCES = """
## Sources

A source has a `format` ([all](formats/README.md), or [a class of your own](formats/custom.md),
whose code is run), and the keys of that format; `tables` are csv, jsonl and parquet. A split may
have [several sources](formats/README.md#several-sources).

"""
# Their keys are the same.
_TABLES = ("csv", "jsonl", "parquet")
_HEAD = "| key | value | |\n|---|---|---|\n"
_WORDS = {
    r"\bstr\b": "text",
    r"\bint\b": "integer",
    r"\bfloat\b": "number",
    r" \(a letter, then letters, digits and _\)": "",
    "a list, each a path or URI": "paths",
    "a path or URI": "path",
    "a list, each text": "texts",
    "a list, each a name": "names",
}


def config_page() -> str:
    """Makes the page: its tables are new, and the text above them stays."""
    by_hand = PAGE.read_text(encoding="utf-8").partition(_MARKER)[0]
    parts = [by_hand, _MARKER, "\n## The dataset\n\n", _HEAD, *_rows(Config)]
    sections = [name for name, key in keys_of(Config).items() if _is_section(key)]
    links = ", ".join(f"[`{name}`](#{name})" for name in sections)
    parts.append(f"\nThese keys have keys of their own: {links}.\n")
    parts += [_SOURCES, *_source_items()]
    for name, key in keys_of(Config).items():
        if _is_section(key):
            parts.append(f"\n## {name}\n\n")
            if name in _SECTIONS:
                parts.append(f"{_SECTIONS[name]}\n\n")
            parts += [_HEAD, *_rows(key.type)]
    return "".join(parts)


def _source_items() -> Iterator[str]:
    """Yields an item of a list for each key of a source: what it means in which formats."""
    meanings: dict[tuple[str, str], dict[str, list[str]]] = {}
    for format_name, kind in built_in_formats().items():
        for name, value, text in _describe_keys(kind):
            meanings.setdefault((name, value), {}).setdefault(text, []).append(format_name)
    for (name, value), names_by_text in meanings.items():
        texts = (f"{_join(names)}: {text}" for text, names in names_by_text.items())
        yield f"- `{name}` ({value}). {' '.join(texts)}\n"


def _join(names: Sequence[str]) -> str:
    if set(_TABLES) <= set(names):
        names = [*(name for name in names if name not in _TABLES), "tables"]
    return ", ".join(f"`{name}`" for name in names)


def _rows(kind: type[msgspec.Struct]) -> Iterator[str]:
    for name, *texts in _describe_keys(kind):
        cells = (f"`{name}`", *(text.replace("|", "\\|") for text in texts))
        yield f"| {' | '.join(cells)} |\n"


def _describe_keys(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    """Yields each key, what it takes, and what it means."""
    texts = _describe_attributes(kind)
    defaults = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, key in keys_of(kind).items():
        if name == "format" or _is_section(key):
            continue
        # A flag's help is written for users; of the config itself, few keys are flags.
        is_ours = kind.__module__ == Config.__module__
        text = texts[name] if is_ours or not key.help else _sentence(key.help)
        yield name, _value(key, default=_default(defaults[name])), text


def _is_section(key: Key) -> bool:
    return (
        isinstance(key.type, type)
        and issubclass(key.type, msgspec.Struct)
        and key.type.__module__ == Config.__module__
    )


def _value(key: Key, *, default: str) -> str:
    """Returns what a key takes; its default is bold, or comes last."""
    kind = key.type
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    choices = [f"`{choice}`" for choice in ("true", "false") if key.switch]
    if key.choices and typing.get_origin(kind) is not dict:
        choices = [f"`{choice}`" for choice in key.choices]
    if len(key.choices) > 10:
        return "[kinds](statistics.md#worth-a-look)"
    if choices:
        return ", ".join(f"**{each}**" if each == default else each for each in choices)
    text = describe_type(key.type)
    for name, words in _WORDS.items():
        text = re.sub(name, words, text)
    return f"{text}, **{default}**" if default else text


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default in (None, "", (), [], {}):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _describe_attributes(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """Reads the texts of `Attributes:` in the docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        doc = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        section = doc.partition("Attributes:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"^    (?=\w+: )", section, flags=re.MULTILINE):
            name, _, text = entry.partition(": ")
            texts[name] = " ".join(text.split())
    return texts


if __name__ == "__main__":
    PAGE.write_text(config_page(), encoding="utf-8")
