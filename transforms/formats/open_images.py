"""Open Images: CSV files of boxes and of image-level labels, joined by image id.

The format: https://storage.googleapis.com/openimages/web/download_v7.html ("Data formats").
"""

from __future__ import annotations

import functools
import itertools
import operator
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    Value,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    value_list,
)
from shardbeam.transforms.formats.base import Format, Kind, Match, Place, Role
from shardbeam.transforms.formats.names import key_problem, listing_exclusion, normalize_key
from shardbeam.transforms.formats.parsing.lines import (
    OPEN_QUOTE,
    header_cells,
    read_lines,
    split_cells,
)
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.formats.recognition import Folder, Recognized, Sources, split_in
from shardbeam.transforms.formats.table.rows import MAX_FRACTION, MIN_FRACTION
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

# Reads the rows of Open Images' tables.

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


_ABSENT_LABELS = "image/class/absent/label"
_ABSENT_TEXTS = "image/class/absent/text"

# The required columns of a file, and the optional ones.
_BOX_COLUMNS = (("ImageID", "LabelName", *SIDES), ("Confidence", *ATTRIBUTES))
_LABEL_COLUMNS = (("ImageID", "LabelName", "Confidence"), ())


class OpenImagesFormat(Format, frozen=True, kw_only=True):
    """Open Images.

    An image's id is its file's name without the extension. An image with a row that cannot be read
    is rejected: written without that row, it would teach that less is there.

    Attributes:
        images: Root folder of the images, named by their ids.
        boxes: CSV files of boxes.
        classes: The CSV file of class descriptions, which gives each class its name. A class's id
            is its position, counted from 1 if there are boxes and from 0 otherwise. Labels that
            the file does not name are left out and counted. Without the file, every label in the
            rows (`/m/…`) is a class.
        image_labels: CSV files of image-level labels.
    """

    SOME_OF = ("boxes", "image_labels")
    SUMMARY = "Open Images CSV: boxes and image-level labels"
    # Nobody has verified what the other images show.
    FILES = ("boxes", "image_labels", "classes")
    UNANNOTATED = "drop"
    chunk_bytes = 32 << 20
    # Corners in fractions.
    box_reading = BoxReading()

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    boxes: Annotated[list[Location], named("CSV file of boxes")] = []
    classes: Annotated[Location, named("CSV file of class descriptions")] | None = None
    image_labels: Annotated[list[Location], named("CSV file of image-level labels")] = []
    match: Match = "path"

    def __post_init__(self) -> None:
        self.check_some()

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes CSV files by their columns, and class descriptions by their first line."""
        columns = {"boxes": {"ImageID", "LabelName", *SIDES}, "image_labels": {*_LABEL_COLUMNS[0]}}
        found: list[tuple[str, str, list[str]]] = []
        classes = []
        for path in folder.named(".csv"):
            lines = folder.head(path).decode("utf-8", "replace").splitlines()
            header = {cell.strip() for cell in lines[0].split(",")} if lines else set()
            if lines and (lines[0].startswith("/m/") or header == {"LabelName", "DisplayName"}):
                classes.append(path)
            key = next((key for key, needed in columns.items() if needed <= header), "")
            if not key:
                continue
            place = lines[0].split(",").index("ImageID")
            names = [line.split(",")[place] for line in lines[1:-1] or lines[1:] if "," in line]
            found.append((path, key, names))
        what = counted(len(found), "CSV file")
        sources = Sources(folder, what=what)
        for path, key, names in found:
            images = sources.find_images(path, names)
            # Ids are names without folder and extension in any case.
            sources.add(path, images._replace(match="path"), split=split_in(path), key=key)
        for source in sources.by_split.values():
            if len(classes) == 1:
                source["classes"] = folder.uri(classes[0])
        return Recognized(what=what, sources=sources.by_split) if found else None

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects if there are boxes, and labels if there are labels."""
        kinds = {Kind.DETECTION} if self.boxes else set()
        if self.image_labels:
            kinds |= {Kind.CLASSIFICATION, Kind.LABEL_CONFIDENCE}
        return frozenset(kinds)

    @functools.cached_property
    def _names(self) -> Mapping[str, str] | None:
        """`{label in the rows: class name}`."""
        if self.classes is None:
            return None
        return read_class_names(self.classes, storage=storage_for(self.classes))

    def resolve(self) -> OpenImagesFormat:
        """Reads the file of classes to find its errors before the run.

        Raises:
            InputError: The file cannot be read, or is not such a file.
        """
        _ = self._names
        return self

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares attributes of boxes, and the labels that were verified to be absent."""
        features: list[ExtraFeature] = []
        if Kind.DETECTION in self.kinds:
            confidence = value_list(CONFIDENCE, FeatureKind.FLOAT)
            features.append(ExtraFeature(confidence, per_object=True, default=1.0))
            for key in ATTRIBUTES.values():
                features.append(ExtraFeature(value_list(key, FeatureKind.INT64), per_object=True))
        if Kind.CLASSIFICATION in self.kinds:
            labels = value_list(_ABSENT_LABELS, FeatureKind.INT64, FeatureRole.LABEL)
            texts = value_list(_ABSENT_TEXTS, FeatureKind.BYTES, FeatureRole.LABEL_TEXT)
            features += [ExtraFeature(labels), ExtraFeature(texts)]
        return features

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by its id."""
        key = normalize_key(path)
        # An excluded file must not have the same join key as the image beside it.
        if listing_exclusion(key) is not None:
            return Place(role=Role.IMAGE, key=key, join=key)
        stem = key.rpartition("/")[2].rpartition(".")[0]
        return Place(role=Role.IMAGE, key=key, join=stem)

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses a part of one CSV file.

        Yields:
            An entry for consecutive rows of one image, another with the defect
            `ANNOTATION_MALFORMED` if some of them are bad, and the categories: those of the
            classes file, or without one, the labels in this part.

        Raises:
            InputError: The file cannot be read, or lacks a column.
        """
        uri = self.annotation_files()[file_index]
        if self._names is not None and file_index == len(self.boxes) + len(self.image_labels):
            # The file of classes is small, and is read whole by `_names`.
            first = int(Kind.DETECTION in self.kinds)
            for source_id, name in enumerate(self._names.values(), first):
                if begin == 0:
                    yield Category(name=name, source_id=source_id, origin=uri)
            return
        columns = _BOX_COLUMNS if file_index < len(self.boxes) else _LABEL_COLUMNS
        classes = _Classes(self._names)
        rows = read_rows(uri, storage=storage, columns=columns, begin=begin, end=end)
        for key, group in itertools.groupby(rows, key=operator.itemgetter(1)):
            yield from self._read_image(key, group, classes=classes, file_index=file_index)
        if self._names is None:
            for label in sorted({label for label in classes.values() if label is not None}):
                yield Category(name=label, origin=uri)

    def _read_image(
        self, key: str, rows: Iterable[NumberedRow], *, classes: _Classes, file_index: int
    ) -> Iterator[AnnotationEntry]:
        """Yields an entry for consecutive rows of an image, and another for bad rows among them."""
        is_boxes = file_index < len(self.boxes)
        objects: list[ObjectAnnotation] = []
        confidences: dict[str, float] = {}
        good = 0
        # Positions of rows, and what is wrong with them.
        bad: list[tuple[int, str]] = []
        corrections = Corrections()
        # The config names the file of classes, and with it the classes that are written.
        left_out = (
            Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED
            if is_boxes
            else Correction.EXCLUDED_LABEL_DROPPED
        )
        begin = -1
        for position, _, cells, problem in rows:
            begin = position if begin < 0 else begin
            try:
                if problem:
                    raise CellError(problem)
                if is_boxes:
                    bbox, attributes = read_box(cells)
                else:
                    confidence = read_confidence(cells["Confidence"])
                label = classes[cells["LabelName"]]
            except CellError as error:
                bad.append((position, str(error)))
                continue
            good += 1
            if label is None:
                corrections.note(left_out, cells["LabelName"])
            elif is_boxes:
                objects.append(ObjectAnnotation(label=label, bbox=bbox, attributes=attributes))
            else:
                known = confidences.get(label, confidence)
                # A confidence of 0 means verified to be absent, which wins.
                confidences[label] = max(known, confidence) if known and confidence else 0.0
        if good:
            annotations = ImageAnnotations(
                image_id=key,
                labels=_present(confidences),
                objects=tuple(objects),
                **corrections.fields(),
                normalized=True,
                label_confidences=tuple(filter(None, confidences.values())),
                values=_absent_values(confidences),
            )
            yield AnnotationEntry(
                key=key,
                annotations=encode_annotations(annotations),
                file_index=file_index,
                position=begin,
            )
        if bad:
            first_bad, detail = bad[0]
            others = f", and {len(bad) - 1} more rows" if len(bad) > 1 else ""
            file = self.annotation_files()[file_index].rpartition("/")[2]
            yield AnnotationEntry(
                key=key,
                file_index=file_index,
                position=first_bad,
                defect=Reason.ANNOTATION_MALFORMED,
                detail=f"{file}: byte {first_bad}: {detail}{others}",
            )

    def reconcile(self, annotations: ImageAnnotations) -> ImageAnnotations:
        """Removes labels that another file or part verified to be absent."""
        absent = annotations.values.get(_ABSENT_LABELS, ())
        if not absent:
            return annotations
        confidences = dict(zip(annotations.labels, annotations.label_confidences, strict=True))
        confidences |= {str(label): 0.0 for label in absent}
        return msgspec.structs.replace(
            annotations,
            labels=_present(confidences),
            label_confidences=tuple(confidences[label] for label in _present(confidences)),
            values=dict(annotations.values) | _absent_values(confidences),
        )


def _present(confidences: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(label for label, confidence in confidences.items() if confidence)


def _absent_values(confidences: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    absent = tuple(label for label, confidence in confidences.items() if not confidence)
    return {_ABSENT_LABELS: absent, _ABSENT_TEXTS: absent} if absent else {}


class _Classes(dict[str, str | None]):
    """`{label: name of its class}` for labels in the rows; None where there is no such class.

    Without a file of classes, labels are the names.
    """

    def __init__(self, names: Mapping[str, str] | None) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, label: str) -> str | None:
        text = unicodedata.normalize("NFC", label)
        if key_problem(text) is not None or text.splitlines() != [text]:
            raise CellError(f"LabelName: expected a label, got {text!a}")
        self[label] = text if self._names is None else self._names.get(text)
        return self[label]
