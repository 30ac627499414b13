"""Tables in CSV, JSON Lines or Parquet: a row for each image, for each object, or without images.

The first rows of each file, a few megabytes, are read before the run and show what the columns
are. A later row that does not fit becomes a reject with its place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import present_kinds
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.names import is_image_name, normalize_key
from shardbeam.transforms.formats.parsing.table_columns import column_feature, first_of, join_names
from shardbeam.transforms.formats.recognition import TABLE, Folder, Recognized, split_in
from shardbeam.transforms.formats.table.layout import (
    CAPTION_NAMES,
    TableKeys,
    TableLayout,
    UndecidedTableError,
    find_image_column,
    find_layout,
    is_named,
)
from shardbeam.transforms.formats.table.rows import RowReader
from shardbeam.transforms.formats.table.table_boxes import FirstRows, Row, image_name
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

# Bytes that are read to find out what the columns are: of all files together, and at least of each.
_FIRST_BYTES, FIRST_BYTES_OF_A_FILE = 4 << 20, 64 << 10


class TableFormat(TableKeys, frozen=True, kw_only=True):
    """A table.

    With `image_root` each row is an image, or an object of an image if there are columns of boxes,
    or a caption of an image. Without it, each row becomes an Example. Columns
    that no key names are found by their names, and their types follow from the first rows, as
    docs/reference/formats/csv.md says.

    Attributes:
        _layout: The columns; `resolve` finds them.
    """

    _layout: TableLayout = TableLayout()

    @property
    def layout(self) -> TableLayout:
        """The columns; empty before `resolve`."""
        return self._layout

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Rows alone, labels or objects, depending on the columns."""
        layout = self._layout
        return present_kinds(
            {
                Kind.ROWS: not layout.image,
                Kind.DETECTION: layout.boxes or layout.objects,
                Kind.CLASSIFICATION: (layout.label or layout.one_hot) and not layout.boxes,
                Kind.CAPTIONS: layout.caption,
            }
        )

    def resolve(self) -> TableFormat:
        """Reads the first rows of the files to find out what their columns are."""
        names: dict[str, None] = {}
        rows: list[Row] = []
        size_bytes = max(FIRST_BYTES_OF_A_FILE, _FIRST_BYTES // len(self.manifest))
        for uri in self.manifest:
            there, first = self.first_rows(uri, storage=storage_for(uri), size_bytes=size_bytes)
            if self.cells_are_text and names and names.keys() != set(there):
                raise InputError(
                    uri=uri,
                    place="line 1",
                    problem=f"expected the columns of {self.file_names[0]} ({join_names(names)}), "
                    f"got {join_names(there)}",
                )
            names |= dict.fromkeys(there)
            rows += first
        if not names:
            raise self.error("the file holds no rows")
        layout = self._find_layout(list(names), rows)
        if not layout.image and not self.no_images:
            self._refuse_pictures(FirstRows([*names], rows, self.cells_are_text), size_bytes)
        return msgspec.structs.replace(self, _layout=layout)

    def _refuse_pictures(self, first: FirstRows, size_bytes: int) -> None:
        """Refuses rows without images if pictures beside the table are those that they name.

        Raises:
            InputError: They are.
        """
        # Imported here: most tables name their images in a column that is known.
        from shardbeam.transforms.formats.table.rows_of_pictures import find_named_pictures

        uri = self.manifest[0]
        sizes = [storage_for(each).find(each).size_bytes for each in self.manifest]
        found = find_named_pictures(uri, first, are_all=max(sizes) <= size_bytes)
        if found is not None:
            # Formats of tables are named like their files.
            name = self.extensions[0].removeprefix(".")
            command = found.command(name, self.manifest, columns=first.names)
            raise self.error(
                f"the rows seem to name images: the column {found.column!r} names those in "
                f"{found.folder}, such as {found.example}; to write them: `{command}`; to write "
                "the rows alone, set no_images (--no-images)"
            )

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
                f"{self.file_names[0]}: no column was recognized as classes or boxes; these are "
                f"written as features of images: {join_names(unused)}; if there are classes, name "
                "their column in label_column (box_columns for boxes, caption_column for captions);"
                f" if there are none, give these columns types in `columns`{flags}"
            )
        if layout.separator:
            yield (
                f"{self.file_names[0]}: labels with {layout.separator!r} seem to be several "
                "labels, which also occur alone, and each is read as one: set label_separator"
            )
        for note in layout.notes:
            yield f"{self.file_names[0]}: {note}"

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

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by its path below the roots."""
        key = (
            normalize_key(path)
            if self.table_roots is None
            else self.table_roots.key_below(path, root=root)
        )
        join = key
        if self._layout.by_stem and is_image_name(key):
            join = key.rpartition(".")[0]
        return Place(role=Role.IMAGE, key=key, join=join)

    def first_rows(
        self, uri: str, *, storage: Storage, size_bytes: int
    ) -> tuple[Sequence[str], Sequence[Row]]:
        """Reads the columns of a file, and the valid rows that begin in its first bytes.

        Raises:
            InputError: The file cannot be read, or is not such a table.
        """
        raise NotImplementedError

    def all_rows(self, uri: str, *, storage: Storage) -> Iterator[tuple[int, Row | str]]:
        """Reads `(position, row)`, or `(position, problem)`, of each row of a file.

        Raises:
            InputError: The file cannot be read, or is not such a table.
        """
        raise NotImplementedError

    def _find_layout(self, names: Sequence[str], rows: Sequence[Row]) -> TableLayout:
        return find_layout(self, names, rows)

    def _row_reader(self) -> RowReader:
        return RowReader(self, self._layout)

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes tables by their columns and the images that they name."""
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
                    one = _recognize(made, path, folder=folder)
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
                    if not first.is_alike(one) and first.source["manifest"] != [
                        folder.uri(folder.first)
                    ]:
                        problem = f"{both} both name images and their classes"
                        return Recognized(what=f"{len(files)} tables", problem=problem, rank=TABLE)
                    about = "about the same images" if first.is_alike(one) else "tables of images"
                    note = (
                        f"{both} are {about}, and the first is read; to read the "
                        f"other one instead: manifest: [{folder.uri(path)}]"
                    )
                    found[one.split] = first._replace(notes=(*first.notes, note))
                break
        what = counted(len(found) or len(files), "table")
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


# Recognizes tables of images and their labels, boxes or captions.

# Columns of 0 and 1 that are certainly classes, if there is no other column.
_MIN_ONE_HOT = 3
# Kaggle's example of the table to hand in has a label for each image of the test, which means
# nothing.
_SUBMISSION = re.compile(r"(sample|example)[ _-]?submission[^/]*\Z", re.IGNORECASE)
# Tables of a folder that are opened.
_MAX_TABLES = 20


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


def _recognize(table: TableFormat, path: str, *, folder: Folder) -> _Found | None:
    """Returns what is known of a table whose images are there; None for others."""
    (uri,) = table.manifest
    names, rows = table.first_rows(uri, storage=storage_for(uri), size_bytes=FIRST_BYTES_OF_A_FILE)
    first = FirstRows(names, rows, table.cells_are_text)
    cells = [*first.texts(find_image_column(table, first))]
    images = folder.find_images(map(image_name, cells), near=path)
    if images is None:
        return None
    source: dict[str, Any] = {
        "manifest": [folder.uri(path)],
        "image_root": [folder.uri(images.folder)],
    }
    if images.match != "path" and any(map(is_named, cells)):
        source["match"] = images.match
    table = msgspec.structs.replace(table, image_root=[folder.location(images.folder)])
    try:
        made = table.resolve()
    except UndecidedTableError as error:
        return _Found("", source, problem=f"{folder.uri(path)}: {error.problem}")
    layout = made.layout
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


def _lone_caption(columns: Iterable[str], first: FirstRows) -> str:
    """Finds the captions of a table with a row for each image; empty if there are none."""
    names = [*columns]
    sentences = [name for name in names if len(names) == 1 and first.holds_sentences(name)]
    return first_of(CAPTION_NAMES, names) or next(iter(sentences), "")


def is_submission(path: str) -> bool:
    """Whether a file is Kaggle's example of the table to hand in."""
    return _SUBMISSION.search(path) is not None
