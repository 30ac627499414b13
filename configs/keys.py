"""The keys of a config class, with their help texts and types."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union

import msgspec


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a config.

    Attributes:
        name: The key.
        type: Its type, with annotations.
        required: Whether it must be given.
        help: Its description in a few words; empty if no flag of the command sets it.
        metavar: The placeholder for its value in the help text.
        repeatable: Whether it is a list.
        switch: Whether it is a boolean, whose flag takes no value.
        nullable: Whether it may be None.
        is_location: Whether it is a path or URI, or a list of them.
        choices: The allowed values, if there are only a few.
    """

    name: str
    type: Any
    required: bool
    help: str
    metavar: str
    repeatable: bool
    switch: bool
    nullable: bool
    is_location: bool
    choices: tuple[str, ...]


# A path or URI, which the plan makes absolute.
Location = Annotated[str, msgspec.Meta(min_length=1, description="a path or URI")]
(_LOCATION,) = typing.get_args(Location)[1:]


def named(description: str, *, metavar: str = "") -> msgspec.Meta:
    """Gives a key a flag, with a description and a placeholder for its value in the help."""
    return msgspec.Meta(extra={"help": description, "metavar": metavar})


def flag_name(key: str) -> str:
    """Returns the flag of the command that sets a key."""
    return f"--{key.replace('_', '-')}"


def spell_key(word: str, kind: type[msgspec.Struct]) -> str:
    """Returns a key of a class that is written with `-` for `_`; other words as they are."""
    key = word.replace("-", "_")
    return key if key in keys_of(kind) else word


@functools.cache
def keys_of(kind: type[msgspec.Struct]) -> Mapping[str, Key]:
    """Describes the keys of a class.

    A field whose name begins with `_` is not a key: the plan sets it.
    """
    return {
        field.name: _describe(field)
        for field in msgspec.structs.fields(kind)
        if not field.name.startswith("_")
    }


def key_paths(
    kind: type[msgspec.Struct], *, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Key]]:
    """Yields each key of a class, and the keys of classes inside it, with their paths."""
    for name, key in keys_of(kind).items():
        yield (*path, name), key
        if isinstance(key.type, type) and issubclass(key.type, msgspec.Struct):
            yield from key_paths(key.type, path=(*path, name))


def struct_in(kind: object) -> type[msgspec.Struct] | None:
    """Returns the class whose keys a mapping of this type has; None for a mapping of free names."""
    return next((it for it in _members(kind) if hasattr(it, "__struct_fields__")), None)


def kind_below(kind: object, key: str) -> object:
    """Returns the type of the value that a mapping or list of this type has at a key or place."""
    for member in _members(kind):
        if hasattr(member, "__struct_fields__"):
            found = keys_of(member).get(spell_key(key, member))
            if found is not None:
                return found.type
        is_list = typing.get_origin(member) is list and key.isdecimal()
        if is_list or typing.get_origin(member) is dict:
            return typing.get_args(member)[-1]
    return None


def _members(kind: object) -> Iterator[typing.Any]:
    """Yields the types that a union is made of, without annotations."""
    origin = typing.get_origin(kind)
    if origin in (Annotated, Union, types.UnionType):
        for member in typing.get_args(kind)[: 1 if origin is Annotated else None]:
            yield from _members(member)
    else:
        yield kind


def _describe(field: msgspec.structs.FieldInfo) -> Key:
    parts = list(_parts(field.type))
    said = next((part.extra for part in parts if isinstance(part, msgspec.Meta) and part.extra), {})
    return Key(
        name=field.name,
        type=field.type,
        required=field.required,
        help=said.get("help", ""),
        metavar=said.get("metavar") or ("FILE" if _LOCATION in parts else "NAME"),
        repeatable=list in parts,
        switch=bool in parts,
        nullable=types.NoneType in parts,
        is_location=_LOCATION in parts,
        choices=next(filter(None, map(choices, parts)), ()),
    )


def is_scalar(kind: object) -> bool:
    """Returns whether a type accepts a single text or number."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Annotated, Union, types.UnionType):
        return any(is_scalar(each) for each in arguments)
    return kind in (str, int, float, bool) or bool(choices(kind))


def choices(kind: object) -> tuple[str, ...]:
    """Returns the values of an enumeration or `Literal`; empty for any other type."""
    if typing.get_origin(kind) is Literal:
        return tuple(map(str, typing.get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(str(member.value) for member in kind)
    return ()


def _parts(hint: object) -> Iterator[object]:
    """Yields a type's annotations, outermost first, the type, and the types that it is made of."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        yield from arguments[1:]
        yield from _parts(arguments[0])
    elif origin in (Union, types.UnionType, list, dict):
        yield origin
        for argument in arguments:
            yield from _parts(argument)
    else:
        yield hint
