from __future__ import annotations

import csv
import io
import random
import sys
import unittest.mock
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.formats import table
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.csv_table import CsvFormat, read_table
from shardbeam.transforms.formats.testing import check_format
from shardbeam.transforms.storage.local import LocalStorage
from tests.fuzz.csv import fuzz_csv
from tests.support.making import make_format
from tests.support.stored import StoredFiles
from tests.support.table_reading import ReadTable


def read(content: str | bytes, *, folder: Path, **settings: object) -> ReadTable:
    return ReadTable("csv", {"t.csv": content}, folder=folder, settings=settings)


def read_images(content: str | bytes, *, folder: Path, **settings: object) -> ReadTable:
    return read(content, folder=folder, **{"image_root": ["/data/images"], **settings})


# Rows without images


def test_rows_are_examples_with_the_columns_as_features(tmp_path: Path) -> None:
    table = read('a,b,c,d,e\n1,true,0.5,x,"[1, 2]"\n-2,FALSE,1,,[]\n', folder=tmp_path)
    assert table.format.kinds == {Kind.ROWS}
    assert table.types() == {"a": "int", "b": "bool", "c": "float", "d": "string", "e": "list[int]"}
    assert table.values() == [
        {"a": 1, "b": 1, "c": 0.5, "d": "x", "e": [1, 2]},
        {"a": -2, "b": 0, "c": 1.0, "d": "", "e": []},
    ]
    assert [(entry.key, entry.position, entry.image_id) for entry in table.entries] == [
        ("t.csv: line 2", 2, ""),
        ("t.csv: line 3", 3, ""),
    ]
    assert table.categories == []


def test_files_of_one_name_have_rows_of_their_own(tmp_path: Path) -> None:
    table = ReadTable("csv", {"a/t.csv": "x\n1\n", "b/t.csv": "x\n2\n"}, folder=tmp_path)
    assert [(entry.key, entry.file_index) for entry in table.entries] == [
        ("a/t.csv: line 2", 0),
        ("b/t.csv: line 2", 1),
    ]


def test_types_hold_for_all_files(tmp_path: Path) -> None:
    table = ReadTable("csv", {"a.csv": "x,y\n1,2\n", "b.csv": "y,x\n2.5,3\n"}, folder=tmp_path)
    assert table.types() == {"x": "int", "y": "float"}
    assert table.values() == [{"x": 1, "y": 2.0}, {"x": 3, "y": 2.5}]


def test_other_columns_in_another_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.csv: line 1: expected the columns of a\.csv"):
        ReadTable("csv", {"a.csv": "x,y\n", "b.csv": "x,z\n"}, folder=tmp_path)


def test_a_column_that_is_empty_somewhere_has_one_value_or_none(tmp_path: Path) -> None:
    table = read("a,b,c\n1,0.5,\n,,x\n", folder=tmp_path)
    assert table.types() == {"a": "int?", "b": "float?", "c": "string"}
    assert table.values() == [{"a": [1], "b": [0.5], "c": ""}, {"a": [], "b": [], "c": "x"}]


def test_types_by_config(tmp_path: Path) -> None:
    columns = {"a": "float", "b": "ignore", "c": "list[string]", "d": "bool", "e": "string"}
    table = read('a,b,c,d,e,f\n1,2,"[1, ""x""]",0,007,\n', folder=tmp_path, columns=columns)
    assert table.values() == [{"a": 1.0, "c": ["1", "x"], "d": 0, "e": "007", "f": ""}]


@pytest.mark.parametrize(
    ("type_", "cell", "problem"),
    [
        ("int", "x", "expected int, got 'x'"),
        ("int", "", "expected int, found nothing"),
        ("int", "1.5", "expected int, got '1.5'"),
        ("int", "9" * 19, f"expected int, got '{'9' * 19}'"),
        ("float", "1e39", "expected float, got '1e39'"),
        ("bool", "yes", "expected bool, got 'yes'"),
        ("list[int]", "x", "expected int, got 'x'"),
        ("list[int]", "[1.5]", "expected int, got '1.5'"),
        ("list[bool]", "[2]", "expected bool, got '2'"),
    ],
)
def test_a_cell_of_another_type_is_a_reject_with_its_place(
    tmp_path: Path, type_: str, cell: str, problem: str
) -> None:
    table = read(f'a,b\n"{cell}",1\n', folder=tmp_path, columns={"a": type_})
    assert table.defects() == [
        ("t.csv: line 2", "annotation_malformed", f"t.csv: line 2: column a: {problem}")
    ]


def test_a_nameless_column_of_row_numbers_is_left_out(tmp_path: Path) -> None:
    assert read(",a\n0,x\n1,y\n", folder=tmp_path).values() == [{"a": "x"}, {"a": "y"}]


def test_a_column_named_label_is_a_feature_where_there_are_no_images(tmp_path: Path) -> None:
    assert read("label,image\ncat,a.jpg\n", folder=tmp_path).values() == [
        {"label": "cat", "image": "a.jpg"}
    ]


# Form


@pytest.mark.parametrize(
    "content",
    [
        "a,b\r\n1,x\r\n2,y\r\n",
        "\ufeffa,b\n1,x\n2,y",
        "a , b\n\n1,x\n\n2,y\n\n",
        '"a","b"\n"1","x"\n 2 ,y\n',
    ],
)
def test_forms_of_one_table(tmp_path: Path, content: str) -> None:
    assert read(content, folder=tmp_path).values() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"1", "expected 2 cells, got 1"),
        (b"1,2,3", "expected 2 cells, got 3"),
        (b"1,\xff", "not valid UTF-8"),
        (b'1,"x"y', "',' expected after '\"'"),
    ],
)
def test_a_bad_row_is_a_reject_and_the_others_are_kept(
    tmp_path: Path, row: bytes, problem: str
) -> None:
    table = read(b"a,b\n1,x\n" + row + b"\n2,y\n", folder=tmp_path)
    assert table.values() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert table.defects() == [
        ("t.csv: line 3", "annotation_malformed", f"t.csv: line 3: {problem}")
    ]


def test_an_open_quote_is_a_reject_that_says_how_far_it_goes(tmp_path: Path) -> None:
    table = read('a,b\n1,x\n2,"y\n3,z\n', folder=tmp_path)
    assert table.values() == [{"a": 1, "b": "x"}]
    ((key, _, detail),) = table.defects()
    assert key == "t.csv: line 3"
    assert "unexpected end of data (through line 4: is a quote open?)" in detail

    # It ends at the greatest cell that is read.
    rows = "".join(f"{number},z\n" for number in range(40_000))
    table = read(f'a,b\n2,"y\n{rows}', folder=tmp_path)
    assert len(table.defects()) + len(table.entries) > 1
    assert "field larger than field limit" in table.defects()[0][2]
    assert table.values()[-1] == {"a": 39_999, "b": "z"}


def test_lines_in_quotes_are_one_row(tmp_path: Path) -> None:
    table = read('a,b\n"x\ny",1\nz,2\n', folder=tmp_path)
    assert table.values() == [{"a": "x\ny", "b": 1}, {"a": "z", "b": 2}]
    assert [entry.key for entry in table.entries] == ["t.csv: line 2", "t.csv: line 4"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1: the file begins with no header"),
        (",,\n1,2,3\n", "begins with no header"),
        ("a,a\n", "the column 'a' is there twice; is the header missing?"),
        ("5,1,1\n", "the column '1' is there twice"),
        ("a;b\n1;2\n", "separated by commas, not ';'"),
        ("a\tb\n", "separated by commas, not tabs"),
        ('a,"b\n', "line 1: no header"),
        (b"a,\xff\n", "line 1: no header"),
        ("a,b\n".encode("utf-16"), "UTF-16"),
        ("a,b\n".encode("utf-16-le"), "UTF-16"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00", "no text"),
    ],
)
def test_a_file_of_something_else_is_an_error(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        read(content, folder=tmp_path)
    assert raised.value.uri == str(tmp_path / "t.csv")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        CsvFormat(manifest=[str(tmp_path / "x.csv")]).resolve()


# Rows of images


def test_tfrecorder_table(tmp_path: Path) -> None:
    table = read_images(
        "split,image_uri,label\n"
        "TRAIN,gs://b/images/cat/1.jpg,cat\n"
        "VALIDATION,gs://b/images/dog/2.jpg,dog\n"
        "TEST,gs://b/images/3.jpg,dog\n"
        "DISCARD,gs://b/images/4.jpg,cat\n",
        folder=tmp_path,
        image_root=["gs://b/images/"],
    )
    assert table.format.kinds == {Kind.CLASSIFICATION}
    assert list(table.format.predefined_splits()) == ["train", "validation", "test"]
    assert table.labels() == {"cat/1.jpg": ["cat"], "dog/2.jpg": ["dog"], "3.jpg": ["dog"]}
    assert table.exclusions() == [("4.jpg", Exclusion.DISCARDED)]
    assert [entry.split for entry in table.entries] == ["train", "validation", "test", ""]
    assert [(each.name, each.source_id) for each in table.categories] == [
        ("cat", None),
        ("dog", None),
    ]
    assert table.types() == {}


@pytest.mark.parametrize(
    ("header", "image", "label", "split"),
    [
        ("image_uri,label,split", "image_uri", "label", "split"),
        ("Filename,Class,ml_use", "Filename", "Class", "ml_use"),
        ("image name,category,fold", "image name", "category", ""),
        ("path,image,labels,class", "image", "labels", ""),
    ],
)
def test_columns_are_found_by_name(
    tmp_path: Path, header: str, image: str, label: str, split: str
) -> None:
    table = read_images(f"{header}\n", folder=tmp_path)
    layout = table.format._layout
    assert (layout.image, layout.label, layout.split) == (image, label, split)


def test_columns_are_found_by_setting(tmp_path: Path) -> None:
    table = read_images(
        "image,label,split,what,is,where\nx,y,z,cat,a.jpg,here\n",
        folder=tmp_path,
        image_column="is",
        label_column="what",
        split_column="where",
        columns={"split": "ignore"},
    )
    assert table.labels() == {"a.jpg": ["cat"]}
    assert list(table.format.predefined_splits()) == ["here"]
    assert table.values() == [{"image": "x", "label": "y"}]


def test_a_column_with_a_type_has_no_other_meaning(tmp_path: Path) -> None:
    table = read_images(
        "image,label,split\na.jpg,cat,one\n",
        folder=tmp_path,
        columns={"label": "string", "split": "string"},
    )
    assert table.format.kinds == set()
    assert list(table.format.predefined_splits()) == []
    assert table.values() == [{"label": "cat", "split": "one"}]


@pytest.mark.parametrize(
    ("settings", "cell", "labels"),
    [
        ({}, "cat", ["cat"]),
        ({}, " night heron ", ["night heron"]),
        ({}, "cat|dog", ["cat|dog"]),
        ({"label_separator": "|"}, "cat| dog|", ["cat", "dog"]),
        ({}, '"[""cat"", ""dog"", ""cat"", 3]"', ["cat", "dog", "3"]),
        ({}, "[cat]", ["[cat]"]),
        ({}, "", []),
        ({}, "[]", []),
        ({}, "cafe\u0301", ["café"]),
    ],
)
def test_labels(tmp_path: Path, settings: dict[str, str], cell: str, labels: list[str]) -> None:
    table = read_images(f"image,label\na.jpg,{cell}\n", folder=tmp_path, **settings)
    assert table.labels() == {"a.jpg": labels}
    assert {each.name for each in table.categories} == set(labels)


@pytest.mark.parametrize(
    ("cells", "ids"),
    [
        (["0", "7", "3"], {"0": 0, "7": 7, "3": 3}),
        (["1", '"[2, 0]"'], {"0": 0, "1": 1, "2": 2}),
        (["0", "-1"], {"0": None, "-1": None}),
        (["01", "02"], {"01": None, "02": None}),
        (["1", "cat"], {"1": None, "cat": None}),
        (["100001"], {"100001": None}),
    ],
)
def test_integers_as_labels_are_ids(
    tmp_path: Path, cells: list[str], ids: dict[str, int | None]
) -> None:
    rows = "".join(f"{number}.jpg,{cell}\n" for number, cell in enumerate(cells))
    table = read_images(f"image,label\n{rows}", folder=tmp_path)
    assert {each.name: each.source_id for each in table.categories} == ids


def test_a_label_of_two_lines_is_a_reject(tmp_path: Path) -> None:
    table = read_images('image,label\na.jpg,"x\ny"\n', folder=tmp_path)
    ((key, reason, detail),) = table.defects()
    assert (key, reason) == ("a.jpg", "annotation_malformed")
    assert detail == "t.csv: line 2: expected a label of one line, got 'x\\ny'"
    assert table.categories == []


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("/data/images/a.jpg", ("a.jpg", None)),
        ("a.jpg", ("a.jpg", None)),
        ("file:///data/images/a.jpg", ("a.jpg", None)),
        ("/data/other/a.jpg", ("/data/other/a.jpg", "outside_roots")),
        ("../a.jpg", ("../a.jpg", "outside_roots")),
        ("gs://data/images/a.jpg", ("gs://data/images/a.jpg", "outside_roots")),
        ("https://x.org/a.jpg", ("https://x.org/a.jpg", "outside_roots")),
        ("", ("t.csv: line 2", "annotation_malformed")),
        pytest.param(
            "a\0b.jpg",
            ("a\\x00b.jpg", "unreadable_name"),
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11),
                reason="the csv module of Python 3.10 reads no NUL: the row is malformed",
            ),
        ),
    ],
)
def test_images_below_the_root_and_others(
    tmp_path: Path, name: str, outcome: tuple[str, str | None]
) -> None:
    table = read_images(f"image,n\n{name},1\n", folder=tmp_path)
    (entry,) = table.entries
    assert (entry.key, entry.defect and entry.defect.value) == outcome
    assert not entry.detail or entry.detail.startswith("t.csv: line 2: ")


def test_images_without_extension_are_joined_by_stem(tmp_path: Path) -> None:
    table = read_images("image,label\n1,cat\nx/2,dog\n", folder=tmp_path)
    assert [entry.key for entry in table.entries] == ["1", "x/2"]
    assert [table.place(path).join for path in ("1.jpg", "x/2.PNG", "t.csv")] == [
        "1",
        "x/2",
        "t.csv",
    ]
    assert table.place("1.jpg").key == "1.jpg"
    named = read_images("image,label\n1.jpg,cat\n2,dog\n", folder=tmp_path)
    assert named.place("1.jpg").join == "1.jpg"


def test_a_second_row_of_an_image_with_features_claims_it_under_another_id(tmp_path: Path) -> None:
    with_features = read_images("image,label,n\na.jpg,cat,1\na.jpg,dog,2\n", folder=tmp_path)
    assert [entry.image_id for entry in with_features.entries] == [
        "t.csv: line 2",
        "t.csv: line 3",
    ]
    labels_alone = read_images("image,label\na.jpg,cat\na.jpg,dog\n", folder=tmp_path)
    assert [entry.image_id for entry in labels_alone.entries] == ["", ""]


def test_images_that_no_row_names_are_left_out(tmp_path: Path) -> None:
    table = read_images("image,label\na.jpg,cat\n", folder=tmp_path)
    assert table.format.annotate_listed("b.jpg") is Exclusion.UNANNOTATED
    assert table.format.annotate_listed("b.txt") is Exclusion.NOT_AN_IMAGE_NAME
    objects = read_images("image,label,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,3,4\n", folder=tmp_path)
    assert objects.format.annotate_listed("b.jpg") is None


# Splits


def test_splits_in_order(tmp_path: Path) -> None:
    rows = "".join(
        f"{split}\n" for split in ("b", "TEST", "a", "train", "Training", "b", "DISCARD")
    )
    table = read(f"split\n{rows}", folder=tmp_path)
    assert list(table.format.predefined_splits()) == ["train", "test", "a", "b"]
    assert [entry.split for entry in table.entries] == ["b", "test", "a", "train", "train", "b", ""]


def test_other_splits_than_those_of_the_setting_are_left_out(tmp_path: Path) -> None:
    table = read("split,a\nb,1\n1st,2\na,3\n,4\n", folder=tmp_path, splits=["b", "a"])
    assert list(table.format.predefined_splits()) == ["b", "a"]
    assert table.exclusions() == [("t.csv: line 3", Exclusion.IN_NO_SPLIT)]
    # The join rejects a row that names no split.
    assert [entry.split for entry in table.entries] == ["b", "", "a", ""]


@pytest.mark.parametrize(
    ("splits", "setting", "problem"),
    [
        (["1st"], None, "the split '1st' cannot be one"),
        (["all"], None, "the split 'all' cannot be one"),
        (["a b"], None, "the split 'a b' cannot be one"),
        ([f"s{number}" for number in range(101)], None, "more than 100 values; set split_column"),
    ],
)
def test_splits_that_cannot_be(
    tmp_path: Path, splits: list[str], setting: list[str] | None, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        read("split\n" + "\n".join(splits), folder=tmp_path, splits=setting)


# Rows of objects


def test_rows_with_boxes_are_objects(tmp_path: Path) -> None:
    table = read_images(
        "filename,width,height,class,xmin,ymin,xmax,ymax,score,note\n"
        "a.jpg,640,480,cat,10,20.5,30,40,0.5,x\n"
        "a.jpg,640,480,dog,1,2,3,4,,\n"
        "b.jpg,640,480,,,,,,,\n",
        folder=tmp_path,
    )
    assert table.format.kinds == {Kind.DETECTION}
    first, second, third = (annotations for _, annotations in table.annotations())
    assert (first.width, first.height, first.normalized) == (640, 480, False)
    assert first.objects == (
        ObjectAnnotation(
            label="cat", bbox=(10, 20.5, 30, 40), attributes={"score": 0.5, "note": "x"}
        ),
    )
    assert second.objects[0].attributes == {"note": ""}
    assert third.objects == ()
    features = {extra.spec.key: extra for extra in table.format.extra_features()}
    assert all(extra.per_object and extra.spec.repeated for extra in features.values())
    assert set(features) == {"score", "note"}
    default = features["score"].default
    assert default != default
    assert [entry.image_id for entry in table.entries] == ["", "", ""]
    assert [each.name for each in table.categories] == ["cat", "dog"]


@pytest.mark.parametrize(("far", "normalized"), [("1", True), ("1.0", True), ("2", False)])
def test_boxes_within_the_unit_square_are_fractions(
    tmp_path: Path, far: str, normalized: bool
) -> None:
    table = read_images(
        f"image,label,x_min,yMin,XMax,y max\na.jpg,cat,0,0,0.5,{far}\n", folder=tmp_path
    )
    ((_, annotations),) = table.annotations()
    assert annotations.normalized is normalized
    assert annotations.objects[0].bbox == (0, 0, 0.5, float(far))


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ("cat,1,2,3,", "expected four finite numbers of a box"),
        ("cat,1,2,3,inf", "expected four finite numbers of a box"),
        (",1,2,3,4", "expected one label of the box, got 0"),
        ('"[""a"", ""b""]",1,2,3,4', "expected one label of the box, got 2"),
    ],
)
def test_a_bad_object_is_a_reject(tmp_path: Path, cells: str, problem: str) -> None:
    header = "image,label,xmin,ymin,xmax,ymax"
    table = read_images(f"{header}\na.jpg,cat,1,2,3,4\na.jpg,{cells}\n", folder=tmp_path)
    ((key, _, detail),) = table.defects()
    assert (key, detail) == ("a.jpg", f"t.csv: line 3: {problem}")


def test_columns_of_boxes_with_a_type_are_features(tmp_path: Path) -> None:
    table = read_images(
        "image,label,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,3,4\n",
        folder=tmp_path,
        columns={"xmin": "int"},
    )
    assert table.format.kinds == {Kind.CLASSIFICATION}
    assert table.values() == [{"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}]


@pytest.mark.parametrize(
    ("content", "with_images"),
    [
        ("a,b,c\n1,x,\n2,y,0.5\n", False),
        ("image,label,split,n\na.jpg,cat,train,1\nb/c.png,dog,train,2\n", True),
        ("image,label,xmin,ymin,xmax,ymax,n\na.jpg,cat,0,0,1,1,2\nb/c.png,,,,,,\n", True),
    ],
)
def test_tables_hold_what_a_build_relies_on(
    tmp_path: Path, content: str, with_images: bool
) -> None:
    images = tmp_path / "images"
    (images / "b").mkdir(parents=True)
    for name in ("a.jpg", "b/c.png"):
        (images / name).write_bytes(b"pixels are not looked at")
    (tmp_path / "t.csv").write_text(content)
    roots = [str(images)] if with_images else []
    report = check_format(make_format("csv", manifest=[str(tmp_path / "t.csv")], image_root=roots))
    assert (len(report.annotations), report.rejects, report.excluded) == (2, (), {})


# Settings


@pytest.mark.parametrize(
    ("content", "settings", "problem"),
    [
        ("a,b\n", {"image_root": ["/d"]}, "set image_column to one of a, b"),
        ("image,b\n", {"image_root": ["/d"], "image_column": "imag"}, "did you mean 'image'"),
        ("image,b\n", {"image_column": "image"}, "image_root is missing"),
        ("a,b\n", {"label_column": "b"}, "have features, not labels"),
        ("image_uri,label\n", {}, r"set image_root to their folder, or columns to {image_uri: str"),
        ("a,b\n", {"columns": {"c": "int"}}, r"columns\.c: no column is named 'c'"),
        ("a,b\n", {"split_column": "c"}, "split_column: no column is named 'c'; there are a, b"),
        ("a\x07,b\n", {}, r"the column 'a\\x07' cannot be a feature"),
        (f"{'a' * 201},b\n", {}, "at most 200 bytes"),
        (
            "image,what,xmin,ymin,xmax,ymax\na,b,1,2,3,4\n",
            {"image_root": ["/d"]},
            "rows have boxes.* set label_column to one of image, what",
        ),
        (
            "image,label,xmin,ymin,xmax,ymax,n\na,b,1,2,3,4,5\n",
            {"image_root": ["/d"], "columns": {"n": "list[int]"}},
            r"columns\.n: a feature of objects has one value each",
        ),
    ],
)
def test_settings_that_do_not_fit_the_table_are_an_error(
    tmp_path: Path, content: str, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        read(content, folder=tmp_path, **settings)
    assert raised.value.uri == str(tmp_path / "t.csv")


def test_a_column_of_uris_may_be_a_feature(tmp_path: Path) -> None:
    table = read("image_uri\nx\n", folder=tmp_path, columns={"image_uri": "string"})
    assert table.values() == [{"image_uri": "x"}]


@pytest.mark.parametrize(
    "settings",
    [
        {"manifest": "a.csv"},
        {"manifest": []},
        {"manifest": ["a"], "image_root": "b"},
        {"manifest": ["a"], "columns": {"a": "number"}},
        {"manifest": ["a"], "columns": {"a": "list[int"}},
        {"manifest": ["a"], "label_separator": ""},
        {"manifest": ["a"], "image_root": ["/a", "/a/b"]},
        {"manifest": ["a"], "image_root": ["/a", "gs://a"]},
    ],
)
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(Problem):
        make_format("csv", **settings)


# Against the standard library's writer

# Line ends in quoted cells come as \n; Python 3.10's reader refuses NUL.
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\0"), max_size=8)


@given(
    header=st.lists(TEXT.map(str.strip), min_size=2, max_size=4, unique=True),
    cells=st.data(),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    terminator=st.sampled_from(["\n", "\r\n"]),
)
def test_what_the_standard_library_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    header: list[str],
    cells: st.DataObject,
    quoting: Literal[0, 1],
    terminator: str,
) -> None:
    header = [f"c{name}".replace("\n", "") for name in header]
    if len(set(header)) < len(header) or any(not name.strip() for name in header):
        return
    row = st.lists(TEXT, min_size=len(header), max_size=len(header))
    rows = cells.draw(st.lists(row, max_size=5))
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=quoting, lineterminator=terminator)
    writer.writerow(header)
    writer.writerows(rows)
    path = tmp_path_factory.getbasetemp() / "round_trip.csv"
    path.write_bytes(file.getvalue().encode())
    storage = LocalStorage()
    names, found = read_table(str(path), storage=storage, end=path.stat().st_size)
    assert names == [name.strip() for name in header]
    assert [row for _, row in found] == [dict(zip(names, row, strict=True)) for row in rows]


NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(width=32), st.booleans())


@given(values=st.lists(NUMBERS, min_size=1, max_size=5))
def test_numbers_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("numbers", numbered=True)
    content = "a\n" + "".join(f"{value}\n" for value in values)
    table = read(content, folder=folder)
    kinds = {type(value) for value in values}
    found = [row["a"] for row in table.values()]
    if kinds == {bool}:
        assert table.types() == {"a": "bool"}
        assert found == [int(value) for value in values]
    elif kinds == {int}:
        assert table.types() == {"a": "int"}
        assert found == values
    elif bool not in kinds:
        assert table.types() == {"a": "float"}
        assert [repr(value) for value in found] == [repr(float(value)) for value in values]
    else:
        assert table.types() == {"a": "string"}
        assert found == [str(value) for value in values]


def test_random_files_give_values_or_errors_with_a_place() -> None:
    for seed in range(2000):
        fuzz_csv(random.Random(seed))


# Types of the first rows


@pytest.fixture
def two_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows that begin in a table's first 40 bytes say what its columns are."""
    monkeypatch.setattr(table, "_FIRST_BYTES", 40)
    monkeypatch.setattr(table, "_FIRST_BYTES_OF_A_FILE", 40)


@pytest.mark.usefixtures("two_first_rows")
@pytest.mark.parametrize(
    ("columns", "first", "later", "problem"),
    [
        ("image,n", "a.jpg,1", "b.jpg,x", "column n: expected int, got 'x'"),
        ("image,n", "a.jpg,1", "b.jpg,", "column n: expected int, found nothing"),
        ("image,label", "a.jpg,3", "b.jpg,cat", "expected ids of classes, got 'cat'"),
        (
            "image,label,xmin,ymin,xmax,ymax",
            "a.jpg,cat,0,0,1,1",
            "b.jpg,cat,0,0,9,9",
            "expected a box in fractions, as in the table's first rows",
        ),
    ],
)
def test_a_later_row_that_does_not_fit_is_a_reject(
    tmp_path: Path, columns: str, first: str, later: str, problem: str
) -> None:
    rows = [columns, *[first] * 4, later]
    found = read_images("\n".join(rows), folder=tmp_path)
    assert found.defects() == [
        ("b.jpg", "annotation_malformed", f"t.csv: line 6: {problem}"),
    ]


@pytest.mark.usefixtures("two_first_rows")
def test_a_later_row_of_another_split_is_for_the_join_to_reject(tmp_path: Path) -> None:
    found = read("split\n" + "train\n" * 9 + "fold_2\n", folder=tmp_path)
    assert list(found.format.predefined_splits()) == ["train"]
    assert found.entries[-1].split == "fold_2"
    assert found.entries[-1].detail == (
        "t.csv: line 11: the first rows name no split 'fold_2'; name it in splits"
    )
    named = read("split\n" + "train\n" * 9 + "fold_2\n", folder=tmp_path, splits=["fold_2"])
    assert [entry.split for entry in named.entries if entry.exclusion is None] == ["fold_2"]


def test_no_more_than_the_first_rows_are_read_before_the_run(tmp_path: Path) -> None:
    content = b"a,b\n" + b"1,x\n" * 4_000_000
    storage = StoredFiles({"t.csv": content})
    with unittest.mock.patch(
        "shardbeam.transforms.formats.table.storage_for", return_value=storage
    ):
        CsvFormat(manifest=["t.csv"]).resolve()
    assert 0 < storage.read_bytes < len(content) / 3
