"""Reads the rows of Open Images' tables."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Value
from shardbeam.transforms.formats.names import key_problem
from shardbeam.transforms.formats.parsing.lines import read_lines
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.formats.table.csv_rows import OPEN_QUOTE, header_cells, split_cells
from shardbeam.transforms.formats.table.rows import MAX_FRACTION, MIN_FRACTION
from shardbeam.transforms.storage.base import Storage

# {column: Example key} of a box's attributes: 1 yes, 0 no, -1 unknown.
ATTRIBUTES = {
    "IsOccluded": "image/object/occluded",
    "IsTruncated": "image/object/truncated",
    "IsGroupOf": "image/object/group_of",
    "IsDepiction": "image/object/depiction",
    "IsInside": "image/object/inside",
}
SIDES = ("XMin", "YMin", "XMax", "YMax")
_FLAGS = {"1": 1, "-1": -1, "": -1}
CONFIDENCE = "image/object/confidence"
_Box = tuple[float, float, float, float]
# `(first byte, key, {column: cell}, problem)`: the key is the image's id, or the row's place if the
# id cannot be used; the problem is empty for a good row.
NumberedRow = tuple[int, str, Mapping[str, str], str]


def read_rows(
    uri: str,
    *,
    storage: Storage,
    columns: tuple[Sequence[str], Sequence[str]],
    begin: int,
    end: int,
) -> Iterator[NumberedRow]:
    """Reads the rows that begin in a part of a file, from `begin` to `end`.

    `columns` are the required and the optional columns.
    """
    name = uri.rpartition("/")[2]
    count, found = _find_columns(uri, storage=storage, columns=columns)
    last_id, key, bad_key = None, "", None
    for position, line in read_lines(uri, storage=storage, begin=begin, end=end):
        # The header, and blank lines.
        if position == 0 or not line or line.isspace():
            continue
        problem = ""
        # Bytes that are not UTF-8 matter only in the columns that are read.
        text = line.decode("utf-8", "surrogateescape")
        try:
            cells = split_cells(text)
            if len(cells) != count:
                problem = f"expected {count} cells, got {len(cells)}"
        except CellError as error:
            # If the id can be read, the bad row still belongs to the image.
            cells = text.split(",")
            problem = _problem_of(error)
        if " " in text or "\t" in text:
            cells = [cell.strip() for cell in cells]
        row = {column: cells[at] for column, at in found.items() if at < len(cells)}
        image_id = row.get("ImageID", "")
        if image_id != last_id:
            key = unicodedata.normalize("NFC", image_id)
            bad_key = key_problem(key)
            last_id = image_id
        if bad_key is None:
            yield position, key, row, problem
        else:
            yield position, f"{name}: byte {position}", row, f"ImageID: {bad_key}"


def read_box(cells: Mapping[str, str]) -> tuple[_Box, dict[str, Value]]:
    """Reads the box of a row and its attributes; raises CellError."""
    try:
        xmin, ymin, xmax, ymax = [float(cells[side]) for side in SIDES]
    except ValueError:
        raise CellError(f"{', '.join(SIDES)}: expected numbers") from None
    # NaN is not in range either.
    if not (
        MIN_FRACTION <= xmin <= MAX_FRACTION
        and MIN_FRACTION <= ymin <= MAX_FRACTION
        and MIN_FRACTION <= xmax <= MAX_FRACTION
        and MIN_FRACTION <= ymax <= MAX_FRACTION
    ):
        raise CellError(
            f"expected a box in fractions of the image's sides, got {xmin}, {ymin}, {xmax}, {ymax}"
        )
    attributes: dict[str, Value] = {}
    confidence = read_confidence(cells.get("Confidence", "1"))
    if confidence != 1:
        attributes[CONFIDENCE] = confidence
    for column, key in ATTRIBUTES.items():
        cell = cells.get(column, "-1")
        # 0 is the feature's default.
        if cell != "0":
            if cell not in _FLAGS:
                raise CellError(f"{key.rpartition('/')[2]}: expected 0, 1 or -1")
            attributes[key] = _FLAGS[cell]
    return (xmin, ymin, xmax, ymax), attributes


def read_confidence(cell: str) -> float:
    """Reads a cell of `Confidence`, from 0 to 1; raises CellError."""
    try:
        confidence = float(cell)
    except ValueError:
        raise CellError("Confidence: expected a number") from None
    if not 0 <= confidence <= 1:
        raise CellError(f"Confidence: expected 0 to 1, got {confidence}")
    return confidence


def read_class_names(uri: str, *, storage: Storage) -> dict[str, str]:
    """Reads a file of class descriptions: `{label: class name}`, in its order.

    A first line `LabelName,DisplayName` is a header. If classes share a name, their labels are
    added to it.
    """
    names: dict[str, str] = {}
    for number, (_, line) in enumerate(read_lines(uri, storage=storage), 1):
        try:
            cells = [
                unicodedata.normalize("NFC", cell.strip()) for cell in split_cells(line.decode())
            ]
            if not any(cells) or (not names and cells[0].casefold() == "labelname"):
                continue
            # A name may hold a comma that is not quoted.
            label, name = cells[0], ", ".join(cells[1:])
            if not label or not cells[1:]:
                raise CellError("expected a label and a name: /m/0abc,Name")
            if label in names:
                raise CellError(f"{label!r} occurs twice")
            if len(name.splitlines()) > 1:
                raise CellError("expected a name of one line")
        except (CellError, UnicodeDecodeError) as error:
            is_text = isinstance(error, CellError)
            raise InputError(
                uri=uri,
                place=f"line {number}",
                problem=_problem_of(error) if is_text else "expected UTF-8 text",
            ) from error
        names[label] = name or label
    if not names:
        raise InputError(uri=uri, problem="the file names no classes")
    shared = {name for name, count in Counter(names.values()).items() if count > 1}
    return {label: f"{name} ({label})" if name in shared else name for label, name in names.items()}


def _problem_of(error: Exception) -> str:
    problem = str(error)
    fix = '; a row is one line, with "" for a quote in a cell' if problem == OPEN_QUOTE else ""
    return f"{problem}{fix}"


def _find_columns(
    uri: str, *, storage: Storage, columns: tuple[Sequence[str], Sequence[str]]
) -> tuple[int, dict[str, int]]:
    """Reads the header; returns the number of columns, and the positions of the known ones."""
    required, optional = columns
    _, line = next(read_lines(uri, storage=storage, end=1), (0, b""))
    cells = header_cells(line, uri=uri)
    known = {column.casefold(): column for column in (*required, *optional)}
    found: dict[str, int] = {}
    problem = ""
    for position, cell in enumerate(cells):
        column = known.get(cell.casefold())
        if column in found:
            problem = f"the column {column} occurs twice"
        if column is not None:
            found[column] = position
    missing = [column for column in required if column not in found]
    if missing:
        there = ", ".join(cells)[:200] or "none"
        problem = f"the columns {', '.join(missing)} are missing; those that are there: {there}"
    if problem:
        raise InputError(uri=uri, place="line 1", problem=problem)
    return len(cells), found
