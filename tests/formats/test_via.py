"""Which regions of VIA's files are objects, and which attribute is their class."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category, decode_annotations
from shardbeam.transforms.formats.testing import check_format
from shardbeam.transforms.formats.via import ViaFormat
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.archive_files import Files, write_files
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg
from tests.support.making import make_format

HEAD = (
    "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,"
    "region_attributes\n"
)
RECT = {"name": "rect", "x": 1, "y": 2, "width": 10, "height": 8}
JPEG = plain_jpeg()


def region(kind: object = "dog", shape: object = RECT, **more: object) -> dict[str, object]:
    return {"shape_attributes": shape, "region_attributes": {"kind": kind, **more}}


def via(*regions: object, name: str = "a.jpg", others: Mapping[str, object] = {}) -> str:
    """A file of one image with these regions, and of others."""
    found = {f"{name}7": {"filename": name, "size": 7, "regions": [*regions]}, **others}
    return json.dumps(found)


def row(shape: object = RECT, attributes: object = {"kind": "dog"}, *, count: int = 1) -> str:
    cells = [json.dumps(cell).replace('"', '""') for cell in (shape, attributes)]
    return f'a.jpg,7,"{{}}",{count},0,"{cells[0]}","{cells[1]}"\n'


def make(folder: Path, *contents: str, names: Sequence[str] = (), **keys: str) -> ViaFormat:
    paths = [folder / (names[k] if names else f"{k}.json") for k in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    source = make_format(
        "via", images=str(folder), annotations=[*map(str, paths)], _masks=True, **keys
    )
    found = source.resolve()
    assert isinstance(found, ViaFormat)
    return found


def read(source: ViaFormat) -> list[AnnotationEntry | Category]:
    return [*source.read_annotations(storage=LocalStorage(), file_index=0)]


def objects(source: ViaFormat) -> list[tuple[str, tuple[float, ...]]]:
    found = decode_annotations(
        next(it for it in read(source) if isinstance(it, AnnotationEntry)).annotations
    )
    return [(each.label, each.bbox) for each in found.objects]


def test_shapes(tmp_path: Path) -> None:
    points = {"all_points_x": [1, 5, 3], "all_points_y": ["2", 2, 9.5]}
    shapes = (
        RECT,
        {"name": "polygon", **points},
        {"name": "polyline", **points},
        {"name": "circle", "cx": 10, "cy": 9, "r": 4},
        {"name": "ellipse", "cx": 10, "cy": 9, "rx": 4, "ry": 2, "theta": math.pi / 2},
        {"name": "point", "cx": 1, "cy": 1},
        {"name": "polyline", "all_points_x": [1, 2], "all_points_y": [1, 2]},
    )
    source = make(tmp_path, via(*(region(shape=shape) for shape in shapes)))
    entry = next(each for each in read(source) if isinstance(each, AnnotationEntry))
    found = decode_annotations(entry.annotations)
    boxes = [each.bbox for each in found.objects]
    assert boxes[:3] == [(1, 2, 11, 10), (1, 2, 5, 9.5), (1, 2, 5, 9.5)]
    assert boxes[3] == pytest.approx((6, 5, 14, 13))
    assert boxes[4] == pytest.approx((8, 5, 12, 13))
    assert found.objects[3].area == pytest.approx(math.pi * 16)
    assert [bool(each.segmentation) for each in found.objects] == [False, True, True, True, True]
    assert found.corrections == {"object_without_box_dropped": 2}
    assert found.lost == {"dog": {"point": 1, "polyline": 1}}


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (" night  heron ", ["night heron"]),
        (7, ["7"]),
        ({"dog": True, "cat": False}, ["dog"]),
        ({"dog": True, "big ": True}, ["dog", "big"]),
        ("", []),
        ({}, []),
    ],
)
def test_classes(tmp_path: Path, value: object, labels: list[str]) -> None:
    source = make(tmp_path, via(region(value), region("owl")))
    assert [label for label, _ in objects(source)] == [*labels, "owl"]
    entry = next(each for each in read(source) if isinstance(each, AnnotationEntry))
    corrections = decode_annotations(entry.annotations).corrections
    assert corrections.get("object_of_unknown_category_dropped", 0) == (not labels)
    assert corrections.get("object_of_several_classes_repeated", 0) == max(0, len(labels) - 1)
    # The same file, with a class for regions that have none.
    named = make(tmp_path, via(region(value), region("owl")), class_name="x")
    assert [label for label, _ in objects(named)] == [*(labels or ["x"]), "owl"]


@pytest.mark.parametrize(
    ("contents", "keys", "attribute"),
    [
        ([via(region())], {}, "kind"),
        # A file without regions has no say.
        ([via(region(age=3)), via(region()), via()], {}, "kind"),
        ([via(region(age=3))], {"label_attribute": "age"}, "age"),
        ([via(region(""))], {"class_name": "x"}, ""),
        ([via(region()), via(region(None))], {"class_name": "x"}, "kind"),
        (
            [via(region(age=3)), via(region(None))],
            {"class_name": "x", "label_attribute": "kind"},
            "kind",
        ),
        ([via()], {}, ""),
    ],
)
def test_the_attribute_that_is_the_class(
    tmp_path: Path, contents: list[str], keys: dict[str, str], attribute: str
) -> None:
    assert make(tmp_path, *contents, **keys)._attribute == attribute


@pytest.mark.parametrize(
    ("contents", "keys", "message"),
    [
        (
            [via(region(age=3), region())],
            {},
            "label_attribute: name the attribute that is the class: --label-attribute NAME "
            "(label_attribute: NAME); attributes of the regions: 0.json: 'age' (1 of 2), 'kind' "
            "(2 of 2)",
        ),
        (
            [via(region()), via({"shape_attributes": RECT, "region_attributes": {"Kind": "x"}})],
            {},
            "attributes of the regions: 0.json: 'kind' (1 of 1); 1.json: 'Kind' (1 of 1)",
        ),
        (
            [via(region("  "))],
            {},
            "class_name: no region in 0.json has a class: name the class of such regions with "
            "--class-name NAME (class_name: NAME)",
        ),
        (
            [via(region()), via(region(None))],
            {},
            "class_name: no region in 1.json has a value of 'kind': name the class",
        ),
        (
            [via(region())],
            {"label_attribute": "kin"},
            "class_name: no region in 0.json has a value of 'kin'",
        ),
    ],
)
def test_the_class_is_not_guessed(
    tmp_path: Path, contents: list[str], keys: dict[str, str], message: str
) -> None:
    with pytest.raises(Problem) as caught:
        make(tmp_path, *contents, **keys)
    assert message in str(caught.value)


def test_csv(tmp_path: Path) -> None:
    rows = [
        row(count=2),
        row({**RECT, "x": 3}, {"kind": "cat "}, count=2),
        row({}, {}, count=0).replace("a.jpg", "b.jpg"),
    ]
    source = make(tmp_path, f"#{HEAD}{''.join(rows)}", names=["a.csv"])
    assert objects(source) == [("dog", (1, 2, 11, 10)), ("cat", (3, 2, 13, 10))]
    assert len(read(source)) == 3


@pytest.mark.parametrize(
    ("name", "content", "detail"),
    [
        (
            "a.json",
            via(region(shape={"name": "rect", "x": 1, "y": 2, "width": 3})),
            "$['a.jpg7']: regions[0]: a rect without height",
        ),
        ("a.json", via(region(shape={"name": "star"})), "unknown shape 'star'"),
        (
            "a.json",
            via(region(shape={"name": "circle", "cx": 9, "cy": 9, "r": -4})),
            "a circle with a negative radius",
        ),
        ("a.json", via(region(shape={})), "object missing required field 'name'"),
        ("a.json", via(region(shape={**RECT, "x": 1e39})), "[0]: expected a number of pixels"),
        ("a.json", via(region(shape={**RECT, "x": "nan"})), "expected a number of pixels, got nan"),
        ("a.json", via(region([1])), "region_attributes: expected a text as class, got '[1]'"),
        (
            "a.json",
            via(region(shape={"name": "polygon", "all_points_x": [1, 2, 3], "all_points_y": [1]})),
            "3 all_points_x and 1 all_points_y",
        ),
        ("a.csv", HEAD + row(count=3), "a.csv: line 2: only 1 of its 3 regions are there"),
        (
            "a.csv",
            HEAD + row().replace('""dog""', "undefined"),
            "a.csv: line 2: region_attributes: JSON is malformed",
        ),
        ("a.json", via(region(), name="\0"), "the name holds a NUL"),
        (
            "a.json",
            via(region(), others={"b": {"regions": []}}),
            "object missing required field 'filename'",
        ),
    ],
)
def test_a_bad_region_rejects_its_image_alone(
    tmp_path: Path, name: str, content: str, detail: str
) -> None:
    good = {"filename": "good.jpg", "regions": [region()]}
    if name == "a.json":
        content = json.dumps({**json.loads(content), "good.jpg": good})
    else:
        content += row().replace("a.jpg", "good.jpg")
    source = make(tmp_path, content, names=[name], class_name="x")
    entries = [each for each in read(source) if isinstance(each, AnnotationEntry)]
    bad = [each for each in entries if each.defect is not None]
    assert len(bad) == 1
    assert detail in bad[0].detail
    assert "good.jpg" in {each.key for each in entries if each.defect is None}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", "the file is empty"),
        ("a.json", via(region())[:-9], "the JSON ends in the middle: the file is truncated"),
        ("a.json", "[]", "expected 'object', got 'array'"),
        (
            "a.json",
            '{"images": [], "annotations": []}',
            "no file of VIA: expected _via_img_metadata",
        ),
        (
            "a.json",
            '{"metadata": {}, "view": {}, "file": {}}',
            "a project of VIA 3, which is not read",
        ),
        (
            "a.json",
            '{"a": {"filename": "a"}, "a": {"filename": "b"}}',
            "the key 'a' is given twice",
        ),
        (
            "a.json",
            '{"_via_img_metadata": [1]}',
            "$._via_img_metadata: expected 'object', got 'array'",
        ),
        ("a.json", '{"a": ' + "[" * 100_000, "nested too deeply"),
        ("a.csv", "a,b\n1,2\n", "line 1: no CSV of VIA: the first line lacks filename"),
        ("a.csv", HEAD + 'a.jpg,7,"{},1', "line 2: a quote does not end in its line"),
        ("a.csv", "\ufeff" + HEAD.encode("utf-16").decode("latin1"), "UTF-16"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make(tmp_path, content, names=[name])
    assert message in str(caught.value)


def test_names_lead_nowhere_and_copies_are_one(tmp_path: Path) -> None:
    others: dict[str, object] = {
        name: {"filename": name, "regions": [region()]}
        for name in ("../../etc/passwd", "/etc/passwd", "http://x.org/a.jpg", "./a.jpg")
    }
    others["a.jpg9"] = {"filename": "a.jpg", "regions": [region("cat")]}
    others["none"] = {"filename": "none.jpg", "regions": []}
    content = via(region(), others=others)
    write_files(
        tmp_path,
        {
            "a.jpg": JPEG,
            "none.jpg": JPEG,
            "project.json": json.dumps({"_via_img_metadata": json.loads(content)}),
        },
    )
    source = make(tmp_path, content)
    source = ViaFormat(
        images=str(tmp_path), annotations=[source.annotations[0], str(tmp_path / "project.json")]
    ).resolve()
    report = check_format(source)
    (dog,) = report.annotations["a.jpg"].objects
    assert dog.label == "dog"
    assert report.annotations["a.jpg"].corrections["entries_merged"] == 1
    rejects = sorted((each.key, each.reason.value) for each in report.rejects)
    assert rejects == sorted(
        [
            ("../../etc/passwd", "missing_image"),
            ("/etc/passwd", "missing_image"),
            ("http:/x.org/a.jpg", "missing_image"),
            ("a.jpg", "duplicate_key"),
            ("a.jpg", "duplicate_key"),
        ]
    )


def test_images_without_regions_are_left_out(tmp_path: Path) -> None:
    content = via(region(), others={"b": {"filename": "b.jpg", "regions": {}}})
    write_files(tmp_path, {"a.jpg": JPEG, "b.jpg": JPEG})
    report = check_format(make(tmp_path, content), damages=0)
    assert [*report.annotations] == ["a.jpg"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"via.json": via(region()), "via.csv": HEAD + row(), "old via.json": via(region())},
            "via.csv says what old via.json says, and is not read",
        ),
        (
            {"new.json": via(region()), "old.json": via(region("cat"))},
            "new.json and old.json differ about a.jpg; name the right one, such as in "
            "`shardbeam build via --images {d} --annotations {d}/new.json --output tfrecords/d`",
        ),
        (
            {"via.json": via(region(), name="gone.jpg")},
            "none of the images that via.json names is there",
        ),
        ({"via.json": via(region(None))}, "no region in via.json has a class"),
    ],
)
def test_init(tmp_path: Path, files: Files, said: str) -> None:
    write_files(tmp_path / "d", {**files, "a.jpg": JPEG})
    result = run("init", str(tmp_path / "d"))
    assert said.replace("{d}", str(tmp_path / "d")) in result.stderr
    assert (result.exit_code == 0) == ("says what" in said)


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_a_region_with_a_key_twice_rejects_its_image(tmp_path: Path, name: str) -> None:
    if name == "a.json":
        content = via(region()).replace('"x":', '"x": 1, "x":', 1)
    else:
        content = HEAD + row().replace('""x"":', '""x"": 1, ""x"":', 1)
    items = read(make(tmp_path, content, names=[name]))
    (entry,) = (each for each in items if isinstance(each, AnnotationEntry))
    assert "the key 'x' is given twice" in entry.detail
