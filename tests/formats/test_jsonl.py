from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.formats import table
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.json_lines import JsonLinesFormat
from shardbeam.transforms.formats.testing import check_format
from tests.fuzz.jsonl import fuzz_jsonl
from tests.support.making import make_format
from tests.support.table_reading import ReadTable

ML_USE = "aiplatform.googleapis.com/ml_use"


def read(*rows: object, folder: Path, chunk_bytes: int = 1 << 20, **settings: object) -> ReadTable:
    """Writes a line for each row, texts and bytes as they are, and reads them."""
    lines = [
        row
        if isinstance(row, bytes)
        else (row if isinstance(row, str) else json.dumps(row)).encode()
        for row in rows
    ]
    content = b"".join(line + b"\n" for line in lines)
    return ReadTable(
        "jsonl",
        {"t.jsonl": content},
        folder=folder,
        chunk_bytes=chunk_bytes,
        settings=settings,
    )


# Rows without images


def test_rows_are_examples_with_the_keys_as_features(tmp_path: Path) -> None:
    table = read(
        {"a": 1, "b": True, "c": 0.5, "d": "x", "e": [1, 2], "f": 2**63, "g": {"h": [1]}},
        {"a": -2, "b": False, "c": 1, "d": "", "e": [], "f": 0, "g": None},
        folder=tmp_path,
    )
    assert table.format.kinds == {Kind.ROWS}
    assert table.types() == {
        "a": "int",
        "b": "bool",
        "c": "float",
        "d": "string",
        "e": "list[int]",
        "f": "string",
        "g": "string?",
    }
    assert table.values() == [
        {"a": 1, "b": 1, "c": 0.5, "d": "x", "e": [1, 2], "f": str(2**63), "g": ['{"h":[1]}']},
        {"a": -2, "b": 0, "c": 1.0, "d": "", "e": [], "f": "0", "g": []},
    ]
    assert [(entry.key, entry.position) for entry in table.entries] == [
        ("t.jsonl: byte 0", 0),
        ("t.jsonl: byte 96", 96),
    ]


@pytest.mark.parametrize(
    ("values", "type_", "found"),
    [
        ([1, ...], "int?", [[1], []]),
        ([..., "x"], "string?", [[], ["x"]]),
        ([None, 0.5], "float?", [[], [0.5]]),
        ([1, "x"], "string", ["1", "x"]),
        ([True, 2], "string", ["true", "2"]),
        ([[1], 2.5], "list[float]", [[1.0], [2.5]]),
        ([["a"], None], "list[string]", [["a"], []]),
        ([[[1]], []], "list[string]", [["[1]"], []]),
    ],
)
def test_types_hold_for_all_rows(
    tmp_path: Path, values: list[Any], type_: str, found: list[Any]
) -> None:
    rows = [{"b": 0} if value is ... else {"b": 0, "a": value} for value in values]
    table = read(*rows, folder=tmp_path)
    assert table.types()["a"] == type_
    assert [row["a"] for row in table.values()] == found


def test_a_key_that_a_whole_file_lacks_may_be_missing(tmp_path: Path) -> None:
    files = {"a.jsonl": '{"x": 1}\n', "b.jsonl": '{"x": 1, "y": 2}\n'}
    for names in (("a.jsonl", "b.jsonl"), ("b.jsonl", "a.jsonl")):
        table = ReadTable("jsonl", {name: files[name] for name in names}, folder=tmp_path)
        assert table.types() == {"x": "int", "y": "int?"}


@pytest.mark.parametrize(
    ("type_", "value", "problem"),
    [
        ("int", "1", "expected int, got '1'"),
        ("int", True, "expected int, got 'true'"),
        ("int", None, "expected int, found nothing"),
        ("int", 2**63, f"expected int, got '{2**63}'"),
        ("int", [1], "expected int, got '[1]'"),
        ("float", 1e39, "expected float, got '1e39'"),
        ("bool", 2, "expected bool, got '2'"),
        ("list[int]", [1, "x"], "expected int, got 'x'"),
    ],
)
def test_a_value_of_another_type_is_a_reject_with_its_place(
    tmp_path: Path, type_: str, value: object, problem: str
) -> None:
    table = read({"a": value}, folder=tmp_path, columns={"a": type_})
    assert table.defects() == [
        ("t.jsonl: byte 0", "annotation_malformed", f"t.jsonl: byte 0: column a: {problem}")
    ]


def test_integral_floats_are_integers_where_the_config_says_so(tmp_path: Path) -> None:
    assert read({"a": 3.0}, folder=tmp_path, columns={"a": "int"}).values() == [{"a": 3}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[1]", "expected a JSON object"),
        (b"{nope}", "malformed"),
        (b'{"a": 1', "truncated"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", ""),
        (b"[" * 5000, "expected a JSON object"),
        (b'{"a": ' + b"[" * 5000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_a_reject_and_the_others_are_kept(
    tmp_path: Path, line: bytes, problem: str
) -> None:
    table = read({"a": 1}, line, b"  ", {"a": 2}, folder=tmp_path)
    assert table.values() == [{"a": 1}, {"a": 2}]
    ((key, reason, detail),) = table.defects()
    assert (key, reason) == ("t.jsonl: byte 9", "annotation_malformed")
    assert detail.startswith("t.jsonl: byte 9: ")
    assert problem in detail


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"a,b\n1,2\n", "expected a JSON object a line, found none; byte 0: "),
        (b"", "the file holds no rows"),
        (b"\n \n", "the file holds no rows"),
    ],
)
def test_a_file_of_something_else_is_an_error(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ReadTable("jsonl", {"t": content}, folder=tmp_path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        JsonLinesFormat(manifest=[str(tmp_path / "x")]).resolve()


JSON_ROWS = st.lists(
    st.fixed_dictionaries(
        {"i": st.integers(-(2**63), 2**63 - 1), "t": st.text(), "b": st.booleans()},
        optional={"f": st.floats(width=32, allow_nan=False, allow_infinity=False)},
    ),
    min_size=1,
    max_size=6,
)


@given(rows=JSON_ROWS, chunk_bytes=st.integers(1, 200), escaped=st.booleans())
def test_what_the_standard_library_writes_comes_back_whatever_the_parts(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    chunk_bytes: int,
    escaped: bool,
) -> None:
    lines = [json.dumps(row, ensure_ascii=escaped) for row in rows]
    folder = tmp_path_factory.mktemp("jsonl", numbered=True)
    table = read(*lines, folder=folder, chunk_bytes=chunk_bytes, columns={"b": "bool"})
    some = {len(row) for row in rows} == {4}
    expected = [
        {
            "i": row["i"],
            "t": row["t"],
            "b": int(row["b"]),
            **({"f": row["f"] if some else [row["f"]]} if "f" in row else {}),
        }
        for row in rows
    ]
    found = table.values()
    for values in found:
        if values.get("f") == []:
            del values["f"]
    assert found == expected


# Rows of images


def test_labels_and_splits(tmp_path: Path) -> None:
    table = read(
        {"image": "a.jpg", "label": ["cat", "dog", 3], "split": "train", "n": 1},
        {"image": "b.jpg", "label": "cat", "split": "val", "n": 2},
        {"image": "c.jpg", "label": None, "n": 3},
        {"image": "d.jpg", "label": {"a": 1}, "split": "val", "n": 4},
        {"image": 5, "label": "cat", "split": "discard", "n": 5},
        {"image": "/e/f.jpg", "label": "cat", "split": "val", "n": 6},
        folder=tmp_path,
        image_root=["/d"],
    )
    assert table.format.kinds == {Kind.CLASSIFICATION}
    assert list(table.format.predefined_splits()) == ["train", "val"]
    assert table.labels() == {"a.jpg": ["cat", "dog", "3"], "b.jpg": ["cat"], "c.jpg": []}
    assert table.exclusions() == [("5", Exclusion.DISCARDED)]
    assert [(key, reason) for key, reason, _ in table.defects()] == [
        ("d.jpg", "annotation_malformed"),
        ("/e/f.jpg", "outside_roots"),
    ]
    # A reject belongs to the split that it would have been in.
    assert [entry.split for entry in table.entries if entry.defect] == ["val", "val"]


def vertex(name: str, *, use: str | None = None, **annotations: object) -> dict[str, Any]:
    row = {"imageGcsUri": f"gs://bucket/images/{name}", **annotations}
    return row if use is None else {**row, "dataItemResourceLabels": {ML_USE: use, "x": "y"}}


def test_vertex_single_label(tmp_path: Path) -> None:
    table = read(
        vertex(
            "a.jpg",
            use="training",
            classificationAnnotation={
                "displayName": "daisy",
                "annotationResourceLabels": {"a": "b"},
            },
        ),
        vertex("b.jpg", use="validation", classificationAnnotation={"displayName": "rose"}),
        vertex("c.jpg", use="test", classificationAnnotation={"displayName": "rose"}),
        folder=tmp_path,
        image_root=["gs://bucket/images"],
    )
    assert table.format.kinds == {Kind.CLASSIFICATION}
    assert list(table.format.predefined_splits()) == ["train", "validation", "test"]
    assert table.labels() == {"a.jpg": ["daisy"], "b.jpg": ["rose"], "c.jpg": ["rose"]}
    assert table.types() == {}


def test_vertex_several_labels(tmp_path: Path) -> None:
    table = read(
        vertex("a.jpg", classificationAnnotations=[{"displayName": "x"}, {"displayName": "y"}]),
        vertex("b.jpg", classificationAnnotations=[]),
        folder=tmp_path,
        image_root=["gs://bucket/images"],
    )
    assert table.labels() == {"a.jpg": ["x", "y"], "b.jpg": []}
    assert list(table.format.predefined_splits()) == []


def box(name: object = "cat", **sides: object) -> dict[str, Any]:
    return {"displayName": name, "xMin": 0.25, "yMin": 0, "xMax": 1, "yMax": 0.5, **sides}


def test_vertex_boxes(tmp_path: Path) -> None:
    table = read(
        vertex("a.jpg", use="test", boundingBoxAnnotations=[box(), box("dog", yMin=0.1)]),
        vertex("b.jpg", use="test", boundingBoxAnnotations=[]),
        folder=tmp_path,
        image_root=["gs://bucket/images"],
    )
    assert table.format.kinds == {Kind.DETECTION}
    first, second = (annotations for _, annotations in table.annotations())
    assert first.normalized
    assert first.objects == (
        ObjectAnnotation(label="cat", bbox=(0.25, 0.0, 1.0, 0.5)),
        ObjectAnnotation(label="dog", bbox=(0.25, 0.1, 1.0, 0.5)),
    )
    assert second.objects == ()
    assert [each.name for each in table.categories] == ["cat", "dog"]
    assert table.types() == {}


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        (
            {"classificationAnnotation": "cat"},
            "classificationAnnotation: expected an object with a",
        ),
        ({"classificationAnnotation": {"displayName": ""}}, "the displayName is empty"),
        ({"classificationAnnotations": {}}, "classificationAnnotations: expected a list"),
        ({"dataItemResourceLabels": "x"}, "dataItemResourceLabels: expected an object"),
        ({"boundingBoxAnnotations": {}}, "boundingBoxAnnotations: expected a list"),
        ({"boundingBoxAnnotations": [3]}, r"boundingBoxAnnotations[0]: expected an object"),
        (
            {"boundingBoxAnnotations": [box(), box(xMin=320)]},
            "[1]: expected xMin, yMin, xMax, yMax",
        ),
        ({"boundingBoxAnnotations": [box(yMax=None)]}, "[0]: expected xMin, yMin, xMax, yMax"),
        ({"boundingBoxAnnotations": [box("x\ny")]}, "expected a label of one line"),
    ],
)
def test_bad_vertex_annotations_are_rejects(
    tmp_path: Path, annotations: dict[str, Any], problem: str
) -> None:
    table = read(
        vertex("a.jpg", boundingBoxAnnotations=[box()]),
        vertex("b.jpg", **annotations),
        folder=tmp_path,
        image_root=["gs://bucket/images"],
    )
    assert [key for key, _ in table.annotations()] == ["a.jpg"]
    ((_, reason, detail),) = table.defects()
    assert reason == "annotation_malformed"
    assert problem in detail


def test_tables_hold_what_a_build_relies_on(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    rows = []
    for name in ("a.jpg", "b.jpg"):
        (images / name).write_bytes(b"pixels are not looked at")
        annotations = {
            "classificationAnnotation": {"displayName": "cat"},
            "boundingBoxAnnotations": [box("dog")],
        }
        rows.append(json.dumps({"imageGcsUri": str(images / name), **annotations}))
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    roots = [str(images)]
    report = check_format(
        make_format("jsonl", manifest=[str(tmp_path / "t.jsonl")], image_root=roots)
    )
    assert (set(report.annotations), report.rejects) == ({"a.jpg", "b.jpg"}, ())
    assert {category.name for category in report.categories} == {"cat", "dog"}


def test_random_files_give_values_or_errors_with_a_place() -> None:
    for seed in range(2000):
        fuzz_jsonl(random.Random(seed))


def test_a_key_that_the_first_rows_do_not_have_is_a_reject_unless_it_has_a_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_FIRST_BYTES", 10)
    monkeypatch.setattr(table, "_FIRST_BYTES_OF_A_FILE", 10)
    rows = [{"a": 1}, {"a": 2}, {"a": 3, "new": "x"}]
    strange = read(*rows, folder=tmp_path)
    assert strange.values() == [{"a": 1}, {"a": 2}]
    ((key, reason, detail),) = strange.defects()
    assert (key, reason) == ("t.jsonl: byte 18", "annotation_malformed")
    assert "the first rows have no key 'new'; give it a type with columns" in detail
    typed = read(*rows, folder=tmp_path, columns={"new": "string?"})
    assert [row["new"] for row in typed.values()] == [[], [], ["x"]]
    ignored = read(*rows, folder=tmp_path, columns={"new": "ignore"})
    assert ignored.values() == [{"a": 1}, {"a": 2}, {"a": 3}]
    with pytest.raises(InputError, match="no column is named 'aa'; did you mean 'a'"):
        read(*rows, folder=tmp_path, columns={"aa": "int"})
