"""Reads files that name the classes of masks, by the values or by the colours of pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.formats.annotation_file import (
    decode_json,
    decode_text,
    repeated_key,
    split_lines,
    text_lines,
)
from shardbeam.transforms.formats.parsing.root_files import read_file
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.formats.table.csv_rows import split_cells

# Larger ids do not fit into a map of 8 bits, in which 255 means: ignore this pixel.
_MAX_ID = 254
_VALUES = "_classes.csv"
_COLOURS = ("class_dict.csv", "class_dict_seg.csv", "labelmap.csv")
_IDS = "id2label.json"
# CVAT's and Pascal VOC's file has lines `name:r,g,b:parts:actions`, and CamVid's `r g b name`.
LABEL_MAP, _LABEL_COLOURS = "labelmap.txt", "label_colors.txt"
_NAMES = frozenset({_VALUES, *_COLOURS, _IDS, LABEL_MAP, _LABEL_COLOURS})
_NUMBER = re.compile(r"[0-9]{1,3}", re.ASCII)
_EXPECTED = "expected a header `name,r,g,b` or `Pixel Value, Class`, and such rows"
# The name that tools give the border between objects in a label map.
IGNORED = "ignored"
_decoder = JsonDecoder(dict[str, str])


class _Row(NamedTuple):
    """A class of a file: its place there, its name, its id, and the channels of its colour."""

    place: str
    name: str
    class_id: str
    channels: Sequence[str] = ()


class ClassTable(NamedTuple):
    """The classes of masks.

    Attributes:
        ids: `{name: id}`.
        colours: `(R << 16 | G << 8 | B, id)` in ascending order, with None for pixels to ignore;
            empty if the file names no colours.
        path: The path of the file that names the classes, below its root.
    """

    ids: Mapping[str, int] = {}
    colours: tuple[tuple[int, int | None], ...] = ()
    path: str = ""


def is_class_table(path: str) -> bool:
    """Whether a file has the name of one that names classes; it may still be another table."""
    return path.rpartition("/")[2].casefold() in _NAMES


def read_class_table(path: str, *, file: ImageRef) -> ClassTable | None:
    """Reads the classes of masks; returns None if the file is a table of images.

    Raises:
        InputError: The file cannot be read, or a class or a colour is there twice.
    """
    ids: dict[str, int] = {}
    colours: dict[int, int | None] = {}
    rows = _read_rows(path.rpartition("/")[2].casefold(), read_file(file), uri=file.uri)
    if rows is None:
        return None
    for row in rows:
        numbers = [int(text) for text in (row.class_id, *row.channels) if _NUMBER.fullmatch(text)]
        problem = ""
        is_whole = len(numbers) == 1 + len(row.channels) and len(row.channels) in (0, 3)
        if not is_whole or max(numbers[1:], default=0) > 255:
            problem = f"expected numbers, got {', '.join((row.class_id, *row.channels))[:80]!r}"
        elif numbers[0] > _MAX_ID:
            problem = f"expected an id from 0 to {_MAX_ID}, got {numbers[0]}"
        elif not row.name or row.name in ids or numbers[0] in ids.values():
            problem = f"the class {row.name!r} has no name, or its name or id is there twice"
        colour = sum(each << shift for each, shift in zip(numbers[1:], (16, 8, 0), strict=False))
        if row.channels and colour in colours:
            problem = problem or f"another class has the colour #{colour:06x}, too"
        if problem:
            raise InputError(uri=file.uri, place=row.place, problem=problem)
        ids[row.name] = numbers[0]
        if row.channels:
            colours[colour] = None if row.name == IGNORED else numbers[0]
    if not ids:
        raise InputError(uri=file.uri, problem="the file names no classes")
    ids.pop(IGNORED, None)
    return ClassTable(ids, tuple(sorted(colours.items(), key=lambda each: each[0])), path)


def _read_rows(name: str, data: bytes, *, uri: str) -> Iterator[_Row] | None:
    if name == _IDS:
        if (twice := repeated_key(data)) is not None:
            raise InputError(uri=uri, place=f"$.{twice}", problem="the key is there twice")
        found = decode_json(data, decoder=_decoder, uri=uri)
        return (_Row(f"$.{key}", label, key) for key, label in found.items())
    if name == LABEL_MAP:
        return _read_label_map(data, uri=uri)
    if name == _LABEL_COLOURS:
        lines = ((number, line.split(None, 3)) for number, line in text_lines(data, uri=uri))
        return (
            _Row(f"line {number}", "".join(cells[3:]), str(index), cells[:3])
            for index, (number, cells) in enumerate(lines)
        )
    return _read_csv(name, data, uri=uri)


def _read_label_map(data: bytes, *, uri: str) -> Iterator[_Row]:
    for index, (number, line) in enumerate(text_lines(data, uri=uri)):
        class_name, _, rest = line.partition(":")
        colour = rest.partition(":")[0].strip()
        channels = [each.strip() for each in colour.split(",")] if colour else []
        yield _Row(f"line {number}", class_name.strip(), str(index), channels)


def _read_csv(name: str, data: bytes, *, uri: str) -> Iterator[_Row] | None:
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(split_lines(decode_text(data, uri=uri)), 1):
        try:
            cells = [cell.strip() for cell in split_cells(line)]
        except CellError as error:
            raise InputError(uri=uri, place=f"line {number}", problem=str(error)) from error
        if any(cells):
            rows.append((number, cells))
    header = [cell.casefold() for cell in rows[0][1]] if rows else []
    if header[:4] == ["name", "r", "g", "b"]:
        return (
            _Row(f"line {number}", cells[0], str(index), (*cells[1:4], *[""] * (4 - len(cells))))
            for index, (number, cells) in enumerate(rows[1:])
        )
    if header[:2] == ["pixel value", "class"]:
        return (_Row(f"line {number}", ",".join(cells[1:]), cells[0]) for number, cells in rows[1:])
    # A table of images has this name, too, and a column for each class.
    if name == _VALUES:
        return None
    raise InputError(uri=uri, place="line 1", problem=_EXPECTED)
