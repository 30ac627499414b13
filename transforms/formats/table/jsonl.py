"""JSON Lines: an object on each line, such as Vertex AI's image import.

The forms: https://jsonlines.org; Vertex AI's `image_classification_single_label_io_format_1.0.0`
and its siblings for several labels and for boxes
(https://cloud.google.com/vertex-ai/docs/image-data/classification/prepare-data).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
)
from shardbeam.transforms.formats.annotation_file import decode_row, with_replaced
from shardbeam.transforms.formats.parsing.lines import read_lines
from shardbeam.transforms.formats.parsing.table_columns import CellError, value_of_text
from shardbeam.transforms.formats.table.layout import TableLayout
from shardbeam.transforms.formats.table.rows import (
    MAX_FRACTION,
    MIN_FRACTION,
    RowReader,
    class_names,
)
from shardbeam.transforms.formats.table.table import TableFormat
from shardbeam.transforms.formats.table.table_boxes import Row
from shardbeam.transforms.storage.base import Storage

# Vertex AI's keys.
_URI = "imageGcsUri"
_SINGLE = "classificationAnnotation"
_SEVERAL = "classificationAnnotations"
_BOXES = "boundingBoxAnnotations"
_RESOURCE_LABELS = "dataItemResourceLabels"
_ML_USE = "aiplatform.googleapis.com/ml_use"
_SIDES = ("xMin", "yMin", "xMax", "yMax")

_row_decoder = JsonDecoder(dict[str, Any])


class _RowWithSurrogates(dict[str, Any]):
    """A row whose lone surrogates were replaced."""

    lone_surrogates = 0


class JsonLinesFormat(TableFormat, frozen=True, kw_only=True):
    """JSON Lines, read in parts by several workers."""

    SUMMARY = "JSON Lines tables: a row per image, with labels or objects, or without images"
    cells_are_text = False
    extensions = (".jsonl",)
    chunk_bytes = 32 << 20

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses a part of one file."""
        rows = _read_rows(self.manifest[file_index], storage=storage, begin=begin, end=end)
        yield from self._row_reader().read_rows(rows, file_index=file_index, unit="byte")

    def first_rows(
        self, uri: str, *, storage: Storage, size_bytes: int
    ) -> tuple[Sequence[str], Sequence[Row]]:
        """Reads the keys of the first rows, and these."""
        found = list(_read_rows(uri, storage=storage, begin=0, end=size_bytes))
        rows = [row for _, row in found if not isinstance(row, str)]
        if found and not rows:
            position, problem = found[0]
            raise InputError(
                uri=uri,
                problem=f"no line holds a JSON object; byte {position}: {problem}",
            )
        return [*dict.fromkeys(name for row in rows for name in row)], rows

    def all_rows(self, uri: str, *, storage: Storage) -> Iterator[tuple[int, Row | str]]:
        """Reads all rows; a row's position is its byte."""
        return _read_rows(uri, storage=storage, begin=0, end=sys.maxsize)

    def _find_layout(self, names: Sequence[str], rows: Sequence[Row]) -> TableLayout:
        if self.table_roots is None or _BOXES not in names or _BOXES in self.columns:
            return super()._find_layout(names, rows)
        layout = super()._find_layout([name for name in names if name != _BOXES], rows)
        if layout.boxes:
            return layout
        return msgspec.structs.replace(
            layout, objects=_BOXES, class_ids=False, names=frozenset(names)
        )

    def _row_reader(self) -> RowReader:
        return _JsonRowReader(self, self._layout)


class _JsonRowReader(RowReader):
    def annotations(self, row: Row) -> ImageAnnotations:
        """Reads a row's annotations of its image, and Vertex AI's objects."""
        strange = row.keys() - self._layout.names - self._keys.columns.keys()
        if strange:
            raise CellError(
                f"the first rows have no key {min(strange)!r}; give it a type with columns, or "
                "ignore it there"
            )
        annotations = super().annotations(row)
        if isinstance(row, _RowWithSurrogates):
            annotations = with_replaced(annotations, row.lone_surrogates)
        if not self._layout.objects:
            return annotations
        return msgspec.structs.replace(
            annotations, objects=tuple(_read_boxes(row.get(_BOXES))), normalized=True
        )


def _read_rows(
    uri: str, *, storage: Storage, begin: int, end: int
) -> Iterator[tuple[int, Row | str]]:
    """Yields `(position, row)`, or `(position, problem)` for a line that is not a row."""
    for position, line in read_lines(uri, storage=storage, begin=begin, end=end):
        if not line or line.isspace():
            continue
        row: Row | str
        try:
            decoded, lone = decode_row(line, decoder=_row_decoder)
            row = _flatten(decoded)
            if lone:
                row = _RowWithSurrogates(row)
                row.lone_surrogates = lone
        except msgspec.ValidationError as error:
            is_object = line.lstrip().startswith(b"{")
            row = str(error) if is_object else "expected a JSON object"
        except RecursionError:
            row = "the JSON is nested too deeply"
        except (CellError, msgspec.DecodeError, UnicodeError) as error:
            row = str(error)
        yield position, row


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    """Moves Vertex AI's labels and split out of their wrappers.

    Raises:
        CellError: The wrappers have another form.
    """
    if _URI not in row:
        return row
    single = row.pop(_SINGLE, None)
    several = row.pop(_SEVERAL, None)
    resource_labels = row.pop(_RESOURCE_LABELS, None) or {}
    if not isinstance(resource_labels, dict):
        raise CellError(f"{_RESOURCE_LABELS}: expected an object")
    if several is not None and not isinstance(several, list):
        raise CellError(f"{_SEVERAL}: expected a list")
    place = _SEVERAL if single is None else _SINGLE
    labels = [
        _display_name(annotation, place=place)
        for annotation in [*([] if single is None else [single]), *(several or [])]
    ]
    if single is not None or several is not None:
        row.setdefault("label", labels)
    if _ML_USE in resource_labels:
        row.setdefault("ml_use", resource_labels[_ML_USE])
    return row


def _read_boxes(cell: object) -> Iterator[ObjectAnnotation]:
    boxes = [] if cell is None else cell
    if not isinstance(boxes, list):
        raise CellError(f"{_BOXES}: expected a list")
    for index, box in enumerate(boxes):
        place = f"{_BOXES}[{index}]"
        label = _display_name(box, place=place)
        cells = [box.get(side) for side in _SIDES]
        sides: list[Any] = [value_of_text(it) if isinstance(it, str) else it for it in cells]
        for side in sides:
            if (
                isinstance(side, bool)
                or not isinstance(side, (int, float))
                or not MIN_FRACTION <= side <= MAX_FRACTION
            ):
                raise CellError(
                    f"{place}: expected {', '.join(_SIDES)} in fractions of the image's sides"
                )
        xmin, ymin, xmax, ymax = map(float, sides)
        yield ObjectAnnotation(label=label, bbox=(xmin, ymin, xmax, ymax))


def _display_name(annotation: object, *, place: str) -> str:
    name = annotation.get("displayName") if isinstance(annotation, dict) else None
    if not isinstance(name, str):
        raise CellError(f"{place}: expected an object with a displayName")
    for label in class_names([name]):
        return label
    raise CellError(f"{place}: the displayName is empty")
