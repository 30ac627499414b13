"""Types of a table's columns: told, inferred, and what cells of each become."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec

from shardbeam.transforms.core.records import Value
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
)
from shardbeam.transforms.formats.names import is_image_name

Base = Literal["bool", "int", "float", "string"]

_TYPE = re.compile(r"(?:(bool|int|float|string)(\?)?|list\[(bool|int|float|string)\])\Z")
_KINDS = {
    "bool": FeatureKind.INT64,
    "int": FeatureKind.INT64,
    "float": FeatureKind.FLOAT,
    "string": FeatureKind.BYTES,
}
_BOOLS = {"true": 1, "false": 0, "1": 1, "0": 0}
_BOOL = re.compile(r"(?i:true|false)\Z")
# Numbers as a program would write them: `007`, a code, is none, and stays text.
_INT = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(
    r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z|(?i:nan|[+-]?inf(inity)?)\Z"
)
# How many texts a survey remembers, so as to look at them once.
_MAX_KNOWN = 256
_MAX_FLOAT32 = (2 - 2**-23) * 2.0**127

_list_decoder = msgspec.json.Decoder(list[Any])


class CellError(ValueError):
    """A cell cannot be used; the message says why."""


class ColumnType(msgspec.Struct, frozen=True):
    """What a column's cells are.

    Attributes:
        base: The type of each value.
        form: `one` value, `optional`: one or none, or a `list` of any number.
    """

    base: Base
    form: Literal["one", "optional", "list"] = "one"

    def __str__(self) -> str:
        if self.form == "list":
            return f"list[{self.base}]"
        return f"{self.base}?" if self.form == "optional" else self.base


def parse_type(text: str) -> ColumnType | None:
    """Reads a type as a config names it; None where there is no such type."""
    match = _TYPE.match(text)
    if match is None:
        return None
    base: Any = match[1] or match[3]
    return ColumnType(base, "list" if match[3] else "optional" if match[2] else "one")


def column_feature(name: str, column: ColumnType, *, per_object: bool) -> ExtraFeature:
    """Describes the feature that a column becomes.

    A value that is missing for an object, of which there must be one, is NaN or -1.
    """
    unknown: dict[str, Value] = {"float": math.nan, "string": ""}
    return ExtraFeature(
        FeatureSpec(
            name,
            _KINDS[column.base],
            repeated=per_object or column.form != "one",
            role=FeatureRole.TEXT if column.base == "string" else FeatureRole.VALUE,
        ),
        per_object=per_object,
        default=unknown.get(column.base, -1) if per_object else None,
    )


class ColumnSurvey:
    """What the cells of a column are, gathered one by one.

    Args:
        distinct: How many different texts to keep; with one more the column has too many.
        numbers: Whether to keep the range of its numbers.
        names: Whether to look out for names of image files.

    Attributes:
        cells: How many cells were added.
        bases: Types of the values that were seen.
        has_list: Whether a cell holds a list.
        has_missing: Whether a cell holds nothing.
        texts: Different texts, as far as they are kept, in order of appearance.
        low: The smallest number.
        high: The greatest number.
        has_image_name: Whether a text ends like the name of an image file.
    """

    def __init__(self, *, distinct: int = 0, numbers: bool = False, names: bool = False) -> None:
        self.cells = 0
        self.bases: set[Base] = set()
        self.has_list = False
        self.has_missing = False
        self.texts: dict[str, None] = {}
        self.low = math.inf
        self.high = -math.inf
        self.has_image_name = False
        self._distinct = distinct
        self._numbers = numbers
        self._names = names
        # Many columns hold a few values again and again.
        self._known: set[str] = set()

    @property
    def is_settled(self) -> bool:
        """Whether no further cell can change the column's type, when cells are text."""
        looks_out = self._names and not self.has_image_name
        return "string" in self.bases and not (self._distinct or self._numbers or looks_out)

    def add_text(self, text: str) -> None:
        """Adds a cell of a CSV file."""
        self.cells += 1
        if text in self._known:
            return
        if len(self._known) < _MAX_KNOWN:
            self._known.add(text)
        stripped = text.strip()
        if not stripped:
            self.has_missing = True
            return
        self._note_text(stripped)
        base = _base_of_text(stripped)
        if base == "string" and stripped.startswith("[") and stripped.endswith("]"):
            try:
                values = _list_decoder.decode(stripped)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                values = None
            if values is not None and not any(isinstance(value, (dict, list)) for value in values):
                self.has_list = True
                for value in values:
                    self._add_value(value)
                return
        self.bases.add(base)
        if self._numbers and base in ("int", "float"):
            self._add_number(float(stripped))

    def add_json(self, value: object) -> None:
        """Adds a cell of a JSON Lines file; None where a row has none."""
        self.cells += 1
        if value is None:
            self.has_missing = True
        elif isinstance(value, list):
            self.has_list = True
            for item in value:
                self._add_value(item)
        else:
            self._add_value(value)

    def column_type(self, *, empty_is_text: bool) -> ColumnType:
        """Returns the type that all cells have.

        Args:
            empty_is_text: Whether a missing text is an empty one.
        """
        base: Base = "string"
        if len(self.bases) == 1:
            (base,) = self.bases
        elif self.bases == {"int", "float"}:
            base = "float"
        if self.has_list:
            return ColumnType(base, "list")
        optional = self.has_missing and not (empty_is_text and base == "string")
        return ColumnType(base, "optional" if optional else "one")

    def _add_value(self, value: object) -> None:
        base = _base_of_value(value)
        self.bases.add(base)
        if self._distinct or self._names:
            self._note_text(json_text(value).strip())
        if self._numbers and isinstance(value, (int, float)):
            self._add_number(float(value) if abs(value) < 2**63 else math.inf)

    def _note_text(self, text: str) -> None:
        if self._distinct and len(self.texts) <= self._distinct:
            self.texts[text] = None
        if self._names and not self.has_image_name:
            self.has_image_name = is_image_name(text)

    def _add_number(self, number: float) -> None:
        # What is not a number makes the range infinite.
        self.low = -math.inf if number != number else min(self.low, number)
        self.high = math.inf if number != number else max(self.high, number)


def read_text(text: str, column: ColumnType) -> tuple[Value, ...]:
    """Reads a cell of a CSV file.

    Raises:
        CellError: It is not of the column's type.
    """
    if column.base == "string" and column.form == "one":
        return (text,)
    stripped = text.strip()
    if not stripped:
        return _nothing(column)
    if column.form != "list":
        return (_text_value(stripped if column.base != "string" else text, column.base),)
    try:
        values = _list_decoder.decode(stripped)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise CellError(f"expected a JSON list such as [1, 2], got {_shown(text)}") from None
    return tuple(_json_value(value, column.base) for value in values)


def read_json(value: object, column: ColumnType) -> tuple[Value, ...]:
    """Reads a cell of a JSON Lines file; None where a row has none.

    Raises:
        CellError: It is not of the column's type.
    """
    if value is None:
        return _nothing(column)
    if column.form == "list":
        values = value if isinstance(value, list) else [value]
        return tuple(_json_value(item, column.base) for item in values)
    return (_json_value(value, column.base),)


def json_text(value: object) -> str:
    """A text as it is, any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def are_class_ids(survey: ColumnSurvey, *, limit: int) -> bool:
    """Whether a column of labels holds nothing but ids of classes, 0 to `limit`."""
    return survey.bases == {"int"} and survey.low >= 0 and survey.high <= limit


def join_names(names: Iterable[str]) -> str:
    """Shows some of a table's columns."""
    shown = list(names)
    return ", ".join(shown[:30]) + (", ..." if len(shown) > 30 else "") or "none"


def first_of(candidates: Iterable[str], names: Collection[str]) -> str:
    """Finds the first of some names, whatever its case, spaces, `_` and `-`; empty if none."""
    by_plain = {_plain(name): name for name in reversed(list(names))}
    return next((by_plain[name] for name in candidates if name in by_plain), "")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def _nothing(column: ColumnType) -> tuple[Value, ...]:
    if column.form == "one":
        raise CellError(f"expected {column.base}, found nothing")
    return ()


def _base_of_text(text: str) -> Base:
    if _INT.match(text):
        return "int" if _fits_int64(text) else "string"
    if _FLOAT.match(text):
        return "float" if _fits_float32(float(text)) else "string"
    return "bool" if _BOOL.match(text) else "string"


def _base_of_value(value: object) -> Base:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "string"
    if isinstance(value, float):
        return "float" if _fits_float32(value) else "string"
    return "string"


def _text_value(text: str, base: Base) -> Value:
    if base == "string":
        return text
    if base == "bool":
        flag = _BOOLS.get(text.casefold())
        if flag is not None:
            return flag
    elif base == "int":
        if _INT.match(text) and _fits_int64(text):
            return int(text)
    elif _FLOAT.match(text) and _fits_float32(float(text)):
        return float(text)
    raise CellError(f"expected {base}, got {_shown(text)}")


def _json_value(value: object, base: Base) -> Value:
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
    elif isinstance(value, (int, float)) and abs(value) <= _MAX_FLOAT32:
        return float(value)
    raise CellError(f"expected {base}, got {_shown(json_text(value))}")


def _fits_int64(text: str) -> bool:
    # Python refuses to read integers of thousands of digits.
    return len(text) <= 20 and -(2**63) <= int(text) < 2**63


def _fits_float32(value: float) -> bool:
    return not math.isfinite(value) or abs(value) <= _MAX_FLOAT32


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else f"{text[:57]}...")
