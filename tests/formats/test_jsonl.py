"""Behaviour of JSON Lines alone; test_table.py tests what CSV and JSON Lines share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.table import table
from tests.support.making import vertex
from tests.support.table_reading import ReadTable


def read(*rows: object, folder: Path, **settings: Any) -> ReadTable:  # noqa: ANN401
    """Writes a line for each row, bytes as they are, and reads them."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    return ReadTable("jsonl", b"".join(line + b"\n" for line in lines), folder=folder, **settings)


@pytest.mark.parametrize(
    ("values", "type_", "found"),
    [
        ([1, ...], "int?", [[1], []]),
        ([..., "x"], "string?", [[], ["x"]]),
        ([{"h": [1]}, None], "string?", [['{"h":[1]}'], []]),
        ([[[1]], []], "list[string]", [["[1]"], []]),
    ],
)
def test_types_of_values_that_only_json_has(
    tmp_path: Path, values: list[Any], type_: str, found: list[Any]
) -> None:
    rows = [{"b": 0} if value is ... else {"b": 0, "a": value} for value in values]
    table = read(*rows, folder=tmp_path)
    assert table.types()["a"] == type_
    assert [row["a"] for row in table.values()] == found


@pytest.mark.parametrize(("type_", "value"), [("int", "1"), ("int", [1]), ("bool", "true")])
def test_a_text_is_no_number(tmp_path: Path, type_: str, value: object) -> None:
    table = read({"a": value}, folder=tmp_path, columns={"a": type_})
    ((_, _, detail),) = table.defects()
    assert detail.startswith(f"t: byte 0: column a: expected {type_}, got ")


def test_a_key_that_is_empty_is_left_out(tmp_path: Path) -> None:
    table = read({"": {"k": 1}, "a": 1}, {"": [None], "a": 2}, folder=tmp_path)
    assert table.values() == [{"a": 1}, {"a": 2}]
    assert (table.defects(), table.categories) == ([], [])


def test_lone_surrogates_are_replaced_and_counted(tmp_path: Path) -> None:
    table = read(rb'{"a": "x\ud800y\udc00"}', rb'{"a": "\ud83d\ude00"}', folder=tmp_path)
    assert [row["a"] for row in table.values()] == ["x\ufffdy\ufffd", "😀"]
    assert [found.corrections for _, found in table.annotations()] == [
        {"lone_surrogate_replaced": 2},
        {},
    ]


def test_a_key_that_a_whole_file_lacks_may_be_missing(tmp_path: Path) -> None:
    files = {"a": '{"x": 1}\n', "b": '{"x": 1, "y": 2}\n'}
    for names in ("ab", "ba"):
        table = ReadTable("jsonl", {name: files[name] for name in names}, folder=tmp_path)
        assert table.types() == {"x": "int", "y": "int?"}


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
        (b'{"a": ' + b"[" * 50_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_a_reject_and_the_others_are_kept(
    tmp_path: Path, line: bytes, problem: str
) -> None:
    table = read({"a": 1}, line, b"  ", {"a": 2}, folder=tmp_path)
    assert table.values() == [{"a": 1}, {"a": 2}]
    ((key, reason, detail),) = table.defects()
    assert (key, reason) == ("t: byte 9", "annotation_malformed")
    assert detail.startswith("t: byte 9: ")
    assert problem in detail


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"a,b\n1,2\n", "no line holds a JSON object; byte 0: "),
        (b"", "the file holds no rows"),
        (b"\n \n", "the file holds no rows"),
    ],
)
def test_a_file_of_something_else_is_an_error(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ReadTable("jsonl", content, folder=tmp_path)


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
    # A folder of its own: the table of rows must not name pictures of other tests.
    folder = tmp_path_factory.getbasetemp() / "rows"
    folder.mkdir(exist_ok=True)
    columns = {"b": "bool", "f": "float?"}
    lines = [json.dumps(row, ensure_ascii=escaped).encode() for row in rows]
    table = read(*lines, folder=folder, chunk_bytes=chunk_bytes, columns=columns)
    assert table.values() == [
        {**row, "b": int(row["b"]), "f": [row["f"]] if "f" in row else []} for row in rows
    ]


def test_a_label_that_is_an_object_is_a_reject(tmp_path: Path) -> None:
    rows = [{"image": "a.jpg", "label": {"a": 1}}, {"image": 5, "label": "cat"}]
    table = read(*rows, folder=tmp_path, image_root=["/d"])
    assert table.labels() == {"5": ["cat"]}
    assert [key for key, _, _ in table.defects()] == ["a.jpg"]


def test_a_key_that_the_first_rows_do_not_have_is_a_reject_unless_it_has_a_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_FIRST_BYTES", 10)
    monkeypatch.setattr(table, "FIRST_BYTES_OF_A_FILE", 10)
    rows = [{"a": 1}, {"a": 2}, {"a": 3, "new": "x"}]
    strange = read(*rows, folder=tmp_path)
    assert strange.values() == [{"a": 1}, {"a": 2}]
    ((key, reason, detail),) = strange.defects()
    assert (key, reason) == ("t: byte 18", "annotation_malformed")
    assert "the first rows have no key 'new'; give it a type with columns" in detail
    typed = read(*rows, folder=tmp_path, columns={"new": "string?"})
    assert [row["new"] for row in typed.values()] == [[], [], ["x"]]
    ignored = read(*rows, folder=tmp_path, columns={"new": "ignore"})
    assert ignored.values() == [{"a": 1}, {"a": 2}, {"a": 3}]
    with pytest.raises(InputError, match="no column is named 'aa'; did you mean 'a'"):
        read(*rows, folder=tmp_path, columns={"aa": "int"})


# Vertex AI


def read_vertex(*rows: dict[str, Any], folder: Path) -> ReadTable:
    return read(*rows, folder=folder, image_root=["gs://bucket/images"])


def image(name: str, **annotations: object) -> dict[str, Any]:
    return {"imageGcsUri": f"gs://bucket/images/{name}", **annotations}


def named(label: object) -> dict[str, Any]:
    return {"displayName": label, "annotationResourceLabels": {"a": "b"}}


def box(name: object = "cat", **sides: object) -> dict[str, Any]:
    return {"displayName": name, "xMin": 0.25, "yMin": 0, "xMax": 1, "yMax": 0.5, **sides}


def test_vertex_single_label(tmp_path: Path) -> None:
    root = "gs://bucket/images"
    table = read_vertex(
        vertex(f"{root}/a.jpg", use="training", classificationAnnotation=named("daisy")),
        vertex(f"{root}/b.jpg", use="validation", classificationAnnotation=named("rose")),
        vertex(f"{root}/c.jpg", use="test", classificationAnnotation=named("rose")),
        folder=tmp_path,
    )
    assert table.format.kinds == {Kind.CLASSIFICATION}
    assert list(table.format.predefined_splits()) == ["train", "validation", "test"]
    assert table.labels() == {"a.jpg": ["daisy"], "b.jpg": ["rose"], "c.jpg": ["rose"]}
    assert table.types() == {}


def test_vertex_several_labels(tmp_path: Path) -> None:
    table = read_vertex(
        image("a.jpg", classificationAnnotations=[named("x"), named("y")]),
        image("b.jpg", classificationAnnotations=[]),
        folder=tmp_path,
    )
    assert table.labels() == {"a.jpg": ["x", "y"], "b.jpg": []}
    assert list(table.format.predefined_splits()) == []


def test_vertex_boxes(tmp_path: Path) -> None:
    table = read_vertex(
        image("a.jpg", boundingBoxAnnotations=[box(), box("dog", yMin=0.1)]),
        image("b.jpg", boundingBoxAnnotations=[]),
        folder=tmp_path,
    )
    assert table.format.kinds == {Kind.DETECTION}
    first, second = (annotations for _, annotations in table.annotations())
    assert first.normalized
    assert first.objects == (
        ObjectAnnotation(label="cat", bbox=(0.25, 0.0, 1.0, 0.5)),
        ObjectAnnotation(label="dog", bbox=(0.25, 0.1, 1.0, 0.5)),
    )
    assert second.objects == ()
    assert list(table.classes()) == ["cat", "dog"]
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
    table = read_vertex(
        image("a.jpg", boundingBoxAnnotations=[box()]),
        image("b.jpg", **annotations),
        folder=tmp_path,
    )
    assert [key for key, _ in table.annotations()] == ["a.jpg"]
    ((_, reason, detail),) = table.defects()
    assert reason == "annotation_malformed"
    assert problem in detail
