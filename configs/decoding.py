"""Typed decoding with msgspec, safe in threads.

When msgspec meets a type for the first time, it collects the type's fields step by step. A second
thread that uses the type in between sees the unfinished fields, which crashes the process. So
types are prepared under one lock, and nothing else in Shardbeam calls msgspec's own decoders.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")

# Preparing a type may run code of the type, which may decode in turn.
_preparing = threading.RLock()


class JsonDecoder(Generic[T]):
    """Decodes JSON to values of a type. The type is prepared at the first use, not at import.

    Args:
        kind: The type; by default whatever the JSON holds.
        strict: Whether texts such as `"1"` are refused where a number is expected.
    """

    @overload
    def __init__(self, kind: type[T], *, strict: bool = True) -> None: ...
    @overload
    def __init__(self: JsonDecoder[Any], kind: object = Any, *, strict: bool = True) -> None: ...
    def __init__(self, kind: object = Any, *, strict: bool = True) -> None:
        self._kind = kind
        self._strict = strict

    @functools.cached_property
    def decode(self) -> Callable[[bytes | memoryview | msgspec.Raw | str], T]:
        """Decodes one document; raises what `msgspec.json.decode` does."""
        with _preparing:
            return msgspec.json.Decoder(self._kind, strict=self._strict).decode


class MsgpackDecoder(Generic[T]):
    """Decodes MessagePack to values of a type. The type is prepared at the first use."""

    @overload
    def __init__(self, kind: type[T]) -> None: ...
    @overload
    def __init__(self: MsgpackDecoder[Any], kind: object = Any) -> None: ...
    def __init__(self, kind: object = Any) -> None:
        self._kind = kind

    @functools.cached_property
    def decode(self) -> Callable[[bytes | memoryview], T]:
        """Decodes one value; raises what `msgspec.msgpack.decode` does."""
        with _preparing:
            return msgspec.msgpack.Decoder(self._kind).decode


@overload
def convert_value(value: object, kind: type[T], *, strict: bool = True) -> T: ...
@overload
def convert_value(value: object, kind: object, *, strict: bool = True) -> object: ...
def convert_value(value: object, kind: object, *, strict: bool = True) -> object:
    """Converts plain data to a type.

    Args:
        value: Mappings, lists and scalars.
        kind: The type.
        strict: Whether texts such as `"1"` are refused where a number is expected.

    Raises:
        msgspec.ValidationError: The value is not of this type.
    """
    with _preparing:
        return msgspec.convert(value, kind, strict=strict)
