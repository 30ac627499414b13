"""The files of VIA: JSON exports and projects, and CSV.

The formats: https://gitlab.com/vgg/via/blob/via-2.x.y/CodeDoc.md (JSON),
https://gitlab.com/vgg/via/blob/via-2.x.y/via.js (CSV).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import (
    count_replaced,
    decode_json,
    read_annotation_file,
    repeated_key,
)
from shardbeam.transforms.formats.parsing.lines import read_lines
from shardbeam.transforms.formats.table.csv_rows import header_cells, read_rows
from shardbeam.transforms.storage.base import Storage

T = TypeVar("T")

# The section of a project that an export has as the whole file.
_IMAGES = "_via_img_metadata"
_SHAPE, _ATTRIBUTES, _COUNT = "region_shape_attributes", "region_attributes", "region_count"
# A VIA 3 project has these sections.
_VIA_3 = {"metadata", "view", "file"}


class Shape(msgspec.Struct):
    """The outline of a region; which fields it has depends on `name`."""

    name: str
    x: float | None = None
    y: float | None = None
    width: float | None = None
    height: float | None = None
    cx: float | None = None
    cy: float | None = None
    r: float | None = None
    rx: float | None = None
    ry: float | None = None
    theta: float = 0.0
    all_points_x: list[float] | None = None
    all_points_y: list[float] | None = None


class Region(msgspec.Struct):
    """A region of an image."""

    shape_attributes: Shape
    region_attributes: dict[str, Any] | None = None


class ViaImage(msgspec.Struct, kw_only=True):
    """What a file says about one image.

    Attributes:
        name: Its name in the file; where the file gives none, the place of its entry.
        place: The place in the file.
        position: Its number in a JSON file, its first line in a CSV file.
        regions: Its regions.
        problem: Why they cannot be read; empty if they can.
        lone_surrogates: Number of lone surrogates in its texts.
    """

    name: str
    place: str
    position: int
    regions: list[Region] = []
    problem: str = ""
    lone_surrogates: int = 0


class _Named(msgspec.Struct):
    filename: str


class _Image(_Named):
    regions: list[Region] | dict[str, Region] | None


# Some programs write numbers as texts.
_image_decoder = JsonDecoder(_Image, strict=False)
_shape_decoder = JsonDecoder(Shape, strict=False)
_named_decoder = JsonDecoder(_Named)
_sections_decoder = JsonDecoder(dict[str, msgspec.Raw])
_attributes_decoder = JsonDecoder(dict[str, Any])


def read_via_file(uri: str, *, storage: Storage) -> Iterator[ViaImage]:
    """Reads a JSON file, or a CSV file if its name ends with `.csv`.

    Raises:
        InputError: The file cannot be read, or is no file of VIA 1 or 2.
    """
    if uri.lower().endswith(".csv"):
        yield from _read_csv(uri, storage=storage)
    else:
        yield from _read_json(uri, storage=storage)


def _read_json(uri: str, *, storage: Storage) -> Iterator[ViaImage]:
    data: bytes | msgspec.Raw = read_annotation_file(uri, storage=storage)
    sections = _read_sections(data, uri=uri)
    place = "$"
    if _IMAGES in sections:
        data, place = sections[_IMAGES], f"$.{_IMAGES}"
        sections = _read_sections(data, uri=uri, place=place)
    elif sections.keys() >= _VIA_3:
        problem = "a project of VIA 3, which is not read; VIA 1 and 2 are"
        raise InputError(uri=uri, problem=problem)
    elif sections and not any(b'"filename"' in bytes(text) for text in sections.values()):
        problem = f"no file of VIA: expected {_IMAGES}, or an object for each image with `filename`"
        raise InputError(uri=uri, problem=problem)
    for position, (key, text) in enumerate(sections.items()):
        where = f"{place}[{key!r}]"
        found = ViaImage(name=where, place=where, position=position)
        found.lone_surrogates = count_replaced(text)
        try:
            found.name = decode_json(text, decoder=_named_decoder, uri=uri, place=where).filename
            image = decode_json(text, decoder=_image_decoder, uri=uri, place=where)
            regions = image.regions or []
            found.regions = [*(regions.values() if isinstance(regions, dict) else regions)]
        except InputError as error:
            found.problem = f"{error.place}: {error.problem}"
        yield found


def _read_sections(
    data: bytes | msgspec.Raw, *, uri: str, place: str = ""
) -> Mapping[str, msgspec.Raw]:
    sections = decode_json(data, decoder=_sections_decoder, uri=uri, place=place)
    if (key := repeated_key(data)) is not None:
        raise InputError(uri=uri, place=place or "$", problem=f"the key {key!r} is given twice")
    return sections


def _read_csv(uri: str, *, storage: Storage) -> Iterator[ViaImage]:
    lines = read_lines(uri, storage=storage)
    header = header_cells(next(lines, (0, b""))[1], uri=uri)
    # VIA 1 writes `#filename`.
    header[0] = header[0].removeprefix("#")
    if missing := {"filename", _SHAPE, _ATTRIBUTES}.difference(header):
        problem = f"no CSV of VIA: the first line lacks {', '.join(sorted(missing))}"
        raise InputError(uri=uri, place="line 1", problem=problem)
    images: dict[tuple[str, str], ViaImage] = {}
    counts: dict[tuple[str, str], str] = {}
    for line, row in read_rows(lines, header=header, multiline=False):
        if isinstance(row, str):
            # Nobody knows whose region it is.
            raise InputError(uri=uri, place=f"line {line}", problem=row)
        # As VIA's JSON tells images apart.
        key = row["filename"], row.get("file_size", "")
        found = images.get(key)
        if found is None:
            found = ViaImage(name=key[0], place=f"line {line}", position=line, regions=[])
            images[key] = found
        counts[key] = row.get(_COUNT, "")
        if row[_SHAPE].strip() in ("", "{}"):
            continue
        try:
            found.regions.append(
                Region(
                    _decode_cell(row, _SHAPE, decoder=_shape_decoder, line=line, uri=uri),
                    _decode_cell(row, _ATTRIBUTES, decoder=_attributes_decoder, line=line, uri=uri),
                )
            )
        except InputError as error:
            found.problem = f"{error.place}: {error.problem}"
    for key, found in images.items():
        there = len(found.regions)
        # Programs that write more regions than they count lose none.
        if counts[key].isdecimal() and int(counts[key][:9]) > there and not found.problem:
            found.problem = f"{found.place}: only {there} of its {counts[key]} regions are there"
        yield found


def _decode_cell(
    row: Mapping[str, str], name: str, *, decoder: JsonDecoder[T], line: int, uri: str
) -> T:
    place = f"line {line}: {name}"
    return decode_json(row[name].encode(), decoder=decoder, uri=uri, place=place)
