"""The keys of sources: which are locations, and which flag of the command sets them."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union

import msgspec

from shardbeam.configs.schema import SOURCES, Location, Source

# What marks a key as a path or URI.
(_LOCATION,) = typing.get_args(Location)[1:]


class SourceKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that the command has a flag for.

    Attributes:
        name: The key.
        help: What it is, in a few words.
        metavar: What stands for its value in the help text.
        repeatable: Whether it is a list.
        switch: Whether it is a yes or no, and its flag takes no value.
        choices: The values that it may have, if they are few.
        formats: The formats that have it.
    """

    name: str
    help: str
    metavar: str
    repeatable: bool
    switch: bool
    choices: tuple[str, ...]
    formats: tuple[str, ...]


@functools.cache
def location_keys(source_class: type[Source]) -> frozenset[str]:
    """Names the keys that are a location, or a list of locations."""
    return frozenset(name for name, hint in _hints(source_class).items() if _is_location(hint))


@functools.cache
def source_keys() -> Mapping[str, SourceKey]:
    """Describes the keys of all built-in formats that a flag can set."""
    keys: dict[str, SourceKey] = {}
    for format_name, source_class in SOURCES.items():
        for name, hint in _hints(source_class).items():
            parts = list(_parts(hint))
            if name == "format" or dict in parts:
                continue
            known = keys.get(name)
            formats = (*(known.formats if known else ()), format_name)
            keys[name] = msgspec.structs.replace(
                known or _describe(name, hint, parts), formats=formats
            )
    return keys


def _describe(name: str, hint: object, parts: list[object]) -> SourceKey:
    choices = next((typing.get_args(part) for part in parts if _is_literal(part)), ())
    help_texts = [
        part.extra["help"] for part in parts if isinstance(part, msgspec.Meta) and part.extra
    ]
    metavar = "REGEX" if name == "pattern" else "FILE" if _is_location(hint) else "NAME"
    if _is_location(hint) and help_texts and help_texts[0].startswith("folder"):
        metavar = "DIR"
    if name == "images":
        metavar = "DIR"
    return SourceKey(
        name=name,
        help=help_texts[0] if help_texts else name.replace("_", " "),
        metavar=metavar,
        repeatable=list in parts,
        switch=bool in parts,
        choices=choices,
        formats=(),
    )


def _hints(source_class: type[Source]) -> dict[str, Any]:
    hints = typing.get_type_hints(source_class, include_extras=True)
    return {name: hints[name] for name in source_class.__struct_fields__}


def _parts(hint: object) -> Iterator[object]:
    """Yields a type, what it is made of, and what is said about these."""
    origin = typing.get_origin(hint)
    yield origin or hint
    if _is_literal(hint):
        yield hint
        return
    if origin is typing.Annotated:
        kind, *metadata = typing.get_args(hint)
        yield from metadata
        yield from _parts(kind)
    elif origin in (Union, types.UnionType, list, dict):
        for argument in typing.get_args(hint):
            yield from _parts(argument)


def _is_literal(hint: object) -> bool:
    return typing.get_origin(hint) is Literal


def _is_location(hint: object) -> bool:
    return any(part is _LOCATION for part in _parts(hint))
