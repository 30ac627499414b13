"""Reads the rows of a table whose columns are known."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    Value,
    encode_annotations,
)
from shardbeam.transforms.examples.geometry.box_readings import CORNERS
from shardbeam.transforms.formats.names import escape_key, key_problem, normalize_key
from shardbeam.transforms.formats.parsing.root_files import TableRoots
from shardbeam.transforms.formats.parsing.table_columns import (
    CellError,
    ColumnType,
    json_text,
    missing_value,
    read_cell,
    value_of_text,
)
from shardbeam.transforms.formats.table.layout import (
    DISCARD,
    MAX_CLASS_ID,
    TableKeys,
    TableLayout,
    split_name,
)
from shardbeam.transforms.formats.table.table_boxes import (
    Row,
    flag_text,
    four_numbers,
    image_name,
    is_missing,
)

# pandas writes whole numbers with `.0` if a cell of their column is empty.
_CLASS_ID = re.compile(r"([0-9]{1,9})(?:\.0*)?", re.ASCII)
# A box in fractions may reach a little beyond the image; one further out is in pixels, or wrong.
MIN_FRACTION, MAX_FRACTION = -1.0, 2.0
_NUMBER = ColumnType("float", "optional")


class RowReader:
    """Reads rows as entries of annotations.

    Args:
        keys: The keys of the table.
        layout: Its columns.
    """

    def __init__(self, keys: TableKeys, layout: TableLayout) -> None:
        self._keys = keys
        self._layout = layout

    def read_rows(
        self, rows: Iterable[tuple[int, Row | str]], *, file_index: int, unit: str
    ) -> Iterator[AnnotationEntry | Category]:
        """Reads rows, and declares the classes of their labels.

        Args:
            rows: `(position, row)`, or `(position, problem)` for a row that cannot be read.
            file_index: Number of their file.
            unit: The unit of positions, such as `line`.
        """
        seen: set[tuple[str, int | None]] = set()
        for position, row in rows:
            yield self._read_row(
                row,
                file_index=file_index,
                position=position,
                place=f"{self._keys.file_names[file_index]}: {unit} {position}",
                seen=seen,
            )
        classes = sorted(seen, key=lambda each: (each[0], each[1] or 0))
        if self._layout.one_hot:
            classes = [(name, id_) for id_, name in enumerate(class_names(self._layout.one_hot))]
        for name, source_id in classes:
            yield Category(name=name, source_id=source_id, origin=self._keys.manifest[file_index])

    def _read_row(
        self,
        row: Row | str,
        *,
        file_index: int,
        position: int,
        place: str,
        seen: set[tuple[str, int | None]],
    ) -> AnnotationEntry:
        layout = self._layout
        # Other rows may say more about the image.
        is_part = layout.boxes or layout.per_row
        key, annotations, split = place, b"", ""
        exclusion: Exclusion | None = None
        defect: Reason | None = None
        detail = ""
        try:
            if isinstance(row, str):
                raise CellError(row)
            split = split_name(row.get(layout.split)) if layout.split else ""
            if split == DISCARD:
                exclusion = Exclusion.DISCARDED
            elif self._keys.splits is not None and split and split not in self._keys.splits:
                exclusion = Exclusion.IN_NO_SPLIT
            if layout.image:
                key = self.image_key(row.get(layout.image))
            if exclusion is None:
                found = self.annotations(row)
                names = (*found.labels, *(item.label for item in found.objects))
                seen.update((name, self.class_id(row, name)) for name in names)
                annotations = encode_annotations(found)
                if split and split not in layout.splits:
                    detail = f"{place}: the first rows name no split {split!r}; name it in splits"
        except CellError as error:
            key, defect, detail = error.key or key, error.reason, f"{place}: {error}"
        return AnnotationEntry(
            key=key,
            annotations=annotations,
            file_index=file_index,
            position=position,
            # Two rows of an image cannot be merged if they give features of the whole image.
            origin=place if layout.image and layout.columns and not is_part else "",
            defect=defect,
            detail=detail,
            split=split if exclusion is None else "",
            exclusion=exclusion,
        )

    def image_key(self, cell: object) -> str:
        """Returns the key of the image that a cell names."""
        name = "" if cell is None else image_name(str(cell).strip())
        if not name:
            raise CellError(f"the column {self._layout.image} names no image")
        return key_of_image(name, roots=self._keys.table_roots, match=self._keys.match)

    def annotations(self, row: Row) -> ImageAnnotations:
        """Reads a row's annotations of its image."""
        layout = self._layout
        labels = self._labels(row)
        values = {
            name: self._column_value(row, name, column)
            for name, column in self._layout.columns.items()
        }
        if layout.per_row:
            missing = {name: missing_value(column) for name, column in layout.columns.items()}
            values = {name: found or (missing[name],) for name, found in values.items()}
        if not layout.boxes:
            return ImageAnnotations(
                image_id="",
                labels=tuple(dict.fromkeys(labels)),
                captions=tuple(self._captions(row)),
                values=values,
            )
        width, height = 0, 0
        if layout.size:
            width, height = (
                int(side) if side is not None and 0 <= side < 2**31 else 0
                for side in self._numbers(row, layout.size)
            )
        objects: tuple[ObjectAnnotation, ...] = ()
        sides = self._box_numbers(row)
        if any(side is not None for side in sides):
            bbox = CORNERS[layout.box_format](*map(self._side, sides))
            if len(labels) != 1:
                raise CellError(f"expected one label of the box, got {len(labels)}")
            objects = (
                ObjectAnnotation(
                    label=labels[0],
                    bbox=bbox,
                    attributes={name: found[0] for name, found in values.items() if found},
                ),
            )
        elif labels:
            raise CellError("a label without a box; where an image has no objects, leave both out")
        return ImageAnnotations(
            image_id="",
            width=width,
            height=height,
            objects=objects,
            normalized=layout.normalized,
        )

    def _labels(self, row: Row) -> list[str]:
        """Reads a cell of labels: a text, a number, or a list of these.

        A text is one label, a JSON list, or several labels with the separator between them.
        """
        if self._layout.one_hot:
            return class_names(name for name in self._layout.one_hot if self._is_one(row, name))
        # pandas writes row numbers in a column without a name, so `row.get("")` may find one.
        if not self._layout.label:
            return []
        cell = row.get(self._layout.label)
        if isinstance(cell, str) and self._keys.label_separator is not None:
            cell = cell.split(self._keys.label_separator)
        elif isinstance(cell, str):
            value = value_of_text(cell)
            cell = value if isinstance(value, list) else cell
        values = cell if isinstance(cell, list) else [] if is_missing(cell) else [cell]
        if any(isinstance(value, (dict, list)) or value is None for value in values):
            raise CellError(f"expected a label or a list of labels, got {json_text(cell)[:60]!a}")
        labels = class_names(map(json_text, values))
        if not self._layout.class_ids:
            return labels
        ids = [_CLASS_ID.fullmatch(label) for label in labels]
        numbers = [int(match[1]) for match in ids if match is not None]
        if len(numbers) < len(labels) or max(numbers, default=0) > MAX_CLASS_ID:
            raise CellError(f"expected ids of classes, got {', '.join(labels)[:60]!a}")
        return list(map(str, numbers))

    def class_id(self, row: Row, name: str) -> int | None:
        """Returns the id that a row gives its class; None if classes have names alone."""
        if self._layout.class_ids:
            return int(name)
        if not self._layout.label_ids:
            return None
        text = json_text(row.get(self._layout.label_ids)).strip()
        match = _CLASS_ID.fullmatch(text)
        if match is None or int(match[1]) > MAX_CLASS_ID:
            column = self._layout.label_ids
            raise CellError(f"column {column}: expected the id of class {name}, got {text[:60]!a}")
        return int(match[1])

    def _captions(self, row: Row) -> Iterator[str]:
        if not self._layout.caption:
            return
        cell = row.get(self._layout.caption)
        listed = (
            value_of_text(cell) if self._keys.cells_are_text and isinstance(cell, str) else cell
        )
        for value in listed if isinstance(listed, list) else [cell]:
            if isinstance(value, (dict, list)):
                raise CellError(f"expected a caption, got {json_text(value)[:60]!a}")
            text = "" if value is None else json_text(value).strip()
            if text:
                yield text

    def _is_one(self, row: Row, name: str) -> bool:
        values = self._keys.one_hot_values
        if values and (meaning := values.get(flag_text(row.get(name)))) is not None:
            return meaning == 1
        try:
            (value,) = self._column_value(row, name, ColumnType("int"))
        except CellError as error:
            raise CellError(f"{error}; one_hot_values says what other cells mean") from error
        no = -1 if self._layout.has_signs else 0
        if value not in (no, 1):
            raise CellError(
                f"column {name}: expected {no} or 1, got {value}; one_hot_values says what other "
                "cells mean"
            )
        return value == 1

    def _side(self, side: float | None) -> float:
        if side is None or not abs(side) < 2**31:
            raise CellError("expected four finite numbers of a box")
        if self._layout.normalized and not MIN_FRACTION <= side <= MAX_FRACTION:
            says = "box_units says" if self._keys.box_units else "in the table's first rows"
            raise CellError(f"expected a box in fractions, as {says}")
        return side

    def _column_value(
        self, row: Row, name: str, column: ColumnType, *, is_text: bool = False
    ) -> tuple[Value, ...]:
        try:
            return read_cell(row.get(name), column, is_text=is_text or self._keys.cells_are_text)
        except CellError as error:
            raise CellError(f"column {name}: {error}") from error

    def _box_numbers(self, row: Row) -> Sequence[float | None]:
        if len(self._layout.boxes) > 1:
            return self._numbers(row, self._layout.boxes)
        (name,) = self._layout.boxes
        cell = row.get(name)
        if is_missing(value_of_text(cell) if isinstance(cell, str) else cell):
            return [None]
        numbers = four_numbers(cell)
        if numbers is None:
            text = json_text(cell)[:60]
            raise CellError(f"column {name}: expected the four numbers of a box, got {text!a}")
        return numbers

    def _numbers(self, row: Row, names: Sequence[str]) -> list[float | None]:
        found = [self._column_value(row, name, _NUMBER, is_text=True) for name in names]
        # NaN is how pandas may write an empty cell.
        return [float(it[0]) if it and not is_missing(it[0]) else None for it in found]


def key_of_image(name: str, *, roots: TableRoots | None, match: str) -> str:
    """Returns the key, or what `match` joins by, of an image that a row names.

    Raises:
        CellError: The name cannot be a key, or lies in none of the roots.
    """
    problem = key_problem(name)
    if problem is not None:
        raise CellError(problem, reason=Reason.UNREADABLE_NAME, key=escape_key(name))
    key = None if roots is None else roots.key_of(name)
    if key is None and roots is not None and match != "path":
        return normalize_key(name)
    if key is None:
        # No listed image has this key.
        raise CellError(
            "the image lies in none of the image_root folders",
            reason=Reason.OUTSIDE_ROOTS,
            key=name,
        )
    return key


def class_names(labels: Iterable[str]) -> list[str]:
    """Turns labels into names of classes, and leaves empty ones out.

    Raises:
        CellError: A label holds NUL or several lines, perhaps because of an open quote.
    """
    stripped = (unicodedata.normalize("NFC", label.strip()) for label in labels)
    names = [name for name in stripped if name]
    for name in names:
        if "\0" in name or name.splitlines() != [name]:
            raise CellError(f"expected a label of one line, got {name[:60]!a}")
    return names
