"""How columns of Hugging Face's datasets become annotations, and what becomes of bad ones."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.huggingface.files import find_files
from shardbeam.transforms.formats.huggingface.huggingface import HuggingFaceFormat
from shardbeam.transforms.formats.recognition import Folder
from shardbeam.transforms.formats.testing import FormatReport, check_format
from shardbeam.transforms.storage.find import storage_for
from tests.support.archive_files import write_files
from tests.support.dataset import run
from tests.support.hub_files import (
    BOXES,
    IMAGE,
    classes,
    hub_image,
    hub_parquet,
    list_of,
    value,
)
from tests.support.image_makers import plain_jpeg
from tests.support.making import make_format

JPEG = plain_jpeg((32, 24))
TRAIN = "data/train-00000-of-00001.parquet"
Row = Mapping[str, Any]


def key(number: int, path: str = TRAIN) -> str:
    return f"{path}/{number:09}"


def make(data: list[str], **keys: object) -> HuggingFaceFormat:
    made = make_format("huggingface", data=data, **keys)
    assert isinstance(made, HuggingFaceFormat)
    return made


def read(
    folder: Path, rows: Sequence[Row], features: Row, *, damages: int = 5, **keys: object
) -> FormatReport:
    write_files(folder, {TRAIN: hub_parquet(rows, features)})
    return check_format(make([str(folder)], **keys), damages=damages)


def resolve(folder: Path, rows: Sequence[Row], features: Row, **keys: object) -> HuggingFaceFormat:
    write_files(folder, {TRAIN: hub_parquet(rows, features)})
    return make([str(folder)], **keys).resolve()


def test_classes_captions_and_features(tmp_path: Path) -> None:
    features = {
        "image": IMAGE,
        "label": classes("cat", "dog"),
        "text": value("string"),
        "split": value("string"),
        "score": value("float64"),
        "audio": value("binary"),
    }
    rows = [
        {"image": hub_image(JPEG), "label": label, "text": "A cat.", "split": "x", "score": score}
        for label, score in ((1, 0.5), (-1, None), (None, 1), (2, 1))
    ]
    report = read(tmp_path, rows, features)
    found = report.annotations

    assert [found[key(number)].labels for number in range(3)] == [("dog",), (), ()]
    assert found[key(0)].captions == ("A cat.",)
    assert found[key(0)].values == {"split": ("x",), "score": (0.5,)}
    assert found[key(1)].values == {"split": ("x",), "score": ()}
    (reject,) = report.rejects
    assert (reject.key, reject.reason.value) == (key(3), "annotation_malformed")
    assert reject.detail == (
        "train-00000-of-00001.parquet: row 3: column label: expected the number of one of 2 "
        "classes, got 2"
    )
    made = make([str(tmp_path)]).resolve()
    assert "not read: the columns audio, of images or bytes" in made.warnings()
    declared = [(it.name, it.source_id) for it in made.declared_categories()]
    assert declared == [("cat", 0), ("dog", 1)]


def test_several_classes_of_an_image(tmp_path: Path) -> None:
    features = {"image": IMAGE, "labels": list_of(classes("cat", "dog")), "kind": classes("x")}
    rows = [{"image": hub_image(JPEG), "labels": found, "kind": 0} for found in ([1, 0], [])]
    found = read(tmp_path, rows, features).annotations
    assert found[key(0)].labels == ("dog", "cat")
    assert found[key(1)].labels == ()
    assert found[key(0)].values == {"kind": ("x",)}


def test_of_several_columns_of_classes_one_is_asked_for(tmp_path: Path) -> None:
    features = {"img": IMAGE, "fine": classes("a"), "coarse": classes("b")}
    rows = [{"img": hub_image(JPEG), "fine": 0, "coarse": 0}]
    with pytest.raises(Problem, match="the columns fine, coarse hold classes"):
        resolve(tmp_path, rows, features)
    report = read(tmp_path, rows, features, label_column="coarse")
    assert report.annotations[key(0)].labels == ("b",)


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        (["image", "depth"], {}, "image_column: missing: the columns image, depth hold images"),
        (["label", "mask"], {}, "image_column: missing: the columns label, mask hold images"),
        (["image", "label", "mask"], {}, "mask_column: missing: the columns label, mask may hold"),
        (["image"], {"image_column": "img"}, "image_column: there is no column 'img'"),
        (["image"], {"mask_classes": {"1": "a"}}, "mask_classes: there is no column of maps"),
    ],
)
def test_columns_of_images_that_are_not_clear(
    columns: list[str], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    row = dict.fromkeys(columns, hub_image(JPEG))
    with pytest.raises(Problem) as caught:
        resolve(tmp_path, [row], dict.fromkeys(columns, IMAGE), **keys)
    assert f"{'.'.join(map(str, caught.value.path))}: {caught.value.text}".startswith(message)


def test_an_image_without_bytes_is_the_file_beside_it_or_a_reject(tmp_path: Path) -> None:
    write_files(tmp_path, {"data/a.jpg": JPEG, "b.jpg": JPEG})
    paths = ("a.jpg", "/home/me/a.jpg", "../b.jpg", "https://x.org/a.jpg", "C:\\a.jpg", "no.jpg")
    rows: list[Row] = [{"image": hub_image(None, path)} for path in (*paths, None)]
    rows.append({"image": None})
    report = read(tmp_path, rows, {"image": IMAGE})

    assert [*report.annotations] == [key(0)]
    assert {it.reason.value for it in report.rejects} == {"missing_image"}
    details = {it.key: it.detail.partition(": ")[2].partition(": ")[2] for it in report.rejects}
    assert "'/home/me/a.jpg', which lies outside of the data" in details[key(1)]
    assert all("outside of the data" in details[key(number)] for number in (2, 3, 4))
    assert "'no.jpg', and no such file" in details[key(5)]
    assert details[key(6)] == details[key(7)] == "the column image is empty"


# Objects


def boxed(*boxes: Sequence[float], **fields: object) -> dict[str, Any]:
    found = {"bbox": [*boxes], "category": [0] * len(boxes), **fields}
    return {"image": hub_image(JPEG), "objects": found}


OBJECTS: dict[str, Any] = {
    "image": IMAGE,
    "objects": {"bbox": BOXES, "category": list_of(classes("cat"))},
}
GIVEN: dict[str, Any] = {"box_format": "xyxy", "box_units": "px"}


@pytest.mark.parametrize(
    ("order", "box"),
    [
        ("xywh", lambda x, y, w, h: [x, y, w, h]),
        ("xyxy", lambda x, y, w, h: [x, y, x + w, y + h]),
        ("yxyx", lambda x, y, w, h: [y, x, y + h, x + w]),
        ("cxcywh", lambda x, y, w, h: [x + w / 2, y + h / 2, w, h]),
    ],
)
def test_the_first_boxes_decide_the_order_of_their_numbers(
    order: str, box: Callable[..., list[float]], tmp_path: Path
) -> None:
    sides = [(0, 0, 30, 5), (1, 1, 28, 20), (20, 12, 11, 11), (25, 2, 6, 20), (2, 3, 4, 4)]
    made = resolve(tmp_path, [boxed(box(*each)) for each in sides * 5], OBJECTS)
    reading = made.box_reading
    assert reading is not None
    assert (reading.format, made._columns.objects.normalized) == (order, False)  # type: ignore[union-attr]
    (said,) = made.warnings()
    assert f"are read as {order}" in said
    assert "no other order fits the first 20; box_format and box_units change that" in said


def test_areas_decide_if_all_of_them_agree(tmp_path: Path) -> None:
    fields = {**OBJECTS["objects"], "area": list_of(value("int64"))}

    def decide(*areas: int) -> HuggingFaceFormat:
        rows = [boxed([3, 4, 9, 12], area=[area]) for area in areas]
        return resolve(tmp_path, rows, {"image": IMAGE, "objects": fields})

    reading = decide(108, 108).box_reading
    assert reading is not None
    assert reading.format == "xywh"
    with pytest.raises(Problem, match=r"the first 2 boxes .* may be xyxy .*, yxyx "):
        decide(48, 48)
    with pytest.raises(Problem, match=r"the first 2 boxes .* may be xywh .*, xyxy .*, yxyx "):
        decide(48, 108)


def test_fractions_of_corners_are_asked_for(tmp_path: Path) -> None:
    rows = [boxed([0.5, 0.25, 0.75, 1], [0, 0, 1, 0.5])]
    with pytest.raises(Problem, match=r"may be xyxy .*, yxyx .*they look like fraction"):
        resolve(tmp_path, rows, OBJECTS)
    report = read(tmp_path, rows, OBJECTS, box_format="yxyx")
    found = report.annotations[key(0)]
    assert found.normalized
    assert [it.bbox for it in found.objects] == [(0.25, 0.5, 1, 0.75), (0, 0, 0.5, 1)]


def test_without_boxes_in_the_first_rows_the_order_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"the first rows have no box in objects.bbox"):
        resolve(tmp_path, [boxed()], OBJECTS)
    assert read(tmp_path, [boxed()], OBJECTS, **GIVEN).annotations[key(0)].objects == ()


def test_boxes_that_fit_no_order_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="fit no order in all images"):
        resolve(tmp_path, [boxed([500, 500, 600, 600])] * 30, OBJECTS)


def test_objects_as_structs_with_all_fields(tmp_path: Path) -> None:
    fields = {
        "bbox": list_of(value("float64")),
        "label": value("string"),
        "id": value("int64"),
        "area": value("float64"),
        "iscrowd": value("int64"),
        "segmentation": list_of(list_of(value("float64"))),
        "blur": classes("clear", "heavy"),
    }
    item = {
        "bbox": [1, 2, 3, 4],
        "label": "cat",
        "id": 7,
        "area": 3.5,
        "iscrowd": 1,
        "segmentation": [[1, 2, 3, 2, 3, 4]],
        "blur": 1,
    }
    bare = {**dict.fromkeys(item), "bbox": [1, 2, 3, 4], "label": "dog"}
    rows = [
        {"image": hub_image(JPEG), "annotations": items}
        for items in ([item, bare], None, [{**item, "label": None}], [{**item, "bbox": [1, 2]}])
    ]
    features = {"image": IMAGE, "annotations": list_of(fields)}
    report = read(tmp_path, rows, features, **GIVEN, _masks=True)
    full, plain = report.annotations[key(0)].objects

    assert (full.label, full.bbox, full.area) == ("cat", (1, 2, 3, 4), 3.5)
    assert (full.is_crowd, full.annotation_id) == (True, 7)
    assert json.loads(full.segmentation) == [[1, 2, 3, 2, 3, 4]]
    assert full.attributes == {"annotations/blur": "heavy"}
    assert (plain.area, plain.is_crowd, plain.segmentation, plain.attributes) == (
        -1,
        False,
        b"",
        {},
    )
    assert report.annotations[key(1)].objects == ()
    details = [it.detail for it in report.rejects]
    assert "row 2: annotations 0: label: expected a class, got nothing" in details[0]
    assert "row 3: annotations 0: expected the four numbers of a box" in details[1]


def test_objects_in_columns_of_the_row(tmp_path: Path) -> None:
    features = {
        "image": IMAGE,
        "bboxes": BOXES,
        "category_id": list_of(value("int64")),
        "width": value("int64"),
        "height": value("int64"),
        "ratings": list_of(value("float64")),
    }
    row = {"image": hub_image(JPEG), "width": 32, "height": 24}
    rows = [
        {**row, "bboxes": [[1, 2, 3, 4]], "category_id": [5], "ratings": [1, 2]},
        {**row, "bboxes": [[1, 2, 3, 4]], "category_id": [5, 6], "ratings": []},
    ]
    report = read(tmp_path, rows, features, **GIVEN)
    found = report.annotations[key(0)]
    assert [(it.label, it.bbox) for it in found.objects] == [("5", (1, 2, 3, 4))]
    assert (found.width, found.height, found.values) == (32, 24, {"ratings": (1.0, 2.0)})
    assert [(it.name, it.source_id) for it in report.categories] == [("5", 5)]
    (reject,) = report.rejects
    assert reject.detail.endswith("row 1: category_id has 2 values, and bboxes 1")


def test_a_key_names_the_column_of_objects(tmp_path: Path) -> None:
    digits = {"bbox": BOXES, "label": list_of(value("int64"))}
    features = {"image": IMAGE, "digits": digits, "objects": digits, "size": {"bbox": BOXES}}
    row = {
        "image": hub_image(JPEG),
        "digits": {"bbox": [[20, 12, 31, 23], [1, 1, 5, 9]], "label": [7, 3]},
        "objects": {"bbox": [[0, 0, 3, 3]], "label": [1]},
        "size": None,
    }
    found = read(tmp_path, [row], features, object_column="digits", **GIVEN).annotations
    assert [(it.label, it.bbox) for it in found[key(0)].objects] == [
        ("7", (20, 12, 31, 23)),
        ("3", (1, 1, 5, 9)),
    ]
    found = read(tmp_path, [row], features, **GIVEN).annotations
    assert [it.label for it in found[key(0)].objects] == ["1"]
    with pytest.raises(Problem) as caught:
        resolve(tmp_path, [row], features, object_column="image")
    assert caught.value.text == (
        "'image' is no column of structs with a field bbox; there are: digits, objects, size"
    )


def test_objects_under_other_names_are_features_and_a_warning_names_the_key(tmp_path: Path) -> None:
    names = ("digits", "my faces", "size", "face")
    features = {
        "image": IMAGE,
        **{name: {"bbox": BOXES} for name in names[:3]},
        "face": {"bbox": list_of(value("float32"))},
    }
    boxes = {"bbox": [[20, 12, 31, 23]]}
    # One struct is no list of objects, and no row shows what `size` is.
    row = {
        "image": hub_image(JPEG),
        "digits": boxes,
        "my faces": boxes,
        "size": None,
        "face": {"bbox": [1, 1, 5, 9]},
    }
    warnings = [*resolve(tmp_path, [row], features).warnings()]
    assert warnings[0] == (
        "not read as objects: digits, my faces, with boxes; object_column: digits "
        "(--object-column digits) reads one of them"
    )
    warnings = [*resolve(tmp_path, [{**row, "digits": None}], features).warnings()]
    assert warnings[0] == (
        "not read as objects: my faces, with boxes; object_column: my faces "
        "(--object-column 'my faces') reads it"
    )
    result = run("init", str(tmp_path), exit_code=1)
    assert "but set object_column to my faces; class_name: missing" in result.stderr


def test_a_column_of_bytes_is_read_if_a_key_names_it(tmp_path: Path) -> None:
    features = {"photo": value("binary"), "audio": value("binary"), "label": classes("cat")}
    rows = [{"photo": JPEG, "audio": b"x", "label": 0}]
    with pytest.raises(InputError) as caught:
        resolve(tmp_path, rows, features)
    assert caught.value.problem == (
        "no column holds images; there are: photo, audio, label; expected one of the type Image, a "
        "struct of bytes and path; if the bytes of photo are images: --image-column photo "
        "(image_column)"
    )
    made = resolve(tmp_path, rows, features, image_column="photo")
    assert [*made.warnings()] == ["not read: the columns audio, of images or bytes"]


@pytest.mark.parametrize("compression", ["NONE", "SNAPPY"])
def test_init_finds_long_images_in_a_column_of_bytes(compression: str, tmp_path: Path) -> None:
    features = {"photo": value("binary"), "audio": value("binary")}
    long = JPEG + bytes(1 << 20)
    # More than a batch of rows may have.
    rows: list[Row] = [{"photo": None}, *([{"photo": long, "audio": b"x"}] * 80)]
    write_files(tmp_path, {TRAIN: hub_parquet(rows, features, compression=compression)})
    recognized = HuggingFaceFormat.recognize(Folder(str(tmp_path)))
    assert recognized is not None
    if compression == "NONE":
        assert recognized.sources[""] == {"data": [str(tmp_path)], "image_column": "photo"}
    else:
        assert "the column photo is compressed (SNAPPY)" in recognized.problem


def test_archives_are_not_listed_and_tables_lie_beside_images(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("metadata.jsonl", '{"file_name": "a.jpg", "text": "cat"}\n')
        file.writestr("a.jpg", JPEG)
    write_files(tmp_path, {"zips/a.zip": archive.getvalue()})
    for data in ("zips", "zips/a.zip"):
        with pytest.raises(InputError) as caught:
            make([str(tmp_path / data)]).resolve()
        assert str(caught.value) == (
            f"{tmp_path}/zips/a.zip: an archive, which this format does not list: unpack it, or "
            "name the .parquet, .arrow or metadata files in it"
        )
    read_there = check_format(make([f"{tmp_path}/zips/a.zip/metadata.jsonl"])).annotations
    assert [it.captions for it in read_there.values()] == [("cat",)]

    write_files(tmp_path / "x", {"metadata.jsonl": '{"file_name": "a.jpg", "text": "cat"}\n'})
    write_files(tmp_path / "x", {"images/a.jpg": JPEG})
    result = run("plan", "huggingface", "--data", f"{tmp_path}/x", "--output", f"{tmp_path}/out")
    assert result.exit_code == 1
    assert "holds 'images/a.jpg'; move the table into images/; then 1 of 1 names" in result.stderr


def test_objects_without_a_class_need_its_name(tmp_path: Path) -> None:
    features = {"image": IMAGE, "faces": {"bbox": BOXES}}
    rows = [{"image": hub_image(JPEG), "faces": {"bbox": [[1, 2, 3, 4]]}}]
    with pytest.raises(Problem, match="the objects in faces have no class"):
        resolve(tmp_path, rows, features, **GIVEN)
    report = read(tmp_path, rows, features, **GIVEN, class_name="face")
    assert [it.label for it in report.annotations[key(0)].objects] == ["face"]


# Files and splits


def hub(folder: Path, *paths: str, **texts: str) -> list[tuple[str, str]]:
    data = hub_parquet([{"image": hub_image(JPEG)}], {"image": IMAGE})
    write_files(folder, {**dict.fromkeys(paths, data), **texts})
    return [(it.path, it.split) for it in find_files([str(folder)], config_name=None).files]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00001.parquet", "train"),
        ("data/train-00000-of-00001-0f5e3a.parquet", "train"),
        ("en/unlabeled-00000-of-00001.parquet", "unlabeled"),
        ("default/train/0000.parquet", "train"),
        ("default/partial-train/0000.parquet", "train"),
        ("validation.parquet", "validation"),
        ("test/some.parquet", "test"),
        ("rows.parquet", ""),
    ],
)
def test_splits_by_names(path: str, split: str, tmp_path: Path) -> None:
    assert hub(tmp_path, path) == [(path, split)]


README = """---
configs:
- config_name: a
  data_files:
  - split: train
    path: data/tr*
  - split: test
    path: [x/**/t.parquet, other/*.parquet]
- config_name: b
  data_dir: other
{more}---
# A dataset
"""


def test_splits_by_the_readme(tmp_path: Path) -> None:
    files = ("data/tr1.parquet", "x/y/z/t.parquet", "other/1.parquet", "data/unused.parquet")
    write_files(tmp_path, {"README.md": README.replace("{more}", "  default: true\n")})
    assert hub(tmp_path, *files) == [("other/1.parquet", "")]
    found = find_files([str(tmp_path)], config_name="a").files
    assert [(it.path, it.split) for it in found] == [
        ("data/tr1.parquet", "train"),
        ("other/1.parquet", "test"),
        ("x/y/z/t.parquet", "test"),
    ]


def test_of_several_configs_one_is_asked_for(tmp_path: Path) -> None:
    write_files(tmp_path, {"README.md": README.replace("{more}", "")})
    with pytest.raises(
        Problem, match=r"holds the configs a, b; name one of them \(--config-name a"
    ):
        hub(tmp_path, "data/tr1.parquet")
    with pytest.raises(Problem, match=r"there is no config 'c' in .*; there are: a, b"):
        find_files([str(tmp_path)], config_name="c")
    with pytest.raises(InputError, match="none of the files here matches 'x/"):
        find_files([str(tmp_path)], config_name="a")
    with pytest.raises(Problem, match="holds the configs p, q"):
        hub(tmp_path / "converted", "p/train/0000.parquet", "q/train/0000.parquet")


@pytest.mark.parametrize(
    "text",
    ["---\na: [\n---\n", "---\na: !!python/name:os.system x\n---\n", "---\na: 1\na: 2\n---\n"],
)
def test_a_readme_that_cannot_be_read_is_an_error(text: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"README.md": text})
    with pytest.raises(InputError, match=r"README.md: the YAML at its beginning: line "):
        hub(tmp_path, TRAIN)


def test_types_by_the_readme_or_by_arrow(tmp_path: Path) -> None:
    features = {"image": IMAGE, "label": classes("cat", "dog")}
    data = hub_parquet([{"image": hub_image(JPEG), "label": 1}], features, described=False)
    write_files(tmp_path, {TRAIN: data})
    bare = check_format(make([str(tmp_path)]), damages=0)
    assert bare.annotations[key(0)].labels == ("1",)

    declared = """---
dataset_info:
  features:
  - name: image
    dtype: image
  - name: label
    dtype:
      class_label:
        names:
          '0': cat
          '1': 'no'
---
"""
    write_files(tmp_path, {"README.md": declared})
    named = check_format(make([str(tmp_path)]), damages=0)
    assert named.annotations[key(0)].labels == ("no",)


def test_an_imagefolder(tmp_path: Path) -> None:
    objects = {"bbox": [[1, 2, 3, 4]], "categories": [0]}
    write_files(
        tmp_path,
        {
            "train/metadata.jsonl": json.dumps({"file_name": "x/a.jpg", "objects": objects})
            + "\n"
            + json.dumps({"file_name": "../test/b.jpg", "objects": objects})
            + "\n",
            "test/metadata.jsonl": json.dumps({"file_name": "b.jpg", "objects": objects}) + "\n",
            **dict.fromkeys(("train/x/a.jpg", "test/b.jpg", "test/c.jpg"), JPEG),
        },
    )
    report = check_format(make([str(tmp_path)], **GIVEN))
    assert report.splits == {"train/x/a.jpg": "train", "test/b.jpg": "test"}
    (found,) = report.annotations["train/x/a.jpg"].objects
    assert (found.label, found.bbox) == ("0", (1, 2, 3, 4))
    assert [(it.key, it.reason.value) for it in report.rejects] == [
        ("train/../test/b.jpg", "missing_image")
    ]
    assert report.excluded == {"unannotated": 1}


def test_an_imagefolder_with_a_csv_or_a_parquet_file(tmp_path: Path) -> None:
    table = 'file_name,label,text\na.jpg,cat,"One, two."\n'
    write_files(tmp_path / "csv", {"metadata.csv": table, "a.jpg": JPEG})
    features = {"file_name": value("string"), "label": classes("cat")}
    data = hub_parquet([{"file_name": "a.jpg", "label": 0}], features)
    write_files(tmp_path / "parquet", {"metadata.parquet": data, "a.jpg": JPEG})
    renamed = table.replace("a.jpg", "a.avif")
    write_files(tmp_path / "avif", {"metadata.csv": renamed, "a.avif": JPEG})
    one = ("One, two.",)
    for name, captions in (("csv", one), ("parquet", ()), ("avif", one)):
        report = check_format(make([str(tmp_path / name)]), damages=20)
        (found,) = report.annotations.values()
        assert (found.labels, found.captions) == (("cat",), captions)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PAR1" + bytes(100), "not a Parquet file, or a damaged one"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
        (
            hub_parquet([{"image/encoded": hub_image(JPEG)}], {"image/encoded": IMAGE}),
            "the format tfrecord reads them",
        ),
        (hub_parquet([{"a": 1}], {"a": value("int64")}), "no column holds images; there are: a"),
        (
            hub_parquet([{"image": hub_image(JPEG)}], {"image": IMAGE}, compression="SNAPPY"),
            "the column image is compressed (SNAPPY)",
        ),
    ],
)
def test_files_that_cannot_be_read(data: bytes, message: str, tmp_path: Path) -> None:
    write_files(tmp_path, {TRAIN: data})
    with pytest.raises(InputError) as caught:
        make([str(tmp_path)]).resolve()
    assert message in str(caught.value)
    if "SNAPPY" in message:
        assert f"`shardbeam unpack {tmp_path}" in str(caught.value)


def test_files_with_other_columns_than_the_first(tmp_path: Path) -> None:
    features = {"image": IMAGE, "label": classes("cat")}
    rows = [{"image": hub_image(JPEG), "label": 0}]
    other = hub_parquet([{"image": hub_image(JPEG)}], {"image": IMAGE})
    files = {TRAIN: hub_parquet(rows, features), "data/train-more.parquet": other}
    write_files(tmp_path, files)
    made = make([str(tmp_path)]).resolve()
    with pytest.raises(InputError, match="has no column 'label', unlike the first file"):
        list(made.read_annotations(storage=storage_for("/"), file_index=1))


def test_init_writes_the_order_of_boxes_or_asks(tmp_path: Path) -> None:
    sides = [[0, 0, 30, 5], [1, 1, 28, 20], [20, 12, 11, 11], [25, 2, 6, 20]]
    write_files(tmp_path, {TRAIN: hub_parquet([boxed(*sides)], OBJECTS)})
    result = run("init", str(tmp_path), exit_code=0)
    assert "box_format: xywh\n  box_units: px\n" in result.stdout
    write_files(tmp_path, {TRAIN: hub_parquet([boxed([2, 3, 4, 4])], OBJECTS)})
    result = run("init", str(tmp_path), exit_code=1)
    assert "it looks like huggingface (1 file), but box_format: missing" in result.stderr
