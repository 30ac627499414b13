"""Finds pictures that the rows of a table name in a column that is not known to name images."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from shardbeam.transforms.formats.names import is_hidden, is_image_name, normalize_for_match
from shardbeam.transforms.formats.parsing.table_columns import first_of
from shardbeam.transforms.formats.table.layout import LABEL_NAMES
from shardbeam.transforms.formats.table.table_boxes import FirstRows
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.base import join_uri

# With more files below its folder, a table is taken for rows without images.
_MOST_FILES = 50_000
# At least this share of a column's cells are names of pictures.
_LEAST_NAMED = 0.9


class NamedPictures(NamedTuple):
    """Pictures that the rows of a table name.

    Attributes:
        column: The column that names them.
        folder: Their folder.
        example: One of them.
        are_deeper: Whether some lie in folders below this one.
    """

    column: str
    folder: str
    example: str
    are_deeper: bool

    def command(self, name: str, manifest: Sequence[str], *, columns: Sequence[str]) -> str:
        """Returns the command that builds a dataset of them.

        Args:
            name: The format.
            manifest: The tables.
            columns: All columns.
        """
        others = [each for each in columns if each and each != self.column]
        label = first_of(LABEL_NAMES, others)
        if not label and len(others) == 1:
            label = others[0]
        words = ["shardbeam", "build", name]
        for uri in manifest:
            words += ["--manifest", uri]
        words += ["--image-root", self.folder, "--image-column", self.column]
        words += ["--match", "name"] if self.are_deeper else []
        words += ["--label-column", label] if label else []
        return shlex.join([*words, "--output", "DIR"])


def find_named_pictures(uri: str, first: FirstRows, *, are_all: bool) -> NamedPictures | None:
    """Finds pictures beside a table, or in folders below it, that its rows name.

    Nearly all cells of a column name one of a folder, also without an extension, and each picture
    of that folder is named.

    Args:
        uri: The table.
        first: Its first rows.
        are_all: Whether these are all rows.
    """
    folders = _list_pictures(uri.rpartition("/")[0] or ".")
    for column in first.names if folders else ():
        cells = [normalize_for_match(text, "name") for text in first.texts(column)]
        for folder, pictures in folders.items():
            named = sum(cell in pictures for cell in cells)
            is_named = bool(cells) and named >= _LEAST_NAMED * len(cells)
            if is_named and (not are_all or pictures.keys() <= {*cells}):
                where = uri.rpartition("/")[0]
                root = join_uri(where, folder) if where and folder else where or folder or "."
                below = (path.removeprefix(f"{folder}/") for path in pictures.values())
                are_deeper = any("/" in path for path in below)
                return NamedPictures(column, root, min(pictures.values()), are_deeper)
    return None


def _list_pictures(root: str) -> dict[str, dict[str, str]]:
    """Returns `{folder: {name as it is compared: picture}}` of all folders below a root.

    Empty if there are too many files.
    """
    folders: dict[str, dict[str, str]] = {}
    for number, (path, _) in enumerate(list_root(root)):
        if number == _MOST_FILES:
            return {}
        if is_image_name(path) and not is_hidden(path):
            name = normalize_for_match(path, "name")
            parts = path.split("/")[:-1]
            for depth in range(len(parts) + 1):
                folders.setdefault("/".join(parts[:depth]), {})[name] = path
    return folders
