"""Rows of Open Images' CSV files: boxes, image-level labels, class descriptions."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ObjectAnnotation, Value
from shardbeam.transforms.formats.annotation_file import (
    decode_text,
    foreign_content,
    read_annotation_file,
)
from shardbeam.transforms.formats.line_chunks import binary_problem, read_first_line
from shardbeam.transforms.storage.base import Storage

CONFIDENCE = "image/object/confidence"
ABSENT_LABELS = "image/class/absent/label"
ABSENT_TEXTS = "image/class/absent/text"
# {column: Example key} of what is known of a box: 1 yes, 0 no, -1 unknown.
ATTRIBUTES = {
    "IsOccluded": "image/object/occluded",
    "IsTruncated": "image/object/truncated",
    "IsGroupOf": "image/object/group_of",
    "IsDepiction": "image/object/depiction",
    "IsInside": "image/object/inside",
}
_SIDES = ("XMin", "YMin", "XMax", "YMax")
_FLAGS = {b"1": 1, b"-1": -1, b"": -1}
# A box may reach a little over the image; further out it is in pixels, or nonsense.
_MIN_FRACTION, _MAX_FRACTION = -1.0, 2.0


class RowError(ValueError):
    """A row cannot be used; the message says why."""


class Labels:
    """The classes of labels.

    Attributes:
        seen: Names of the classes that rows named.
    """

    def __init__(self, names: Mapping[str, str] | None) -> None:
        """Prepares the classes.

        Args:
            names: `{label: class name}`; None where labels are the names.
        """
        self._names = names
        self._found: dict[bytes, str | None] = {}
        self.seen: set[str] = set()

    def find(self, label: bytes) -> str | None:
        """Gives the name of a label's class; None where there is no such class.

        Raises:
            RowError: The label is empty or no text.
        """
        try:
            return self._found[label]
        except KeyError:
            pass
        try:
            text = unicodedata.normalize("NFC", label.decode())
        except UnicodeDecodeError as error:
            raise RowError("LabelName is not valid UTF-8") from error
        if not text or "\0" in text or text.splitlines() != [text]:
            raise RowError(f"LabelName: expected a label, got {text!r}")
        name = text if self._names is None else self._names.get(text)
        if name is not None:
            self.seen.add(name)
        self._found[label] = name
        return name


class BoxRow:
    """Reads rows of boxes.

    Attributes:
        count: How many columns there are.
        image_id: Which of them is the image's id.
    """

    def __init__(self, uri: str, *, storage: Storage, labels: Labels) -> None:
        """Reads the file's header.

        Raises:
            InputError: The file cannot be read, or lacks a column.
        """
        self.count, at = _read_columns(
            uri,
            storage=storage,
            required=("ImageID", "LabelName", *_SIDES),
            optional=("Confidence", *ATTRIBUTES),
        )
        self.image_id = at["ImageID"]
        self._labels = labels
        self._label = at["LabelName"]
        self._sides = [at[side] for side in _SIDES]
        self._confidence = at.get("Confidence")
        self._flags = [(at.get(column), key) for column, key in ATTRIBUTES.items()]

    def read(self, cells: Sequence[bytes]) -> ObjectAnnotation | None:
        """Reads one row; None where its class is unknown.

        Raises:
            RowError: It cannot be used.
        """
        try:
            xmin, ymin, xmax, ymax = [float(cells[side]) for side in self._sides]
        except ValueError:
            raise RowError(f"{', '.join(_SIDES)}: expected numbers") from None
        # What is not a number is not in range either.
        if not (
            _MIN_FRACTION <= xmin <= _MAX_FRACTION
            and _MIN_FRACTION <= ymin <= _MAX_FRACTION
            and _MIN_FRACTION <= xmax <= _MAX_FRACTION
            and _MIN_FRACTION <= ymax <= _MAX_FRACTION
        ):
            raise RowError(
                "expected a box in fractions of the image's sides, got "
                f"{xmin}, {ymin}, {xmax}, {ymax}"
            )
        attributes: dict[str, Value] = {}
        if self._confidence is not None and cells[self._confidence] != b"1":
            confidence = _read_confidence(cells[self._confidence])
            if confidence != 1:
                attributes[CONFIDENCE] = confidence
        for position, key in self._flags:
            cell = b"-1" if position is None else cells[position]
            # What is 0 is not carried along: it is the feature's default.
            if cell != b"0":
                if cell not in _FLAGS:
                    raise RowError(f"{key.rpartition('/')[2]}: expected 0, 1 or -1")
                attributes[key] = _FLAGS[cell]
        label = self._labels.find(cells[self._label])
        if label is None:
            return None
        return ObjectAnnotation(label=label, bbox=(xmin, ymin, xmax, ymax), attributes=attributes)


class LabelRow:
    """Reads rows of image-level labels; attributes as for `BoxRow`."""

    def __init__(self, uri: str, *, storage: Storage, labels: Labels) -> None:
        """Reads the file's header; raises as `BoxRow` does."""
        self.count, at = _read_columns(
            uri, storage=storage, required=("ImageID", "LabelName", "Confidence"), optional=()
        )
        self.image_id = at["ImageID"]
        self._labels = labels
        self._label = at["LabelName"]
        self._confidence = at["Confidence"]

    def read(self, cells: Sequence[bytes]) -> tuple[str, float] | None:
        """Reads one row: a class and the confidence in it; None where it is unknown.

        Raises:
            RowError: It cannot be used.
        """
        confidence = _read_confidence(cells[self._confidence])
        label = self._labels.find(cells[self._label])
        return None if label is None else (label, confidence)


def split_cells(line: bytes, *, count: int) -> list[bytes]:
    """Splits a line into its cells, without the spaces around them.

    Args:
        line: The line.
        count: How many cells it must have.

    Raises:
        RowError: It has another number of cells, or a quote that does not end.
    """
    cells = _split_quoted(line) if b'"' in line else line.split(b",")
    if len(cells) != count:
        raise RowError(f"expected {count} cells, got {len(cells)}")
    return [cell.strip() for cell in cells] if b" " in line or b"\t" in line else cells


def read_class_names(uri: str, *, storage: Storage) -> dict[str, str]:
    """Reads a file of class descriptions: `{label: class name}`, in its order.

    A first line `LabelName,DisplayName` is a header. Of classes with one name each gets its
    label added.

    Raises:
        InputError: The file cannot be read, holds no classes, or a row without a label, or a
            label twice.
    """
    data = read_annotation_file(uri, storage=storage)
    foreign = foreign_content(data)
    if foreign is not None:
        raise InputError(uri=uri, problem=foreign)
    text = decode_text(data, uri=uri)
    names: dict[str, str] = {}
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            cells = [unicodedata.normalize("NFC", cell.strip()) for cell in row]
            if not any(cells) or (not names and cells[0].casefold() == "labelname"):
                continue
            place = f"line {reader.line_num}"
            if len(cells) < 2 or not cells[0]:
                raise InputError(
                    uri=uri, place=place, problem="expected a label and a name: /m/0abc,Name"
                )
            if cells[0] in names:
                raise InputError(uri=uri, place=place, problem=f"{cells[0]!r} is there twice")
            # A name may hold the comma that should have been quoted.
            name = ", ".join(cells[1:])
            if len(name.splitlines()) > 1:
                raise InputError(
                    uri=uri, place=place, problem="expected a name of one line; is a quote open?"
                )
            names[cells[0]] = name or cells[0]
    except csv.Error as error:
        raise InputError(uri=uri, place=f"line {reader.line_num}", problem=str(error)) from error
    if not names:
        raise InputError(uri=uri, problem="the file names no classes")
    shared = {name for name, count in Counter(names.values()).items() if count > 1}
    return {label: f"{name} ({label})" if name in shared else name for label, name in names.items()}


def _read_columns(
    uri: str, *, storage: Storage, required: Sequence[str], optional: Sequence[str]
) -> tuple[int, dict[str, int]]:
    """Reads the header: how many columns there are, and where the known ones stand."""
    header = read_first_line(uri, storage=storage)
    binary = binary_problem(header)
    if binary is not None:
        raise InputError(uri=uri, problem=binary)
    try:
        cells = [cell.decode().strip() for cell in _split_quoted(header)]
    except (RowError, UnicodeDecodeError) as error:
        raise InputError(uri=uri, place="line 1", problem=f"no header: {error}") from error
    found: dict[str, int] = {}
    known = {column.casefold(): column for column in (*required, *optional)}
    for position, cell in enumerate(cells):
        column = known.get(cell.casefold())
        if column in found:
            raise InputError(uri=uri, place="line 1", problem=f"the column {column} is there twice")
        if column is not None:
            found[column] = position
    missing = [column for column in required if column not in found]
    if missing:
        there = ", ".join(cells)[:200] or "none"
        raise InputError(
            uri=uri,
            place="line 1",
            problem=f"the columns {', '.join(missing)} are missing; those that are there: {there}",
        )
    return len(cells), found


def _split_quoted(line: bytes) -> list[bytes]:
    # Any bytes survive as text of Latin-1, in which the delimiters stand where they do in UTF-8.
    try:
        rows = list(csv.reader([line.decode("latin-1")], strict=True))
    except csv.Error as error:
        raise RowError(str(error)) from error
    return [cell.encode("latin-1") for cell in rows[0]] if rows else []


def _read_confidence(cell: bytes) -> float:
    try:
        confidence = float(cell)
    except ValueError:
        raise RowError("Confidence: expected a number") from None
    if not 0 <= confidence <= 1:
        raise RowError(f"Confidence: expected 0 to 1, got {confidence}")
    return confidence
