"""YOLO: its label files, its files of classes and splits, and where they may lie."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ObjectAnnotation,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.root_files import relative_path, resolve_path
from shardbeam.transforms.formats.yolo import YoloFormat, parse_yolo_labels
from shardbeam.transforms.formats.yolo_layout import (
    YoloData,
    join_of_image,
    join_of_labels,
    parse_data_yaml,
    parse_names,
    parse_obj_data,
)
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.voc_files import write

NAMES = {0: "dog", 1: "cat", 2: "night heron"}
# A file that is there.
THERE = b"x"


def parse(text: str | bytes) -> list[ObjectAnnotation]:
    data = text if isinstance(text, bytes) else text.encode()
    objects, corrections = parse_yolo_labels(data, names=NAMES, uri="a.txt")
    assert not corrections
    return objects


def resolve(root: str, **settings: Any) -> YoloFormat:  # noqa: ANN401  # Those of `YoloFormat`.
    """Makes a format as a run does, and sends it to a worker."""
    resolved = YoloFormat(root=root, **settings).resolve()
    return msgspec.msgpack.decode(msgspec.msgpack.encode(resolved), type=YoloFormat)


def declared(source: YoloFormat) -> Iterator[AnnotationEntry | Category]:
    for file_index in range(len(source.annotation_files())):
        yield from source.read_annotations(storage=LocalStorage(), file_index=file_index)


def told(source: YoloFormat) -> list[tuple[str, str]]:
    return [
        (item.key, item.split) for item in declared(source) if isinstance(item, AnnotationEntry)
    ]


# Label files


def test_boxes() -> None:
    assert parse("1 0.5 0.25 0.5 0.25\r\n\n  0 .5 0.5 1 1.0  \n2.0 0 0 0 0") == [
        ObjectAnnotation(label="cat", bbox=(0.25, 0.125, 0.75, 0.375)),
        ObjectAnnotation(label="dog", bbox=(0, 0, 1, 1)),
        ObjectAnnotation(label="night heron", bbox=(0, 0, 0, 0)),
    ]


def test_polygons() -> None:
    (found,) = parse("1 0.25 0.5 0.75 0.5 0.75 1 0.25 1")

    assert found.bbox == (0.25, 0.5, 0.75, 1)
    assert found.area == 0.25
    assert json.loads(found.segmentation) == [[0.25, 0.5, 0.75, 0.5, 0.75, 1, 0.25, 1]]


def test_nothing() -> None:
    assert parse("") == parse("\n \n") == parse(b"\xef\xbb\xbf") == []


def test_rounding_at_the_border_is_let_through() -> None:
    (found,) = parse("0 1.004 0.5 0.2 -0.0001")

    assert found.bbox == pytest.approx((0.904, 0.50005, 1.104, 0.49995))


def test_edges_at_the_border_stay_at_the_border() -> None:
    # A width of 4 in 15 pixels, at the left; and of 0.3, at the right.
    found = parse("0 0.133333 0.5 0.266667 1\n0 0.85 0.5 0.3 1\n0 0.133330 0.5 0.266667 1")

    assert [item.bbox[0] for item in found[:2]] == [0, 0.85 - 0.15]
    assert found[1].bbox[2] == 1
    assert found[2].bbox[0] == pytest.approx(-3.5e-6)


def test_what_is_left_out_is_counted() -> None:
    data = b"0 0.5 0.5 0.5 0.5 0.98\n1 0.5 0.5 0.5 0.5\n1  0.5 0.5 0.5 0.5\n0 0.5 0.5 0.5 0.5 0.98"

    objects, corrections = parse_yolo_labels(data, names=NAMES, uri="a.txt")

    assert [item.label for item in objects] == ["dog", "cat"]
    assert corrections == {
        Correction.CONFIDENCE_DROPPED.value: 1,
        Correction.DUPLICATE_ANNOTATION_DROPPED.value: 2,
    }


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0", "a class and at least 3 points, got 1 values"),
        ("0 0.5 0.5 0.5", "got 4 values"),
        ("0 0.5 0.5 0.5 0.5 0.5 0.5 0.5", "got 8 values"),
        ("0,0.5,0.5,0.5,0.5", "got 1 values"),
        ("3 0.5 0.5 0.5 0.5", "class 3 has no name: 3 classes are named"),
        ("-1 0.5 0.5 0.5 0.5", "expected a class (0, 1, …), got '-1'"),
        ("0.5 0.5 0.5 0.5 0.5", "expected a class (0, 1, …), got '0.5'"),
        ("dog 0.5 0.5 0.5 0.5", "expected a class (0, 1, …), got 'dog'"),
        ("0 x 0.5 0.5 0.5", "expected a number, got 'x'"),
        ("0 nan 0.5 0.5 0.5", "expected a number, got 'nan'"),
        ("0 1_0 0.5 0.5 0.5", "expected a number, got '1_0'"),
        ("0 \u0660 0.5 0.5 0.5", "expected a number, got '\u0660'"),
        ("0 320 240 64 48", "expected a fraction of the image, from 0 to 1, got '320'"),
        ("0 0.5 -0.1 0.5 0.5", "got '-0.1'"),
        ("0 0.5 1e999 0.5 0.5", "got '1e999'"),
        ("0 0.5 0.5 0.5 0.5 7", "got '7'"),
    ],
)
def test_bad_lines(line: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(f"0 0.5 0.5 0.5 0.5\n\n{line}\n")

    assert (raised.value.uri, raised.value.place) == ("a.txt", "line 3")
    assert problem in raised.value.problem


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("0 0.5 0.5 0.5 0.5".encode("utf-16"), "UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<html>", "HTML"),
        (b"\xff\xd8\xff\xe0", "got 1 values"),
    ],
)
def test_other_files(data: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse(data)


_fractions = st.floats(0, 1, allow_subnormal=False)


@given(
    boxes=st.lists(st.tuples(st.sampled_from(list(NAMES)), *[_fractions] * 4), unique=True),
    digits=st.sampled_from((6, 17)),
)
def test_boxes_round_trip(boxes: list[tuple[int, float, float, float, float]], digits: int) -> None:
    lines = [f"{index} {' '.join(f'{v:.{digits}f}' for v in values)}" for index, *values in boxes]
    if len(set(lines)) < len(lines):
        return

    for (index, x, y, width, height), found in zip(boxes, parse("\n".join(lines)), strict=True):
        xmin, ymin, xmax, ymax = found.bbox
        assert found.label == NAMES[index]
        written = ((xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin)
        assert written == pytest.approx((x, y, width, height), abs=3e-6)


@given(points=st.lists(st.tuples(_fractions, _fractions), min_size=3, max_size=9))
def test_polygons_round_trip(points: list[tuple[float, float]]) -> None:
    values = [value for point in points for value in point]
    (found,) = parse(f"1 {' '.join(map(repr, values))}")

    assert json.loads(found.segmentation) == [values]
    xs, ys = zip(*points, strict=True)
    assert found.bbox == (min(xs), min(ys), max(xs), max(ys))
    assert 0 <= found.area <= 1


# Files of classes and splits


def test_data_yaml() -> None:
    text = b"\xef\xbb\xbfpath: ../coco # root\ntrain: [a/images, b/images]\nval: val.txt\ntest:\n\
nc: 3\nnames: [no, 'on', 8]\nroboflow: {license: x}\n"

    assert parse_data_yaml(text, uri="data.yaml") == YoloData(
        names={0: "no", 1: "on", 2: "8"},
        path="../coco",
        splits={"train": ("a/images", "b/images"), "val": ("val.txt",)},
    )


def test_names_as_a_mapping() -> None:
    found = parse_data_yaml(b"names:\n  0: dog\n  7: night  heron\n", uri="data.yaml")

    assert found == YoloData(names={0: "dog", 7: "night heron"})


@given(
    names=st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1),
        min_size=1,
    ),
    as_mapping=st.booleans(),
)
def test_data_yaml_round_trip(names: list[str], as_mapping: bool) -> None:
    written = dict(enumerate(names)) if as_mapping else names
    text = yaml.safe_dump({"names": written, "nc": len(names), "train": "x"}, allow_unicode=True)

    found = parse_data_yaml(text.encode(), uri="data.yaml")

    assert found == YoloData(names=dict(enumerate(names)), splits={"train": ("x",)})


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (b"", "", "expected a mapping"),
        (b"- a\n", "", "expected a mapping"),
        (b"names: [a\n", "line 2, column 1", "expected ',' or ']'"),
        (b"\xff", "line 1", "expected UTF-8"),
        (b"names: [a]\n\0", "", "special characters are not allowed"),
        (b"nc: 2\n", "names", "missing; expected a list of names"),
        (b"names:\nnc: 2\n", "names", "missing"),
        (b"names: []\n", "names", "missing"),
        (b"names: dog\n", "line 1: names", "expected a list, or a mapping"),
        (b"names:\n- a\n- [b]\n", "line 3: names[1]", "expected text"),
        (b"names: &a [*a]\n", "line 1: names[0]", "expected text"),
        (b"names:\n- a\n-\n", "line 3: names[1]", "expected a name"),
        (b"names: {a: b}\n", "line 1: names", "got 'a'"),
        (b"names: {0: a,\n 0: b}\n", "line 2: names", "0 is given twice"),
        (b"names: [a]\nnames: [b]\n", "line 2: names", "names is given twice"),
        (b"names: [a]\nnc: 2\n", "line 2: nc", "says '2', but 1 classes are named"),
        (b"names: [a]\ntrain: {a: b}\n", "line 2: train", "expected text"),
        (b"names: [a]\nkpt_shape: [17, 3]\n", "line 2: kpt_shape", "COCO JSON"),
        (b"a: " + b"[" * 5_000, "", "nested too deeply"),
        (b"names: [a]\n---\nnames: [b]\n", "line 2, column 1", "single document"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_data_yaml(text: bytes, place: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_data_yaml(text, uri="data.yaml")

    assert (raised.value.uri, raised.value.place) == ("data.yaml", place)
    assert problem in raised.value.problem


def test_obj_data() -> None:
    text = b"classes = 2\ntrain  = data/train.txt\nvalid=data/valid.txt\nnames = obj.names\n"

    assert parse_obj_data(text, uri="obj.data") == YoloData(
        names_file="obj.names",
        splits={"train": ("data/train.txt",), "valid": ("data/valid.txt",)},
    )
    for bad, problem in (
        (b"train: x\n", "line 1: expected `key = value`"),
        (b"train = x\n", "missing; expected a file of names"),
        (b"names = x\nnames = y\n", "line 2: names is given twice"),
    ):
        with pytest.raises(InputError, match=problem):
            parse_obj_data(bad, uri="obj.data")


def test_names_file() -> None:
    assert parse_names(b"dog\r\n night heron \r\n\r\n", uri="x") == {0: "dog", 1: "night heron"}
    # A blank line would shift the classes behind it.
    with pytest.raises(InputError, match="line 2: expected a class name, the line is empty"):
        parse_names(b"dog\n\ncat\n", uri="x")
    with pytest.raises(InputError, match="names no classes"):
        parse_names(b"\n\n", uri="x")


# What belongs together


@pytest.mark.parametrize(
    ("image", "labels"),
    [
        ("images/a.jpg", "labels/a.txt"),
        ("images/train/a.b.jpg", "labels/train/a.b.txt"),
        ("train/images/a.jpg", "train/labels/a.txt"),
        ("images/x/images/a.jpg", "images/x/labels/a.txt"),
        ("labels/images/a.jpg", "labels/labels/a.txt"),
        ("obj_train_data/a.PNG", "obj_train_data/a.txt"),
        ("a.jpg", "a.txt"),
        ("images/a.jpg", "images/a.txt"),
        ("Images/a.jpg", "Annotations/a.txt"),
        ("labels/a.jpg", "labels/a.txt"),
    ],
)
def test_images_and_their_labels(image: str, labels: str) -> None:
    assert join_of_image(image) == join_of_labels(labels)


@pytest.mark.parametrize(
    ("image", "labels"),
    [
        ("images/a.jpg", "labels/b.txt"),
        ("images/train/a.jpg", "labels/val/a.txt"),
        ("images/x/images/a.jpg", "labels/x/images/a.txt"),
        ("images/a.JPG", "labels/A.txt"),
    ],
)
def test_images_and_the_labels_of_others(image: str, labels: str) -> None:
    assert join_of_image(image) != join_of_labels(labels)


def _as_image(key: str, join: str | None = None) -> Place:
    return Place(role=Role.IMAGE, key=key, join=join or key)


def test_place(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "data.yaml": "names: [dog]\ntrain: images/train\nval: val.txt\n",
            "val.txt": "images/val/b.jpg\n",
            "images/train/a.jpg": THERE,
            "images/val/b.jpg": THERE,
            "labels/train/a.txt": b"",
        },
    )
    source = resolve(root)
    label = Place(role=Role.ANNOTATION, join="labels/train/a")

    assert source.place("labels/train/a.txt", root=0) == label
    assert source.place("images/train/a.jpg", root=0) == _as_image(
        "images/train/a.jpg", "labels/train/a"
    )
    assert source.place("data.yaml", root=0) == Place(role=Role.OTHER)
    assert source.place("val.txt", root=0) == Place(role=Role.OTHER)
    # What only stands beside the images is excluded, and counted.
    for path in (
        *("README.txt", "notes.txt", "images/train/a.txt", "labels/classes.txt"),
        *("labels/train.cache", "images/.a.jpg", "labels/train/._a.txt"),
    ):
        assert source.place(path, root=0) == _as_image(path)


def test_labels_beside_their_images(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"classes.txt": "dog\n", "a.jpg": THERE, "a.txt": "", "sub/b.jpg": THERE, "readme.txt": ""},
    )
    source = resolve(root)

    assert source.place("sub/b.txt", root=0) == Place(role=Role.ANNOTATION, join="sub/b")
    assert source.place("sub/b.jpg", root=0) == _as_image("sub/b.jpg", "sub/b")
    assert source.place("classes.txt", root=0) == Place(role=Role.OTHER)
    assert source.place("readme.txt", root=0) == _as_image("readme.txt")


def test_annotations(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "data.yaml": "names: [dog, cat]\ntrain: train/images\n",
            "train/images/a.jpg": THERE,
            "train/labels/a.txt": THERE,
        },
    )
    text = b"1 0.5 0.5 0.5 0.5 0.9\n0 0 0 1 0 1 1\n"
    for masks in (False, True):
        source = resolve(root, _masks=masks)
        (entry,) = source.read_listed(text, path="train/labels/a.txt", root=0)
        found = decode_annotations(entry.annotations)

        assert (entry.key, entry.split) == ("train/labels/a", "train")
        assert found.normalized
        assert found.corrections == {Correction.CONFIDENCE_DROPPED.value: 1}
        assert [item.label for item in found.objects] == ["cat", "dog"]
        assert [bool(item.segmentation) for item in found.objects] == [False, masks]
        assert (Kind.INSTANCE_MASKS in source.kinds) == masks

    with pytest.raises(InputError, match=r"train/labels/a.txt: line 1: expected a number"):
        list(resolve(root).read_listed(b"0 x 0 0 0", path="train/labels/a.txt", root=0))


def test_classes_keep_their_order_from_1(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"classes.txt": "zebra\nant\n", "images/a.jpg": THERE, "labels/a.txt": ""}
    )
    origin = f"{root}/classes.txt"

    assert list(declared(resolve(root))) == [
        Category(name="zebra", source_id=1, origin=origin),
        Category(name="ant", source_id=2, origin=origin),
    ]


# Splits

_IMAGES: Mapping[str, str | bytes] = {
    "train/images/a.jpg": THERE,
    "train/labels/a.txt": "",
    "valid/images/b.jpg": THERE,
}


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("train/images", "valid/images"),
        ("./train/images/", "valid"),
        ("../train/images", "../valid/images"),
        ("../train/images", "../val/images"),
        ("/content/project/train/images", "C:\\\\project\\\\valid\\\\images"),
        ("{root}/train/images", "{root}/valid/images"),
    ],
)
def test_folders_of_splits(tmp_path: Path, train: str, val: str) -> None:
    root = str(tmp_path)
    text = f'names: [dog]\ntrain: "{train}"\nval: "{val}"\ntest:\n'.replace("{root}", root)
    write(tmp_path, {"data.yaml": text, **_IMAGES})

    for settings in ({}, {"data": f"{root}/data.yaml"}):
        source = resolve(root, **settings)

        assert list(source.predefined_splits()) == ["train", "val"]
        assert source.split_listed("train/images/a.jpg") == "train"
        assert source.split_listed("valid/images/b.jpg") == "val"
        assert source.split_listed("other/c.jpg") == ""
        assert source.split_listed("train/images2/c.jpg") == ""
    assert list(resolve(root, splits=["val"]).predefined_splits()) == ["val"]


@pytest.mark.parametrize("path", ["", "path: .\n", "path: ../datasets/coco\n", "path: /x/coco\n"])
def test_root_that_the_file_names(tmp_path: Path, path: str) -> None:
    root = write(
        tmp_path,
        {
            "data.yaml": f"{path}names: [dog]\ntrain: images/a\nval: [images/b, images/c]\n",
            **{f"images/{letter}/x.jpg": THERE for letter in "abc"},
            "labels/a/x.txt": "",
        },
    )
    source = resolve(root)

    assert [source.split_listed(f"images/{letter}/x.jpg") for letter in "abc"] == [
        *("train", "val", "val"),
    ]


def test_data_yaml_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, {"set/images/train/a.jpg": THERE, "set/labels/train/a.txt": ""})
    write(tmp_path, {"cfg/x.yaml": "names: [dog]\npath: ../set\ntrain: images/train\n"})

    source = resolve(f"{tmp_path}/set", data=f"{tmp_path}/cfg/x.yaml")

    assert source.split_listed("images/train/a.jpg") == "train"
    assert list(source.annotation_files()) == [f"{tmp_path}/cfg/x.yaml"]


@pytest.mark.parametrize(
    ("list_path", "lines"),
    [
        ("train.txt", "./images/a.jpg\nimages/b.jpg\n"),
        ("train.txt", "/content/set/images/a.jpg\n/content/set/images/b.jpg\n"),
        ("train.txt", "images/missing.jpg\nimages/a.jpg\nimages/b.jpg"),
        ("lists/train.txt", "../images/a.jpg\n../images/b.jpg\n"),
        ("lists/train.txt", "images/a.jpg\r\nimages/b.jpg\r\n"),
        ("train.txt", "{root}/images/a.jpg\n# comment\n\n{root}/images/b.jpg\n"),
    ],
)
def test_lists_of_splits(tmp_path: Path, list_path: str, lines: str) -> None:
    root = write(
        tmp_path,
        {
            "data.yaml": f"names: [dog]\ntrain: {list_path}\n",
            list_path: lines.replace("{root}", str(tmp_path)),
            **{f"images/{letter}.jpg": THERE for letter in "abc"},
            "labels/a.txt": "",
        },
    )
    source = resolve(root)

    assert list(source.predefined_splits()) == ["train"]
    found = told(source)
    assert set(found) >= {("labels/a", "train"), ("labels/b", "train")}
    assert len(found) == 2 + ("missing" in lines)
    assert source.split_listed("images/c.jpg") == ""


def test_darknet(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "obj.data": "classes = 1\nnames = data/obj.names\ntrain = data/train.txt\n",
            "obj.names": "dog\n",
            "train.txt": "data/obj_train_data/a.jpg\n",
            "obj_train_data/a.jpg": THERE,
            "obj_train_data/a.txt": "",
        },
    )
    source = resolve(root)

    assert list(source.predefined_splits()) == ["train"]
    assert told(source) == [("obj_train_data/a", "train")]
    assert source.place("obj_train_data/a.txt", root=0).join == "obj_train_data/a"
    assert source.place("train.txt", root=0) == Place(role=Role.OTHER)


@pytest.mark.parametrize("layout", ["images/{}", "{}/images"])
def test_folders_named_like_splits(tmp_path: Path, layout: str) -> None:
    folders = {name: layout.format(name) for name in ("train", "valid", "test")}
    root = write(
        tmp_path,
        {
            "classes.txt": "dog\n",
            **{f"{folder}/a.jpg": THERE for folder in folders.values()},
            "labels/x.txt": "",
        },
    )
    source = resolve(root)

    assert list(source.predefined_splits()) == ["train", "val", "test"]
    assert source.split_listed(f"{folders['valid']}/a.jpg") == "val"


def test_names_that_cannot_be_keys_are_rejected(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "data.yaml": "names: [dog]\ntrain: train.txt\n",
            "train.txt": "images/a.jpg\nimages/b\0.jpg\n",
            "images/a.jpg": THERE,
            "labels/a.txt": "",
        },
    )
    *_, entry = declared(resolve(root))

    assert isinstance(entry, AnnotationEntry)
    assert (entry.key, entry.defect) == ("labels/b\\x00", Reason.UNREADABLE_NAME)
    assert entry.detail == "train.txt: line 2: the name holds a NUL character"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            "train: ../images/train\nval: train/images\n",
            "data.yaml: train: '../images/train' is not there: tried images/train below the root",
        ),
        ("train: train/images\nval: ./train/images\n", "val (train/images) lies within train"),
        ("train: train\nval: train/images\n", "val (train/images) lies within train (train)"),
        ("train: .\nval: valid/images\n", "val (valid/images) lies within train (.)"),
        ("train: x.txt\n", "'x.txt' is not there: tried x.txt"),
        ("train: bad.txt\n", "bad.txt: none of the first images that it names is below the root"),
        ("train: ../../../etc\n", "'../../../etc' is not there: tried etc"),
        ("train: train/images/a.jpg\n", "'train/images/a.jpg' is not there"),
    ],
)
def test_splits_that_cannot_be_told(tmp_path: Path, data: str, problem: str) -> None:
    files = {"data.yaml": f"names: [dog]\n{data}", "bad.txt": "q.jpg\n", **_IMAGES}
    source = resolve(write(tmp_path, files))

    # It is no problem where the config names the splits.
    with pytest.raises(InputError) as raised:
        source.predefined_splits()
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("files", "settings", "problem"),
    [
        ({}, {}, "no file names the classes: looked for data.yaml"),
        ({}, {"data": "{root}/x.yaml"}, "x.yaml: there is no such file"),
        ({"classes.txt": "dog"}, {}, r"no labels found: .*text files are in texts"),
        ({"obj.data": "names = x.names\n"}, {}, "'x.names' is not there: tried x.names"),
        ({"data.yaml": "names: dog"}, {}, "line 1: names: expected a list"),
    ],
)
def test_folders_that_are_no_dataset(
    tmp_path: Path, files: dict[str, str | bytes], settings: dict[str, str], problem: str
) -> None:
    root = write(tmp_path, {"images/a.jpg": THERE, "texts/a.txt": "", **files})
    settings = {key: value.replace("{root}", root) for key, value in settings.items()}

    with pytest.raises(InputError, match=problem):
        resolve(root, **settings)


def test_roots_without_files(tmp_path: Path) -> None:
    file = write(tmp_path, {"data.yaml": ""}) + "/data.yaml"

    with pytest.raises(InputError, match="no files found"):
        resolve(f"{tmp_path}/nowhere")
    with pytest.raises(InputError, match="expected a folder, found a file"):
        resolve(file)


def test_unknown_split(tmp_path: Path) -> None:
    files = {"data.yaml": "names: [dog]\ntrain: train/images\n", **_IMAGES}
    source = resolve(write(tmp_path, files), splits=["tain"])

    with pytest.raises(InputError, match=r"no split 'tain'; did you mean 'train'\?; found: train"):
        source.predefined_splits()


# Paths


@pytest.mark.parametrize(
    ("base", "path", "resolved"),
    [
        ("/a/b", "c", "/a/b/c"),
        ("/a/b", "../c/./d//", "/a/c/d"),
        ("/a", "../../../c", "/c"),
        ("/a", "/c/../d", "/d"),
        ("gs://bucket/a", "../b", "gs://bucket/b"),
        ("/a", "gs://bucket/b", "gs://bucket/b"),
        ("/a/b", "", "/a/b"),
    ],
)
def test_resolve_path(base: str, path: str, resolved: str) -> None:
    assert resolve_path(base, path) == resolved


def test_relative_path() -> None:
    assert relative_path("/a/b/c", root="/a/b/") == "c"
    assert relative_path("/a/b", root="/a/b") == ""
    assert relative_path("/a/bc", root="/a/b") is None
    assert relative_path("/a", root="/") == "a"


# Real samples


def test_datumaro(shared_data: Path) -> None:
    folder = shared_data / "datumaro"

    source = resolve(str(folder / "roboflow_dataset" / "yolo"))
    # Its data.yaml says ../valid/images, the folder is val/images.
    assert source.split_listed("val/images/val_001.jpg") == "val"
    assert source.split_listed("train/images/train_001.jpg") == "train"
    strict = resolve(str(folder / "yolo_dataset" / "strict"))
    assert told(strict) == [("obj_train_data/1", "train")]
    loose = resolve(str(folder / "yolo_dataset" / "labels"))
    assert list(loose.predefined_splits()) == ["train", "val"]
    assert len(list(declared(loose))) == 10
    with pytest.raises(InputError, match="text files are in train/labelTxt, val/labelTxt"):
        resolve(str(folder / "roboflow_dataset" / "yolo_obb"))
