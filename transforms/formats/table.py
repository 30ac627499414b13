"""Tables with a row an image, a row an object, or rows without images: what CSV and JSON share."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.configs.schema import Name
from shardbeam.transforms.core.errors import InputError, did_you_mean
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    Value,
    encode_annotations,
)
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import (
    escape_key,
    is_image_name,
    key_problem,
    listing_exclusion,
    normalize_key,
)
from shardbeam.transforms.formats.table_columns import (
    CellError,
    ColumnSurvey,
    ColumnType,
    are_class_ids,
    column_feature,
    first_of,
    join_names,
    json_text,
    parse_type,
)
from shardbeam.transforms.formats.table_roots import TableRoots, short_names
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from typing_extensions import Self

# Names of columns, without case, spaces, `_` and `-`; the first that a table has is taken.
_IMAGE_NAMES = (
    *("imageuri", "imagegcsuri", "image", "imagepath", "imagefile", "imagefilename", "imagename"),
    *("filename", "filepath", "file", "path", "uri", "gcsuri", "imageid", "img", "imgpath"),
)
# These name images and nothing else.
_URI_NAMES = ("imageuri", "imagegcsuri")
_LABEL_NAMES = ("label", "labels", "labelname", "class", "classname", "category", "categoryname")
_SPLIT_NAMES = ("split", "mluse")
_BOX_NAMES = ("xmin", "ymin", "xmax", "ymax")
_SIZE_NAMES = ("width", "height")

# {a split, in lower case: its name}: those of TFRecorder and Vertex AI.
_SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "test": "test",
}
_FIRST_SPLITS = ("train", "validation", "test")
_DISCARD = "discard"
_MAX_SPLITS = 100
# Beyond, they are numbers that happen to label: label files would not hold a line for each.
_MAX_CLASS_ID = 100_000
_labels_decoder = msgspec.json.Decoder(list[str | int | float | bool])
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*\Z")
_MAX_NAME_BYTES = 200


class TableLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What the columns of a table are, found out once.

    Attributes:
        image: The column of the image's path or URI; empty where rows are no images.
        label: The column of labels; empty if there is none.
        split: The column of the split; empty if there is none.
        splits: The splits that rows name, in order.
        columns: `{column: type}` of the columns that become features.
        boxes: The columns xmin, ymin, xmax and ymax, where rows are objects.
        size: The columns of the image's width and height, where rows are objects.
        normalized: Whether boxes are in fractions of the image's sides.
        class_ids: Whether labels are ids of classes.
        by_stem: Whether rows name images without their extension.
        kinds: The groups of Example keys that rows fill, where the columns do not tell.
    """

    image: str = ""
    label: str = ""
    split: str = ""
    splits: tuple[str, ...] = ()
    columns: Mapping[str, str] = {}
    boxes: tuple[str, ...] = ()
    size: tuple[str, ...] = ()
    normalized: bool = False
    class_ids: bool = False
    by_stem: bool = False
    kinds: tuple[Kind, ...] = ()


class TableFormat(Format, frozen=True, kw_only=True):
    """A table.

    With `image_root` each row is an image, or an object of one where there are columns xmin,
    ymin, xmax and ymax; images that no row names are left out, except beside objects. Without,
    each row is an Example of its own.

    Attributes:
        manifest: The files.
        image_root: Folders that hold all images that rows name; a row with another is a reject.
        image_column: The column of the image's path or URI; by default found by its name.
        label_column: The column of its labels; by default found by its name.
        label_separator: What separates several labels in one text, such as `|`; by default a
            text is one label, or a JSON list of them.
        split_column: The column of its split; by default found by its name.
        columns: `{column: type}` of further columns: `bool`, `int`, `float`, `string`, one of
            these with `?` where it may be missing, a list of one of them (`list[int]`), or
            `ignore`; by default as the values suggest.
        splits: The splits whose rows are used, in order; by default all.
        _layout: What `resolve` found.
    """

    ROOTS = ("image_root",)

    manifest: Annotated[list[Location], msgspec.Meta(min_length=1), named("file of rows")]
    image_root: Annotated[
        list[Location], named("folder of the images that rows name", metavar="DIR")
    ] = []
    image_column: Annotated[str, named("column of the image's path or URI")] | None = None
    label_column: Annotated[str, named("column of the labels")] | None = None
    label_separator: (
        Annotated[
            str, msgspec.Meta(min_length=1), named("what separates several labels, such as |")
        ]
        | None
    ) = None
    split_column: Annotated[str, named("column of the split")] | None = None
    columns: dict[str, str] = {}
    splits: list[Name] | None = None
    _layout: TableLayout = TableLayout()

    def __post_init__(self) -> None:
        for column, text in self.columns.items():
            if text != "ignore" and parse_type(text) is None:
                raise Problem(
                    ("columns", column),
                    f"unknown type {text!r}; expected bool, int, float, string, one of these with "
                    "? (int?) where it may be missing, a list (list[int]), or ignore",
                )
        if self.image_root:
            try:
                TableRoots(self.image_root)
            except ValueError as error:
                raise Problem(("image_root",), str(error)) from error

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """What the columns have: rows alone, labels or objects."""
        return frozenset(self._kinds_of(self._layout))

    @functools.cached_property
    def _names(self) -> Sequence[str]:
        return short_names(self.manifest)

    @functools.cached_property
    def _roots(self) -> TableRoots | None:
        return TableRoots(self.image_root) if self.image_root else None

    @functools.cached_property
    def _asked(self) -> Mapping[str, str | None]:
        return {"image": self.image_column, "label": self.label_column, "split": self.split_column}

    @functools.cached_property
    def _types(self) -> Mapping[str, ColumnType]:
        types = {name: parse_type(text) for name, text in self._layout.columns.items()}
        return {name: column for name, column in types.items() if column is not None}

    def resolve(self) -> Self:
        """Reads the files once, to find out what their columns are."""
        surveys: dict[str, ColumnSurvey] = {}
        for file_index, uri in enumerate(self.manifest):
            self._survey(surveys, storage=storage_for(uri), file_index=file_index)
        return msgspec.structs.replace(self, _layout=self._lay_out(surveys))

    def predefined_splits(self) -> Sequence[str]:
        """The splits that rows name."""
        return self._layout.splits

    def extra_features(self) -> Sequence[ExtraFeature]:
        """A feature for each further column."""
        return [
            column_feature(name, column, per_object=bool(self._layout.boxes))
            for name, column in self._types.items()
        ]

    def annotation_files(self) -> Sequence[str]:
        """URIs of the files."""
        return self.manifest

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by its path below the roots; see the base class."""
        key = normalize_key(path) if self._roots is None else self._roots.key_below(path, root=root)
        join = key
        if self._layout.by_stem and is_image_name(key):
            join = key.rpartition(".")[0]
        return Place(role=Role.IMAGE, key=key, join=join)

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        """Leaves an image out that no row names, unless rows are its objects."""
        if self._layout.boxes or Kind.DETECTION in self.kinds:
            return None
        return listing_exclusion(key) or Exclusion.UNANNOTATED

    def _survey(
        self, surveys: dict[str, ColumnSurvey], *, storage: Storage, file_index: int
    ) -> None:
        """Reads one file, adding to what is known of its columns, in their order.

        Raises:
            InputError: The file cannot be read or is not what it should be.
        """
        raise NotImplementedError

    def _read_cell(self, cell: Any, column: ColumnType) -> tuple[Value, ...]:  # noqa: ANN401  # As the file has it.
        """Reads a cell, or None where the row has none.

        Raises:
            CellError: It is not of the column's type.
        """
        raise NotImplementedError

    def _read_labels(self, cell: Any) -> Iterable[str]:  # noqa: ANN401  # As above.
        """Reads a cell of labels, or None where the row has none.

        Raises:
            CellError: It holds no labels.
        """
        raise NotImplementedError

    def _labels_of_text(self, text: str) -> list[str]:
        """Reads one text of labels: with the separator, as a JSON list, or as one label."""
        if self.label_separator is not None:
            return text.split(self.label_separator)
        stripped = text.strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            try:
                return [json_text(label) for label in _labels_decoder.decode(stripped)]
            except (msgspec.DecodeError, UnicodeError):
                pass
        return [text]

    def _new_survey(self, name: str) -> ColumnSurvey:
        """Prepares the survey of a column: more is gathered of those that may have a meaning."""
        return ColumnSurvey(
            distinct=_MAX_SPLITS if self._may_be(name, "split", _SPLIT_NAMES) else 0,
            numbers=self._may_be(name, "label", _LABEL_NAMES)
            or bool(first_of((*_BOX_NAMES, *_SIZE_NAMES), [name])),
            names=self._may_be(name, "image", _IMAGE_NAMES),
        )

    def _may_be(self, name: str, what: str, candidates: Sequence[str]) -> bool:
        asked = self._asked[what]
        return name == asked or (asked is None and bool(first_of(candidates, [name])))

    def _lay_out(self, surveys: Mapping[str, ColumnSurvey]) -> TableLayout:
        names = list(surveys)
        if not names:
            raise self._error("the file holds no rows")
        for column in self.columns:
            self._check_there(column, names, setting=f"columns.{column}")
        image = self._image_column(names)
        split = self._find("split", _SPLIT_NAMES, names)
        # The columns of rows without images have no meaning but their names.
        label = self._find("label", _LABEL_NAMES, names) if image else ""
        if self._asked["label"] and not image:
            raise self._error(
                "label_column: rows without images have features, not labels; take it out"
            )
        boxes: list[str] = []
        size: list[str] = []
        if image:
            free = [name for name in names if name not in self.columns and name != label]
            boxes = [first_of([side], free) for side in _BOX_NAMES]
            boxes = boxes if all(boxes) and all(map(_numeric, _pick(surveys, boxes))) else []
        if boxes and not label:
            raise self._error(
                "the rows have boxes, and no column is named like one of labels; set label_column "
                f"to one of {join_names(names)}"
            )
        if boxes:
            size = [first_of([side], free) for side in _SIZE_NAMES]
            size = size if all(size) and all(map(_numeric, _pick(surveys, size))) else []
        used = {image, label, split, *boxes, *size}
        columns = {
            name: self.columns.get(name) or self._inferred(survey, per_object=bool(boxes))
            for name, survey in surveys.items()
            if name not in used and name
        }
        columns = {name: text for name, text in columns.items() if text != "ignore"}
        self._check_columns(columns, per_object=bool(boxes))
        return TableLayout(
            image=image,
            label=label,
            split=split,
            splits=self._told_splits(surveys[split]) if split else (),
            columns=columns,
            boxes=tuple(boxes),
            size=tuple(size),
            normalized=bool(boxes) and max(each.high for each in _pick(surveys, boxes)) <= 1,
            class_ids=bool(label) and are_class_ids(surveys[label], limit=_MAX_CLASS_ID),
            by_stem=bool(image) and not surveys[image].has_image_name,
        )

    def _kinds_of(self, layout: TableLayout) -> Iterator[Kind]:
        yield from layout.kinds
        if not layout.image:
            yield Kind.ROWS
        elif layout.boxes:
            yield Kind.DETECTION
        elif layout.label:
            yield Kind.CLASSIFICATION

    def _image_column(self, names: Sequence[str]) -> str:
        if self._roots is not None:
            image = self._find("image", _IMAGE_NAMES, names)
            if not image:
                raise self._error(
                    "no column is named like one of images; set image_column to one of "
                    f"{join_names(names)}"
                )
            return image
        if self._asked["image"]:
            raise self._error("image_column: image_root is missing: the folder of these images")
        uris = first_of(_URI_NAMES, [name for name in names if name not in self.columns])
        if uris:
            raise self._error(
                f"the rows name images (column {uris!r}): set image_root to their folder, or "
                f"columns to {{{uris}: string}} to write the names alone"
            )
        return ""

    def _find(self, what: str, candidates: Sequence[str], names: Sequence[str]) -> str:
        asked = self._asked[what]
        if asked is None:
            return first_of(candidates, [name for name in names if name not in self.columns])
        self._check_there(asked, names, setting=f"{what}_column")
        return asked

    def _check_there(self, column: str, names: Sequence[str], *, setting: str) -> None:
        if column not in names:
            hint = did_you_mean(column, known=names) or f"; there are {join_names(names)}"
            raise self._error(f"{setting}: no column is named {column!r}{hint}")

    def _inferred(self, survey: ColumnSurvey, *, per_object: bool) -> str:
        column = survey.column_type(empty_is_text=True)
        if per_object and column.form == "list":
            return "string"
        return str(column)

    def _check_columns(self, columns: Mapping[str, str], *, per_object: bool) -> None:
        for name, text in columns.items():
            if not name.isprintable() or len(name.encode()) > _MAX_NAME_BYTES:
                raise self._error(
                    f"the column {name[:40]!a} cannot be a feature: expected printable text of at "
                    f"most {_MAX_NAME_BYTES} bytes; set columns to ignore it"
                )
            if per_object and text.startswith("list"):
                raise self._error(
                    f"columns.{name}: a feature of objects has one value each, not a list"
                )

    def _told_splits(self, survey: ColumnSurvey) -> tuple[str, ...]:
        if len(survey.texts) > _MAX_SPLITS:
            raise self._error(
                f"the column of the split has more than {_MAX_SPLITS} values; set split_column"
            )
        found = {_split_name(text) for text in survey.texts} - {_DISCARD}
        if self.splits is not None:
            for split in self.splits:
                if split not in found:
                    hint = did_you_mean(split, known=found) or f"; there are {join_names(found)}"
                    raise self._error(f"splits: no row is in {split!r}{hint}")
            return tuple(self.splits)
        for split in sorted(found):
            if split == "all" or not _NAME.match(split):
                raise self._error(
                    f"the split {split!r} cannot be one: expected a letter, then letters, digits "
                    "and _, and not `all`; set splits to leave its rows out, or columns to ignore "
                    "the column"
                )
        first = [split for split in _FIRST_SPLITS if split in found]
        return (*first, *sorted(found.difference(first)))

    def _error(self, problem: str) -> InputError:
        return InputError(uri=self.manifest[0], problem=problem)

    def _read_row(
        self, row: Mapping[str, Any], *, file_index: int, position: int, place: str
    ) -> tuple[AnnotationEntry, Sequence[str]]:
        """Makes the entry of a row, and names the classes that it labels."""
        layout = self._layout
        place = f"{self._names[file_index]}: {place}"
        cell = row.get(layout.split) if layout.split else None
        split = "" if cell is None else _split_name(json_text(cell))
        key, annotations = place, b""
        labels: list[str] = []
        defect: Reason | None = None
        detail = ""
        exclusion = self._exclusion(split)
        try:
            if layout.image:
                key = self._image_key(row.get(layout.image))
            if exclusion is None:
                found = self._annotations(row)
                labels = [*found.labels, *(item.label for item in found.objects)]
                annotations = encode_annotations(found)
        except _RowError as error:
            defect, detail = error.reason, f"{place}: {error}"
            key = error.key or key
        except CellError as error:
            defect, detail = Reason.ANNOTATION_MALFORMED, f"{place}: {error}"
        entry = AnnotationEntry(
            key=key,
            annotations=annotations,
            file_index=file_index,
            position=position,
            # Values of two rows would contradict each other; labels and objects add up.
            image_id=place if layout.image and self._types and not layout.boxes else "",
            defect=defect,
            detail=detail,
            split=split if exclusion is None else "",
            exclusion=exclusion,
        )
        return entry, labels

    def _bad_row(
        self, problem: str, *, file_index: int, position: int, place: str
    ) -> AnnotationEntry:
        """Makes the entry of a row that cannot be read at all."""
        place = f"{self._names[file_index]}: {place}"
        return AnnotationEntry(
            key=place,
            file_index=file_index,
            position=position,
            defect=Reason.ANNOTATION_MALFORMED,
            detail=f"{place}: {problem}",
        )

    def _categories(self, labels: Iterable[str], *, file_index: int) -> Iterator[Category]:
        for label in sorted(labels):
            yield Category(
                name=label,
                source_id=int(label) if self._layout.class_ids else None,
                origin=self.manifest[file_index],
            )

    def _exclusion(self, split: str) -> Exclusion | None:
        if split == _DISCARD:
            return Exclusion.DISCARDED
        if self.splits is not None and split and split not in self.splits:
            return Exclusion.IN_NO_SPLIT
        return None

    def _image_key(self, cell: object) -> str:
        name = cell.strip() if isinstance(cell, str) else "" if cell is None else str(cell)
        if not name:
            raise CellError(f"the column {self._layout.image} names no image")
        problem = key_problem(name)
        if problem is not None:
            raise _RowError(Reason.UNREADABLE_NAME, problem, key=escape_key(name))
        key = None if self._roots is None else self._roots.key_of(name)
        if key is None:
            # As it is there, it equals no listed key.
            raise _RowError(
                Reason.OUTSIDE_ROOTS, "the image lies in none of the image_root folders", key=name
            )
        return key

    def _labels(self, row: Mapping[str, Any]) -> list[str]:
        if not self._layout.label:
            return []
        labels = [
            unicodedata.normalize("NFC", label.strip())
            for label in self._read_labels(row.get(self._layout.label))
        ]
        labels = check_labels(labels)
        if not self._layout.class_ids:
            return labels
        try:
            return [str(int(label)) for label in labels]
        except ValueError:
            raise CellError(f"expected ids of classes, got {', '.join(labels)[:60]!a}") from None

    def _annotations(self, row: Mapping[str, Any]) -> ImageAnnotations:
        """Reads all that a row says about its image.

        Raises:
            CellError: A cell cannot be used.
        """
        layout = self._layout
        labels = self._labels(row)
        values = {
            name: self._column_value(row.get(name), column, name=name)
            for name, column in self._types.items()
        }
        if not layout.boxes:
            return ImageAnnotations(image_id="", labels=tuple(dict.fromkeys(labels)), values=values)
        width, height = 0, 0
        if layout.size:
            width, height = (
                max(0, int(side)) if side is not None and side < 2**31 else 0
                for side in self._numbers(row, layout.size)
            )
        objects: tuple[ObjectAnnotation, ...] = ()
        sides = self._numbers(row, layout.boxes)
        if any(side is not None for side in sides):
            xmin, ymin, xmax, ymax = (_finite(side) for side in sides)
            if len(labels) != 1:
                raise CellError(f"expected one label of the box, got {len(labels)}")
            attributes = {name: found[0] for name, found in values.items() if found}
            objects = (
                ObjectAnnotation(
                    label=labels[0], bbox=(xmin, ymin, xmax, ymax), attributes=attributes
                ),
            )
        return ImageAnnotations(
            image_id="",
            width=width,
            height=height,
            objects=objects,
            normalized=layout.normalized,
        )

    def _column_value(self, cell: object, column: ColumnType, *, name: str) -> tuple[Value, ...]:
        try:
            return self._read_cell(cell, column)
        except CellError as error:
            raise CellError(f"column {name}: {error}") from error

    def _numbers(self, row: Mapping[str, Any], names: Sequence[str]) -> list[float | None]:
        found = []
        for name in names:
            values = self._column_value(row.get(name), ColumnType("float", "optional"), name=name)
            found.append(float(values[0]) if values else None)
        return found


class _RowError(Exception):
    """A row's image cannot be used.

    Attributes:
        reason: The stable reason code.
        key: What the row names as its image.
    """

    def __init__(self, reason: Reason, problem: str, *, key: str) -> None:
        self.reason = reason
        self.key = key
        super().__init__(problem)


def check_labels(labels: Iterable[str]) -> list[str]:
    """Returns the labels, without empty ones.

    Raises:
        CellError: One cannot be a class's name, which stands on a line of its own.
    """
    found = [label for label in labels if label]
    for label in found:
        if "\0" in label or label.splitlines() != [label]:
            raise CellError(f"expected a label of one line, got {label[:60]!a}")
    return found


def _split_name(text: str) -> str:
    text = text.strip()
    folded = text.casefold()
    return _DISCARD if folded == _DISCARD else _SPLITS.get(folded, text)


def _pick(surveys: Mapping[str, ColumnSurvey], names: Iterable[str]) -> list[ColumnSurvey]:
    return [surveys[name] for name in names]


def _numeric(survey: ColumnSurvey) -> bool:
    return bool(survey.bases) and survey.bases <= {"int", "float"} and not survey.has_list


def _finite(side: float | None) -> float:
    if side is None or not abs(side) < 2**31:
        raise CellError("expected four finite numbers of a box")
    return side
