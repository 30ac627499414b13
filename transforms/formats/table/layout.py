"""Finds out what the columns of a table are, by its keys and its first rows."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem, did_you_mean
from shardbeam.configs.schema import Name
from shardbeam.transforms.core.box_formats import BoxFormat, BoxFormatKey, BoxUnitsKey
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import Format, Match
from shardbeam.transforms.formats.names import is_image_name
from shardbeam.transforms.formats.parsing.root_files import TableRoots, short_names, stored_sizes
from shardbeam.transforms.formats.parsing.table_columns import (
    ColumnType,
    first_of,
    infer_type,
    join_names,
    json_text,
    parse_type,
)
from shardbeam.transforms.formats.table.table_boxes import (
    SIZE_NAMES,
    BoxColumns,
    FirstRows,
    Row,
    UnclearBoxesError,
    find_boxes,
    flag_text,
    four_numbers,
    holds_run_lengths,
    image_name,
    is_missing,
    meaning_of,
)

# The keys of tables in CSV, JSON Lines or Parquet, and what the columns mean.


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
        has_signs: Whether these hold -1 and 1, and -1 is no.
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
    has_signs: bool = False
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


class TableKeys(Format, frozen=True, kw_only=True):
    """The keys of a table.

    Attributes:
        box_format: What the four numbers of a box mean; by default what the names of the columns
            say.
        box_columns: The four columns of boxes, or the one with four numbers in each cell.
        box_units: The units of boxes; by default as the first rows show.
        one_hot_values: `{cell: 0 or 1}` of cells other than 0 and 1 in the columns of `one_hot`; an
            empty text stands for an empty cell.
        columns: `{column: type}` of columns whose types should not be inferred, such as `int?` or
            `list[int]`.
        cells_are_text: Whether all cells are texts, and all rows have all columns.
        extensions: Extensions of the files.
    """

    ROOTS = ("image_root",)
    FILES = ("manifest",)
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
    one_hot_values: Annotated[
        dict[str, Literal[0, 1]], msgspec.Meta(description="a mapping such as {'-1': 0, '': 0}")
    ] = {}
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

    def __post_init__(self) -> None:
        for column, text in self.columns.items():
            if text != "ignore" and parse_type(text) is None:
                raise Problem(
                    ("columns", column),
                    f"unknown type {text!r}; expected bool, int, float, string, one of these with "
                    "? (int?) where it may be missing, a list (list[int]), or ignore",
                )
        if self.one_hot_values and self.one_hot is False:
            raise Problem(("one_hot_values",), "has no effect without one_hot")
        if self.one_hot and self.label_column:
            raise Problem(("one_hot",), "label_column names the column of labels; take one out")
        try:
            _ = self.table_roots
        except ValueError as error:
            raise Problem(("image_root",), str(error)) from error
        if self.no_images and self.image_root:
            raise Problem(("no_images",), "not together with image_root; take one of them out")

    @functools.cached_property
    def file_names(self) -> Sequence[str]:
        """The shortest names that distinguish the files."""
        return short_names(self.manifest)

    @functools.cached_property
    def table_roots(self) -> TableRoots | None:
        """The folders of the images; None if rows have none."""
        return TableRoots(self.image_root) if self.image_root else None

    def error(self, problem: str) -> InputError:
        """Makes an error about the table."""
        return InputError(uri=self.manifest[0], problem=problem)


# Names of columns in lower case, without spaces, `_` and `-`; the first that a table has is taken.
_IMAGE_NAMES = (
    *("imageuri", "imagegcsuri", "image", "imagepath", "imagefile", "imagefilename", "imagename"),
    *("filename", "filepath", "file", "path", "uri", "gcsuri", "imageid", "img", "imgpath"),
)
# Columns with these names hold nothing but images.
_URI_NAMES = ("imageuri", "imagegcsuri")
LABEL_NAMES = ("label", "labels", "labelname", "class", "classname", "category", "categoryname")
_SPLIT_NAMES = ("split", "mluse")
# Captions, if several rows name one image; such a column may hold anything else, too.
CAPTION_NAMES = ("caption", "captions", "sentence", "sentences", "comment", "comments")
# Roboflow's tables of this name have a column of 0 and 1 for each class.
_ONE_HOT_FILE = "_classes.csv"
_FIRST_SPLITS = ("train", "validation", "test")
_MAX_SPLITS = 100
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*\Z")
_MAX_NAME_BYTES = 200
# Texts that other programs write in the place of an empty cell.
_NOTHING = frozenset({"nan", "none", "null", "na", "n/a", "<na>"})
# Images whose size is compared with columns `width` and `height`.
_SIZES = 3
_NUMBER_TYPES = {"int", "int?", "float", "float?"}
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
DISCARD = "discard"
# Larger numbers are not class ids: a label file could not have a line for each.
MAX_CLASS_ID = 100_000


def find_layout(keys: TableKeys, names: Sequence[str], rows: Sequence[Row]) -> TableLayout:
    """Finds the columns and their meaning by the keys and the first rows.

    Args:
        keys: The keys of the table.
        names: The names of the columns.
        rows: The first rows.

    Raises:
        InputError: A key names a column that is missing, or nothing says what a column means.
    """
    first = FirstRows(names, rows, keys.cells_are_text)
    image = find_image_column(keys, first)
    split = _find(keys, "split", keys.split_column, _SPLIT_NAMES, names)
    _check_has_images(keys, image)
    is_one_hot = _is_one_hot(keys, image)
    label, label_ids = "", ""
    if image and not is_one_hot:
        label, label_ids = _label_columns(keys, first)
    free = [name for name in names if image and name not in keys.columns]
    free = [name for name in free if name not in (image, split, label, label_ids)]
    boxes = _boxes(keys, free, first, image=image)
    if boxes.names and not label:
        raise UndecidedTableError(
            uri=keys.manifest[0],
            problem="the rows have boxes, and no column has a usual name for labels; set "
            f"label_column to one of {join_names(names)}",
        )
    size = _size_columns(free, first) if boxes.names else ()
    repeats = bool(image) and not boxes.names and first.repeats_images(image)
    caption = _caption_column(keys, free, first, repeats=repeats)
    used = {image, label, label_ids, split, caption, *boxes.names, *size, ""}
    per_row = bool(caption) and repeats
    one_for = "objects" if boxes.names else "captions" if per_row else ""
    columns: dict[str, ColumnType] = {}
    for name in dict.fromkeys([*names, *keys.columns]):
        text = keys.columns.get(name)
        # In JSON, a later row may have columns that the first rows lack, with names unlike theirs.
        if text and (keys.cells_are_text or difflib.get_close_matches(name, names, n=1)):
            _check_there(keys, name, names, setting=f"columns.{name}")
        if name not in used and text != "ignore":
            columns[name] = _column_type(keys, name, first.values(name), one_for=one_for)
    one_hot = [name for name in columns if is_one_hot and name not in keys.columns]
    for name in one_hot:
        del columns[name]
    is_plain = bool(image) and not (label or one_hot or boxes.names or caption)
    class_ids = bool(label) and _are_class_ids(first.values(label))
    normalized = bool(boxes.names) and _are_fractions(keys, boxes.names, first)
    notes = [*_note_labels(keys, label, first, columns=columns)] if label and not class_ids else []
    notes += [
        f"{name} holds run lengths of masks, which are written as texts and not as masks"
        for name in columns
        if image and name not in keys.columns and holds_run_lengths(name, first)
    ]
    if boxes.names and not normalized and keys.box_units is None:
        notes += first.note_fractions(boxes.names)
    return TableLayout(
        names=frozenset(names),
        image=image,
        label=label,
        label_ids=label_ids,
        separator=first.separator(label)
        if label and not boxes.names and keys.label_separator is None
        else "",
        flags=tuple(
            name
            for name in columns
            if is_plain and name not in keys.columns and first.holds_flags(name)
        ),
        one_hot=tuple(one_hot),
        has_signs=_have_signs(keys, one_hot, first),
        split=split,
        boxes=boxes.names,
        box_format=boxes.format,
        size=size,
        caption=caption,
        per_row=per_row,
        columns=columns,
        splits=_splits_of(keys, rows, split) if split else (),
        normalized=normalized,
        class_ids=class_ids,
        by_stem=bool(image) and not any(map(is_named, first.texts(image))),
        notes=tuple(notes),
    )


def _check_has_images(keys: TableKeys, image: str) -> None:
    settings = ("one_hot", "label_column", "caption_column", "box_columns")
    # Without images, every column is a feature.
    for key in settings:
        if getattr(keys, key) and not image:
            raise keys.error(f"{key}: rows without images have features, not labels; take it out")


def _is_one_hot(keys: TableKeys, image: str) -> bool:
    if keys.one_hot is None and image and not keys.label_column:
        return all(uri.rpartition("/")[2] == _ONE_HOT_FILE for uri in keys.manifest)
    return bool(image and keys.one_hot)


def _have_signs(keys: TableKeys, columns: Sequence[str], first: FirstRows) -> bool:
    """Whether columns of classes hold -1 for no, as CelebA's do.

    Raises:
        UndecidedTableError: They hold 0 or nothing, too, and nothing says what -1 means.
    """
    if "-1" in keys.one_hot_values:
        return False
    cells = {name: {flag_text(row.get(name)) for row in first.rows} for name in columns}
    signed = next((name for name in columns if "-1" in cells[name]), "")
    others = {"": "empty cells", "0": "0"}
    mixed = [(name, other) for name in columns for other in others if other in cells[name]]
    if not signed or not mixed:
        return bool(signed)
    name, other = min(mixed, key=lambda each: each[0] != signed)
    where = "" if name == signed else f"{name} has "
    raise UndecidedTableError(
        uri=keys.manifest[0],
        problem=f"the column {signed} has -1, and {where}{others[other]}: -1 may mean no, or that "
        "nobody is certain; say for each whether it is 0 or 1, such as "
        "one_hot_values: {'-1': 0, '': 0}",
    )


def _label_columns(keys: TableKeys, first: FirstRows) -> tuple[str, str]:
    """Returns the column of labels, and that of their ids if the labels are names with ids."""
    label = _find(keys, "label", keys.label_column, LABEL_NAMES, first.names)
    if not label or keys.label_column is not None:
        return label, ""
    free = [name for name in first.names if name not in keys.columns]
    usual = [name for name in free if first_of(LABEL_NAMES, [name])]
    ids = [name for name in usual if _are_class_ids(first.values(name))]
    names = [name for name in usual if any(map(_is_word, first.values(name)))]
    if not names or len(ids) != 1:
        return label, ""
    contradiction = first.contradiction(ids[0], names[0])
    if len(names) == 1 and not contradiction:
        return names[0], ids[0]
    but = f", but {contradiction}" if len(names) == 1 else ""
    raise UndecidedTableError(
        uri=keys.manifest[0],
        problem=f"the columns {join_names([*ids, *names])} look like ids and names of "
        f"classes{but}: set label_column to one of them",
    )


def _note_labels(
    keys: TableKeys, label: str, first: FirstRows, *, columns: Iterable[str]
) -> Iterator[str]:
    """Describes names of classes that may be numbers, missing values or not the only ones."""
    values = [value for value in first.values(label) if value is not None]
    numbers = [it for it in values if isinstance(it, (int, float)) and it == it]
    odd = next((it for it in numbers if not _are_class_ids([it])), None)
    if odd is not None and len(numbers) == len(values):
        yield (
            f"the numbers in {label} are read as names of classes, which get new ids, because "
            f"{odd} is no id (a whole number from 0 to {MAX_CLASS_ID:,})"
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
        if keys.label_column is None and name not in keys.columns and first_of(LABEL_NAMES, [name])
    ]
    if others:
        yield (
            f"the classes are those of {label}, and {join_names(others)} a feature: "
            "label_column says which column counts"
        )


def _caption_column(
    keys: TableKeys, free: Sequence[str], first: FirstRows, *, repeats: bool
) -> str:
    if keys.caption_column is not None:
        _check_there(keys, keys.caption_column, first.names, setting="caption_column")
        return keys.caption_column
    return first_of(CAPTION_NAMES, free) if repeats else ""


def _size_columns(free: Sequence[str], first: FirstRows) -> tuple[str, ...]:
    size = tuple(first_of(names, free) for names in SIZE_NAMES)
    types = {str(infer_type(first.numbers(name))) for name in size if name}
    return size if all(size) and types <= _NUMBER_TYPES else ()


def _boxes(keys: TableKeys, free: list[str], first: FirstRows, *, image: str) -> BoxColumns:
    """Finds the columns of boxes, and takes them out of `free`.

    Raises:
        UndecidedTableError: Columns look like boxes, and nothing says what they mean.
    """

    def are_sizes(columns: Sequence[str]) -> bool:
        is_size = [name.casefold() for name in columns[2:]] == ["width", "height"]
        return is_size and _are_image_sizes(keys, first, image=image, columns=columns)

    try:
        if keys.box_columns is not None:
            names = tuple(name.strip() for it in keys.box_columns for name in it.split(","))
            for name in names:
                _check_there(keys, name, first.names, setting="box_columns")
            if len(names) not in (1, 4):
                raise keys.error(f"box_columns: expected one column or four, got {len(names)}")
            found = BoxColumns(names, keys.box_format or meaning_of(names))
        else:
            found = find_boxes(free, first, box_format=keys.box_format, are_sizes=are_sizes)
    except UnclearBoxesError as error:
        raise UndecidedTableError(uri=keys.manifest[0], problem=str(error)) from error
    if not found.names and (keys.box_format or keys.box_units):
        key = "box_format" if keys.box_format else "box_units"
        raise keys.error(f"{key}: the rows have no columns of boxes; take it out")
    free[:] = [name for name in free if name not in found.names]
    return found


def _are_image_sizes(
    keys: TableKeys, first: FirstRows, *, image: str, columns: Sequence[str]
) -> bool:
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
        uri = None if keys.table_roots is None else keys.table_roots.location_of(name)
        sizes = [] if uri is None else stored_sizes(uri)
        if sizes and not all(box[2:] in sizes for box in boxes):
            return False
        has_size = has_size or bool(sizes)
        is_elsewhere = is_elsewhere or any(
            box[:2] not in ((0, 0), (box[2] / 2, box[3] / 2)) for box in boxes if sizes
        )
    return has_size and is_elsewhere


def _are_fractions(keys: TableKeys, columns: Sequence[str], first: FirstRows) -> bool:
    if keys.box_units is not None:
        return keys.box_units == "fraction"
    values: Iterable[object] = (it for name in columns for it in first.numbers(name))
    if len(columns) == 1:
        values = (it for value in values for it in four_numbers(value) or ())
    return all(value <= 1 for value in values if isinstance(value, (int, float)))


def find_image_column(keys: TableKeys, first: FirstRows) -> str:
    """Finds the column of the images' names; empty for rows without images."""
    names = first.names
    if keys.table_roots is not None:
        image = _find(keys, "image", keys.image_column, _IMAGE_NAMES, names)
        if not image:
            raise keys.error(
                "no column has a usual name for images; set image_column to one of "
                f"{join_names(names)}"
            )
        return image
    if keys.image_column:
        raise keys.error("image_column: image_root is missing, the folder of these images")
    free = [name for name in names if name not in keys.columns and not keys.no_images]
    uris = first_of(_URI_NAMES, free)
    column = uris or first_of(_IMAGE_NAMES, free)
    cells = [json_text(cell).strip() for cell in first.values(column) if cell is not None]
    if uris or (cells and all(map(is_image_name, cells))):
        shown = f", such as {cells[0][:60]!r}" if cells else ""
        raise keys.error(
            f"the rows name images (column {column!r}{shown}): set image_root to their folder "
            "(--image-root), or no_images (--no-images) to write the rows alone"
        )
    return ""


def _find(
    keys: TableKeys, what: str, asked: str | None, candidates: Sequence[str], names: Sequence[str]
) -> str:
    if asked is None:
        return first_of(candidates, [name for name in names if name not in keys.columns])
    _check_there(keys, asked, names, setting=f"{what}_column")
    return asked


def _check_there(keys: TableKeys, column: str, names: Sequence[str], *, setting: str) -> None:
    if column not in names:
        hint = did_you_mean(column, known=names) or f"; there are {join_names(names)}"
        raise keys.error(f"{setting}: no column is named {column!r}{hint}")


def _column_type(
    keys: TableKeys, name: str, values: Iterable[object], *, one_for: str
) -> ColumnType:
    text = keys.columns.get(name)
    column = parse_type(text or "") or infer_type(values)
    is_text = keys.cells_are_text and str(column) == "string?"
    if text is None and (is_text or (one_for and column.form == "list")):
        column = ColumnType("string")
    if not name.isprintable() or len(name.encode()) > _MAX_NAME_BYTES:
        raise keys.error(
            f"the column {name[:40]!a} cannot be a feature: expected printable text of at "
            f"most {_MAX_NAME_BYTES} bytes; set columns to ignore it"
        )
    if one_for and column.form == "list":
        raise keys.error(f"columns.{name}: a feature of {one_for} has one value each, not a list")
    return column


def _splits_of(keys: TableKeys, rows: Iterable[Row], column: str) -> tuple[str, ...]:
    if keys.splits is not None:
        return tuple(keys.splits)
    found = {split_name(row.get(column)) for row in rows} - {DISCARD, ""}
    if len(found) > _MAX_SPLITS:
        raise keys.error(
            f"the column of the split has more than {_MAX_SPLITS} values; set split_column"
        )
    for split in sorted(found):
        if split == "all" or not _NAME.match(split):
            raise keys.error(
                f"{split!r} cannot name a split: expected a letter, then letters, digits "
                "and _, and not `all`; set splits to leave its rows out, or columns to ignore "
                "the column"
            )
    first = [split for split in _FIRST_SPLITS if split in found]
    return (*first, *sorted(found.difference(first)))


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_named(text: str) -> bool:
    """Whether a cell is the name of an image with its extension."""
    return is_image_name(image_name(text))


def _are_class_ids(values: Iterable[object]) -> bool:
    """Whether all labels are ids of classes."""
    found: list[object] = []
    for value in values:
        found += value if isinstance(value, list) else [] if is_missing(value) else [value]
    return bool(found) and all(
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= MAX_CLASS_ID
        and value == int(value)
        for value in found
    )


def split_name(cell: object) -> str:
    """Returns the split that a cell names; empty where it names none."""
    text = "" if cell is None else json_text(cell).strip()
    return _SPLITS.get(text.casefold(), text)
