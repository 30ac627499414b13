"""The keys of tables in CSV, JSON Lines or Parquet, and what the columns mean."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.configs.schema import Name
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import BoxFormat, BoxFormatKey, BoxUnitsKey
from shardbeam.transforms.formats.base import Format, Match
from shardbeam.transforms.formats.parsing.roots import TableRoots, short_names
from shardbeam.transforms.formats.parsing.table_columns import ColumnType, parse_type


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


class TableKeys(Format, frozen=True, kw_only=True):
    """The keys of a table.

    Attributes:
        box_format: What the four numbers of a box mean; by default what the names of the columns
            say.
        box_columns: The four columns of boxes, or the one with four numbers in each cell.
        box_units: The units of boxes; by default as the first rows show.
        columns: `{column: type}` of columns whose types should not be inferred, such as `int?` or
            `list[int]`.
        cells_are_text: Whether all cells are texts, and all rows have all columns.
        extensions: Extensions of the files.
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
