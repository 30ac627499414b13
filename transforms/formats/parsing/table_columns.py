"""Types of a table's columns, and how their cells become values.

`value_of_text` turns the text of a CSV cell into a value as in JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Value
from shardbeam.transforms.examples.features import (
    MAX_FLOAT32,
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
)

Base = Literal["int", "float", "bool", "string"]

_TYPE = re.compile(r"(?:(bool|int|float|string)(\?)?|list\[(bool|int|float|string)\])\Z")
_KINDS = {
    "bool": FeatureKind.INT64,
    "int": FeatureKind.INT64,
    "float": FeatureKind.FLOAT,
    "string": FeatureKind.BYTES,
}
_DECIMAL_COMMA = re.compile(r"\s*-?[0-9]+,[0-9]+\s*\Z")
# What does not matter in names of columns.
_IGNORED = re.compile(r"[\s_-]|[(\[](?:px|pixels?)[)\]]")
_BOOLS = {"true": True, "false": False}
# Numbers as a program would write them; `007` is a code and stays text.
_INT = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(
    r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z|(?i:nan|[+-]?inf(inity)?)\Z"
)

_list_decoder = JsonDecoder(list[str | int | float | bool | None])


class CellError(ValueError):
    """A cell cannot be used; the message says why.

    Attributes:
        reason: The stable reason code.
        key: The image that the row names, if that name is the problem.
    """

    def __init__(
        self, problem: str, *, reason: Reason = Reason.ANNOTATION_MALFORMED, key: str = ""
    ) -> None:
        self.reason = reason
        self.key = key
        super().__init__(problem)


class ColumnType(msgspec.Struct, frozen=True):
    """The type of a column's cells.

    Attributes:
        base: The type of each value.
        form: `one` value, one or none (`optional`), or any number (`list`).
    """

    base: Base
    form: Literal["one", "optional", "list"] = "one"

    def __str__(self) -> str:
        if self.form == "list":
            return f"list[{self.base}]"
        return f"{self.base}?" if self.form == "optional" else self.base


def parse_type(text: str) -> ColumnType | None:
    """Reads a type as a config writes it; returns None where there is no such type."""
    match = _TYPE.match(text)
    if match is None:
        return None
    base: Any = match[1] or match[3]
    return ColumnType(base, "list" if match[3] else "optional" if match[2] else "one")


def infer_type(values: Iterable[object]) -> ColumnType:
    """Finds the type of all values of a column; None stands for a missing value."""
    bases: set[Base] = set()
    has_list = has_missing = False
    for value in values:
        if value is None:
            has_missing = True
        elif isinstance(value, list):
            has_list = True
            bases.update(map(_base_of, value))
        else:
            bases.add(_base_of(value))
    base: Base = "string"
    if len(bases) == 1:
        (base,) = bases
    elif bases == {"int", "float"}:
        base = "float"
    return ColumnType(base, "list" if has_list else "optional" if has_missing else "one")


def column_feature(
    name: str, column: ColumnType, *, per_object: bool, per_row: bool = False
) -> ExtraFeature:
    """Describes the feature of a column.

    Args:
        name: The column.
        column: Its type.
        per_object: Whether each object has a value. Where it lacks one, the feature holds
            `missing_value`.
        per_row: Whether each row of an image adds a value.
    """
    return ExtraFeature(
        FeatureSpec(
            name,
            _KINDS[column.base],
            repeated=per_object or per_row or column.form != "one",
            role=FeatureRole.TEXT if column.base == "string" else FeatureRole.VALUE,
        ),
        per_object=per_object,
        default=missing_value(column) if per_object else None,
    )


def missing_value(column: ColumnType) -> Value:
    """Returns what a list holds in the place of a missing value: NaN, -1 or an empty text."""
    unknown: dict[str, Value] = {"float": math.nan, "string": ""}
    return unknown.get(column.base, -1)


def value_of_text(text: str) -> object:
    """Reads a number, boolean or list as in JSON; None for an empty cell; else the text itself."""
    stripped = text.strip()
    if not stripped:
        return None
    if _INT.match(stripped):
        # Python refuses to read integers of thousands of digits.
        fits = len(stripped) <= 20 and -(2**63) <= int(stripped) < 2**63
        return int(stripped) if fits else text
    if _FLOAT.match(stripped):
        number = float(stripped)
        return number if _fits_float32(number) else text
    if stripped.startswith("[") and stripped.endswith("]"):
        try:
            return _list_decoder.decode(stripped)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return text
    return _BOOLS.get(stripped.casefold(), text)


def has_decimal_comma(text: str) -> bool:
    """Whether a text is a number such as `1,5`."""
    return _DECIMAL_COMMA.match(text) is not None


def is_number(value: object) -> bool:
    """Whether a cell is a number, with a decimal point or a decimal comma."""
    if isinstance(value, str):
        return has_decimal_comma(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_cell(cell: object, column: ColumnType, *, is_text: bool) -> tuple[Value, ...]:
    """Reads a cell.

    Args:
        cell: The cell; None where a row has none.
        column: The column's type.
        is_text: Whether all cells are texts, as in a CSV file.

    Raises:
        CellError: The cell does not have the column's type.
    """
    if is_text and isinstance(cell, str):
        if column.base == "string" and column.form != "list":
            return (cell,) if cell.strip() or column.form == "one" else ()
        cell = value_of_text(cell)
    if cell is None:
        if column.form == "one":
            raise CellError(f"expected {column.base}, found nothing")
        return ()
    if column.form == "list":
        values = cell if isinstance(cell, list) else [cell]
        return tuple(_typed(value, column.base, is_text=is_text) for value in values)
    return (_typed(cell, column.base, is_text=is_text),)


def json_text(value: object) -> str:
    """Returns a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def join_names(names: Iterable[str]) -> str:
    """Lists the first of a table's columns in one line."""
    shown = [name if name.isprintable() else ascii(name) for name in names]
    return ", ".join(shown[:30]) + (", ..." if len(shown) > 30 else "") or "none"


def first_of(candidates: Iterable[str], names: Collection[str]) -> str:
    """Finds the first candidate among names, ignoring case, spaces, `_`, `-` and `(px)`.

    Empty if there is none.
    """
    by_plain = {_IGNORED.sub("", name.casefold()): name for name in reversed(list(names))}
    return next((by_plain[name] for name in candidates if name in by_plain), "")


def _base_of(value: object) -> Base:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "string"
    if isinstance(value, float):
        return "float" if _fits_float32(value) else "string"
    return "string"


def _typed(value: object, base: Base, *, is_text: bool) -> Value:
    if base == "string":
        return json_text(value)
    if base == "bool":
        if isinstance(value, (bool, int)) and value in (0, 1):
            return int(value)
    elif isinstance(value, bool):
        pass
    elif base == "int":
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
    elif isinstance(value, (int, float)) and _fits_float32(value):
        return float(value)
    hint = ""
    if isinstance(value, str) and has_decimal_comma(value):
        # Only CSV files, whose cells are texts, have the key.
        hint = f"; write a decimal point{', or set decimal to a comma' if is_text else ''}"
    raise CellError(f"expected {base}, got {_shown(json_text(value))}{hint}")


def _fits_float32(value: float) -> bool:
    # Comparing works for integers that are too large for Python's float.
    return value != value or value in (math.inf, -math.inf) or abs(value) <= MAX_FLOAT32


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else f"{text[:57]}...")
