"""Behaviour of CSV alone; test_table.py tests what CSV and JSON Lines share."""

from __future__ import annotations

import csv
import io
import unittest.mock
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.parsing.lines import read_lines, read_rows
from shardbeam.transforms.formats.table.csv import CsvFormat
from tests.support.stored import StoredFiles
from tests.support.table_reading import ReadTable


def read(content: str | bytes, *, folder: Path, **settings: Any) -> ReadTable:  # noqa: ANN401
    return ReadTable("csv", content, folder=folder, **settings)


def test_positions_are_lines(tmp_path: Path) -> None:
    table = read("a\n1\n\n2\n", folder=tmp_path)
    assert [(entry.key, entry.position) for entry in table.entries] == [
        ("t: line 2", 2),
        ("t: line 4", 4),
    ]


def test_other_columns_in_another_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.csv: line 1: expected the columns of a\.csv"):
        ReadTable("csv", {"a.csv": "x,y\n", "b.csv": "x,z\n"}, folder=tmp_path)


@pytest.mark.parametrize(
    ("content", "columns", "values"),
    [
        # An empty cell of text is a text.
        ("a,c\n,\n,x\n", {}, [{"a": "", "c": ""}, {"a": "", "c": "x"}]),
        ("a,d\nFALSE,007\n", {}, [{"a": 0, "d": "007"}]),
        ("d\n0\n", {"d": "bool"}, [{"d": 0}]),
    ],
)
def test_cells_are_texts(
    tmp_path: Path, content: str, columns: dict[str, str], values: list[dict[str, object]]
) -> None:
    assert read(content, folder=tmp_path, columns=columns).values() == values


@pytest.mark.parametrize("multiline", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        "a,b\r\n1,x\r\n2,y\r\n",
        "\ufeffa,b\n1,x\n2,y",
        "a , b\n\n1,x\n\n2,y\n\n",
        # Columns without a name, and delimiters at the end of a line.
        ",a,,b\n0,1,,x\n1,2,,y\n",
        "a,b\n1,x,\n2,y,\n",
        '"a","b"\n"1","x"\n 2 ,y\n',
    ],
)
def test_forms_of_one_table(tmp_path: Path, content: str, multiline: bool) -> None:
    table = read(content, folder=tmp_path, multiline=multiline)
    assert table.values() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize("multiline", [False, True])
@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"1", "expected 2 cells, got 1"),
        (b"1,2,3", "expected 2 cells, got 3"),
        (b"1,\xff", "not valid UTF-8"),
        (b'1,"x"y', "',' expected after '\"'"),
        (
            b"1,x\ry",
            "a CR without LF is in the line; if lines end with CR alone, save it with LF",
        ),
    ],
)
def test_a_bad_row_is_a_reject_and_the_others_are_kept(
    tmp_path: Path, row: bytes, problem: str, multiline: bool
) -> None:
    table = read(b"a,b\n1,x\n" + row + b"\n2,y\n", folder=tmp_path, multiline=multiline)
    assert table.values() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    ((key, reason, detail),) = table.defects()
    assert (key, reason) == ("t: line 3", "annotation_malformed")
    assert detail.startswith(f"t: line 3: {problem}")


OPEN = "a quote does not end in its line; set multiline where cells hold line ends"


@pytest.mark.parametrize(
    ("content", "good", "problems"),
    [
        ('1,x\n2,"y\n3,z\n', [1, 3], {3: OPEN}),
        ('1,x\n2,"y\n3,"z\n4,z\n', [1, 4], {3: OPEN, 4: OPEN}),
        # Lines within quotes.
        ('1,"x\ny"\n2,z\n', [2], {2: OPEN, 3: "expected 2 cells, got 1"}),
    ],
)
def test_a_quoted_cell_ends_with_its_line(
    tmp_path: Path, content: str, good: list[int], problems: dict[int, str]
) -> None:
    table = read(f"a,b\n{content}", folder=tmp_path)
    assert [row["a"] for row in table.values()] == good
    assert [(key, detail) for key, _, detail in table.defects()] == [
        (f"t: line {line}", f"t: line {line}: {problem}") for line, problem in problems.items()
    ]


def test_lines_in_quotes_are_one_row_where_the_config_says_so(tmp_path: Path) -> None:
    table = read('a,b\n"x\ny",1\nz,2\n', folder=tmp_path, multiline=True)
    assert table.values() == [{"a": "x\ny", "b": 1}, {"a": "z", "b": 2}]
    assert [entry.key for entry in table.entries] == ["t: line 2", "t: line 4"]


def test_an_open_quote_rejects_each_line_that_it_takes_along(tmp_path: Path) -> None:
    table = read('a,b\n1,x\n2,"y\n3,z\n', folder=tmp_path, multiline=True)
    assert table.values() == [{"a": 1, "b": "x"}]
    problem = "unexpected end of data (through line 4: is a quote open?)"
    assert [(key, detail) for key, _, detail in table.defects()] == [
        ("t: line 3", f"t: line 3: {problem}"),
        ("t: line 4", f"t: line 4: in the row of line 3: {problem}"),
    ]

    # It ends at the greatest cell that is read.
    rows = "".join(f"{number},z\n" for number in range(40_000))
    table = read(f'a,b\n2,"y\n{rows}', folder=tmp_path, multiline=True)
    assert len(table.entries) == 40_001
    assert "field larger than field limit" in table.defects()[0][2]
    assert table.values()[-1] == {"a": 39_999, "b": "z"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1: the first line is empty; expected a header"),
        (",,\n1,2,3\n", "the first line is empty; expected a header"),
        ("a,a\n", "the column 'a' occurs twice; is the header missing?"),
        ("5,1,1\n", "the column '1' occurs twice"),
        ("sep=,\na,b\n", "the first line, 'sep=,', is a hint for Excel and no header: delete it$"),
        ('"sep=;"\na;b\n', "is a hint for Excel and no header: delete it and set delimiter to ';'"),
        ("a;b\n1;2\n", "separated by commas, not ';'; set delimiter to ';'"),
        ("a\tb\n", r"separated by commas, not tabs; set delimiter to '\\t'"),
        ("a.jpg,cat\n", r"set header to \[image, label\] \(--header image,label\)"),
        ("a.jpg,1,2\n", r"set header to their names \(--header NAME,NAME\)"),
        (
            "a.jpg cat\n",
            r"set header to \[image, label\] and delimiter to ' ' "
            r"\(--delimiter ' ' --header image,label\)",
        ),
        (
            "a.jpg#0\tA cat, and a dog with it .\n",
            r"\[image, caption\] and delimiter to '\\t' \(--delimiter '\\t' --header image,c",
        ),
        ("a.jpg,1,1,2,2,cat\n", r"set header to \[image, xmin, ymin, xmax, ymax, class\]"),
        ('a,"b\n', "line 1: no header: a quote does not end in its line"),
        (b"a,\xff\n", "line 1: no header"),
        ("a,b\n".encode("utf-16"), "UTF-16"),
        ("a,b\n".encode("utf-16-le"), "UTF-16"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00", "the file is not text"),
    ],
)
def test_a_file_of_something_else_is_an_error(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        read(content, folder=tmp_path)
    assert raised.value.uri == str(tmp_path / "t")


@pytest.mark.parametrize("multiline", [False, True])
def test_without_a_header_the_first_line_is_a_row(tmp_path: Path, multiline: bool) -> None:
    table = read("1,x\n\n2\n", folder=tmp_path, header=["a, b"], multiline=multiline)
    assert table.values() == [{"a": 1, "b": "x"}]
    assert table.entries[0].key == "t: line 1"
    assert table.defects()[0][2] == "t: line 3: expected 2 cells, got 1"
    with pytest.raises(InputError, match="UTF-16"):
        read("1,x\n".encode("utf-16"), folder=tmp_path, header=["a", "b"], multiline=multiline)
    with pytest.raises(InputError, match="header: the column 'a' occurs twice"):
        read("1,x,2\n", folder=tmp_path, header=["a", "b", "a"], multiline=multiline)


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "\\"])
def test_a_delimiter_is_one_character(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(Problem, match=r"one character, or"):
        read("a\n", folder=tmp_path, delimiter=delimiter)


# Captions

CAPTIONS = (
    "{image}A cat on a mat .\n"
    "{image}A cat, a dog, and a mat .\n"
    '{image}"Quoted, as it should be"\n'
    '{image} "Behind a blank, quoted"\n'
    '{image}"""Twice"""\n'
    '{image}"Hello," says the cat .\n'
    '{image}"Open\n'
)
READ = [
    *("A cat on a mat .", "A cat, a dog, and a mat .", "Quoted, as it should be"),
    *("Behind a blank, quoted", '"Twice"', '"Hello," says the cat .', '"Open'),
]


@pytest.mark.parametrize(
    ("header", "image", "settings"),
    [
        ("image,caption\n", "a.jpg,", {}),
        ("", "a.jpg,", {"header": ["image,caption"]}),
        # Flickr8k's and Flickr30k's.
        ("", "a.jpg#0\t", {"header": ["image", "caption"], "delimiter": "\\t"}),
        ("image_name| n| comment\n", "a.jpg| 0| ", {"delimiter": "|"}),
        ("a,b\n", "a.jpg,", {"image_column": "a", "caption_column": "b"}),
    ],
)
def test_a_caption_may_hold_commas_and_quotes(
    tmp_path: Path, header: str, image: str, settings: dict[str, Any]
) -> None:
    content = header + CAPTIONS.format(image=image)
    table = read(content, folder=tmp_path, image_root=["/data"], **settings)
    assert table.defects() == []
    captions = [caption for _, found in table.annotations() for caption in found.captions]
    assert captions == READ
    assert {entry.key for entry in table.entries} == {"a.jpg"}


def test_only_a_last_caption_may_hold_commas(tmp_path: Path) -> None:
    for content in (
        "image,caption,n\na.jpg,x,1\na.jpg,y, z,2\n",
        "image,comment\na.jpg,x\nb.jpg,y, z\n",
    ):
        assert "cells, got" in read(content, folder=tmp_path, image_root=["/data"]).defects()[0][2]


def test_a_single_column_of_images_is_no_table_of_blanks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="separated by commas, not blanks; set delimiter to ' '"):
        read("1 dog\n2 cat\n", folder=tmp_path, image_root=["/data"])
    assert read("my column\nx y\n", folder=tmp_path).values() == [{"my column": "x y"}]


# Against the standard library's writer

# Line ends in quoted cells come as \n; Python 3.10's reader refuses NUL.
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\0"), max_size=8)


@given(
    cells=st.lists(st.lists(TEXT, min_size=2, max_size=2), max_size=5),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    terminator=st.sampled_from(["\n", "\r\n"]),
)
def test_what_the_standard_library_writes_comes_back(
    cells: list[list[str]], quoting: Literal[0, 1], terminator: str
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, quoting=quoting, lineterminator=terminator).writerows(cells)
    storage = StoredFiles({"t": file.getvalue().encode()})
    for multiline in {True, any("\n" in cell for row in cells for cell in row)}:
        lines = read_lines("t", storage=storage)
        found = [row for _, row in read_rows(lines, header=["a", "b"], multiline=multiline)]
        assert found == [{"a": one, "b": other} for one, other in cells]


def test_no_more_than_the_first_rows_are_read_before_the_run() -> None:
    content = b"a,b\n" + (b"1," + b"x" * 997 + b"\n") * 16_000
    storage = StoredFiles({"t.csv": content})
    with unittest.mock.patch(
        "shardbeam.transforms.formats.table.table.storage_for", return_value=storage
    ):
        CsvFormat(manifest=["t.csv"]).resolve()
    assert 0 < storage.read_bytes < len(content) / 3


BLANKS: dict[str, Any] = {"delimiter": " ", "image_root": ["/x"], "header": ["image", "label"]}


def test_several_blanks_are_one_delimiter_if_only_then_all_rows_fit(tmp_path: Path) -> None:
    table = read("a.jpg -1\nb.jpg  1\nc.jpg   1 \n", folder=tmp_path, **BLANKS)
    assert [item.labels for _, item in table.annotations()] == [("-1",), ("1",), ("1",)]
    # Here an empty cell is between two blanks.
    table = read("image x label\na.jpg  1\n", folder=tmp_path, **{**BLANKS, "header": None})
    assert [item.labels for _, item in table.annotations()] == [("1",)]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a.jpg cat\nb.jpg  big dog\n", 2), ('a.jpg  cat\nb.jpg  "a  b"\nc.jpg   x\n', 2)],
)
def test_several_blanks_between_different_numbers_of_cells(
    tmp_path: Path, text: str, line: int
) -> None:
    with pytest.raises(InputError, match=rf"line {line}: . cells, where the first line has 2; "):
        read(text, folder=tmp_path, **BLANKS)
