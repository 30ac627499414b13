"""Parsers of hostile texts take time in proportion to their length, not to its square."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.text_encoding import CEscape

from shardbeam.configs.passwords import hide_passwords
from shardbeam.readers.predictions.prediction_files import ClassTable
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.examples.decode.class_names import _parse_label_map, read_class_names
from shardbeam.transforms.formats.cvat import cvat
from shardbeam.transforms.formats.cvat.shapes import ImageReader
from shardbeam.transforms.formats.parsing.lines import split_cells
from shardbeam.transforms.formats.parsing.xml_file import read_xml
from shardbeam.transforms.formats.table.csv import _header_problem
from tests.support.coco_reading import read_coco

# Eight times the text may take this many times as long; a square would be 64 times.
_TIMES, _LONGER = 8, 28

UNITS = (
    *("\\", '"', "'", '"\\', '\\"', "{", "[", "a", "0", "#", "&a", "://a:", 'a="', "&", "]]>"),
    *("@", "\\x1", "item{", 'item{name:"', 'item{id:1 name:"\\', " ", "a ", "- ", "a: "),
    *("<a ", "<image "),
)


def read_label_map(text: str) -> None:
    list(_parse_label_map(text))
    list(_parse_label_map(f'item {{ id: 1 name: "{text}" }}'))


def find_images(text: str) -> None:
    for tag in cvat._IMAGE.findall(f"<image {text}>".encode()):
        cvat._ATTRIBUTE.findall(tag.decode())


def read_header(text: str) -> None:
    line = ",".join(f"{text[:9]}{number}" for number in range(len(text) // 8))
    _header_problem(split_cells(line), delimiter=",", line=line.encode(), has_images=True)


PARSERS: dict[str, Callable[[str], object]] = {
    "label map": read_label_map,
    "passwords": lambda text: hide_passwords(f"a://b:{text}@"),
    "escape": escape,
    "cvat": find_images,
    "header": read_header,
    "xml": lambda text: read_xml(f"<a b='{text}".encode(), root="a", max_depth=3, uri="x"),
}


def seconds(parse: Callable[[str], object], text: str) -> float:
    """The least CPU time of some runs."""
    taken = []
    for _ in range(3):
        begun_s = time.process_time()
        with contextlib.suppress(InputError, ValueError):
            parse(text)
        taken.append(time.process_time() - begun_s)
    return min(taken)


@pytest.mark.parametrize("name", PARSERS)
def test_time_grows_like_the_text(name: str) -> None:
    parse = PARSERS[name]
    assert [unit for unit in UNITS if all(is_slow(parse, unit) for _ in range(3))] == []


def is_slow(parse: Callable[[str], object], unit: str) -> bool:
    short = unit * (3000 // len(unit))
    short_s = max(seconds(parse, short), 0.0005)
    return seconds(parse, short * _TIMES) > _LONGER * short_s


def read_class_table(folder: Path, number: int) -> None:
    names = [f"class {each}" for each in range(number)]
    file = folder / "table.csv"
    file.write_text(f"key,{','.join(names)}\na,{','.join(['0'] * number)}\n")
    assert ClassTable(str(file), classes=names).left_out == []


def read_coco_keypoints(_: Path, number: int) -> None:
    names = [f"point {each}" for each in range(number)]
    categories = [{"id": 1, "name": "person", "keypoints": names}]
    content = {"images": [], "annotations": [], "categories": categories}
    (category,) = read_coco(content, tasks=["keypoints"]).categories
    assert category.keypoints == tuple(names)


def read_skeleton(_: Path, number: int) -> None:
    names = tuple(f"p{each}" for each in range(number))
    points = "".join(f'<points label="{name}" points="1,2"/>' for name in names)
    xml = f'<image width="9" height="9"><skeleton label="a">{points}</skeleton></image>'
    image = read_xml(xml.encode(), root="image", max_depth=9, uri="x")
    (found,) = ImageReader(image, labels={"a": names}).read().objects
    assert len(found.keypoints) == 3 * number


@pytest.mark.parametrize("read", [read_class_table, read_coco_keypoints, read_skeleton])
def test_time_grows_like_the_number_of_names(
    read: Callable[[Path, int], None], tmp_path: Path
) -> None:
    def is_quadratic() -> bool:
        few_s, many_s = (
            seconds(lambda text: read(tmp_path, len(text)), "a" * number) for number in (1000, 8000)
        )
        return many_s > _LONGER * few_s

    assert not all(is_quadratic() for _ in range(3))


def label_map(folder: Path, text: str) -> dict[int, str]:
    (folder / "label_map.pbtxt").write_text(text)
    return read_class_names(str(folder))


@pytest.mark.parametrize("as_utf8", [False, True])
def test_names_of_a_label_map_are_read_as_protobuf_writes_them(
    as_utf8: bool, tmp_path: Path
) -> None:
    names = [
        "cat",
        "",
        'a"b',
        "it's",
        "a\\b",
        "\\",
        "\\\\x41",
        "a\nb\t\r",
        "é🐕",
        "\x01\x7f",
        "item {",
    ]
    items = [
        # The stub knows only bytes.
        f'item {{ id: {number} name: "{CEscape(name, as_utf8)}" }}\n'  # type: ignore[arg-type]
        for number, name in enumerate(names)
    ]
    assert label_map(tmp_path, "".join(items)) == dict(enumerate(names))


def test_other_spellings_of_a_label_map(tmp_path: Path) -> None:
    text = r"""
        # "a comment
        item { id: 1 name: 'it\'s' }
        item { name: "\u00e9\U0001F415\ud800\U7fffffff" id: 2 }
        item { id: 3 name: "C:\data\?" display_name: "\x41\101" }
        item { id: 4 name: "open
        }
        item { id: 5 name: "after" }
    """
    assert label_map(tmp_path, text) == {
        1: "it's",
        2: "é🐕\ufffd\ufffd",
        3: "AA",
        4: "open",
        5: "after",
    }
    assert label_map(tmp_path, r'item { id: 3 name: "C:\data\?" }') == {3: r"C:\data?"}
