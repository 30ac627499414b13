"""Converts plain data to the schema's classes, saying where it is wrong and what was expected.

`msgspec.convert` judges every value; its messages name neither the keys of mappings nor the
positions in lists, so the walk to the value is here.
"""

from __future__ import annotations

import difflib
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar, Union

import msgspec

from shardbeam.configs.nearest import suggest
from shardbeam.configs.schema import SOURCES, Config, CustomSource, Source

T = TypeVar("T")
# Where a value lies: keys of mappings, and positions in lists.
Path: TypeAlias = tuple[str | int, ...]

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 60


class Problem(Exception):
    """A value of a config cannot be used.

    Attributes:
        path: Where it lies.
        text: What was expected, what it is, and the nearest known name.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        super().__init__(f"{format_path(path)}: {text}")


def format_path(path: Path) -> str:
    """Writes a path as configs do: `splits.train.annotations[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # A key with a blank, a dot or a control character must not look like a path.
            plain = part.isprintable() and part and not set(" .:'") & set(part)
            text += f"{'.' if text else ''}{part if plain else repr(part)}"
    return text


def convert(value: object, kind: type[T]) -> T:
    """Converts plain data to a class of the schema.

    Args:
        value: Mappings, lists and scalars, as YAML gives them.
        kind: The class; wherever it says `Source`, `format` decides which subclass.

    Raises:
        Problem: A key is unknown or missing, or a value is not what the schema says.
    """
    return typing.cast(T, _convert(value, kind, path=()))


def _convert(value: object, expected: object, *, path: Path) -> object:
    kind = _plain_type(expected)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _convert_to_union(value, expected, path=path)
    if isinstance(value, Mapping):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return _convert_to_struct(value, kind, path=path)
        if origin is dict:
            return _convert_to_dict(value, *arguments, path=path)
    if origin is list and isinstance(value, (list, tuple)):
        value = [
            _convert(item, arguments[0], path=(*path, index)) for index, item in enumerate(value)
        ]
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        raise Problem(path, _mismatch(value, expected)) from error


def _convert_to_union(value: object, expected: object, *, path: Path) -> object:
    members = typing.get_args(expected)
    if value is None and types.NoneType in members:
        return None
    for member in members:
        # No union of the schema has two members of one shape.
        if member is not types.NoneType and _is_mapping(member) == isinstance(value, Mapping):
            return _convert(value, member, path=path)
    raise Problem(path, _mismatch(value, expected))


def _convert_to_dict(
    value: Mapping[object, object], key_type: object, value_type: object, *, path: Path
) -> dict[object, object]:
    converted = {}
    for key, item in value.items():
        place = (*path, str(key))
        name = _convert(key, key_type, path=place)
        converted[name] = _convert(item, value_type, path=place)
    return converted


def _convert_to_struct(
    value: Mapping[object, object], kind: type[msgspec.Struct], *, path: Path
) -> msgspec.Struct:
    if kind is Source:
        kind = _source_class(value, path=path)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    converted = {}
    for key in map(str, value):
        if key not in fields:
            raise Problem((*path, key), _unknown_key(key, fields, path=path))
    for name, field in fields.items():
        if name in value:
            converted[name] = _convert(value[name], hints[name], path=(*path, name))
        elif field.required:
            raise Problem((*path, name), f"missing; expected {_describe(hints[name])}")
    return kind(**converted)


def _source_class(value: Mapping[object, object], *, path: Path) -> type[Source]:
    name = value.get("format")
    if isinstance(name, str):
        if name in SOURCES:
            return SOURCES[name]
        if ":" in name:
            return CustomSource
    known = f"{', '.join(SOURCES)}, or module:Class for a format of your own"
    if "format" not in value:
        raise Problem((*path, "format"), f"missing; expected {known}")
    raise Problem(
        (*path, "format"), f"expected {known}, got {_show(name)}{suggest(str(name), SOURCES)}"
    )


def _unknown_key(key: str, known: Iterable[str], *, path: Path) -> str:
    siblings = {name: format_path((*path, name)) for name in known}
    elsewhere = {str(place[-1]): format_path(place) for place in _known_paths(Config)}
    if key in elsewhere:
        return f"unknown key here; did you mean {elsewhere[key]}?"
    for names, similarity in ((siblings, 0.6), (elsewhere, 0.8)):
        for nearest in difflib.get_close_matches(key, names, n=1, cutoff=similarity):
            return f"unknown key; did you mean {names[nearest]}?"
    return f"unknown key; expected {_join(siblings)}"


def _known_paths(kind: type[msgspec.Struct], *, path: Path = ()) -> Iterator[Path]:
    for field in msgspec.structs.fields(kind):
        yield (*path, field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _known_paths(field.type, path=(*path, field.name))


def _mismatch(value: object, expected: object) -> str:
    message = f"expected {_describe(expected)}, got {_show(value)}"
    kind = _plain_type(expected)
    if typing.get_origin(kind) is Literal:
        return message + suggest(str(value), typing.get_args(kind))
    if kind is str and (value is None or isinstance(value, (bool, int, float))):
        return f"{message}; quote it"
    return message


def _describe(expected: object) -> str:
    kind = _plain_type(expected)
    limits = _limits(expected)
    if limits.description is not None:
        return limits.description
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _join(_describe(member) for member in arguments if member is not types.NoneType)
    if origin is Literal:
        return _join(arguments)
    if _is_mapping(kind):
        return "a mapping"
    if origin is list:
        return f"a list, each {_describe(arguments[0])}"
    name = getattr(kind, "__name__", str(kind))
    if limits.ge is not None and limits.le is not None:
        return f"{name} from {limits.ge} to {limits.le}"
    bounds = {"above": limits.gt, "at least": limits.ge, "below": limits.lt, "at most": limits.le}
    return ", ".join([name, *(f"{word} {n}" for word, n in bounds.items() if n is not None)])


def _show(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return _shown.repr(value)


def _plain_type(expected: object) -> object:
    is_annotated = typing.get_origin(expected) is Annotated
    return typing.get_args(expected)[0] if is_annotated else expected


def _limits(expected: object) -> msgspec.Meta:
    is_annotated = typing.get_origin(expected) is Annotated
    metadata = typing.get_args(expected)[1:] if is_annotated else ()
    return next((meta for meta in metadata if isinstance(meta, msgspec.Meta)), msgspec.Meta())


def _is_mapping(expected: object) -> bool:
    return typing.get_origin(expected) is dict or (
        isinstance(expected, type) and issubclass(expected, msgspec.Struct)
    )


def _join(words: Iterable[object]) -> str:
    *rest, last = map(str, words)
    return f"{', '.join(rest)} or {last}" if rest else last
