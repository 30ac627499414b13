"""Finds out what the columns of a Hugging Face dataset are."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.huggingface.objects import (
    ObjectLayout,
    are_objects,
    find_boxes,
    find_objects,
    name_class,
)
from shardbeam.transforms.formats.parsing.table_columns import (
    CellError,
    first_of,
    infer_type,
    join_names,
)
from shardbeam.transforms.formats.table.layout import (
    LABEL_NAMES,
    TableKeys,
    TableLayout,
    find_layout,
)
from shardbeam.transforms.formats.table.table_boxes import Row


class NoImagesError(InputError):
    """The rows hold no images, and name none."""


_MASKS = ("label", "labels", "mask", "masks", "annotation", "annotations", "segmentation")
# The column of images in Examples.
_EXAMPLES = "image/encoded"
IMAGE_NAMES = ("filename", "imagefilename")
_CAPTIONS = ("caption", "captions", "sentence", "sentences", "text", "texts")
# Columns that files' splits, not rows, decide.
_SPLITS = ("split", "mluse")


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """What the columns are. The name of a missing one is empty.

    Attributes:
        image: The column of images, or of their files' names.
        mask: The column of maps of classes.
        image_id: The column of ids of images.
        size: The columns of the images' width and height, if there are objects.
        classes: `{column: names of its classes}`; a column in a struct is `objects.category`.
        objects: Where the objects are.
        boxed: The columns of structs with boxes, if none of them is read as objects.
        table: What all other columns are, as in a table.
        not_read: The columns that are not read.
    """

    image: str = ""
    mask: str = ""
    image_id: str = ""
    size: tuple[str, ...] = ()
    classes: Mapping[str, tuple[str, ...]] = {}
    objects: ObjectLayout | None = None
    boxed: tuple[str, ...] = ()
    table: TableLayout = TableLayout()
    not_read: tuple[str, ...] = ()

    @property
    def read(self) -> list[str]:
        """The columns to read, without those of images."""
        objects = () if self.objects is None else sorted(self.objects.used)
        table = self.table
        found = (table.label, table.label_ids, table.caption, *table.boxes, *table.size)
        named = (*found, *table.columns, self.image_id, *self.size, *objects)
        return [name for name in dict.fromkeys(named) if name not in ("", self.image, self.mask)]


class FirstColumns(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say about their columns, and their first rows.

    Attributes:
        names: All columns.
        images: Those that hold images.
        unread: Those that hold bytes.
        fields: `{column: its fields}` of the columns of structs, or of lists of these.
        classes: `{column: names of its classes}`.
        rows: The first rows, without images.
    """

    names: Sequence[str]
    images: Sequence[str] = ()
    unread: Sequence[str] = ()
    fields: Mapping[str, Sequence[str]] = {}
    classes: Mapping[str, Sequence[str]] = {}
    rows: Sequence[Row] = ()


def find_columns(
    first: FirstColumns,
    table: TableKeys,
    *,
    mask_column: str | None,
    object_column: str | None,
    names_images: bool,
) -> Columns:
    """Finds out what the columns are.

    Args:
        first: The columns and the first rows.
        table: The keys of a table with these rows.
        mask_column: The key of the config.
        object_column: The key of the config.
        names_images: Whether rows name image files.

    Raises:
        InputError: No column holds images, or nothing says what a column means.
        Problem: The same, if a key decides.
    """
    uri = table.manifest[0]
    if _EXAMPLES in first.names:
        # Its boxes would be features of images.
        raise InputError(
            uri=uri,
            problem=f"a column {_EXAMPLES}, as of Examples in Shardbeam's container hf_parquet: "
            "the format tfrecord reads them, with the dataset's folder as --tfrecords",
        )
    used = [name for name in first.names if table.columns.get(name) != "ignore"]
    images = [name for name in first.images if name in used]
    for key, name in (("image_column", table.image_column), ("mask_column", mask_column)):
        if name is not None and name not in first.names:
            raise Problem(
                (key,), f"there is no column {name!r}; there are: {join_names(first.names)}"
            )
    mask = mask_column or ""
    if names_images:
        image = table.image_column or first_of(IMAGE_NAMES, used)
        if not image:
            raise NoImagesError(
                uri=uri,
                problem=f"expected a column file_name; there are: {join_names(first.names)}; "
                "image_column names another one",
            )
    else:
        image, mask = _image_columns(images, table, mask=mask, first=first)
    free = [it for it in used if it not in (image, mask, *images, *first.unread)]
    classes = {name: tuple(names) for name, names in first.classes.items()}
    rows = [*_valid(first.rows, classes)]
    objects = find_objects(
        rows, names=free, fields=first.fields, classes=classes, object_column=object_column
    )
    boxed = [
        name
        for name in (free if objects is None else ())
        if (box := find_boxes(first.fields.get(name, ())))
        and are_objects(rows, column=name, box=box)
    ]
    image_id = ""
    size: tuple[str, ...] = ()
    if objects is not None:
        free = [name for name in free if name not in objects.used]
        sides = tuple(first_of([side], free) for side in ("width", "height"))
        if all(sides):
            size = sides
            free = [name for name in free if name not in size]
    if found := first_of(["imageid"], free):
        image_id = found
        free.remove(found)
    label = table.label_column or _class_column(free, classes)
    caption = table.caption_column or _caption_column(free, rows)
    # Files decide the splits; a column of this name is a feature.
    types = {
        name: str(infer_type(row.get(name) for row in rows))
        for name in free
        if first_of(_SPLITS, [name])
    }
    in_rows = {} if objects is None else {"box_format": None, "box_units": None}
    keys = msgspec.structs.replace(
        table,
        **in_rows,
        image_column=image,
        label_column=label or None,
        caption_column=caption or None,
        columns={**types, **{name: it for name, it in table.columns.items() if name in free}},
    )
    if not names_images:
        for number, row in enumerate(rows):
            row[image] = str(number)
    others = [name for name in images if name not in (image, mask)]
    return Columns(
        image=image,
        mask=mask,
        image_id=image_id,
        size=size,
        classes=classes,
        objects=objects,
        boxed=tuple(boxed),
        table=find_layout(keys, [image, *free], rows),
        not_read=(
            *others,
            *(it for it in first.unread if it in used and it not in (*images, image, mask)),
        ),
    )


def _image_columns(
    images: Sequence[str], table: TableKeys, *, mask: str, first: FirstColumns
) -> tuple[str, str]:
    """Returns the columns of the image and of its map of classes."""
    image = table.image_column
    masks = [name for name in images if name != image and first_of(_MASKS, [name])]
    others = [name for name in images if name not in masks and name != mask]
    if image is None:
        if not images:
            hint = "image_column can name one of bytes"
            if first.unread:
                hint = (
                    f"if the bytes of {first.unread[0]} are images: --image-column "
                    f"{shlex.quote(first.unread[0])} (image_column)"
                )
            raise NoImagesError(
                uri=table.manifest[0],
                problem=f"no column holds images; there are: {join_names(first.names)}; expected "
                f"one of the type Image, a struct of bytes and path; {hint}",
            )
        if len(others) != 1 and len(images) > 1:
            raise Problem(
                ("image_column",),
                f"missing: the columns {join_names(others or images)} hold images; name one "
                f"(--image-column {(others or images)[0]}), and in mask_column one whose pixels "
                "are class ids",
            )
        image = (others or images)[0]
    masks = [name for name in masks if name != image]
    if not mask and len(masks) > 1:
        raise Problem(
            ("mask_column",),
            f"missing: the columns {join_names(masks)} may hold maps of classes; name one of them, "
            "and set the others in `columns` to ignore",
        )
    return image, mask or next(iter(masks), "")


def name_classes(row: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns a row with names of classes in the place of their numbers.

    Raises:
        CellError: A number is none of a class.
    """
    found = dict(row)
    for name, names in classes.items():
        if name in found:
            try:
                found[name] = name_class(found[name], names)
            except CellError as error:
                raise CellError(f"column {name}: {error}") from error
    return found


def _valid(rows: Iterable[Row], classes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        # Other rows become rejects.
        with contextlib.suppress(CellError):
            yield name_classes(row, classes)


def _class_column(free: Sequence[str], classes: Mapping[str, Sequence[str]]) -> str:
    """Returns the column of classes; empty if there is none, or it is no ClassLabel."""
    known = [name for name in free if name in classes]
    if len(known) < 2:
        return next(iter(known), "")
    if usual := first_of(LABEL_NAMES, known):
        return usual
    raise Problem(
        ("label_column",),
        f"missing: the columns {join_names(known)} hold classes; name the one of the image's class "
        f"(--label-column {known[0]})",
    )


def _caption_column(free: Sequence[str], rows: Iterable[Row]) -> str:
    name = first_of(_CAPTIONS, free)
    cells = [cell for row in rows if (cell := row.get(name)) is not None] if name else []
    texts = [text for cell in cells for text in (cell if isinstance(cell, list) else [cell])]
    return name if texts and all(isinstance(text, str) for text in texts) else ""


def class_lists(columns: Columns) -> Iterator[tuple[str, ...]]:
    """Yields the names of the classes of images and objects, if the files declare them."""
    paths = [columns.table.label]
    if columns.objects is not None:
        paths.append(columns.objects.path(columns.objects.label))
    for path in paths:
        if path in columns.classes:
            yield columns.classes[path]
