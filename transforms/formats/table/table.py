"""Tables in CSV or JSON Lines, with a row for each image, for each object, or without images.

The first rows of each file, a few megabytes, are read before the run and show what the columns
are. A later row that does not fit becomes a reject with its place.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.nearest import did_you_mean
from shardbeam.configs.problem import Problem
from shardbeam.configs.schema import Name
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import BoxFormat
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    Value,
    encode_annotations,
)
from shardbeam.transforms.examples.box_readings import CORNERS
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Format, Kind, Match, Place, Role
from shardbeam.transforms.formats.box_format import (
    BoxFormatKey,
    BoxReading,
    BoxUnitsKey,
)
from shardbeam.transforms.formats.image_size import stored_sizes
from shardbeam.transforms.formats.names import (
    escape_key,
    is_image_name,
    key_problem,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.roots import TableRoots, short_names
from shardbeam.transforms.formats.parsing.table_columns import (
    CellError,
    ColumnType,
    column_feature,
    first_of,
    infer_type,
    join_names,
    json_text,
    missing_value,
    parse_type,
    read_cell,
    value_of_text,
)
from shardbeam.transforms.formats.recognition import TABLE, Folder, Recognized, counted, split_in
from shardbeam.transforms.formats.table.first_rows import FirstRows, Row, image_name
from shardbeam.transforms.formats.table.table_boxes import (
    SIZE_NAMES,
    BoxColumns,
    UnclearBoxesError,
    find_boxes,
    four_numbers,
    is_missing,
    meaning_of,
)
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

# Bytes that are read to find out what the columns are: of all files together, and at least of each.
_FIRST_BYTES, _FIRST_BYTES_OF_A_FILE = 4 << 20, 64 << 10

# Names of columns in lower case, without spaces, `_` and `-`; the first that a table has is taken.
_IMAGE_NAMES = (
    *("imageuri", "imagegcsuri", "image", "imagepath", "imagefile", "imagefilename", "imagename"),
    *("filename", "filepath", "file", "path", "uri", "gcsuri", "imageid", "img", "imgpath"),
)
# Columns with these names hold nothing but images.
_URI_NAMES = ("imageuri", "imagegcsuri")
_LABEL_NAMES = ("label", "labels", "labelname", "class", "classname", "category", "categoryname")
_SPLIT_NAMES = ("split", "mluse")
# Captions, if several rows name one image; such a column may hold anything else, too.
CAPTION_NAMES = ("caption", "captions", "sentence", "sentences", "comment", "comments")
# Roboflow's tables of this name have a column of 0 and 1 for each class.
_ONE_HOT_FILE = "_classes.csv"

# {a split, in lower case: its name}: those of TFRecorder and Vertex AI.
_SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "test": "test",
    "discard": "discard",
    # Vertex AI then chooses the split.
    "unassigned": "",
}
_FIRST_SPLITS = ("train", "validation", "test")
_DISCARD = "discard"
_MAX_SPLITS = 100
# Larger numbers are not class ids: a label file could not have a line for each.
_MAX_CLASS_ID = 100_000
# pandas writes whole numbers with `.0` if a cell of their column is empty.
_CLASS_ID = re.compile(r"([0-9]{1,9})(?:\.0*)?", re.ASCII)
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*\Z")
_MAX_NAME_BYTES = 200
# Columns of 0 and 1 that are certainly classes, if there is no other column.
_MIN_ONE_HOT = 3
# Texts that other programs write in the place of an empty cell.
_NOTHING = frozenset({"nan", "none", "null", "na", "n/a", "<na>"})
# Images whose size is compared with columns `width` and `height`.
_SIZES = 3
# Kaggle's example of the table to hand in has a label for each image of the test, which means
# nothing.
_SUBMISSION = re.compile(r"(sample|example)[ _-]?submission[^/]*\Z", re.IGNORECASE)
# Tables of a folder that are opened.
_MAX_TABLES = 20
_NUMBER = ColumnType("float", "optional")
_NUMBER_TYPES = {"int", "int?", "float", "float?"}
# A box in fractions may reach a little beyond the image; one further out is in pixels, or wrong.
MIN_FRACTION, MAX_FRACTION = -1.0, 2.0


class UndecidedTableError(InputError):
    """The columns can be read in several ways, and no key says which one is right."""


class TableLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a table and their meaning, as its first rows show them.

    The name of a missing column is empty.

    Attributes:
        names: All columns.
        image: The column of the image's path or URI; empty for rows without images.
        label: The column of labels.
        label_ids: The column of the labels' ids, if `label` holds their names.
        separator: The text that seems to be between several labels in one cell, if the config
            names none.
        flags: Columns of nothing but 0 and 1, in a table without any class, box or caption.
        one_hot: The columns of classes, in the order of their ids.
        split: The column of the split.
        boxes: The columns of a box's four numbers, or one column with all of them, where rows are
            objects.
        box_format: What these numbers mean.
        size: The columns of the image's width and height, where rows are objects.
        objects: The column of lists of objects, as Vertex AI has it.
        caption: The column of captions.
        per_row: Whether each row of an image adds a value to the features of the image, as where
            each holds a caption.
        columns: `{column: type}` of the columns that become features.
        splits: The splits that rows name, in order.
        normalized: Whether boxes are in fractions of the image's sides.
        class_ids: Whether labels are ids of classes.
        by_stem: Whether rows name images without their extension.
        notes: What the first rows show and the config should settle.
    """

    names: frozenset[str] = frozenset()
    image: str = ""
    label: str = ""
    label_ids: str = ""
    separator: str = ""
    flags: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    split: str = ""
    boxes: tuple[str, ...] = ()
    box_format: BoxFormat = "xyxy"
    size: tuple[str, ...] = ()
    objects: str = ""
    caption: str = ""
    per_row: bool = False
    columns: Mapping[str, ColumnType] = {}
    splits: tuple[str, ...] = ()
    normalized: bool = False
    class_ids: bool = False
    by_stem: bool = False
    notes: tuple[str, ...] = ()


class _Found(NamedTuple):
    """A table that was recognized.

    Attributes:
        split: The split that its name says; empty where it says none, or its rows do.
        source: The keys that read it, as far as they are certain.
        problem: Which key is missing; empty if none is.
        notes: Warnings of the format.
        images: The first images that it names.
    """

    split: str
    source: dict[str, Any]
    problem: str = ""
    notes: tuple[str, ...] = ()
    images: frozenset[str] = frozenset()

    def is_alike(self, other: _Found) -> bool:
        """Whether another table is about the same images, and is read by the same keys."""
        keys = self.source | {"manifest": other.source["manifest"]}
        return keys == other.source and not self.images.isdisjoint(other.images)


class TableFormat(Format, frozen=True, kw_only=True):
    """A table.

    With `image_root` each row is an image, or an object of an image if there are columns of boxes,
    or a caption of an image. Without it, each row becomes an Example. Columns
    that no key names are found by their names, and their types follow from the first rows, as
    docs/reference/formats/csv.md says.

    Attributes:
        box_format: What the four numbers of a box mean; by default what the names of the columns
            say.
        box_columns: The four columns of boxes, or the one with four numbers in each cell.
        box_units: The units of boxes; by default as the first rows show.
        columns: `{column: type}` of columns whose types should not be inferred: `int`, `float`,
            `bool` or `string`, with a `?` if a value may be missing, or `list[int]` and so on.
        cells_are_text: Whether all cells are texts, and all rows have all columns.
        extensions: Extensions of the files.
        _layout: The columns; `resolve` finds them.
    """

    ROOTS = ("image_root",)
    UNANNOTATED = "drop"

    cells_are_text: ClassVar[bool]
    extensions: ClassVar[tuple[str, ...]]

    manifest: Annotated[list[Location], msgspec.Meta(min_length=1), named("table to read")]
    image_root: Annotated[
        list[Location], named("folder of the images that rows name", metavar="DIR")
    ] = []
    no_images: Annotated[bool, named("write the rows without images, even if they name some")] = (
        False
    )
    image_column: Annotated[str, named("column with the image's path or URI")] | None = None
    label_column: Annotated[str, named("column with the labels")] | None = None
    label_separator: (
        Annotated[
            str,
            msgspec.Meta(min_length=1),
            named("text between several labels in one cell, such as |"),
        ]
        | None
    ) = None
    one_hot: (
        Annotated[bool, named("treat each remaining column as a class, with 0 or 1 in each row")]
        | None
    ) = None
    caption_column: Annotated[str, named("column with the captions")] | None = None
    split_column: Annotated[str, named("column with the split")] | None = None
    box_columns: (
        Annotated[
            list[str],
            msgspec.Meta(min_length=1),
            named("four columns of a box, separated by commas, or one with all four numbers"),
        ]
        | None
    ) = None
    box_format: BoxFormatKey | None = None
    box_units: BoxUnitsKey | None = None
    columns: dict[str, str] = {}
    match: Match = "path"
    splits: Annotated[list[Name] | None, named("split to write (default: all of them)")] = None
    _layout: TableLayout = TableLayout()

    def __post_init__(self) -> None:
        for column, text in self.columns.items():
            if text != "ignore" and parse_type(text) is None:
                raise Problem(
                    ("columns", column),
                    f"unknown type {text!r}; expected bool, int, float, string, one of these with "
                    "? (int?) where it may be missing, a list (list[int]), or ignore",
                )
        if self.one_hot and self.label_column:
            raise Problem(("one_hot",), "label_column names the column of labels; take one out")
        try:
            _ = self._roots
        except ValueError as error:
            raise Problem(("image_root",), str(error)) from error
        if self.no_images and self.image_root:
            raise Problem(("no_images",), "not together with image_root; take one of them out")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes tables of images and their labels, boxes or captions."""
        found: dict[str, _Found] = {}
        problem = ""
        undecided: Mapping[str, Mapping[str, Any]] = {}
        listed = cls.tables_in(folder)
        submissions = [*filter(is_submission, listed)]
        files = [path for path in listed if path not in submissions]
        for path in files[:_MAX_TABLES]:
            for keys in cls.guess_keys(folder, path=path):
                made = cls(manifest=[folder.location(path)], image_root=[folder.location()], **keys)
                try:
                    one = made._recognize(path, folder=folder)
                except (InputError, Problem):
                    continue
                if one is None:
                    continue
                if one.problem:
                    if not problem:
                        problem, undecided = one.problem, {"": one.source | dict(keys)}
                    break
                one = one._replace(source=one.source | dict(keys))
                first = found.setdefault(one.split, one)
                if first is not one:
                    both = f"{first.source['manifest'][0]} and {folder.uri(path)}"
                    if not first.is_alike(one):
                        problem = f"{both} both name images and their classes"
                        return Recognized(what=f"{len(files)} tables", problem=problem, rank=TABLE)
                    note = (
                        f"{both} are about the same images, and the first is read; to read the "
                        f"other one instead: manifest: [{folder.uri(path)}]"
                    )
                    found[one.split] = first._replace(notes=(*first.notes, note))
                break
        what = counted(len(found) or len(files), "table")
        if "" in found and len(found) > 1:
            problem = "some of the tables name a split and others do not"
            return Recognized(what=what, problem=problem, rank=TABLE)
        if not found:
            it = Recognized(what=what, problem=problem, sources=undecided, rank=TABLE)
            return it if problem else None
        notes = dict.fromkeys(note for one in found.values() for note in one.notes)
        notes |= {f"not read: {path}, whose labels are examples": None for path in submissions}
        sources = {split: one.source for split, one in found.items()}
        return Recognized(what=what, sources=sources, notes=tuple(notes), rank=TABLE)

    @classmethod
    def tables_in(cls, folder: Folder) -> list[str]:
        """Returns the files of a folder that may be tables of images."""
        return folder.named(*cls.extensions)

    @classmethod
    def guess_keys(cls, folder: Folder, *, path: str) -> Iterator[Mapping[str, Any]]:
        """Yields keys that `recognize` tries one after the other for a file."""
        yield {}

    def _recognize(self, path: str, *, folder: Folder) -> _Found | None:
        """Returns what is known of a table whose images are there; None for others."""
        (uri,) = self.manifest
        names, rows = self._first_rows(
            uri, storage=storage_for(uri), size_bytes=_FIRST_BYTES_OF_A_FILE
        )
        first = FirstRows(names, rows, self.cells_are_text)
        cells = [*first.texts(self._image_column(first))]
        images = folder.find_images(map(image_name, cells), near=path)
        if images is None:
            return None
        source: dict[str, Any] = {
            "manifest": [folder.uri(path)],
            "image_root": [folder.uri(images.folder)],
        }
        if images.match != "path" and any(map(_is_named, cells)):
            source["match"] = images.match
        table = msgspec.structs.replace(self, image_root=[folder.location(images.folder)])
        try:
            made = table.resolve()
        except UndecidedTableError as error:
            return _Found("", source, problem=f"{folder.uri(path)}: {error.problem}")
        layout = made._layout
        caption = "" if made.kinds else _lone_caption(layout.columns, first)
        if not (made.kinds or caption or len(layout.flags) > 1):
            return None
        certain: dict[str, Any] = {}
        if caption:
            certain["caption_column"] = caption
        if layout.separator:
            certain["label_separator"] = layout.separator
        if len(layout.flags) >= _MIN_ONE_HOT and set(layout.flags) == set(layout.columns):
            certain["one_hot"] = True
        if certain:
            made = msgspec.structs.replace(table, **certain).resolve()
        split = "" if layout.splits else split_in(path)
        images_named = frozenset(map(image_name, cells))
        return _Found(split, source | certain, "", tuple(made.warnings()), images_named)

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Rows alone, labels or objects, depending on the columns."""
        layout = self._layout
        found = {
            Kind.ROWS: not layout.image,
            Kind.DETECTION: layout.boxes or layout.objects,
            Kind.CLASSIFICATION: (layout.label or layout.one_hot) and not layout.boxes,
            Kind.CAPTIONS: layout.caption,
        }
        return frozenset(kind for kind, has in found.items() if has)

    @functools.cached_property
    def _names(self) -> Sequence[str]:
        return short_names(self.manifest)

    @functools.cached_property
    def _roots(self) -> TableRoots | None:
        return TableRoots(self.image_root) if self.image_root else None

    def resolve(self) -> TableFormat:
        """Reads the first rows of the files to find out what their columns are."""
        names: dict[str, None] = {}
        rows: list[Row] = []
        size_bytes = max(_FIRST_BYTES_OF_A_FILE, _FIRST_BYTES // len(self.manifest))
        for uri in self.manifest:
            there, first = self._first_rows(uri, storage=storage_for(uri), size_bytes=size_bytes)
            if self.cells_are_text and names and names.keys() != set(there):
                raise InputError(
                    uri=uri,
                    place="line 1",
                    problem=f"expected the columns of {self._names[0]} ({join_names(names)}), got "
                    f"{join_names(there)}",
                )
            names |= dict.fromkeys(there)
            rows += first
        if not names:
            raise self._error("the file holds no rows")
        return msgspec.structs.replace(self, _layout=self._lay_out(list(names), rows))

    @property
    def box_reading(self) -> BoxReading | None:
        """As the keys or the columns say, if there are boxes."""
        layout = self._layout
        if not (layout.boxes or layout.objects):
            return None
        return BoxReading(layout.box_format, has_keys=bool(layout.boxes))

    def warnings(self) -> Iterator[str]:
        """Warns of rows that name images and no classes, and of several labels that look like one.

        Columns with a type in the config are known not to be classes.
        """
        layout = self._layout
        unused = [name for name in layout.columns if name not in self.columns]
        flags = (
            f"; {join_names(layout.flags)} hold only 0 and 1: if each is a class, set one_hot"
            if len(layout.flags) > 1
            else ""
        )
        if layout.image and not self.kinds and unused:
            yield (
                f"{self._names[0]}: no column was recognized as classes or boxes; these are "
                f"written as features of images: {join_names(unused)}; if there are classes, name "
                "their column in label_column (box_columns for boxes, caption_column for captions);"
                f" if there are none, give these columns types in `columns`{flags}"
            )
        if layout.separator:
            yield (
                f"{self._names[0]}: labels with {layout.separator!r} seem to be several labels, "
                "which also occur alone, and each is read as one: set label_separator"
            )
        for note in layout.notes:
            yield f"{self._names[0]}: {note}"

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits that rows name."""
        return self._layout.splits

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares a feature for each other column."""
        return [
            column_feature(
                name,
                column,
                per_object=bool(self._layout.boxes),
                per_row=self._layout.per_row,
            )
            for name, column in self._layout.columns.items()
        ]

    def annotation_files(self) -> Sequence[str]:
        """Returns the URIs of the files."""
        return self.manifest

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by its path below the roots."""
        key = normalize_key(path) if self._roots is None else self._roots.key_below(path, root=root)
        join = key
        if self._layout.by_stem and is_image_name(key):
            join = key.rpartition(".")[0]
        return Place(role=Role.IMAGE, key=key, join=join)

    def _first_rows(
        self, uri: str, *, storage: Storage, size_bytes: int
    ) -> tuple[Sequence[str], Sequence[Row]]:
        """Reads the columns of a file, and the valid rows that begin in its first bytes.

        Raises:
            InputError: The file cannot be read, or is not such a table.
        """
        raise NotImplementedError

    # Finding the columns

    def _lay_out(self, names: Sequence[str], rows: Sequence[Row]) -> TableLayout:
        first = FirstRows(names, rows, self.cells_are_text)
        image = self._image_column(first)
        split = self._find("split", self.split_column, _SPLIT_NAMES, names)
        self._check_has_images(image)
        is_one_hot = self._is_one_hot(image)
        label, label_ids = "", ""
        if image and not is_one_hot:
            label, label_ids = self._label_columns(first)
        free = [name for name in names if image and name not in self.columns]
        free = [name for name in free if name not in (image, split, label, label_ids)]
        boxes = self._boxes(free, first, image=image)
        if boxes.names and not label:
            raise UndecidedTableError(
                uri=self.manifest[0],
                problem="the rows have boxes, and no column has a usual name for labels; set "
                f"label_column to one of {join_names(names)}",
            )
        size = self._size_columns(free, first) if boxes.names else ()
        repeats = bool(image) and not boxes.names and first.repeats_images(image)
        caption = self._caption_column(free, first, repeats=repeats)
        used = {image, label, label_ids, split, caption, *boxes.names, *size, ""}
        columns: dict[str, ColumnType] = {}
        for name in dict.fromkeys([*names, *self.columns]):
            text = self.columns.get(name)
            # In JSON, a later row may have columns that the first rows lack.
            if text and (self.cells_are_text or did_you_mean(name, known=names)):
                self._check_there(name, names, setting=f"columns.{name}")
            if name not in used and text != "ignore":
                columns[name] = self._column_type(
                    name,
                    text,
                    first.values(name),
                    per_object=bool(boxes.names),
                    per_row=bool(caption) and repeats,
                )
        one_hot = [name for name in columns if is_one_hot and name not in self.columns]
        for name in one_hot:
            del columns[name]
        is_plain = bool(image) and not (label or one_hot or boxes.names or caption)
        class_ids = bool(label) and _are_class_ids(first.values(label))
        normalized = bool(boxes.names) and self._are_fractions(boxes.names, first)
        notes = (
            [*self._note_labels(label, first, columns=columns)] if label and not class_ids else []
        )
        if boxes.names and not normalized and self.box_units is None:
            notes += first.note_fractions(boxes.names)
        return TableLayout(
            names=frozenset(names),
            image=image,
            label=label,
            label_ids=label_ids,
            separator=self._separator(label, first) if label and not boxes.names else "",
            flags=tuple(
                name
                for name in columns
                if is_plain and name not in self.columns and first.holds_flags(name)
            ),
            one_hot=tuple(one_hot),
            split=split,
            boxes=boxes.names,
            box_format=boxes.format,
            size=size,
            caption=caption,
            per_row=bool(caption) and repeats,
            columns=columns,
            splits=self._splits_of(rows, split) if split else (),
            normalized=normalized,
            class_ids=class_ids,
            by_stem=bool(image) and not any(map(_is_named, first.texts(image))),
            notes=tuple(notes),
        )

    def _check_has_images(self, image: str) -> None:
        keys = ("one_hot", "label_column", "caption_column", "box_columns")
        # Without images, every column is a feature.
        for key in keys:
            if getattr(self, key) and not image:
                raise self._error(
                    f"{key}: rows without images have features, not labels; take it out"
                )

    def _is_one_hot(self, image: str) -> bool:
        if self.one_hot is None and image and not self.label_column:
            return all(uri.rpartition("/")[2] == _ONE_HOT_FILE for uri in self.manifest)
        return bool(image and self.one_hot)

    def _label_columns(self, first: FirstRows) -> tuple[str, str]:
        """Returns the column of labels, and that of their ids if the labels are names with ids."""
        label = self._find("label", self.label_column, _LABEL_NAMES, first.names)
        if not label or self.label_column is not None:
            return label, ""
        free = [name for name in first.names if name not in self.columns]
        usual = [name for name in free if first_of(_LABEL_NAMES, [name])]
        ids = [name for name in usual if _are_class_ids(first.values(name))]
        names = [name for name in usual if any(map(_is_word, first.values(name)))]
        if not names or len(ids) != 1:
            return label, ""
        contradiction = first.contradiction(ids[0], names[0])
        if len(names) == 1 and not contradiction:
            return names[0], ids[0]
        but = f", but {contradiction}" if len(names) == 1 else ""
        raise UndecidedTableError(
            uri=self.manifest[0],
            problem=f"the columns {join_names([*ids, *names])} look like ids and names of "
            f"classes{but}: set label_column to one of them",
        )

    def _note_labels(
        self, label: str, first: FirstRows, *, columns: Iterable[str]
    ) -> Iterator[str]:
        """Describes names of classes that may be numbers, missing values or not the only ones."""
        values = [value for value in first.values(label) if value is not None]
        numbers = [it for it in values if isinstance(it, (int, float)) and it == it]
        odd = next((it for it in numbers if not _are_class_ids([it])), None)
        if odd is not None and len(numbers) == len(values):
            yield (
                f"the numbers in {label} are read as names of classes, which get new ids, because "
                f"{odd} is no id (a whole number from 0 to {_MAX_CLASS_ID:,})"
            )
        for text in first.texts(label):
            if text.casefold() in _NOTHING:
                yield (
                    f"{text!a} in {label} is the name of a class: if it stands for no label, leave "
                    "the cell empty"
                )
                break
        others = [
            name
            for name in columns
            if self.label_column is None
            and name not in self.columns
            and first_of(_LABEL_NAMES, [name])
        ]
        if others:
            yield (
                f"the classes are those of {label}, and {join_names(others)} a feature: "
                "label_column says which column counts"
            )

    def _separator(self, label: str, first: FirstRows) -> str:
        return "" if self.label_separator is not None else first.separator(label)

    def _caption_column(self, free: Sequence[str], first: FirstRows, *, repeats: bool) -> str:
        if self.caption_column is not None:
            self._check_there(self.caption_column, first.names, setting="caption_column")
            return self.caption_column
        return first_of(CAPTION_NAMES, free) if repeats else ""

    def _size_columns(self, free: Sequence[str], first: FirstRows) -> tuple[str, ...]:
        size = tuple(first_of(names, free) for names in SIZE_NAMES)
        types = {str(infer_type(first.numbers(name))) for name in size if name}
        return size if all(size) and types <= _NUMBER_TYPES else ()

    def _boxes(self, free: list[str], first: FirstRows, *, image: str) -> BoxColumns:
        """Finds the columns of boxes, and takes them out of `free`.

        Raises:
            UndecidedTableError: Columns look like boxes, and nothing says what they mean.
        """

        def are_sizes(columns: Sequence[str]) -> bool:
            is_size = [name.casefold() for name in columns[2:]] == ["width", "height"]
            return is_size and self._are_image_sizes(first, image=image, columns=columns)

        try:
            if self.box_columns is not None:
                names = tuple(name.strip() for it in self.box_columns for name in it.split(","))
                for name in names:
                    self._check_there(name, first.names, setting="box_columns")
                if len(names) not in (1, 4):
                    raise self._error(f"box_columns: expected one column or four, got {len(names)}")
                found = BoxColumns(names, self.box_format or meaning_of(names))
            else:
                found = find_boxes(
                    free,
                    values=first.numbers,
                    box_format=self.box_format,
                    are_sizes=are_sizes,
                )
        except UnclearBoxesError as error:
            raise UndecidedTableError(uri=self.manifest[0], problem=str(error)) from error
        if not found.names and (self.box_format or self.box_units):
            key = "box_format" if self.box_format else "box_units"
            raise self._error(f"{key}: the rows have no columns of boxes; take it out")
        free[:] = [name for name in free if name not in found.names]
        return found

    def _are_image_sizes(self, first: FirstRows, *, image: str, columns: Sequence[str]) -> bool:
        """Whether columns of boxes have the size of the first images instead of boxes' sides.

        Only the headers of JPEG and PNG files are looked at. Boxes around whole images are boxes.
        """
        found: dict[str, list[tuple[Any, ...]]] = {}
        for row, *box in zip(first.rows, *map(first.numbers, columns), strict=True):
            name = json_text(row.get(image)).strip()
            if name in found or len(found) < _SIZES:
                found.setdefault(name, []).append(tuple(box))
        has_size = is_elsewhere = False
        for name, boxes in found.items():
            uri = None if self._roots is None else self._roots.location_of(name)
            sizes = [] if uri is None else stored_sizes(uri)
            if sizes and not all(box[2:] in sizes for box in boxes):
                return False
            has_size = has_size or bool(sizes)
            is_elsewhere = is_elsewhere or any(
                box[:2] not in ((0, 0), (box[2] / 2, box[3] / 2)) for box in boxes if sizes
            )
        return has_size and is_elsewhere

    def _are_fractions(self, columns: Sequence[str], first: FirstRows) -> bool:
        if self.box_units is not None:
            return self.box_units == "fraction"
        values: Iterable[object] = (it for name in columns for it in first.numbers(name))
        if len(columns) == 1:
            values = (it for value in values for it in four_numbers(value) or ())
        return all(value <= 1 for value in values if isinstance(value, (int, float)))

    def _image_column(self, first: FirstRows) -> str:
        names = first.names
        if self._roots is not None:
            image = self._find("image", self.image_column, _IMAGE_NAMES, names)
            if not image:
                raise self._error(
                    "no column has a usual name for images; set image_column to one of "
                    f"{join_names(names)}"
                )
            return image
        if self.image_column:
            raise self._error("image_column: image_root is missing, the folder of these images")
        free = [name for name in names if name not in self.columns and not self.no_images]
        uris = first_of(_URI_NAMES, free)
        column = uris or first_of(_IMAGE_NAMES, free)
        cells = [json_text(cell).strip() for cell in first.values(column) if cell is not None]
        if uris or (cells and all(map(is_image_name, cells))):
            shown = f", such as {cells[0][:60]!r}" if cells else ""
            raise self._error(
                f"the rows name images (column {column!r}{shown}): set image_root to their folder "
                "(--image-root), or no_images (--no-images) to write the rows alone"
            )
        return ""

    def _find(
        self, what: str, asked: str | None, candidates: Sequence[str], names: Sequence[str]
    ) -> str:
        if asked is None:
            return first_of(candidates, [name for name in names if name not in self.columns])
        self._check_there(asked, names, setting=f"{what}_column")
        return asked

    def _check_there(self, column: str, names: Sequence[str], *, setting: str) -> None:
        if column not in names:
            hint = did_you_mean(column, known=names) or f"; there are {join_names(names)}"
            raise self._error(f"{setting}: no column is named {column!r}{hint}")

    def _column_type(
        self,
        name: str,
        text: str | None,
        values: Iterable[object],
        *,
        per_object: bool,
        per_row: bool,
    ) -> ColumnType:
        column = parse_type(text or "") or infer_type(values)
        is_text = self.cells_are_text and str(column) == "string?"
        if text is None and (is_text or ((per_object or per_row) and column.form == "list")):
            column = ColumnType("string")
        if not name.isprintable() or len(name.encode()) > _MAX_NAME_BYTES:
            raise self._error(
                f"the column {name[:40]!a} cannot be a feature: expected printable text of at "
                f"most {_MAX_NAME_BYTES} bytes; set columns to ignore it"
            )
        if (per_object or per_row) and column.form == "list":
            what = "objects" if per_object else "captions"
            raise self._error(f"columns.{name}: a feature of {what} has one value each, not a list")
        return column

    def _splits_of(self, rows: Iterable[Row], column: str) -> tuple[str, ...]:
        if self.splits is not None:
            return tuple(self.splits)
        found = {_split_name(row.get(column)) for row in rows} - {_DISCARD, ""}
        if len(found) > _MAX_SPLITS:
            raise self._error(
                f"the column of the split has more than {_MAX_SPLITS} values; set split_column"
            )
        for split in sorted(found):
            if split == "all" or not _NAME.match(split):
                raise self._error(
                    f"{split!r} cannot name a split: expected a letter, then letters, digits "
                    "and _, and not `all`; set splits to leave its rows out, or columns to ignore "
                    "the column"
                )
        first = [split for split in _FIRST_SPLITS if split in found]
        return (*first, *sorted(found.difference(first)))

    def _error(self, problem: str) -> InputError:
        return InputError(uri=self.manifest[0], problem=problem)

    # Reading rows

    def _read_rows(
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
                place=f"{self._names[file_index]}: {unit} {position}",
                seen=seen,
            )
        classes = sorted(seen, key=lambda each: (each[0], each[1] or 0))
        if self._layout.one_hot:
            classes = [(name, id_) for id_, name in enumerate(class_names(self._layout.one_hot))]
        for name, source_id in classes:
            yield Category(name=name, source_id=source_id, origin=self.manifest[file_index])

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
            split = _split_name(row.get(layout.split)) if layout.split else ""
            if split == _DISCARD:
                exclusion = Exclusion.DISCARDED
            elif self.splits is not None and split and split not in self.splits:
                exclusion = Exclusion.IN_NO_SPLIT
            if layout.image:
                key = self._image_key(row.get(layout.image))
            if exclusion is None:
                found = self._annotations(row)
                names = (*found.labels, *(item.label for item in found.objects))
                seen.update((name, self._class_id(row, name)) for name in names)
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

    def _image_key(self, cell: object) -> str:
        name = "" if cell is None else image_name(str(cell).strip())
        if not name:
            raise CellError(f"the column {self._layout.image} names no image")
        problem = key_problem(name)
        if problem is not None:
            raise CellError(problem, reason=Reason.UNREADABLE_NAME, key=escape_key(name))
        key = None if self._roots is None else self._roots.key_of(name)
        if key is None and self._roots is not None and self.match != "path":
            return normalize_key(name)
        if key is None:
            # No listed image has this key.
            raise CellError(
                "the image lies in none of the image_root folders",
                reason=Reason.OUTSIDE_ROOTS,
                key=name,
            )
        return key

    def _annotations(self, row: Row) -> ImageAnnotations:
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
        if isinstance(cell, str) and self.label_separator is not None:
            cell = cell.split(self.label_separator)
        elif isinstance(cell, str):
            value = value_of_text(cell)
            cell = value if isinstance(value, list) else cell
        values = cell if isinstance(cell, list) else [] if cell is None else [cell]
        if any(isinstance(value, (dict, list)) or value is None for value in values):
            raise CellError(f"expected a label or a list of labels, got {json_text(cell)[:60]!a}")
        labels = class_names(map(json_text, values))
        if not self._layout.class_ids:
            return labels
        ids = [_CLASS_ID.fullmatch(label) for label in labels]
        numbers = [int(match[1]) for match in ids if match is not None]
        if len(numbers) < len(labels) or max(numbers, default=0) > _MAX_CLASS_ID:
            raise CellError(f"expected ids of classes, got {', '.join(labels)[:60]!a}")
        return list(map(str, numbers))

    def _class_id(self, row: Row, name: str) -> int | None:
        """Returns the id that a row gives its class; None if classes have names alone."""
        if self._layout.class_ids:
            return int(name)
        if not self._layout.label_ids:
            return None
        text = json_text(row.get(self._layout.label_ids)).strip()
        match = _CLASS_ID.fullmatch(text)
        if match is None or int(match[1]) > _MAX_CLASS_ID:
            column = self._layout.label_ids
            raise CellError(f"column {column}: expected the id of class {name}, got {text[:60]!a}")
        return int(match[1])

    def _captions(self, row: Row) -> Iterator[str]:
        if not self._layout.caption:
            return
        cell = row.get(self._layout.caption)
        listed = value_of_text(cell) if self.cells_are_text and isinstance(cell, str) else cell
        for value in listed if isinstance(listed, list) else [cell]:
            if isinstance(value, (dict, list)):
                raise CellError(f"expected a caption, got {json_text(value)[:60]!a}")
            text = "" if value is None else json_text(value).strip()
            if text:
                yield text

    def _is_one(self, row: Row, name: str) -> bool:
        (value,) = self._column_value(row, name, ColumnType("int"))
        if value not in (0, 1):
            raise CellError(f"column {name}: expected 0 or 1, got {value}")
        return value == 1

    def _side(self, side: float | None) -> float:
        if side is None or not abs(side) < 2**31:
            raise CellError("expected four finite numbers of a box")
        if self._layout.normalized and not MIN_FRACTION <= side <= MAX_FRACTION:
            says = "box_units says" if self.box_units else "in the table's first rows"
            raise CellError(f"expected a box in fractions, as {says}")
        return side

    def _column_value(
        self, row: Row, name: str, column: ColumnType, *, is_text: bool = False
    ) -> tuple[Value, ...]:
        try:
            return read_cell(row.get(name), column, is_text=is_text or self.cells_are_text)
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


def _lone_caption(columns: Iterable[str], first: FirstRows) -> str:
    """Finds the captions of a table with a row for each image; empty if there are none."""
    names = [*columns]
    sentences = [name for name in names if len(names) == 1 and first.holds_sentences(name)]
    return first_of(CAPTION_NAMES, names) or next(iter(sentences), "")


def is_submission(path: str) -> bool:
    """Whether a file is Kaggle's example of the table to hand in."""
    return _SUBMISSION.search(path) is not None


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


def _split_name(cell: object) -> str:
    """Returns the split that a cell names; empty where it names none."""
    text = "" if cell is None else json_text(cell).strip()
    return _SPLITS.get(text.casefold(), text)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_named(text: str) -> bool:
    return is_image_name(image_name(text))


def _are_class_ids(values: Iterable[object]) -> bool:
    """Whether all labels are ids of classes."""
    found: list[object] = []
    for value in values:
        found += value if isinstance(value, list) else [] if value is None else [value]
    return bool(found) and all(
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= _MAX_CLASS_ID
        and value == int(value)
        for value in found
    )
