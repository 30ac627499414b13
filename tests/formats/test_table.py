"""Behaviour that all tables share: each is written and read in all forms."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.formats.table import table
from shardbeam.transforms.formats.table.layout import TableKeys, TableLayout
from shardbeam.transforms.formats.table.rows import RowReader
from shardbeam.transforms.formats.testing import check_format
from tests.support.image_makers import plain_jpeg
from tests.support.making import make_format
from tests.support.table_reading import ReadTable, Row, write_table

SIDES = ("xmin", "ymin", "xmax", "ymax")


class Table(ReadTable):
    """Rows in one of the forms.

    Attributes:
        places: Where each row lies, in words.
    """

    def __init__(self, form: str, *rows: Row, folder: Path, **settings: Any) -> None:  # noqa: ANN401
        content, self.places = write_table(form, rows)
        super().__init__(form, content, folder=folder, **settings)


Read = Callable[..., Table]


@pytest.fixture(params=["csv", "jsonl", "parquet"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def read(form: str, tmp_path: Path) -> Read:
    """Reads rows without images."""
    return functools.partial(Table, form, folder=tmp_path)


@pytest.fixture
def read_images(read: Read) -> Read:
    """Reads rows of images below `/data/images`."""
    return functools.partial(read, image_root=["/data/images"])


def box(*sides: object, **cells: object) -> Row:
    return {"image": "a.jpg", "label": "cat", **dict(zip(SIDES, sides, strict=True)), **cells}


# Rows without images


def test_rows_are_examples_with_the_columns_as_features(read: Read) -> None:
    found = read(
        {"a": 1, "b": True, "c": 0.5, "d": "x", "e": [1, 2], "f": 2**63},
        {"a": -2, "b": False, "c": 1, "d": " ", "e": [], "f": 0},
    )
    assert found.format.kinds == {Kind.ROWS}
    assert found.types() == {
        **{"a": "int", "b": "bool", "c": "float", "d": "string"},
        **{"e": "list[int]", "f": "string"},
    }
    assert found.values() == [
        {"a": 1, "b": 1, "c": 0.5, "d": "x", "e": [1, 2], "f": str(2**63)},
        {"a": -2, "b": 0, "c": 1.0, "d": " ", "e": [], "f": "0"},
    ]
    assert [(entry.key, entry.image_id) for entry in found.entries] == [
        (place, "") for place in found.places
    ]
    assert found.categories == []


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([1, None], "int?", [[1], []]),
        ([None, 0.5], "float?", [[], [0.5]]),
        ([1, "x"], "string", ["1", "x"]),
        ([True, 2], "string", ["true", "2"]),
        ([[1], 2.5], "list[float]", [[1.0], [2.5]]),
        ([["a"], None], "list[string]", [["a"], []]),
    ],
)
def test_types_hold_for_all_rows(
    read: Read, values: list[Any], type_: str, expected: list[Any]
) -> None:
    found = read(*({"a": value, "b": 0} for value in values))
    assert found.types()["a"] == type_
    assert [row["a"] for row in found.values()] == expected


def test_types_by_config(read: Read) -> None:
    columns = {"a": "float", "b": "ignore", "c": "list[string]", "e": "string", "f": "int"}
    row = {"a": 1, "b": 2, "c": [1, "x"], "e": "007", "f": 3.0}
    assert read(row, columns=columns).values() == [{"a": 1.0, "c": ["1", "x"], "e": "007", "f": 3}]


@pytest.mark.parametrize(
    ("type_", "cell", "problem"),
    [
        ("int", "x", "expected int, got 'x'"),
        ("int", None, "expected int, found nothing"),
        ("int", 1.5, "expected int, got '1.5'"),
        ("int", True, "expected int, got 'true'"),
        ("int", 2**63, f"expected int, got '{2**63}'"),
        ("float", "1e39", "expected float, got '1e39'"),
        ("bool", "yes", "expected bool, got 'yes'"),
        ("bool", 2, "expected bool, got '2'"),
        ("list[int]", [1, "x"], "expected int, got 'x'"),
        ("list[int]", [1.5], "expected int, got '1.5'"),
        ("list[bool]", [2], "expected bool, got '2'"),
    ],
)
def test_a_cell_of_another_type_is_a_reject_with_its_place(
    read: Read, type_: str, cell: object, problem: str
) -> None:
    found = read({"a": cell, "b": 1}, columns={"a": type_})
    (place,) = found.places
    detail = f"{place}: column a: {problem}"
    assert found.defects() == [(place, "annotation_malformed", detail)]


def test_columns_have_no_meaning_where_there_are_no_images(read: Read) -> None:
    row = {"label": "cat", "image": "a.jpg"}
    assert read(row, no_images=True).values() == [row]
    uri = {"image_uri": "x"}
    assert read(uri, columns={"image_uri": "string"}).values() == [uri]


# Rows of images


@pytest.mark.parametrize(
    ("names", "image", "label", "split"),
    [
        ("image_uri,label,split", "image_uri", "label", "split"),
        ("Filename,Class,ml_use", "Filename", "Class", "ml_use"),
        ("image name,category,fold", "image name", "category", ""),
        ("path,image,labels,class", "image", "labels", ""),
    ],
)
def test_columns_are_found_by_name(
    read_images: Read, names: str, image: str, label: str, split: str
) -> None:
    layout = read_images(dict.fromkeys(names.split(","), "x")).format._layout
    assert (layout.image, layout.label, layout.split) == (image, label, split)


def test_columns_are_found_by_setting(read_images: Read) -> None:
    found = read_images(
        {
            **{"image": "x", "label": "y", "split": "z"},
            **{"what": "cat", "is": "a.jpg", "where": "here"},
        },
        image_column="is",
        label_column="what",
        split_column="where",
        columns={"split": "ignore"},
    )
    assert found.labels() == {"a.jpg": ["cat"]}
    assert list(found.format.predefined_splits()) == ["here"]
    assert found.values() == [{"image": "x", "label": "y"}]


def test_a_column_with_a_type_has_no_other_meaning(read_images: Read) -> None:
    found = read_images(
        {"image": "a.jpg", "label": "cat", "split": "one"},
        columns={"label": "string", "split": "string"},
    )
    assert found.format.kinds == set()
    assert list(found.format.predefined_splits()) == []
    assert found.values() == [{"label": "cat", "split": "one"}]
    boxes = read_images(box(1, 2, 3, 4), columns={"xmin": "int"})
    assert boxes.format.kinds == {Kind.CLASSIFICATION}
    assert boxes.values() == [{"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}]


@pytest.mark.parametrize(
    ("cells", "settings"),
    [
        ({"image_uri": "a.jpg", "caption": "x"}, {"image_root": ["/data/images"]}),
        ({"a": "x", "b": "y"}, {}),
    ],
)
def test_a_column_without_a_name_is_no_label(
    read: Read, cells: Row, settings: dict[str, Any]
) -> None:
    # Row numbers, as pandas writes them.
    rows = ({"": number, **cells} for number in range(2))
    found = read(*rows, **settings)
    assert [labels for _, labels in found.annotations() if labels.labels] == []
    assert (found.defects(), found.categories) == ([], [])
    assert "" not in found.types()


@pytest.mark.parametrize(
    ("settings", "cell", "labels"),
    [
        ({}, "cat", ["cat"]),
        ({}, " night heron ", ["night heron"]),
        ({}, "cat|dog", ["cat|dog"]),
        ({"label_separator": "|"}, "cat| dog|", ["cat", "dog"]),
        ({}, ["cat", "dog", "cat", 3], ["cat", "dog", "3"]),
        ({}, "[cat]", ["[cat]"]),
        ({}, None, []),
        ({}, [], []),
        ({}, "cafe\u0301", ["café"]),
    ],
)
def test_labels(
    read_images: Read, settings: dict[str, str], cell: object, labels: list[str]
) -> None:
    found = read_images({"image": "a.jpg", "label": cell}, **settings)
    assert found.format.kinds == {Kind.CLASSIFICATION}
    assert found.labels() == {"a.jpg": labels}
    assert found.classes() == dict.fromkeys(labels)


@pytest.mark.parametrize(
    ("cells", "ids"),
    [
        ([0, 7, 3], {"0": 0, "7": 7, "3": 3}),
        ([1, [2, 0]], {"0": 0, "1": 1, "2": 2}),
        ([0, -1], {"0": None, "-1": None}),
        (["01", "02"], {"01": None, "02": None}),
        ([1, "cat"], {"1": None, "cat": None}),
        ([100001], {"100001": None}),
    ],
)
def test_integers_as_labels_are_ids(
    read_images: Read, cells: list[Any], ids: dict[str, int | None]
) -> None:
    rows = ({"image": f"{number}.jpg", "label": cell} for number, cell in enumerate(cells))
    assert read_images(*rows).classes() == ids


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("x\u2028y", "expected a label of one line, got 'x\\u2028y'"),
        ([None], "expected a label or a list of labels, got '[null]'"),
    ],
)
def test_a_label_that_is_none_is_a_reject(read_images: Read, label: object, problem: str) -> None:
    found = read_images({"image": "a.jpg", "label": label})
    detail = f"{found.places[0]}: {problem}"
    assert found.defects() == [("a.jpg", "annotation_malformed", detail)]
    assert found.categories == []


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        ("/data/images/a.jpg", "a.jpg", None),
        ("a.jpg", "a.jpg", None),
        ("file:///data/images/a.jpg", "a.jpg", None),
        ("/data/other/a.jpg", "/data/other/a.jpg", "outside_roots"),
        ("../a.jpg", "../a.jpg", "outside_roots"),
        ("gs://data/images/a.jpg", "gs://data/images/a.jpg", "outside_roots"),
        ("https://x.org/a.jpg", "https://x.org/a.jpg", "outside_roots"),
        ("", "", "annotation_malformed"),
        pytest.param(
            *("a\0b.jpg", "a\\x00b.jpg", "unreadable_name"),
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="the module csv knows no NUL before Python 3.11"
            ),
        ),
    ],
)
def test_images_below_the_root_and_others(
    read_images: Read, name: str, key: str, reason: str | None
) -> None:
    found = read_images({"image": name, "n": 1})
    ((place,), (entry,)) = found.places, found.entries
    assert (entry.key, entry.defect and entry.defect.value) == (key or place, reason)
    assert entry.detail.startswith(f"{place}: " if reason else "")


def test_images_without_extension_are_joined_by_stem(read_images: Read) -> None:
    found = read_images({"image": "1", "label": "cat"}, {"image": "x/2", "label": "dog"})
    assert [entry.key for entry in found.entries] == ["1", "x/2"]
    places = [found.format.place(path, root=0) for path in ("1.jpg", "x/2.PNG", "t.csv")]
    assert [place.join for place in places] == ["1", "x/2", "t.csv"]
    assert places[0].key == "1.jpg"
    named = read_images({"image": "1.jpg", "label": "cat"}, {"image": "2", "label": "dog"})
    assert named.format.place("1.jpg", root=0).join == "1.jpg"


def test_a_row_of_an_image_with_features_says_all_about_it(
    read_images: Read,
) -> None:
    row = {"image": "a.jpg", "label": "cat"}
    with_features = read_images({**row, "n": 1}, {**row, "n": 2})
    assert [entry.origin for entry in with_features.entries] == with_features.places
    assert [entry.origin for entry in read_images(row, row).entries] == ["", ""]


# Splits


def test_splits_in_order(read: Read) -> None:
    names = ("b", "TEST", "a", "train", "Training", "b", "DISCARD", "validation", "UNASSIGNED")
    found = read(*({"split": name, "n": 1} for name in names))
    assert list(found.format.predefined_splits()) == ["train", "validation", "test", "a", "b"]
    assert [entry.split for entry in found.entries] == [
        *("b", "test", "a", "train", "train", "b", "", "validation", "")
    ]
    assert found.exclusions() == [(found.places[6], "discarded")]


def test_other_splits_than_those_of_the_setting_are_left_out(read: Read) -> None:
    names = ("b", "1st", "a", None)
    found = read(*({"split": name, "n": 1} for name in names), splits=["b", "a"])
    assert list(found.format.predefined_splits()) == ["b", "a"]
    assert found.exclusions() == [(found.places[1], "in_no_split")]
    # The join rejects a row that names no split.
    assert [entry.split for entry in found.entries] == ["b", "", "a", ""]


def test_a_reject_belongs_to_the_split_of_its_row(read_images: Read) -> None:
    found = read_images({"image": "../a.jpg", "label": "cat", "split": "TEST"})
    assert [(entry.split, entry.defect is None) for entry in found.entries] == [("test", False)]


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        (["1st"], "'1st' cannot name a split"),
        (["all"], "'all' cannot name a split"),
        ([f"s{number}" for number in range(101)], "more than 100 values; set split_column"),
    ],
)
def test_splits_that_cannot_be(read: Read, splits: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(*({"split": split} for split in splits))


# Rows of objects


def test_rows_with_boxes_are_objects(read_images: Read) -> None:
    size = {"width": 640, "height": 480}
    found = read_images(
        {"filename": "a.jpg", **box(10, 20.5, 30, 40, image=""), **size, "score": 0.5, "note": "x"},
        {"filename": "a.jpg", **box(1, 2, 3, 4, image="", label="dog"), **size, "note": ""},
        {"filename": "b.jpg", **size},
        image_column="filename",
        columns={"image": "ignore"},
    )
    assert found.format.kinds == {Kind.DETECTION}
    first, second, third = (annotations for _, annotations in found.annotations())
    assert (first.width, first.height, first.normalized) == (640, 480, False)
    assert first.objects == (
        ObjectAnnotation(
            label="cat", bbox=(10, 20.5, 30, 40), attributes={"score": 0.5, "note": "x"}
        ),
    )
    assert second.objects[0].attributes.get("note", "") == ""
    assert third.objects == ()
    features = {extra.spec.key: extra for extra in found.format.extra_features()}
    assert all(extra.per_object and extra.spec.repeated for extra in features.values())
    assert set(features) == {"score", "note"}
    default = features["score"].default
    assert default != default
    assert [entry.image_id for entry in found.entries] == ["", "", ""]
    assert list(found.classes()) == ["cat", "dog"]


@pytest.mark.parametrize("side", ["-inf", "inf", "nan", "-5", "1e30"])
def test_a_side_that_no_image_has_is_no_size(read_images: Read, side: str) -> None:
    found = read_images(box(1, 2, 3, 4, width=640, height=480), box(1, 2, 3, 4, width=side))
    _, (_, annotations) = found.annotations()
    assert (annotations.width, annotations.height) == (0, 0)


@pytest.mark.parametrize(("far", "normalized"), [(1, True), (1.0, True), (2, False)])
def test_boxes_within_the_unit_square_are_fractions(
    read_images: Read, far: float, normalized: bool
) -> None:
    found = read_images(
        {"image": "a.jpg", "label": "cat", "x_min": 0, "yMin": 0, "XMax": 0.5, "y max": far}
    )
    ((_, annotations),) = found.annotations()
    assert annotations.normalized is normalized
    assert annotations.objects[0].bbox == (0, 0, 0.5, far)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (box(1, 2, 3, None), "expected four finite numbers of a box"),
        (box(1, 2, 3, 2**31), "expected four finite numbers of a box"),
        (box("1,5", 2, 3, 4), "column xmin: expected float, got '1,5'; write a decimal point"),
        (
            box(None, None, None, None),
            "a label without a box; where an image has no objects, leave both out",
        ),
        (box(1, 2, 3, 4, label=None), "expected one label of the box, got 0"),
        (box(1, 2, 3, 4, label=["a", "b"]), "expected one label of the box, got 2"),
    ],
)
def test_a_bad_object_is_a_reject(read_images: Read, row: Row, problem: str) -> None:
    found = read_images(box(1, 2, 3, 4), row)
    assert len(found.annotations()) == 1
    # Only CSV has the key.
    more = ", or set decimal to a comma"
    assert [(key, detail.removesuffix(more)) for key, _, detail in found.defects()] == [
        ("a.jpg", f"{found.places[1]}: {problem}")
    ]


@pytest.mark.parametrize(
    ("rows", "with_images"),
    [
        ([{"a": 1, "b": "x", "c": None}, {"a": 2, "b": "y", "c": 0.5}], False),
        (
            [
                {"image": "a.jpg", "label": "cat", "split": "train", "n": 1},
                {"image": "b/c.png", "label": "dog", "split": "train", "n": 2},
            ],
            True,
        ),
        ([box(0, 0, 1, 1, n=2), {"image": "b/c.png"}], True),
    ],
)
def test_tables_hold_what_a_build_relies_on(
    tmp_path: Path, form: str, rows: list[Row], with_images: bool
) -> None:
    images = tmp_path / "images"
    (images / "b").mkdir(parents=True)
    for name in ("a.jpg", "b/c.png"):
        (images / name).write_bytes(b"pixels are not looked at")
    (tmp_path / "t").write_bytes(write_table(form, rows)[0])
    roots = [str(images)] if with_images else []
    report = check_format(make_format(form, manifest=[str(tmp_path / "t")], image_root=roots))
    assert (len(report.annotations), report.rejects, report.excluded) == (2, (), {})


# Settings


@pytest.mark.parametrize(
    ("row", "settings", "problem"),
    [
        ({"a": 1, "b": 2}, {"image_root": ["/d"]}, "set image_column to one of a, b"),
        ({"a\x07": 1, "b": 2}, {"image_root": ["/d"]}, r"to one of 'a\\x07', b"),
        (
            {"image": "x", "b": 2},
            {"image_root": ["/d"], "image_column": "imag"},
            "did you mean 'image'",
        ),
        ({"image": "x", "b": 2}, {"image_column": "image"}, "image_root is missing"),
        ({"a": 1, "b": 2}, {"label_column": "b"}, "have features, not labels"),
        ({"a": 1, "b": 2}, {"one_hot": True}, "one_hot: rows without images have features"),
        (
            {"image_uri": "x"},
            {},
            r"set image_root to their folder \(--image-root\), or no_images",
        ),
        ({"abc": 1}, {"columns": {"abd": "int"}}, r"columns\.abd: no column is named 'abd'; did"),
        (
            {"a": 1, "b": 2},
            {"split_column": "c"},
            "split_column: no column is named 'c'; there are a, b",
        ),
        ({"a\x07": 1, "b": 2}, {}, r"the column 'a\\x07' cannot be a feature"),
        ({"a" * 201: 1, "b": 2}, {}, "at most 200 bytes"),
        (
            {"image": "a", "what": "b", **dict.fromkeys(SIDES, 1)},
            {"image_root": ["/d"]},
            "rows have boxes.* set label_column to one of image, what",
        ),
        (
            box(1, 2, 3, 4, n=5),
            {"image_root": ["/d"], "columns": {"n": "list[int]"}},
            r"columns\.n: a feature of objects has one value each",
        ),
    ],
)
def test_settings_that_do_not_fit_the_table_are_an_error(
    read: Read, tmp_path: Path, row: Row, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        read(row, **settings)
    assert raised.value.uri == str(tmp_path / "t")


@pytest.mark.parametrize(
    "settings",
    [
        {"manifest": 1},
        {"manifest": []},
        {"manifest": ["a"], "image_root": {"b": "c"}},
        {"manifest": ["a"], "columns": {"a": "number"}},
        {"manifest": ["a"], "columns": {"a": "list[int"}},
        {"manifest": ["a"], "label_separator": ""},
        {"manifest": ["a"], "label_column": "x", "one_hot": True},
        {"manifest": ["a"], "image_root": ["/a", "/a/b"]},
        {"manifest": ["a"], "image_root": ["/a", "gs://a"]},
    ],
)
def test_settings_are_checked(form: str, settings: dict[str, Any]) -> None:
    with pytest.raises(Problem):
        make_format(form, **settings)


def test_a_missing_file_is_an_error(form: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        make_format(form, manifest=[str(tmp_path / "x")]).resolve()


def test_files_of_one_name_have_rows_of_their_own(form: str, tmp_path: Path) -> None:
    files = {f"{folder}/t": write_table(form, [{"x": 1}])[0] for folder in "ab"}
    found = ReadTable(form, files, folder=tmp_path)
    assert [(entry.key[:3], entry.file_index) for entry in found.entries] == [
        ("a/t", 0),
        ("b/t", 1),
    ]


def test_types_hold_for_all_files(form: str, tmp_path: Path) -> None:
    tables: dict[str, Row] = {"a": {"x": 1, "y": 2}, "b": {"y": 2.5, "x": 3}}
    files = {name: write_table(form, [row])[0] for name, row in tables.items()}
    found = ReadTable(form, files, folder=tmp_path)
    assert found.types() == {"x": "int", "y": "float"}
    assert found.values() == [{"x": 1, "y": 2.0}, {"x": 3, "y": 2.5}]


# Rows behind the first ones


@pytest.fixture
def few_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows that begin in a table's first 40 bytes say what its columns are."""
    monkeypatch.setattr(table, "_FIRST_BYTES", 40)
    monkeypatch.setattr(table, "FIRST_BYTES_OF_A_FILE", 40)


@pytest.mark.usefixtures("few_first_rows")
@pytest.mark.parametrize(
    ("first", "later", "problem"),
    [
        ({"n": 1}, {"n": "x"}, "column n: expected int, got 'x'"),
        ({"n": 1}, {"n": None}, "column n: expected int, found nothing"),
        ({"label": 3}, {"label": "cat"}, "expected ids of classes, got 'cat'"),
        (
            box(0, 0, 1, 1),
            box(0, 0, 9, 9),
            "expected a box in fractions, as in the table's first rows",
        ),
    ],
)
def test_a_later_row_that_does_not_fit_is_a_reject(
    read_images: Read, first: Row, later: Row, problem: str
) -> None:
    rows = [{"image": "a.jpg", **first}] * 4
    found = read_images(*rows, {**later, "image": "b.jpg"})
    assert found.defects() == [
        ("b.jpg", "annotation_malformed", f"{found.places[4]}: {problem}"),
    ]


@pytest.mark.usefixtures("few_first_rows")
def test_a_later_row_of_another_split_is_for_the_join_to_reject(
    read: Read,
) -> None:
    rows = [*[{"split": "train"}] * 9, {"split": "fold_2"}]
    found = read(*rows)
    assert list(found.format.predefined_splits()) == ["train"]
    assert found.entries[-1].split == "fold_2"
    assert found.entries[-1].detail == (
        f"{found.places[-1]}: the first rows name no split 'fold_2'; name it in splits"
    )
    named = read(*rows, splits=["fold_2"])
    assert [entry.split for entry in named.entries if entry.exclusion is None] == ["fold_2"]


VIA = {
    "filename": "a.jpg",
    "file_size": 1234,
    "file_attributes": "{}",
    "region_count": 1,
    "region_id": 0,
    "region_shape_attributes": '{"name":"rect","x":1,"y":2,"width":5,"height":6}',
    "region_attributes": '{"name":"lion"}',
}


@pytest.mark.parametrize(
    ("row", "settings", "columns"),
    [
        (VIA, {}, ", ".join(name for name in VIA if name != "filename")),
        # Hugging Face's.
        (
            {"file_name": "a.jpg", "objects": {"bbox": [[1, 2, 5, 6]], "categories": [0]}},
            {},
            "objects",
        ),
        ({"file_name": "a.jpg", "text": "a lion"}, {}, "text"),
        ({"file_name": "a.jpg", "age": 3, "breed": "lion"}, {"columns": {"age": "int"}}, "breed"),
        # Known to be no class.
        ({"file_name": "a.jpg", "age": 3}, {"columns": {"age": "int"}}, None),
        ({"file_name": "a.jpg"}, {}, None),
        ({"file_name": "a.jpg", "breed": "lion"}, {"label_column": "breed"}, None),
        ({"file_name": "a.jpg", "breed": "lion", "label": "lion"}, {}, None),
    ],
)
def test_a_table_without_a_column_of_classes_says_so(
    read_images: Read, row: Row, settings: dict[str, Any], columns: str | None
) -> None:
    found = read_images(row, **settings)

    warnings = list(found.format.warnings())

    assert len(warnings) == (columns is not None)
    if columns is not None:
        begin = "t: no column was recognized as classes or boxes; these are written as features"
        assert warnings[0].startswith(f"{begin} of images: {columns}; if there are classes, name")


# Columns that look like boxes


def cells(names: str, *numbers: object) -> Row:
    return {"image": "a.jpg", "label": "cat", **dict(zip(names.split(","), numbers, strict=True))}


@pytest.mark.parametrize(
    ("names", "numbers", "settings"),
    [
        ("bbox_x,bbox_y,bbox_width,bbox_height", (10, 20, 5, 6), {}),
        ("x,y,w,h", (10, 20, 5, 6), {}),
        ("left,top,width,height", (10, 20, 5, 6), {}),
        ("x1,y1,w,h", (10, 20, 5, 6), {}),
        ("left,top,right,bottom", (10, 20, 15, 26), {}),
        ("bbox_xmin,bbox_ymin,bbox_xmax,bbox_ymax", (10, 20, 15, 26), {}),
        ("x_center,y_center,width,height", (12.5, 23, 5, 6), {}),
        ("x,y,width,height", (10, 20, 5, 6), {"box_format": "xywh"}),
        ("x,y,width,height", (12.5, 23, 5, 6), {"box_format": "cxcywh"}),
        ("a,b,c,d", (10, 20, 5, 6), {"box_format": "xywh", "box_columns": ["a,b,c,d"]}),
        ("x,y,w,h", (10, 20, 15, 26), {"box_format": "xyxy", "box_columns": [*"xywh"]}),
        ("xmax,ymax,left,top", (15, 26, 10, 20), {"box_columns": ["left,top,xmax,ymax"]}),
        ("bbox", ([10, 20, 5, 6],), {"box_format": "xywh"}),
        ("bbox", ("10, 20, 15, 26",), {"box_format": "xyxy"}),
        ("bbox", ("(10 20 15 26)",), {"box_format": "xyxy", "box_columns": ["bbox"]}),
    ],
)
def test_columns_that_hold_boxes(
    read_images: Read, names: str, numbers: tuple[object, ...], settings: dict[str, Any]
) -> None:
    found = read_images(cells(names, *numbers), **settings)
    assert found.format.kinds == {Kind.DETECTION}
    assert found.types() == {}
    ((_, annotations),) = found.annotations()
    assert [item.bbox for item in annotations.objects] == [(10, 20, 15, 26)]


@pytest.mark.parametrize(
    ("name", "run_lengths"),
    [("EncodedPixels", ["1 2 30 4"]), ("rle_mask", ["1 2 3 4", None]), ("x", ["1 2 3 4", "5 6"])],
)
def test_run_lengths_of_four_numbers_are_no_boxes(
    read_images: Read, name: str, run_lengths: list[str | None]
) -> None:
    rows = [{"image": f"{n}.jpg", name: text} for n, text in enumerate([*run_lengths, "1 2 9 4"])]
    found = read_images(*rows)
    assert [*found.types()] == [name]
    assert f"{name} holds run lengths of masks" in [*found.format.warnings()][-1]
    labelled = [{**row, "label": "x"} for row in rows]
    assert read_images(*labelled, box_format="xywh").format.kinds == {Kind.DETECTION}


@pytest.mark.parametrize(
    ("row", "settings", "problem"),
    [
        (
            cells("x,y,width,height", 1, 2, 3, 4),
            {},
            "the columns x, y, width, height look like boxes: set box_format to xywh if x and y "
            "are the top left corner, or to cxcywh",
        ),
        (
            cells("what", [1, 2, 3, 4]),
            {},
            r"cells of the column what look like boxes, such as \[1\.0, 2\.0, 3\.0, 4\.0\]: set",
        ),
        (
            cells("what", "1 2 3 4"),
            {"box_columns": ["what"]},
            "box_columns: the names do not say what the numbers mean: set box_format to xyxy if",
        ),
        (cells("a,b", [1, 2, 3, 4], [1, 2, 3, 4]), {"box_format": "xywh"}, "one in box_columns"),
        (
            cells("x1,y1,x2,y2,x3,y3,x4,y4", 1, 1, 9, 1, 9, 9, 1, 9),
            {},
            "the columns up to x3 look like the corners of quadrilaterals",
        ),
        (
            {"image": "a.jpg", "labels": ["cat", "dog"], "b": [[1, 2, 3, 4], [1, 2, 3, 4]]},
            {},
            r"cells of the column b hold several boxes, such as \[\[1, 2, 3, 4\], \[1, 2,",
        ),
        (cells("a,b", 1, 2), {"box_columns": ["a,b"], "box_format": "xywh"}, "or four, got 2"),
        (cells("a,b", 1, 2), {"box_columns": ["c"]}, "box_columns: no column is named 'c'"),
        ({"a": 1}, {"box_columns": ["a"], "image_root": []}, "rows without images have features"),
    ],
)
def test_boxes_that_may_mean_several_things_are_an_error(
    read_images: Read, row: Row, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        read_images(row, **settings)


def test_columns_with_types_and_lists_of_other_lengths_are_no_boxes(read_images: Read) -> None:
    numbers = {"x": 1, "y": 2, "width": 3, "height": 4, "v": [1, 2, 3, 4]}
    types = {"x": "int", "v": "list[int]"}
    found = read_images({"image": "a.jpg", "label": "cat", **numbers}, columns=types)
    assert found.types() == {**dict.fromkeys(("x", "y", "width", "height"), "int"), **types}
    found = read_images(cells("v", [1, 2, 3, 4]), cells("v", [1, 2, 3]))
    assert found.types() == {"v": "list[int]"}


def test_cells_that_are_missing_or_wrong_do_not_hide_a_column_of_boxes(read_images: Read) -> None:
    rows = [cells("bbox", [1, 2, 3, 4]), cells("bbox", [5, 6, 7, 8]), cells("bbox", [1, 2, 3])]
    nothing: tuple[object, ...] = ([], None)
    empty = [{"image": "b.jpg", "label": "", "bbox": bbox} for bbox in nothing]
    found = read_images(*rows, *empty, box_format="xyxy")
    # Four empty columns mean the same, also if pandas has written NaN.
    sides = [box(*"1234"), {"image": "b.jpg", "label": "", **dict.fromkeys(SIDES, "nan")}]
    assert [len(it.objects) for _, it in read_images(*sides).annotations()] == [1, 0]
    assert [len(annotations.objects) for _, annotations in found.annotations()] == [1, 1, 0, 0]
    assert len(found.defects()) == 1


def test_boxes_with_units(read_images: Read) -> None:
    for cell in ("10%", "10 px"):
        with pytest.raises(InputError, match=f"look like boxes, but hold '{cell}' and the like"):
            read_images(box(cell, cell, cell, cell, label="cat"))
    names = "xmin (px),ymin (px),xmax (px),ymax (px)"
    assert read_images(cells(names, 1, 2, 3, 4)).format.kinds == {Kind.DETECTION}


def labelled(*labels: object) -> list[Row]:
    return [{"image": f"{number}.jpg", "label": label} for number, label in enumerate(labels)]


TWO_NAMES = [{"image": "a.jpg", "label": "pug", "category": "dog"}]
FRACTIONS = [box(0, 0, 0.5, 0.5)] * 3 + [box(1, 2, 30, 40)]


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        (
            labelled(-1, 0, 1),
            {},
            "numbers in label are read as names of classes, which get new ids, because -1",
        ),
        (labelled(1, 200_000), {}, "because 200000 is no id (a whole number from 0 to 100,000)"),
        (
            labelled("cat", "None"),
            {},
            "'None' in label is the name of a class: if it stands for no",
        ),
        (labelled("3", "cat"), {}, ""),
        (
            TWO_NAMES,
            {},
            "the classes are those of label, and category a feature: label_column says",
        ),
        (TWO_NAMES, {"label_column": "label"}, ""),
        (TWO_NAMES, {"columns": {"category": "string"}}, ""),
        (
            FRACTIONS,
            {},
            "3 of the first 4 boxes lie within 0 to 1, like fractions, and the others",
        ),
        (FRACTIONS, {"box_units": "px"}, ""),
        (FRACTIONS[1:], {}, ""),
    ],
)
def test_what_may_be_meant_otherwise_is_said(
    read_images: Read, rows: list[Row], settings: dict[str, Any], said: str
) -> None:
    warnings = [*read_images(*rows, **settings).format.warnings()]
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)


@pytest.mark.usefixtures("few_first_rows")
@pytest.mark.parametrize("cell", [[1, 2], [1, 2, True, 4]])
def test_a_later_cell_without_four_numbers_is_a_reject(
    read_images: Read, cell: list[object]
) -> None:
    rows = [cells("bbox", [1, 2, 3, 4])] * 4
    found = read_images(*rows, cells("bbox", cell), box_format="xyxy")
    problem = "column bbox: expected the four numbers of a box, got '[1"
    ((_, _, detail),) = found.defects()
    assert detail.startswith(f"{found.places[4]}: {problem}")


def test_sides_that_are_the_sizes_of_the_images_are_no_boxes(
    read_images: Read, tmp_path: Path
) -> None:
    jpeg = plain_jpeg()
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "a.jpg").write_bytes(jpeg)
    width, height = Image.open(io.BytesIO(jpeg)).size
    settings = {"image_root": [str(tmp_path / "i")]}
    for names in ("left,top,width,height", "x,y,width,height"):
        found = read_images(cells(names, 1, 2, width, height), **settings)
        assert found.format.kinds == {Kind.CLASSIFICATION}
    found = read_images(cells("left,top,width,height", 1, 2, width - 1, height), **settings)
    assert found.format.kinds == {Kind.DETECTION}
    # Around the whole image.
    found = read_images(cells("left,top,width,height", 0, 0, width, height), **settings)
    assert found.format.kinds == {Kind.DETECTION}
    # Beside sides of their own.
    found = read_images(cells("x,y,w,h,width,height", 1, 2, 3, 4, width, height), **settings)
    ((_, annotations),) = found.annotations()
    assert (annotations.width, annotations.height) == (width, height)


# Names and ids of classes


def test_a_column_of_ids_beside_one_of_names_is_one_class(read_images: Read) -> None:
    rows = [
        {"image": "a.jpg", "label": 7, "class": "cat"},
        {"image": "b.jpg", "label": 3.0, "class": "dog"},
    ]
    found = read_images(*rows)
    assert found.labels() == {"a.jpg": ["cat"], "b.jpg": ["dog"]}
    assert found.classes() == {"cat": 7, "dog": 3}
    assert found.types() == {}
    assert read_images(*rows, label_column="label").classes() == {"3": 3, "7": 7}
    exchanged = [{"image": "a.jpg", "label": "cat", "class": 7}]
    assert read_images(*exchanged).classes() == {"cat": 7}
    objects = read_images({**box(1, 2, 3, 4, label=7), "class": "cat"})
    assert objects.classes() == {"cat": 7}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            [{"label": 1, "class": "cat"}, {"label": 1, "class": "dog"}],
            "columns label, class look like ids and names of classes, but 1 is cat and dog: set",
        ),
        ([{"label": 1, "class": "cat"}, {"label": 2, "class": "cat"}], "but cat is 1 and 2: set"),
        ([{"label": 1, "class": "cat", "category": "pet"}], "label, class, category look like"),
    ],
)
def test_ids_and_names_of_classes_that_disagree_are_an_error(
    read_images: Read, rows: list[Row], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        read_images(*({"image": f"{number}.jpg", **row} for number, row in enumerate(rows)))


@pytest.mark.usefixtures("few_first_rows")
def test_a_later_class_without_an_id_is_a_reject(read_images: Read) -> None:
    rows = [{"label": 7, "class": "cat", "image": "a.jpg"}] * 4
    found = read_images(*rows, {"label": None, "class": "cat", "image": "b.jpg"})
    ((key, _, detail),) = found.defects()
    assert key == "b.jpg"
    assert "column label: expected the id of class cat" in detail


@pytest.mark.parametrize(
    ("labels", "separator"),
    [
        (("apple", "plum", "apple|plum"), "|"),
        (("scab", "rust", "scab rust"), " "),
        (("red", "green", "red, green"), ","),
        (("apple", "a|b"), ""),
        # Three of four are other names.
        (("ice", "cream", "ice cream", "night heron", "polar bear", "grey wolf"), ""),
    ],
)
def test_labels_that_seem_to_be_several_are_named(
    read_images: Read, labels: tuple[str, ...], separator: str
) -> None:
    rows = labelled(*labels)
    warnings = list(read_images(*rows).format.warnings())
    assert len(warnings) == bool(separator)
    if separator:
        assert warnings[0].startswith(f"t: labels with {separator!r} seem to be several labels")
        assert list(read_images(*rows, label_separator=separator).format.warnings()) == []


def test_columns_of_0_and_1_are_named(read_images: Read) -> None:
    found = read_images({"image": "a.jpg", "cat": 1, "dog": 0, "age": 3})
    (warning,) = found.format.warnings()
    assert warning.endswith("; cat, dog hold only 0 and 1: if each is a class, set one_hot")


# Captions


def test_several_captions_of_an_image(read_images: Read) -> None:
    rows = [
        {"image": "a.jpg", "n": 1, "sentence": " a cat "},
        {"image": "a.jpg", "n": 2, "sentence": "two cats"},
        {"image": "b.jpg", "n": None, "sentence": None},
    ]
    found = read_images(*rows)
    assert found.format.kinds == {Kind.CAPTIONS}
    assert [annotations.captions for _, annotations in found.annotations()] == [
        ("a cat",),
        ("two cats",),
        (),
    ]
    # Rows of an image are merged, with a value each.
    assert [entry.origin for entry in found.entries] == ["", "", ""]
    (feature,) = found.format.extra_features()
    assert feature.spec.repeated
    assert [annotations.values for _, annotations in found.annotations()] == [
        {"n": (1,)},
        {"n": (2,)},
        {"n": (-1,)},
    ]


def test_a_caption_for_each_image_is_a_feature_unless_the_config_names_it(
    read_images: Read,
) -> None:
    row = {"image": "a.jpg", "caption": "a cat", "n": 1}
    assert read_images(row).values() == [{"caption": "a cat", "n": 1}]
    found = read_images(row, caption_column="caption")
    assert found.values() == [{"n": 1}]
    ((_, annotations),) = found.annotations()
    assert annotations.captions == ("a cat",)
    several = read_images({"image": "a.jpg", "c": ["x", "y"]}, caption_column="c")
    ((_, annotations),) = several.annotations()
    assert annotations.captions == ("x", "y")


@pytest.mark.parametrize(("no", "yes"), [(-1, 1), (-1.0, 1.0), (0, 1)])
def test_minus_one_is_no_where_all_cells_are_minus_one_or_one(
    read_images: Read, no: float, yes: float
) -> None:
    found = read_images(
        {"image": "a.jpg", "bald": yes, "hat": no},
        {"image": "b.jpg", "bald": no, "hat": no},
        one_hot=True,
    )
    assert [item.labels for _, item in found.annotations()] == [("bald",), ()]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"edema": 0, "mass": 1}, "0"),
        ({"edema": None, "mass": 1}, "empty cells"),
        ({"edema": 1, "mass": 0}, "mass has 0"),
    ],
)
def test_minus_one_beside_other_cells_needs_a_meaning(
    read_images: Read, row: Row, what: str
) -> None:
    rows = [{"image": "a.jpg", "edema": -1, "mass": 1}, {"image": "b.jpg", **row}]
    with pytest.raises(InputError, match=rf"column edema has -1, and {what}: .* one_hot_values: "):
        read_images(*rows, one_hot=True)
    uncertain: dict[str, Any] = {"one_hot": True, "one_hot_values": {"-1": 1, "": 0}}
    (_, first), _ = read_images(*rows, **uncertain).annotations()
    assert first.labels == ("edema", "mass")


def test_later_cells_that_contradict_the_first_rows_reject_their_row() -> None:
    keys = make_format("csv", manifest=["t"], image_root=["x"])
    assert isinstance(keys, TableKeys)
    reader = RowReader(keys, TableLayout(one_hot=("a",), has_signs=True))
    assert reader.annotations({"a": "-1"}).labels == ()
    with pytest.raises(CellError, match="column a: expected -1 or 1, got 0; one_hot_values says"):
        reader.annotations({"a": "0"})
