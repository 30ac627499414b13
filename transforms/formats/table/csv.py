"""CSV files (RFC 4180): `,` or another delimiter between cells, and `"` around special cells.

Among them are the files of TFRecorder (`split,image_uri,label`):
https://github.com/google/tensorflow-recorder.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from shardbeam.configs.keys import named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.formats.names import is_image_name
from shardbeam.transforms.formats.parsing.lines import (
    binary_problem,
    header_cells,
    read_lines,
    read_rows,
    split_cells,
)
from shardbeam.transforms.formats.parsing.table_columns import (
    CellError,
    first_of,
    has_decimal_comma,
    is_number,
    value_of_text,
)
from shardbeam.transforms.formats.recognition import Folder
from shardbeam.transforms.formats.table.layout import CAPTION_NAMES
from shardbeam.transforms.formats.table.table import (
    FIRST_BYTES_OF_A_FILE,
    TableFormat,
    is_submission,
)
from shardbeam.transforms.formats.table.table_boxes import (
    FirstRows,
    Row,
    holds_run_lengths,
    image_name,
    is_sentence,
)
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

_DELIMITERS = {",": "commas", "\t": "tabs", ";": "';'", "|": "'|'", " ": "blanks"}
_TAB_EXTENSIONS = (".tsv", ".tab")
# The rows of keras-retinanet have no header: https://github.com/fizyr/keras-retinanet#csv-datasets.
_RETINANET = ("image", "xmin", "ymin", "xmax", "ymax", "class")
# First lines, columns and tables that `shardbeam init` looks at.
_LINES, _MAX_COLUMNS, _MAX_TABLES = 50, 100, 20
# The character may be left out of a line that was split at it, and saved again with quotes.
_EXCEL_HINT = re.compile(r'"?sep=(.)"?,*(?=\s|\Z)', re.IGNORECASE)


class CsvFormat(TableFormat, frozen=True, kw_only=True):
    """CSV files. One worker reads a file, since a row's position is its line.

    Attributes:
        header: The names of the columns, where the files have no header.
        delimiter: The character between cells; by default a tab in .tsv and .tab, else a comma.
        decimal: The character in numbers such as `1.5` or `1,5`, in all cells.
        multiline: Whether quoted cells may hold line ends. If so, one stray quote swallows the
            rows after it.
    """

    SUMMARY = "CSV and TSV tables: a row per image, per object, or without images"
    cells_are_text = True
    extensions = (".csv", *_TAB_EXTENSIONS)

    header: (
        Annotated[
            list[str],
            msgspec.Meta(min_length=1),
            named("names of the columns, separated by commas, if the files have no header"),
        ]
        | None
    ) = None
    delimiter: (
        Annotated[
            str,
            msgspec.Meta(pattern=r'\A(\\t|[^"\\\r\n])\Z', description=r"one character, or \t"),
            named("character between cells, such as ; or \\t", metavar="CHARACTER"),
        ]
        | None
    ) = None
    decimal: Annotated[
        Literal[".", ","], named("character in numbers such as 1.5 or 1,5", metavar="CHARACTER")
    ] = "."
    multiline: Annotated[bool, named("allow line ends within quoted cells")] = False

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file; a row's position is its line."""
        rows = self.all_rows(self.manifest[file_index], storage=storage)
        yield from self._row_reader().read_rows(rows, file_index=file_index, unit="line")

    def first_rows(
        self, uri: str, *, storage: Storage, size_bytes: int
    ) -> tuple[Sequence[str], Sequence[Row]]:
        """Reads the header and the first rows."""
        header, rows = self._read(uri, storage=storage, end=size_bytes)
        return header, [row for _, row in rows if not isinstance(row, str)]

    def all_rows(self, uri: str, *, storage: Storage) -> Iterator[tuple[int, Row | str]]:
        """Reads all rows; a row's position is its line."""
        return self._read(uri, storage=storage)[1]

    def _read(
        self, uri: str, *, storage: Storage, end: int = sys.maxsize
    ) -> tuple[list[str], Iterator[tuple[int, Row | str]]]:
        """Reads the names of a file's columns, and its rows that begin before `end`."""
        lines = read_lines(uri, storage=storage, end=end)
        is_tabs = uri.lower().endswith(_TAB_EXTENSIONS)
        delimiter = (self.delimiter or ("\t" if is_tabs else ",")).replace("\\t", "\t")
        if delimiter == " " and not self.multiline and self._joins_blanks(uri, storage=storage):
            lines = ((at, _join_blanks(line)) for at, line in lines)
        first = next(lines, (0, b""))
        if self.header is None:
            header = header_cells(first[1], uri=uri, delimiter=delimiter)
            problem = _header_problem(
                header, delimiter=delimiter, line=first[1], has_images=bool(self.image_root)
            )
        else:
            header = [name.strip() for names in self.header for name in names.split(",")]
            if name := _find_repeated(filter(None, header)):
                raise InputError(uri=uri, problem=f"header: the column {name!r} occurs twice")
            lines = itertools.chain([first], lines)
            problem = binary_problem(first[1])
        if problem is not None:
            raise InputError(uri=uri, place="line 1", problem=problem)
        rows = read_rows(
            lines,
            header=header,
            multiline=self.multiline,
            delimiter=delimiter,
            first_line=2 if self.header is None else 1,
            ends_with_text=self._ends_with_caption(header),
        )
        return header, _with_points(rows) if self.decimal == "," else rows

    def _joins_blanks(self, uri: str, *, storage: Storage) -> bool:
        """Whether several blanks between two cells are one delimiter.

        Raises:
            InputError: The first rows have different numbers of cells in both cases.
        """
        if self.header and self._ends_with_caption(self.header):
            # Captions hold blanks, too.
            return False
        lines = read_lines(uri, storage=storage, end=FIRST_BYTES_OF_A_FILE)
        rows = [line for _, line in lines if line.strip()]
        if (joins := _fit_if_joined(rows)) is not None:
            return joins
        counts = [_join_blanks(line).count(b" ") + 1 for line in rows]
        number, odd = next(each for each in enumerate(counts, 1) if each[1] != counts[0])
        raise InputError(
            uri=uri,
            place=f"line {number}",
            problem=f"{odd} cells, where the first line has {counts[0]}; some lines have several "
            "blanks in a row, so nobody can know which cells are empty: separate the cells with "
            "commas",
        )

    def _ends_with_caption(self, header: Sequence[str]) -> bool:
        """Whether the last cell of a row is a caption, in which commas need no quotes."""
        if self._layout.names:
            return self._layout.caption == header[-1]
        return header[-1] == (self.caption_column or first_of(CAPTION_NAMES, header[-1:]))

    @classmethod
    def tables_in(cls, folder: Folder) -> list[str]:
        """Returns tables, and text files unless there may be one for each image."""
        texts = (path for path in folder.few(".txt") if "/ImageSets/" not in f"/{path}")
        return [*super().tables_in(folder), *texts]

    @classmethod
    def guess_keys(cls, folder: Folder, *, path: str) -> Iterator[Mapping[str, Any]]:
        """Yields the delimiter, the header and the column of images that fit the first lines."""
        keys, cells = cls._first_cells(folder, path=path)
        is_list = path.lower().endswith(".txt") and keys.get("delimiter") == " "
        if not cells or (is_list and "/" in cells[0][0]):
            # Lists of class folders have no names of classes.
            return
        if is_image_name(image_name(cells[0][0])) or _are_images(cells[0][:1], folder, path=path):
            header = guess_header(cells)
            if header:
                yield {**keys, "header": header}
            return
        yield keys
        # Kaggle's tables name images by `id`, which means other things elsewhere.
        for name in _image_columns(cells, folder, path=path):
            yield {**keys, "image_column": name}

    @classmethod
    def suggest_flags(cls, folder: Folder) -> tuple[str, list[str]]:
        """Returns the table that seems to name a folder's images, and flags that read it.

        Its classes have no usual column. What is not known is written as DIR and NAME. The path is
        empty if there is no table.
        """
        flags = {
            path: cls._flags_of(path, folder=folder)
            for path in folder.named(*cls.extensions)[:_MAX_TABLES]
            if not is_submission(path)
        }
        return min(flags.items(), key=lambda each: "DIR" in each[1], default=("", []))

    @classmethod
    def problem_of(cls, path: str, *, folder: Folder) -> str:
        """Describes why the rows of a table cannot be read; empty if they can."""
        keys, _ = cls._first_cells(folder, path=path)
        uri, root = folder.location(path), folder.location()
        table = cls(manifest=[uri], image_root=[root], delimiter=keys.get("delimiter"))
        try:
            table.first_rows(uri, storage=storage_for(uri), size_bytes=1)
        except InputError as error:
            return error.problem
        return ""

    @classmethod
    def _flags_of(cls, path: str, *, folder: Folder) -> list[str]:
        keys, cells = cls._first_cells(folder, path=path)
        images = _image_columns(cells, folder, path=path)
        image, root = "NAME", "DIR"
        others: list[str] = []
        if images:
            image = images[0]
            index = cells[0].index(image)
            names = [row[index] for row in cells[1:] if index < len(row)]
            found = folder.find_images(names, near=path)
            if found is not None:
                root = folder.uri(found.folder)
                if found.match != "path" and any(map(is_image_name, names)):
                    keys["match"] = found.match
            rows = [dict(zip(cells[0], row, strict=False)) for row in cells[1:]]
            first = FirstRows(cells[0], rows, True)
            others = [
                name
                for name in cells[0]
                if name and name != image and not holds_run_lengths(name, first)
            ]
        label = others[0] if len(others) == 1 else "NAME"
        return [
            *("--manifest", folder.uri(path), "--image-root", root, "--image-column", image),
            *("--label-column", label),
            *(word for key, value in keys.items() for word in (f"--{key}", value)),
        ]

    @classmethod
    def _first_cells(cls, folder: Folder, *, path: str) -> tuple[dict[str, str], list[list[str]]]:
        """Returns the key of the delimiter, if it is an unusual one, and the first lines' cells."""
        lines = folder.head(path).decode("utf-8", "replace").splitlines()[:_LINES]
        usual = "\t" if path.lower().endswith(_TAB_EXTENSIONS) else ","
        found = [each for each in (usual, *_DELIMITERS) if lines and each in lines[0]]
        # A caption may hold any of them.
        behind_image = (
            each for each in found if is_image_name(image_name(lines[0].split(each)[0].strip()))
        )
        delimiter = next(behind_image, next(iter(found), usual))
        keys = {} if delimiter == usual else {"delimiter": delimiter.replace("\t", "\\t")}
        if delimiter == " " and _fit_if_joined([line.encode() for line in lines if line]):
            lines = [_join_blanks(line.encode()).decode() for line in lines]
        try:
            rows = [split_cells(line, delimiter=delimiter) for line in lines]
        except CellError:
            rows = [line.split(delimiter) for line in lines]
        if delimiter != "," and any(map(has_decimal_comma, itertools.chain(*rows))):
            keys["decimal"] = ","
        return keys, [[cell.strip() for cell in row] for row in rows if row]


def _fit_if_joined(rows: Sequence[bytes]) -> bool | None:
    """Whether rows have equally many cells only if several blanks are one delimiter.

    None if some have several blanks in a row, and they have different numbers in both cases.
    """
    has_run = any(b"  " in line.strip(b" ") for line in rows)
    if not has_run or len({line.count(b" ") for line in rows}) == 1:
        return False
    return True if len({_join_blanks(line).count(b" ") for line in rows}) == 1 else None


def _join_blanks(line: bytes) -> bytes:
    """Replaces several blanks in a row by one, except in a line with quotes."""
    return line if b'"' in line else re.sub(b" +", b" ", line.strip(b" "))


def _with_points(rows: Iterable[tuple[int, Row | str]]) -> Iterator[tuple[int, Row | str]]:
    """Writes numbers with a decimal comma with a point; texts of problems stay as they are."""
    for line, row in rows:
        if isinstance(row, str):
            yield line, row
            continue
        yield (
            line,
            {
                name: cell.replace(",", ".")
                if isinstance(cell, str) and has_decimal_comma(cell)
                else cell
                for name, cell in row.items()
            },
        )


def _are_images(names: Sequence[str], folder: Folder, *, path: str) -> bool:
    """Whether at least half of some names are those of listed images, with or without extension."""
    found = [folder.find_images([name], near=path) is not None for name in names if name]
    return bool(found) and 2 * sum(found) >= len(found)


def _image_columns(rows: Sequence[Sequence[str]], folder: Folder, *, path: str) -> list[str]:
    """Returns the columns whose cells are names of listed images; the first row is the header."""
    return [
        name
        for index, name in enumerate(rows[0][:_MAX_COLUMNS] if rows else ())
        if _are_images([row[index] for row in rows[1:] if index < len(row)], folder, path=path)
    ]


def guess_header(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the names of the columns of a table without a header; empty if it is unknown.

    Args:
        rows: The first rows, with an image's name in the first cell.
    """
    first = rows[0]
    if len(first) == len(_RETINANET) and all(map(is_number, map(value_of_text, first[1:5]))):
        return [*_RETINANET]
    texts = [cell for row in rows for cell in row[1:2]]
    if len(first) >= 2 and any(map(is_sentence, texts)):
        return ["image", "caption"]
    if len(first) == 2 and not any("," in text for text in texts):
        return ["image", "label"]
    return []


def _header_problem(
    header: Sequence[str], *, delimiter: str, line: bytes, has_images: bool
) -> str | None:
    """Describes why the cells of a first line cannot be a header; returns None where they can.

    Args:
        header: The cells.
        delimiter: The character between them.
        line: The line.
        has_images: Whether rows name images, so that there are at least two columns.
    """
    if not any(header):
        return "the first line is empty; expected a header"
    if problem := _describe_hint(line):
        return problem
    if problem := _no_header_problem(line, delimiter=delimiter):
        return problem
    if len(header) == 1:
        for other, words in _DELIMITERS.items():
            if other in header[0] and (other != " " or has_images):
                return (
                    f"expected cells separated by {_DELIMITERS.get(delimiter, repr(delimiter))}, "
                    f"not {words}; set delimiter to {other!r}"
                )
    if any(map(is_image_name, header)):
        return "the first line names an image; if the file has no header, set header to their names"
    # Columns without a name are ignored.
    twice = _find_repeated(filter(None, header))
    return None if twice is None else f"the column {twice!r} occurs twice; is the header missing?"


def _describe_hint(line: bytes) -> str:
    """Describes a first line that is a hint for Excel, such as `sep=;`; empty for any other."""
    match = _EXCEL_HINT.match(line.decode("utf-8", "replace"))
    if match is None:
        return ""
    set_too = "" if match[1] == "," else f" and set delimiter to {match[1]!r}"
    return f"the first line, {match[0]!r}, is a hint for Excel and no header: delete it{set_too}"


def _find_repeated(names: Iterable[str]) -> str | None:
    """Returns the first name that is there twice; None if there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _no_header_problem(line: bytes, *, delimiter: str) -> str:
    """Describes a first line that begins with the name of an image; empty for any other."""
    text = line.decode("utf-8", "replace")
    for other in dict.fromkeys((delimiter, *_DELIMITERS)):
        cells = [cell.strip() for cell in text.split(other)]
        if len(cells) > 1 and is_image_name(image_name(cells[0])):
            header = guess_header([cells])
            names = f"[{', '.join(header)}]" if header else "their names"
            flags = f"--header {','.join(header) or 'NAME,NAME'}"
            too = ""
            if other != delimiter:
                shown = other.replace("\t", "\\t")
                too, flags = f" and delimiter to '{shown}'", f"--delimiter '{shown}' {flags}"
            return (
                f"the first line names an image; if the file has no header, set header to {names}"
                f"{too} ({flags})"
            )
    return ""
