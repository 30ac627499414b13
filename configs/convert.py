"""Converts plain data to the schema's classes; errors name the place and the expected value.

`msgspec.convert` checks every value. Its messages name neither the keys of mappings nor the
positions in lists, so this module walks to each value itself.
"""

from __future__ import annotations

import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar, Union

import msgspec

from shardbeam.configs.decoding import convert_value
from shardbeam.configs.hints.nearest import edit_distance, nearest_name
from shardbeam.configs.keys import choices, key_paths, keys_of, spell_key
from shardbeam.configs.problem import Path, Problem, did_you_mean, format_path
from shardbeam.configs.schema import Config, Source

T = TypeVar("T")
# Finds the class of a format by its name; raises a ValueError with the reason if there is none.
FormatFinder: TypeAlias = Callable[[str], type[Source]]

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 60


def convert(value: object, kind: type[T], *, find_format: FormatFinder) -> T:
    """Converts plain data to a config class.

    Args:
        value: Mappings, lists and scalars, as they come from YAML.
        kind: The class.
        find_format: Finds the class to use for a `Source`, by the source's key `format`.

    Raises:
        Problem: A key is unknown or missing, a value has the wrong type, or the keys contradict
            each other.
    """
    return typing.cast(T, _Converter(find_format).convert(value, kind, path=()))


class _Converter:
    def __init__(self, find_format: FormatFinder) -> None:
        self._find_format = find_format

    def convert(self, value: object, expected: object, *, path: Path) -> object:
        kind = _plain_type(expected)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (Union, types.UnionType) and not _is_scalars(arguments):
            # Except for scalars, no union in the schema has two members with the same shape.
            for member in arguments:
                if _may_be(value, member):
                    return None if value is None else self.convert(value, member, path=path)
            raise Problem(path, describe_mismatch(value, expected) + _explain_split(value, path))
        if isinstance(value, Mapping) and _is_mapping(kind):
            if origin is dict:
                return self._convert_items(value, *arguments, path=path)
            return self._convert_struct(value, typing.cast(type[Any], kind), path=path)
        if origin is list and isinstance(value, str):
            # A list of one text may be written without its brackets.
            value = [value]
        if origin is list and isinstance(value, (list, tuple)):
            value = [
                self.convert(item, arguments[0], path=(*path, index))
                for index, item in enumerate(value)
            ]
            if _is_mapping(arguments[0]):
                # Only this converter can check structs.
                return value
        try:
            return convert_value(value, expected)
        except msgspec.ValidationError as error:
            raise Problem(path, describe_mismatch(value, expected)) from error

    def _convert_items(
        self, value: Mapping[object, object], key_type: object, item_type: object, *, path: Path
    ) -> dict[object, object]:
        converted = {}
        for key, item in value.items():
            place = (*path, str(key))
            name = self.convert(key, key_type, path=place)
            converted[name] = self.convert(item, item_type, path=place)
        return converted

    def _convert_struct(
        self, value: Mapping[object, object], kind: type[msgspec.Struct], *, path: Path
    ) -> msgspec.Struct:
        if kind is Source:
            kind = self._source_class(value, path=path)
        keys = keys_of(kind)
        converted = {}
        given: dict[str, object] = {}
        for word, item in value.items():
            name = spell_key(str(word), kind)
            if name not in keys:
                raise Problem((*path, name), _unknown_key(name, item, keys, path=path))
            if name in given:
                text = f"given twice, as {name} and as {name.replace('_', '-')}; take one of them"
                raise Problem((*path, name), text)
            given[name] = item
        for name, key in keys.items():
            if name in given:
                converted[name] = self.convert(given[name], key.type, path=(*path, name))
            elif key.required:
                raise Problem((*path, name), f"missing; expected {describe_type(key.type)}")
        try:
            return kind(**converted)
        except Problem as problem:
            raise Problem((*path, *problem.path), problem.text) from problem
        except Exception as error:
            # The class of a user's own format may raise anything.
            text = " ".join(str(error).split())
            if not text or not isinstance(error, ValueError):
                text = f"{type(error).__name__}: {text}"
            raise Problem(path, text) from error

    def _source_class(self, value: Mapping[object, object], *, path: Path) -> type[Source]:
        path = (*path, "format")
        key_type = keys_of(Source)["format"].type
        if "format" not in value:
            raise Problem(path, f"missing; expected {describe_type(key_type)}")
        name = self.convert(value["format"], key_type, path=path)
        try:
            return self._find_format(str(name))
        except ValueError as error:
            raise Problem(path, str(error)) from error


# Keys of sources that may stand at the top of a config by mistake.
_OF_SOURCES = ("format", "images", "annotations", "root", "manifest", "tars", "tfrecords")
_SPLITS = ("train", "validation", "val", "valid", "test")


def _unknown_key(key: str, value: object, known: Iterable[str], *, path: Path) -> str:
    if not path and key in _OF_SOURCES:
        return (
            "unknown key here; put it into source: {format: ..., images: ...}, or into a split, "
            "such as splits: {train: {format: ..., images: ...}}"
        )
    if not path and key in _SPLITS and _as_share(value) is None:
        if isinstance(value, Mapping):
            return f"unknown key; did you mean splits.{key}?"
        return (
            f"unknown key; a split is a mapping, such as splits: {{{key}: {{format: ..., images: "
            "...}}; for a data.yaml of Ultralytics, `shardbeam init FOLDER` writes a config"
        )
    siblings = {name: format_path((*path, name)) for name in known}
    elsewhere = {str(place[-1]): format_path(place) for place, _ in key_paths(Config)}
    # Imported here, because only errors need the table.
    from shardbeam.configs.hints.other_tools import explain_key

    within = [f"{path[-1]}.{key}"] if path else []
    if path and "format" in siblings:
        within = [f"source.{key}"]
    nearest = nearest_name(key, siblings)
    # A word of other tools' may mean something else in a section, where `ratio` is `max_ratio`.
    if other := explain_key([*within, key][: 1 if path and nearest else None], siblings=siblings):
        return f"unknown key{other}"
    # Siblings first: in a source, `image` should suggest `images`, not the config's `image`.
    is_close = nearest is not None and edit_distance(key, nearest, most=1) is not None
    if nearest is not None and (is_close or key not in elsewhere):
        return f"unknown key; did you mean {siblings[nearest]}?"
    # In another section, a name has to be nearer.
    nearest = key if key in elsewhere else nearest_name(key, elsewhere, part=5)
    if nearest is not None:
        here = " here" if nearest == key else ""
        return f"unknown key{here}; did you mean {elsewhere[nearest]}?"
    return f"unknown key; expected {_join(siblings)}"


def _as_share(value: object) -> float | None:
    """Returns a number, or a text such as `80%`, as a share; None if it is neither."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value / 100 if 2 <= value <= 100 else value


def _explain_split(value: object, path: Path) -> str:
    """Says what to write for a split that has a share or a path in place of its source."""
    if path[:1] != ("splits",) or len(path) != 2:
        return ""
    share = _as_share(value)
    if share is not None:
        return (
            f"; did you mean fractions: {{{path[1]}: {share:g}, ...}}, with source in place of "
            "splits?"
        )
    return f"; did you mean {{format: ..., images: {value}}}?" if isinstance(value, str) else ""


def describe_mismatch(value: object, expected: object) -> str:
    """Describes the expected value, the actual one, and perhaps the intended one."""
    message = f"expected {describe_type(expected)}, got {_show(value)}"
    kind = _plain_type(expected)
    if choices(kind):
        return message + did_you_mean(str(value), choices(kind), show=str)
    if kind is str and (value is None or isinstance(value, (bool, int, float))):
        return f"{message}; quote it"
    share = _as_share(value) if _limits(expected).le == 1 else None
    if share is not None and share != value and 0 < share <= 1:
        return f"{message}; did you mean {share:g}?"
    if isinstance(value, (str, int, float)) and (key := _only_key(kind)):
        return f"{message}; did you mean {{{key}: {value}}}?"
    return message


def _only_key(kind: object) -> str:
    """Returns the one key that a mapping has or needs; empty if there is none, or are several."""
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct) or kind is Source:
        return ""
    keys = keys_of(kind)
    needed = [name for name, key in keys.items() if key.required] or [*keys]
    return needed[0] if len(needed) == 1 else ""


def describe_type(expected: object) -> str:
    """Names what a type expects, in words."""
    kind = _plain_type(expected)
    limits = _limits(expected)
    if limits.description is not None:
        return limits.description
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _join(describe_type(member) for member in arguments if member is not types.NoneType)
    if choices(kind):
        return _join(choices(kind))
    if _is_mapping(kind):
        return "a mapping"
    if origin is list:
        return f"a list, each {describe_type(arguments[0])}"
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
    return typing.get_args(expected)[0] if typing.get_origin(expected) is Annotated else expected


def _limits(expected: object) -> msgspec.Meta:
    said = typing.get_args(expected)[1:] if typing.get_origin(expected) is Annotated else ()
    return next((meta for meta in said if isinstance(meta, msgspec.Meta)), msgspec.Meta())


def _is_mapping(expected: object) -> bool:
    expected = _plain_type(expected)
    return typing.get_origin(expected) is dict or (
        isinstance(expected, type) and issubclass(expected, msgspec.Struct)
    )


def _is_scalars(members: Iterable[object]) -> bool:
    """Whether a union has several members that are single texts or numbers, and no others."""
    kinds = [member for member in members if member is not types.NoneType]
    return len(kinds) > 1 and not any(
        _is_mapping(kind) or typing.get_origin(_plain_type(kind)) is list for kind in kinds
    )


def _may_be(value: object, member: object) -> bool:
    """Returns whether a value has the shape of a member of a union."""
    if value is None or member is types.NoneType:
        return value is None and member is types.NoneType
    if isinstance(value, Mapping) or _is_mapping(member):
        return isinstance(value, Mapping) and _is_mapping(member)
    kind = _plain_type(member)
    # A single text may stand for a list of texts, but not for a list of mappings.
    is_list_of_mappings = typing.get_origin(kind) is list and _is_mapping(typing.get_args(kind)[0])
    return isinstance(value, (list, tuple)) or not is_list_of_mappings


def _join(words: Iterable[object]) -> str:
    *rest, last = map(str, words)
    return f"{', '.join(rest)} or {last}" if rest else last
