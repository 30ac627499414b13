"""Reads the lines of a part of a text file, and splits those of CSV files into cells (RFC 4180)."""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import sys
from collections.abc import Callable, Iterator, Sequence

from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import foreign_content, read_part
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.storage.base import Storage

# Size of a request; asking costs about as much time as reading this many bytes.
_BLOCK_BYTES = 8 << 20
# Size of a request beyond the range, for the line that crosses its end.
_TAIL_BYTES = 64 << 10
# UTF-16 text has at least this share of NULs among its even or its odd bytes.
_UTF16_SHARE = 0.8
MAX_LINE_BYTES = 16 << 20


def read_lines(
    uri: str, *, storage: Storage, begin: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[int, bytes]]:
    r"""Yields `(position of its first byte, line)` of each line that begins in a range.

    All ranges of a file together give each of its lines once. Lines come without their end (`\n` or
    `\r\n`), and the first one without the file's UTF-8 byte order mark.

    Args:
        uri: The file.
        storage: Reads it.
        begin: First byte of the range.
        end: The byte after the range's last; by default the file's end.

    Raises:
        InputError: The file cannot be read, is not text, or has a line of more than 16 MB.
    """
    # The byte before `begin` shows whether a line starts there.
    lines = _split(uri, storage=storage, begin=max(0, begin - 1), end=end)
    if begin > 0:
        next(lines, None)
    for position, line in lines:
        if position >= end:
            return
        if position == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        yield position, line.removesuffix(b"\r")


def binary_problem(line: bytes) -> str | None:
    """Describes a file whose first line holds NULs; returns None where it holds none."""
    if b"\0" not in line:
        return None
    halves = line[::2], line[1::2]
    if max(half.count(0) / max(1, len(half)) for half in halves) > _UTF16_SHARE:
        return "the file is UTF-16 text: save it as UTF-8"
    return "the file is not text"


def _split(uri: str, *, storage: Storage, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields the texts between line ends, from `begin` to the end of the range's last line."""
    offset = position = begin
    pending = b""
    while position < end:
        if offset < end:
            # The first request is never short, because the beginning shows what the file is.
            wanted = min(_BLOCK_BYTES, max(end - offset, 0 if offset else _TAIL_BYTES))
        else:
            wanted = max(_TAIL_BYTES, len(pending))
        # Object stores refuse ranges that begin at the file's end, so one more byte is read.
        before = min(offset, 1)
        block = read_part(uri, storage=storage, offset=offset - before, size_bytes=wanted + before)[
            before:
        ]
        if offset == 0:
            foreign = foreign_content(block)
            if foreign is not None:
                raise InputError(uri=uri, problem=foreign)
        offset += len(block)
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            yield position, line
            position += len(line) + 1
        counters.annotation_bytes.add(len(block))
        if len(block) < wanted:
            if pending:
                yield position, pending
            return
        if len(pending) > MAX_LINE_BYTES:
            raise InputError(
                uri=uri,
                place=f"byte {position}",
                problem=f"a line of more than {MAX_LINE_BYTES >> 20} MB; is this a file of lines?",
            )


# Splits the lines of CSV files into rows and cells (RFC 4180).

OPEN_QUOTE = "a quote does not end in its line"
# `(first line, last line, cells)` of a row; a text instead of the cells describes their problem.
_Numbered = tuple[int, int, list[str] | str]


def split_cells(text: str, *, delimiter: str = ",") -> list[str]:
    """Splits a line into its cells; a blank line has none.

    Raises:
        CellError: A quote is not closed, or is in the middle of a quoted cell.
    """
    if '"' not in text and "\r" not in text:
        return text.split(delimiter) if text else []
    try:
        return next(csv.reader([text], strict=True, delimiter=delimiter), [])
    except csv.Error as error:
        # For a single line, `unexpected end of data` would confuse people.
        problem = _describe(error)
        raise CellError(OPEN_QUOTE if "end of data" in problem else problem) from error


def _describe(error: csv.Error) -> str:
    if "new-line character" in str(error):
        return "a CR without LF is in the line; if lines end with CR alone, save it with LF"
    return str(error)


def header_cells(line: bytes, *, uri: str, delimiter: str = ",") -> list[str]:
    """Splits a file's first line into cells, and removes the spaces around them.

    Raises:
        InputError: The line is not text.
    """
    binary = binary_problem(line)
    if binary is not None:
        raise InputError(uri=uri, problem=binary)
    try:
        return [cell.strip() for cell in split_cells(line.decode(), delimiter=delimiter)]
    except (UnicodeDecodeError, CellError) as error:
        raise InputError(uri=uri, place="line 1", problem=f"no header: {error}") from error


def read_rows(
    lines: Iterator[tuple[int, bytes]],
    *,
    header: Sequence[str],
    multiline: bool,
    delimiter: str = ",",
    first_line: int = 2,
    ends_with_text: bool = False,
) -> Iterator[tuple[int, dict[str, str] | str]]:
    r"""Reads the rows of a file after its header; blank lines are not rows.

    Args:
        lines: The lines, from `read_lines`.
        header: The names of the columns.
        multiline: Whether a quoted cell may hold line ends, which become `\n`. If so, a quote that
            is not closed swallows the lines after it.
        delimiter: The character between cells.
        first_line: The number of the first line.
        ends_with_text: Whether the last cell of a line goes on to its end, if it has more cells
            than the header, or quotes that cannot be read. Not where cells may hold line ends.

    Yields:
        `(number of the line, {column: cell})` of each row. A bad row gives `(number, problem)` for
        each of its lines.
    """
    split: Callable[[str], list[str]] = functools.partial(split_cells, delimiter=delimiter)
    if ends_with_text:
        split = functools.partial(_split_caption, delimiter=delimiter, max_cells=len(header))
    numbered = (
        _multiline_rows(lines, delimiter=delimiter, first_line=first_line)
        if multiline
        else _rows(lines, split, first_line=first_line)
    )
    for first, last, cells in numbered:
        if isinstance(cells, list) and len(cells) == len(header) + 1 and not cells[-1]:
            # A delimiter at the end of the line.
            cells = cells[:-1]
        if isinstance(cells, list) and len(cells) == len(header):
            yield first, dict(zip(header, cells, strict=True))
        elif cells:
            is_problem = isinstance(cells, str)
            problem = cells if is_problem else f"expected {len(header)} cells, got {len(cells)}"
            through = f" (through line {last}: is a quote open?)" if last > first else ""
            for line in range(first, last + 1):
                where = "" if line == first else f"in the row of line {first}: "
                yield line, f"{where}{problem}{through}"


def _rows(
    lines: Iterator[tuple[int, bytes]], split: Callable[[str], list[str]], *, first_line: int
) -> Iterator[_Numbered]:
    for number, (_, line) in enumerate(lines, first_line):
        cells: list[str] | str
        try:
            cells = split(line.decode())
        except UnicodeDecodeError:
            cells = "not valid UTF-8"
        except CellError as error:
            cells = str(error)
            if cells == OPEN_QUOTE:
                cells += "; set multiline where cells hold line ends"
        yield number, number, cells


def _split_caption(text: str, *, delimiter: str, max_cells: int) -> list[str]:
    """Splits a line whose last cell is a text, which may hold delimiters and quotes as they are."""
    try:
        cells = split_cells(text, delimiter=delimiter)
    except CellError:
        cells = []
    if not text:
        return cells
    is_split = 0 < len(cells) <= max_cells
    if not is_split:
        cells = text.split(delimiter, max_cells - 1)
    rest = cells[-1].strip()
    # Behind a blank, quotes are part of a cell in other tables.
    if rest.startswith('"') and not (is_split and rest == cells[-1]):
        with contextlib.suppress(CellError):
            last = split_cells(rest, delimiter=delimiter)
            cells[-1:] = last if len(last) == 1 else cells[-1:]
    return cells


def _multiline_rows(
    lines: Iterator[tuple[int, bytes]], *, delimiter: str, first_line: int
) -> Iterator[_Numbered]:
    is_text = True

    def texts() -> Iterator[str]:
        nonlocal is_text
        for _, line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError:
                text, is_text = line.decode("utf-8", "replace"), False
            yield f"{text}\n"

    reader = csv.reader(texts(), strict=True, delimiter=delimiter)
    while True:
        first = reader.line_num + first_line
        is_text = True
        cells: list[str] | str
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = _describe(error)
        yield first, reader.line_num + first_line - 1, cells if is_text else "not valid UTF-8"
