"""Reads the rows of a dataset's files: what they are, the places of their images, their entries."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyarrow import types

from shardbeam.transforms.containers.base import copy_to_disk
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    MaskRole,
    MaskValues,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.annotation_file import (
    drop_outlines,
    foreign_content,
    read_part,
)
from shardbeam.transforms.formats.huggingface.columns import (
    Columns,
    FirstColumns,
    class_lists,
    find_columns,
    name_classes,
)
from shardbeam.transforms.formats.huggingface.files import DataFile, Found, describe_features
from shardbeam.transforms.formats.huggingface.objects import ObjectReader, SeenBox, decide_boxes
from shardbeam.transforms.formats.huggingface.pages import (
    StoredImage,
    is_empty,
    read_image_column,
    stored_arrow_images,
    stored_images,
)
from shardbeam.transforms.formats.names import escape_key, key_problem, normalize_key
from shardbeam.transforms.formats.parsing.root_files import find_file, sizes_of
from shardbeam.transforms.formats.parsing.table_columns import CellError, json_text
from shardbeam.transforms.formats.table.parquet import holds_bytes, is_bytes, is_list, rows_of
from shardbeam.transforms.formats.table.rows import RowReader
from shardbeam.transforms.formats.table.table_boxes import Row, four_numbers
from shardbeam.transforms.images.header import sniff_format
from shardbeam.transforms.storage.archives.open import is_archive
from shardbeam.transforms.storage.base import Storage, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.parquet import (
    PARQUET_ERRORS,
    ParquetRows,
    describe_parquet_error,
    raise_shortage,
    split_batch,
)

if TYPE_CHECKING:
    from shardbeam.transforms.formats.table.table import TableFormat


# Reads the rows of Parquet and Arrow files, without their images.

# Rows of an Arrow file that are decoded at a time.
_BATCH_ROWS = 32
_HEAD_BYTES = 200
# Values of a column of bytes that are looked at.
_FIRST_VALUES = 16


def read_first(uri: str, *, storage: Storage, number: int) -> FirstColumns:
    """Reads the columns of a file, and its first rows.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    with _opened(uri, storage=storage) as file:
        schema: pa.Schema = file.schema
        unread = [field.name for field in schema if holds_bytes(field.type)]
        described = _metadata(schema)
        classes, images = describe_features(described)
        kept = [name for name in schema.names if name not in unread]
        rows = itertools.islice(_rows(file, columns=kept, uri=uri), number)
        if len(set(schema.names)) < len(schema.names):
            raise InputError(uri=uri, problem="two columns have the same name")
        return FirstColumns(
            names=schema.names,
            images=images if described else [it.name for it in schema if _is_image(it.type)],
            unread=unread,
            fields={field.name: _fields_of(field.type) for field in schema},
            classes=classes,
            rows=[row for row in rows if not isinstance(row, str)],
        )


def read_rows(uri: str, *, storage: Storage, columns: Sequence[str]) -> Iterator[Row | str]:
    """Yields the rows of a file, or the problem of a row, with some of its columns.

    Raises:
        InputError: The file cannot be read, is damaged, or lacks a column.
    """
    with _opened(uri, storage=storage) as file:
        schema: pa.Schema = file.schema
        for name in columns:
            if name not in schema.names:
                raise InputError(
                    uri=uri, problem=f"has no column {name!r}, unlike the first file of the data"
                )
        yield from _rows(file, columns=columns, uri=uri)


def columns_of_pictures(uri: str, *, storage: Storage) -> list[str]:
    """Returns the columns of bytes of which one of the first values is an image.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    with _opened(uri, storage=storage) as file:
        names = [field.name for field in file.schema if is_bytes(field.type)]
        return [name for name in names if any(map(_is_picture, _first_values(file, name)))]


def _first_values(
    file: ParquetRows | pa.RecordBatchStreamReader, name: str
) -> Iterator[bytes | None]:
    """Yields the first values of a column of bytes, which may be long."""
    batches: Iterable[pa.RecordBatch] = file if not isinstance(file, ParquetRows) else ()
    if isinstance(file, ParquetRows) and file.group_rows:
        batches = file.read_group(0, columns=[name], batch_rows=1)
    values = (value for batch in batches for value in batch.column(name))
    return (value.as_py() for value in itertools.islice(values, _FIRST_VALUES))


def _is_picture(value: bytes | None) -> bool:
    return value is not None and sniff_format(value) is not None


def find_images(file: DataFile, *, storage: Storage, column: str) -> Iterator[StoredImage]:
    """Yields where the images of a column lie in a file, one for each row."""
    if file.kind == "arrow":
        return stored_arrow_images(file.uri, storage=storage, column=column, may_be_cut=file.named)
    return stored_images(file.uri, storage=storage, column=column)


@contextlib.contextmanager
def _opened(uri: str, *, storage: Storage) -> Iterator[ParquetRows | pa.RecordBatchStreamReader]:
    """Opens a file, and explains errors that its content causes."""
    try:
        with contextlib.ExitStack() as stack:
            local, path = storage.open_local(uri), uri
            if local is not None:
                local.close()
            # A member of an archive has no path.
            if local is None or not os.path.isfile(uri):
                path = stack.enter_context(copy_to_disk(storage.find(uri)))
            # A map, because a batch of an Arrow file may hold 100 MB of images.
            source = stack.enter_context(pa.memory_map(path))
            if uri.endswith(".arrow"):
                yield stack.enter_context(pa.ipc.open_stream(source))
            else:
                yield ParquetRows(source, uri=uri)
    except (*PARQUET_ERRORS, DamagedError) as error:
        raise_shortage(error, uri=uri, most_bytes=storage.find(uri).size_bytes)
        if foreign := foreign_content(read_part(uri, storage=storage, size_bytes=_HEAD_BYTES)):
            raise InputError(uri=uri, problem=foreign) from error
        if isinstance(error, InputError):
            raise
        kind = "an Arrow stream" if uri.endswith(".arrow") else "a Parquet file"
        problem = f"not {kind}, or a damaged one: {describe_parquet_error(error)}"
        raise DamagedError(uri=uri, problem=problem) from error


def _rows(
    file: ParquetRows | pa.RecordBatchStreamReader, *, columns: Sequence[str], uri: str
) -> Iterator[Row | str]:
    """Yields rows, or the problem of a row; without columns, empty ones."""
    if isinstance(file, ParquetRows):
        for group, rows in enumerate(file.group_rows):
            if columns:
                for batch in file.read_group(group, columns=columns):
                    yield from rows_of(batch)
            else:
                yield from itertools.repeat({}, rows)
        return
    for batch in file:
        chosen = batch.select(columns)
        chosen.validate(full=True)
        if not columns:
            yield from itertools.repeat({}, batch.num_rows)
        for begin in range(0, chosen.num_rows if columns else 0, _BATCH_ROWS):
            for part in split_batch(chosen.slice(begin, _BATCH_ROWS), uri=uri):
                yield from rows_of(part)


def _metadata(schema: pa.Schema) -> Any:  # noqa: ANN401
    """Returns the types of the columns as `datasets` has written them; None if it has not."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return None
    try:
        return json.loads(text)["info"]["features"]
    except (ValueError, LookupError, TypeError, RecursionError):
        # Of another program, or damaged; Arrow's types remain.
        return None


def _is_image(kind: pa.DataType) -> bool:
    if not types.is_struct(kind):
        return False
    names: Collection[str] = {field.name for field in kind}
    return names == {"bytes", "path"} and holds_bytes(kind)


def _fields_of(kind: pa.DataType) -> list[str]:
    if is_list(kind):
        kind = kind.value_type
    return [field.name for field in kind] if types.is_struct(kind) else []


_FIRST_ROWS, _FIRST_BYTES = 1000, 4 << 20
# Digits of a row's number in the keys of images.
_DIGITS = 9


def resolve_columns(
    found: Found, *, table: TableFormat, mask_column: str | None, object_column: str | None
) -> tuple[Columns, list[str]]:
    """Finds out what the columns are, and how boxes are read, by the first rows.

    Args:
        found: The files.
        table: The keys of a table with the same rows.
        mask_column: The key of the config.
        object_column: The key of the config.

    Returns:
        The columns, and lines about the order of boxes and about numbers of rows that are not those
        of README.md.

    Raises:
        InputError: A file cannot be read, or its images have no places in it.
        Problem: A key has to say what a column is, or the order of the numbers of boxes.
    """
    file = found.files[0]
    storage = storage_for(file.uri)
    first = _first_columns(file, storage=storage, table=table)
    beside = [name for name in found.images if name in first.names]
    first = msgspec.structs.replace(
        first,
        images=[*dict.fromkeys([*first.images, *beside])],
        classes=first.classes or found.classes,
    )
    columns = find_columns(
        first,
        table,
        mask_column=mask_column,
        object_column=object_column,
        names_images=file.names_images,
    )
    rows: Counter[str] = Counter()
    for each in found.files:
        if each.kind == "parquet":
            rows[each.split] += _check_plain(each, column=columns.image)
            if columns.mask:
                _check_plain(each, column=columns.mask)
    notes = [
        f"README.md says that {split} has {counted(found.rows[split], 'row')}, and its files have "
        f"{number:,}"
        for split, number in rows.items()
        if number != found.rows.get(split, number)
    ]
    if columns.objects is not None:
        boxes = _first_boxes(file, columns, rows=first.rows, storage=storage)
        objects, said = decide_boxes(boxes, columns.objects, table)
        columns = msgspec.structs.replace(columns, objects=objects)
        notes.append(said)
    return columns, [*filter(None, notes)]


def _first_columns(file: DataFile, *, storage: Storage, table: TableFormat) -> FirstColumns:
    if file.kind not in ("csv", "jsonl"):
        return read_first(file.uri, storage=storage, number=_FIRST_ROWS)
    names, rows = table.first_rows(file.uri, storage=storage, size_bytes=_FIRST_BYTES)
    fields: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in row.items():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict):
                    fields.setdefault(name, {}).update(dict.fromkeys(each))
    return FirstColumns(
        names=names,
        fields={name: [*found] for name, found in fields.items()},
        rows=rows,
    )


def first_maps(file: DataFile, *, column: str, number: int) -> Iterator[tuple[str, ImageRef]]:
    """Yields the rows and places of a file's first maps."""
    places = _places(file, column, storage=storage_for(file.uri))
    for row, place in enumerate(itertools.islice(places, number)):
        if isinstance(place, ImageRef):
            yield f"{file.path}, row {row:,}", place


def _check_plain(file: DataFile, *, column: str) -> int:
    """Checks that the images of a Parquet file have places in it; returns its number of rows."""
    storage = storage_for(file.uri)
    rows, why_not = read_image_column(file.uri, storage=storage, column=column)
    if why_not and is_archive(file.uri):
        problem = (
            f"the column {column} is {why_not}: unpack the archive, and `shardbeam init` says more"
        )
        raise InputError(uri=file.uri, problem=problem)
    if why_not and is_empty(file.uri, storage=storage, column=column):
        raise InputError(
            uri=file.uri,
            problem=f"the column {column} is empty: all its values are null; name another "
            "column with image_column, or leave the file out",
        )
    if why_not:
        folder = posixpath.dirname(file.uri)
        raise InputError(
            uri=file.uri,
            problem=f"the column {column} is {why_not}, so that its images have no place in the "
            f"file: `shardbeam unpack {folder} --to plain` writes the files again, which takes "
            "their size once more; then name plain",
        )
    return rows


def _first_boxes(
    file: DataFile, columns: Columns, *, rows: Sequence[Row], storage: Storage
) -> Iterator[SeenBox]:
    """Yields the boxes of the first rows, whose images' headers are read."""
    objects = columns.objects
    assert objects is not None
    places = _places(file, columns.image, rows=rows, storage=storage)
    for row, place in zip(rows, places, strict=False):
        try:
            items = objects.items(row)
        except CellError:
            continue
        sizes = sizes_of(place) if items and isinstance(place, ImageRef) else []
        for item in items if sizes else ():
            numbers = four_numbers(item.get(objects.box))
            area = item.get(objects.area) if objects.area else None
            if numbers is not None:
                yield SeenBox(numbers, area if isinstance(area, (int, float)) else 0, sizes)


def _places(
    file: DataFile, column: str, *, storage: Storage, rows: Iterable[Row] = ()
) -> Iterator[ImageRef | str]:
    """Yields the place of each row's image in a column, or why there is none (empty for null)."""
    if file.names_images:
        folder = posixpath.dirname(file.uri)
        for row in rows:
            name = str(row.get(column))
            yield find_file(join_uri(folder, name)) or "" if _is_below(name) else ""
        return
    stored = storage.find(file.uri)
    folder = posixpath.dirname(file.uri)
    for image in find_images(file, storage=storage, column=column):
        if image.offset >= 0:
            yield ImageRef(
                uri=file.uri,
                size_bytes=image.size,
                version=stored.version,
                offset=image.offset,
                whole=False,
            )
        else:
            yield _beside(image, folder=folder, column=column)


def _beside(image: StoredImage, *, folder: str, column: str) -> ImageRef | str:
    """Finds the file of an image that has a path in the place of bytes."""
    path = image.path
    if not path:
        return ""
    if not _is_below(path):
        return (
            f"the column {column} has no bytes but the path {path[:80]!a}, which lies outside of "
            "the data: `datasets` embeds images in save_to_disk and push_to_hub, not in to_parquet"
        )
    file = find_file(join_uri(folder, path))
    return file or f"the column {column} has no bytes but the path {path[:80]!a}, and no such file"


def _is_below(path: str) -> bool:
    """Whether a path can name a file below the folder of the data."""
    parts = path.replace("\\", "/").split("/")
    is_absolute = path.startswith(("/", "~")) or ":" in parts[0]
    return not is_absolute and ".." not in parts and key_problem(path) is None


class _HubRow(dict[str, Any]):
    """A row with the place of its map, or with what is wrong with its images."""

    mask: ImageRef | None = None
    problem = ""
    reason = Reason.MISSING_IMAGE


class EntryReader(RowReader):
    """Reads the rows of a file as images and entries.

    Args:
        table: The keys of a table with the same rows.
        file: The file.
        columns: What its columns are.
        class_name: The class of objects, if rows give none.
        masks: Whether objects keep their outlines.
        mask_values: What the values of maps mean.
    """

    def __init__(
        self,
        table: TableFormat,
        *,
        file: DataFile,
        columns: Columns,
        class_name: str,
        masks: bool,
        mask_values: MaskValues,
    ) -> None:
        super().__init__(table, columns.table)
        self._table = table
        self._file = file
        self._columns = columns
        self._mask_values = mask_values
        self._objects: ObjectReader | None = None
        of_rows = {*columns.read}
        if (objects := columns.objects) is not None:
            self._objects = ObjectReader(objects, classes=columns.classes, class_name=class_name)
            if not objects.column:
                # The reader of objects names their classes.
                of_rows -= objects.used
        self._classes = {it: names for it, names in columns.classes.items() if it in of_rows}
        self._ids = {
            name: number for names in class_lists(columns) for number, name in enumerate(names)
        }
        self._masks = masks
        # The image of the row that is being read, and how many outlines of its objects are dropped.
        self._image: ImageRef | None = None
        self._outlines = 0

    def read(
        self, *, file_index: int, storage: Storage
    ) -> Iterator[AnnotationEntry | Category | ListedImage]:
        """Yields the images, their entries, and the classes."""
        unit = {"csv": "line", "jsonl": "byte"}.get(self._file.kind, "row")
        rows = self._table_rows(storage) if self._file.names_images else self._rows(storage)
        for item in self.read_rows(rows, file_index=file_index, unit=unit):
            if not isinstance(item, AnnotationEntry):
                yield item
                continue
            item = msgspec.structs.replace(
                item, split=self._file.split, outlines=self._outlines if item.annotations else 0
            )
            if (image := self._image) is not None:
                yield ListedImage(key=item.key, image=image)
                item = msgspec.structs.replace(item, image=(image.uri, image.offset))
            yield item

    def _table_rows(self, storage: Storage) -> Iterator[tuple[int, Row | str]]:
        uri = self._file.uri
        rows: Iterable[tuple[int, Row | str]]
        if self._file.kind == "parquet_table":
            names = [self._columns.image, *self._columns.read]
            rows = enumerate(read_rows(uri, storage=storage, columns=names))
        else:
            rows = self._table.all_rows(uri, storage=storage)
        for position, row in rows:
            yield position, row if isinstance(row, str) else _HubRow(row)

    def _rows(self, storage: Storage) -> Iterator[tuple[int, Row]]:
        columns, file = self._columns, self._file
        rows = read_rows(file.uri, storage=storage, columns=columns.read)
        images = _places(file, columns.image, storage=storage)
        masks: Iterator[ImageRef | str] = itertools.repeat("")
        if columns.mask:
            masks = _places(file, columns.mask, storage=storage)
        for number, (row, image) in enumerate(itertools.zip_longest(rows, images)):
            mask = next(masks, None)
            if row is None or image is None or mask is None:
                problem = "its columns have different numbers of rows; download the file again"
                raise DamagedError(uri=file.uri, place=f"row {number:,}", problem=problem)
            found = _HubRow() if isinstance(row, str) else _HubRow(row)
            if isinstance(row, str):
                found.problem, found.reason = row, Reason.ANNOTATION_MALFORMED
            found[columns.image] = f"{normalize_key(file.path)}/{number:0{_DIGITS}}"
            self._image = image if isinstance(image, ImageRef) else None
            if not isinstance(image, ImageRef):
                found.problem = image or f"the column {columns.image} is empty"
            if isinstance(mask, ImageRef):
                found.mask = mask
            else:
                # Without a map, all pixels are void, which is counted.
                found.problem = found.problem or mask
            yield number, found

    def image_key(self, cell: object) -> str:
        """Returns the key of a row's image."""
        if not self._file.names_images:
            return str(cell)
        name = "" if cell is None else str(cell).strip()
        if not name:
            raise CellError(f"the column {self._columns.image} names no image")
        if (problem := key_problem(name)) is not None:
            raise CellError(problem, reason=Reason.UNREADABLE_NAME, key=escape_key(name))
        return normalize_key(posixpath.join(posixpath.dirname(self._file.path), name))

    def class_id(self, row: Row, name: str) -> int | None:
        """Returns the number of a class, if the data declare it."""
        if name in self._ids:
            return self._ids[name]
        if self._ids or self._layout.label_ids:
            return None
        return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None

    def annotations(self, row: Row) -> ImageAnnotations:
        """Reads a row's annotations of its image."""
        assert isinstance(row, _HubRow)
        if row.problem:
            raise CellError(row.problem, reason=row.reason)
        columns = self._columns
        found = super().annotations(name_classes(row, self._classes) if self._classes else row)
        changes: dict[str, Any] = {}
        if self._objects is not None:
            width, height = (_side(row.get(name)) for name in columns.size or ("", ""))
            changes = {
                "objects": tuple(self._objects.read(row)),
                "normalized": self._objects.layout.normalized,
                "width": width,
                "height": height,
            }
        if row.mask is not None:
            changes |= {"masks": {MaskRole.SEMANTIC: row.mask}, "mask_values": self._mask_values}
        if columns.image_id and (of_id := row.get(columns.image_id)) is not None:
            changes["image_id"] = json_text(of_id)
        found = msgspec.structs.replace(found, **changes) if changes else found
        found, self._outlines = drop_outlines(found, unless=self._masks)
        return found


def _side(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < 2**31 else 0
