"""Reads the few structs of Thrift's compact protocol that Parquet files hold, within limits.

The protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import TypeVar

# Values of a footer, which has about 35 for each column of a row group.
_VALUES = 2_000_000
_DEPTH = 16
_VARINT_BYTES = 10
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

T = TypeVar("T")
# The fields of a struct by their numbers.
Struct = dict[int, object]


class ThriftError(ValueError):
    """The bytes are not what was expected."""


class ShortError(ThriftError):
    """The bytes end within a value."""


def read_struct(data: bytes) -> tuple[Struct, int]:
    """Reads a struct, and returns it with its length in bytes.

    Raises:
        ThriftError: The bytes are no struct.
    """
    reader = _Reader(data)
    return reader.struct(0), reader.position


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads an unsigned number, and returns it with the position after it.

    Raises:
        ThriftError: It is longer than 64 bits, or not all there.
    """
    number = 0
    for index, byte in enumerate(data[position : position + _VARINT_BYTES]):
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            return number, position + index + 1
    if position + _VARINT_BYTES > len(data):
        raise ShortError("ends within a number")
    raise ThriftError("has a number of more than 64 bits")


def get(struct: Struct, number: int, kind: type[T], *, default: T | None = None) -> T:
    """Returns a field of the expected type.

    Raises:
        ThriftError: It is of another type, or missing without a default.
    """
    value = struct.get(number, default)
    if type(value) is not kind:
        raise ThriftError(f"field {number} is not a {kind.__name__}")
    return value


class _Reader:
    """Reads values from `position` on."""

    def __init__(self, data: bytes) -> None:
        self.position = 0
        self._data = data
        self._left = _VALUES

    def struct(self, depth: int) -> Struct:
        found: Struct = {}
        number = 0
        while header := self._byte():
            kind = header & 15
            number = number + (header >> 4) if header >> 4 else self._integer()
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> object:
        self._left -= 1
        if depth > _DEPTH or self._left < 0:
            raise ThriftError("has too many values")
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            header = self._byte()
            size = header >> 4 if header >> 4 < 15 else self._varint()
            # Each item takes a byte, so a size that is not true ends with the data.
            return [self._value(header & 15, depth + 1) for _ in range(size)]
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind == _DOUBLE:
            return self._take(8)
        raise ThriftError(f"has a value of type {kind}")

    def _byte(self) -> int:
        if self.position >= len(self._data):
            raise ShortError("ends within a value")
        self.position += 1
        return self._data[self.position - 1]

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise ShortError("ends within a value")
        value = self._data[self.position : end]
        self.position = end
        return value

    def _varint(self) -> int:
        value, self.position = read_varint(self._data, self.position)
        return value

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
