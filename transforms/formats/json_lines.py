"""JSON Lines: an object a line, Vertex AI's image import among them.

The forms: https://jsonlines.org; Vertex AI's `image_classification_single_label_io_format_1.0.0`
and its siblings for several labels and for boxes
(https://cloud.google.com/vertex-ai/docs/image-data/classification/prepare-data).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    Value,
)
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.line_chunks import read_lines
from shardbeam.transforms.formats.table import TableFormat, TableLayout, check_labels
from shardbeam.transforms.formats.table_columns import (
    CellError,
    ColumnSurvey,
    ColumnType,
    json_text,
    read_json,
)
from shardbeam.transforms.storage.base import Storage

# Vertex AI's keys.
_URI = "imageGcsUri"
_SINGLE = "classificationAnnotation"
_SEVERAL = "classificationAnnotations"
_BOXES = "boundingBoxAnnotations"
_RESOURCE_LABELS = "dataItemResourceLabels"
_ML_USE = "aiplatform.googleapis.com/ml_use"
_SIDES = ("xMin", "yMin", "xMax", "yMax")
# A box may reach a little over the image; further out it is in pixels, or nonsense.
_MIN_FRACTION, _MAX_FRACTION = -1.0, 2.0

_row_decoder = msgspec.json.Decoder(dict[str, Any])


class JsonLinesFormat(TableFormat, frozen=True, kw_only=True):
    """JSON Lines, read in parts by several workers."""

    chunk_bytes = 32 << 20

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses a part of one file; see the base class."""
        seen: set[str] = set()
        uri = self.manifest[file_index]
        for position, row in _read_rows(uri, storage=storage, begin=begin, end=end):
            place = f"byte {position}"
            if isinstance(row, str):
                yield self._bad_row(row, file_index=file_index, position=position, place=place)
                continue
            entry, labels = self._read_row(
                row, file_index=file_index, position=position, place=place
            )
            yield entry
            seen.update(labels)
        yield from self._categories(seen, file_index=file_index)

    def _survey(
        self, surveys: dict[str, ColumnSurvey], *, storage: Storage, file_index: int
    ) -> None:
        uri = self.manifest[file_index]
        stored = storage.stat(uri)
        # A file that is not there is refused by reading it.
        end = 1 if stored is None else stored.size_bytes
        before = {name: survey.cells for name, survey in surveys.items()}
        rows = 0
        problem = ""
        for position, row in _read_rows(uri, storage=storage, begin=0, end=end):
            if isinstance(row, str):
                problem = problem or f"byte {position}: {row}"
                continue
            rows += 1
            for name, value in row.items():
                survey = surveys.get(name)
                if survey is None:
                    survey = surveys[name] = self._new_survey(name)
                    survey.has_missing = bool(before)
                survey.add_json(value)
        if problem and not rows:
            raise InputError(
                uri=uri, problem=f"expected a JSON object a line, found none; {problem}"
            )
        for name, survey in surveys.items():
            if survey.cells - before.get(name, 0) < rows:
                survey.has_missing = True

    def _lay_out(self, surveys: Mapping[str, ColumnSurvey]) -> TableLayout:
        if self._roots is None or _BOXES not in surveys or _BOXES in self.columns:
            return super()._lay_out(surveys)
        layout = super()._lay_out(
            {name: survey for name, survey in surveys.items() if name != _BOXES}
        )
        if layout.boxes:
            return layout
        return msgspec.structs.replace(layout, kinds=(Kind.DETECTION,), class_ids=False)

    def _inferred(self, survey: ColumnSurvey, *, per_object: bool) -> str:
        column = survey.column_type(empty_is_text=False)
        if per_object and column.form == "list":
            return "string"
        return str(column)

    def _annotations(self, row: Mapping[str, Any]) -> ImageAnnotations:
        annotations = super()._annotations(row)
        if Kind.DETECTION not in self._layout.kinds:
            return annotations
        return msgspec.structs.replace(
            annotations, objects=tuple(_read_boxes(row.get(_BOXES))), normalized=True
        )

    def _read_cell(self, cell: Any, column: ColumnType) -> tuple[Value, ...]:  # noqa: ANN401  # Any JSON.
        return read_json(cell, column)

    def _read_labels(self, cell: Any) -> Iterable[str]:  # noqa: ANN401  # Any JSON.
        if isinstance(cell, str):
            return self._labels_of_text(cell)
        values = cell if isinstance(cell, list) else [] if cell is None else [cell]
        if any(isinstance(value, (dict, list)) or value is None for value in values):
            raise CellError(f"expected a label or a list of labels, got {json_text(cell)[:60]!a}")
        return map(json_text, values)


def _read_rows(
    uri: str, *, storage: Storage, begin: int, end: int
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yields `(position, row)`; where a line is no row, what is wrong with it in its place."""
    for position, line in read_lines(uri, storage=storage, begin=begin, end=end):
        if not line or line.isspace():
            continue
        row: dict[str, Any] | str
        try:
            row = _flatten(_row_decoder.decode(line))
        except CellError as error:
            row = str(error)
        except msgspec.ValidationError as error:
            is_object = line.lstrip().startswith(b"{")
            row = str(error) if is_object else "expected a JSON object"
        except (msgspec.DecodeError, UnicodeError) as error:
            row = str(error)
        except RecursionError:
            row = "the JSON is nested too deeply"
        yield position, row


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    """Takes Vertex AI's labels and split out of what they are wrapped in.

    Raises:
        CellError: They are not wrapped as there.
    """
    if _URI not in row:
        return row
    labels = []
    single = row.pop(_SINGLE, None)
    several = row.pop(_SEVERAL, None)
    resource_labels = row.pop(_RESOURCE_LABELS, None) or {}
    if not isinstance(resource_labels, dict):
        raise CellError(f"{_RESOURCE_LABELS}: expected an object")
    if several is not None and not isinstance(several, list):
        raise CellError(f"{_SEVERAL}: expected a list")
    for annotation in [*([] if single is None else [single]), *(several or [])]:
        labels.append(_display_name(annotation, place=_SEVERAL if single is None else _SINGLE))
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
        sides = [box.get(side) for side in _SIDES]
        for side in sides:
            if (
                isinstance(side, bool)
                or not isinstance(side, (int, float))
                or not _MIN_FRACTION <= side <= _MAX_FRACTION
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
    for label in check_labels([unicodedata.normalize("NFC", name.strip())]):
        return label
    raise CellError(f"{place}: the displayName is empty")
