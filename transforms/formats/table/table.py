"""Tables in CSV, JSON Lines or Parquet: a row for each image, for each object, or without images.

The first rows of each file, a few megabytes, are read before the run and show what the columns
are. A later row that does not fit becomes a reject with its place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import BoxReading, present_kinds
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.names import is_image_name, normalize_key
from shardbeam.transforms.formats.parsing.table_columns import column_feature, join_names
from shardbeam.transforms.formats.table.first_rows import Row
from shardbeam.transforms.formats.table.keys import TableKeys, TableLayout
from shardbeam.transforms.formats.table.layout import find_layout
from shardbeam.transforms.formats.table.rows import RowReader
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
        return msgspec.structs.replace(self, _layout=self._find_layout(list(names), rows))

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

    def annotation_files(self) -> Sequence[str]:
        """Returns the URIs of the files."""
        return self.manifest

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
