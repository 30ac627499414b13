"""YOLO: its label files, its files of classes and splits, and where they may lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ObjectAnnotation,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.parsing.root_files import relative_path, resolve_path
from shardbeam.transforms.formats.yolo.data_file import (
    YoloData,
    parse_data_yaml,
    parse_names,
    parse_obj_data,
)
from shardbeam.transforms.formats.yolo.layout import join_of_image, join_of_labels
from shardbeam.transforms.formats.yolo.yolo import Pose, YoloFormat, parse_yolo_labels
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.archive_files import Files, write_files

NAMES = {0: "dog", 1: "cat", 2: "night heron"}
# A file that is there.
THERE = b"x"


def parse(text: str | bytes) -> list[ObjectAnnotation]:
    data = text if isinstance(text, bytes) else text.encode()
    objects, corrections = parse_yolo_labels(data, names=NAMES, uri="a.txt")
    assert not corrections
    return objects


def resolve(folder: Path, files: Files, **settings: Any) -> YoloFormat:  # noqa: ANN401  # Its keys.
    """Makes a format as a run does, and sends it to a worker."""
    resolved = YoloFormat(root=str(write_files(folder, files)), **settings).resolve()
    return MsgpackDecoder(YoloFormat).decode(msgspec.msgpack.encode(resolved))


def splits_of_lists(source: YoloFormat) -> dict[str, str]:
    """Returns the splits in lists of images, `{join key: split}`."""
    return {
        item.key: item.split
        for file_index in range(len(source.annotation_files()))
        for item in source.read_annotations(storage=LocalStorage(), file_index=file_index)
        if isinstance(item, AnnotationEntry)
    }


# Label files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "1 0.5 0.25 0.5 0.25\r\n\n  0 .5 0.5 1 1.0  \n2.0 0 0 0 0",
            [
                ObjectAnnotation(label="cat", bbox=(0.25, 0.125, 0.75, 0.375)),
                ObjectAnnotation(label="dog", bbox=(0, 0, 1, 1)),
                ObjectAnnotation(label="night heron", bbox=(0, 0, 0, 0)),
            ],
        ),
        (
            "1 0.25 0.5 0.75 0.5 0.75 1 0.25 1",
            [
                ObjectAnnotation(
                    label="cat",
                    bbox=(0.25, 0.5, 0.75, 1),
                    area=0.25,
                    segmentation=b"[[0.25,0.5,0.75,0.5,0.75,1.0,0.25,1.0]]",
                )
            ],
        ),
        # Rounding needs no correction.
        (
            "0 1.004 0.5 0.25 -0.0001",
            [ObjectAnnotation(label="dog", bbox=(0.879, 0.5, 1.129, 0.5))],
        ),
        # Corners of an oriented box around a centre in the image.
        (
            "1 0.875 0.5 1.0625 0.5 1.0625 0.75 0.875 0.75",
            [
                ObjectAnnotation(
                    label="cat",
                    bbox=(0.875, 0.5, 1.0625, 0.75),
                    area=0.046875,
                    segmentation=b"[[0.875,0.5,1.0625,0.5,1.0625,0.75,0.875,0.75]]",
                )
            ],
        ),
        *(("", []), ("\n \n", []), (b"\xef\xbb\xbf", [])),
    ],
)
def test_objects(text: str | bytes, expected: list[ObjectAnnotation]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("line", "side", "edge"),
    [
        # A width of 4 in 15 pixels, at the left; and of 0.3, at the right.
        ("0 0.133333 0.5 0.266667 1", 0, 0),
        ("0 0.85 0.5 0.3 1", 2, 1),
        ("0 0.85 0.5 0.3 1", 0, 0.85 - 0.15),
        # More than the sixth digit.
        ("0 0.133330 0.5 0.266667 1", 0, 0.133330 - 0.266667 / 2),
    ],
)
def test_edges_at_the_border_stay_at_the_border(line: str, side: int, edge: float) -> None:
    assert parse(line)[0].bbox[side] == edge


def test_what_is_left_out_is_counted() -> None:
    data = b"0 0.5 0.5 0.5 0.5 0.98\n1 0.5 0.5 0.5 0.5\n1  0.5 0.5 0.5 0.5\n0 0.5 0.5 0.5 0.5 0.98"

    objects, corrections = parse_yolo_labels(data, names=NAMES, uri="a.txt")

    assert [item.label for item in objects] == ["dog", "cat"]
    assert corrections == {
        Correction.CONFIDENCE_DROPPED.value: 1,
        Correction.DUPLICATE_ANNOTATION_DROPPED.value: 2,
    }


BAD_POSES = (
    ("0 .5 .5 .5 .5 .5 .5 2", "alone or with 2 keypoints of 3 values each, got 8 values"),
    ("0 .5 .5 .5 .5 .5 .5 .5 .5", "got 9 values"),
    ("0 .5 .5 .5 .5 .5 .5 2 0 0 0 .9", "got 12 values"),
    ("0 .5 .5 .5 .5 .5 .5 0.98 0 0 0", "expected a visibility (0, 1 or 2), got '0.98'"),
    ("0 .5 .5 .5 .5 .5 .5 3 0 0 0", "got '3'"),
    ("0 .5 .5 .5 .5 .5 7 2 0 0 0", "expected a fraction of the image, from 0 to 1, got '7'"),
    ("7 .5 .5 .5 .5 .5 .5 2 0 0 0", "class 7 has no name"),
)
BAD_LINES = (
    ("0", "a class and at least 3 points, got 1 values"),
    ("0 0.5 0.5 0.5", "got 4 values"),
    ("0 0.5 0.5 0.5 0.5 0.5 0.5 0.5", "got 8 values"),
    ("0,0.5,0.5,0.5,0.5", "separated by commas: replace them by blanks"),
    ("0; 0.5; 0.5; 0.5; 0.5", "separated by semicolons: replace them by blanks"),
    ("0 0,5 0,5 0,5 0,5", "the numbers have decimal commas: write points"),
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
    # A corner lies outside of the image, and the centre does, or there is no box around one.
    ("0 0.9 0.5 1.2 0.5 1.2 0.7 0.9 0.7", "got '1.2'"),
    ("0 0.5 0.9 0.5 1.2 0.7 1.2 0.7 0.9", "got '1.2'"),
    ("0 -0.3 0.5 0.2 0.5 0.2 0.7 -0.3 0.7", "got '-0.3'"),
    ("0 320 240 384 240 384 288 320 288", "got '320'"),
    ("0 0.5 1e999 0.5 -1e999 0.5 0.5 0.5 0.5", "got '1e999'"),
    ("0 0.9 0.5 1.06 0.5 0.9 0.7", "got '1.06'"),
    ("0 0.9 0.5 1.06 0.5 1.06 0.7 0.9 0.7 0.8 0.6", "got '1.06'"),
    ("0 0.5 1e999 0.5 0.5", "got '1e999'"),
    ("0 0.5 0.5 0.5 0.5 7", "got '7'"),
)


@pytest.mark.parametrize(
    ("line", "pose", "problem"),
    [
        *((line, Pose(2, 3), problem) for line, problem in BAD_POSES),
        *((line, None, problem) for line, problem in BAD_LINES),
    ],
)
def test_bad_lines(line: str, pose: Pose | None, problem: str) -> None:
    text = f"0 0.5 0.5 0.5 0.5\n\n{line}\n"
    with pytest.raises(InputError) as raised:
        parse_yolo_labels(text.encode(), names=NAMES, pose=pose, uri="a.txt")

    assert (raised.value.uri, raised.value.place) == ("a.txt", "line 3")
    assert problem in raised.value.problem


def test_other_files() -> None:
    with pytest.raises(InputError, match="UTF-16"):
        parse("0 0.5 0.5 0.5 0.5".encode("utf-16"))
    with pytest.raises(InputError, match="got 1 values"):
        parse(b"\xff\xd8\xff\xe0")


@pytest.mark.parametrize(
    ("values", "line", "keypoints"),
    [
        (3, "1 .5 .5 .5 .5 0.25 0.75 2.000000 0 0 0", (0.25, 0.75, 2, 0, 0, 0)),
        (3, "1 .5 .5 .5 .5 0.25 0.75 1 1 1 2", (0.25, 0.75, 1, 1, 1, 2)),
        (2, "1 .5 .5 .5 .5 0.25 0.75 0 0", (0.25, 0.75, 2, 0, 0, 0)),
        # A box alone is an object whose keypoints are not labelled.
        (3, "1 .5 .5 .5 .5", ()),
    ],
)
def test_poses(values: int, line: str, keypoints: tuple[float, ...]) -> None:
    (found,), corrections = parse_yolo_labels(
        line.encode(), names=NAMES, pose=Pose(2, values), uri="a.txt"
    )

    assert (found.label, found.bbox, found.keypoints) == (
        "cat",
        (0.25, 0.25, 0.75, 0.75),
        keypoints,
    )
    assert not corrections


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b"\xef\xbb\xbfpath: ../coco # root\ntrain: [a/images, b/images]\nval: val.txt\ntest:\n"
            b"nc: 3\nnames: [no, 'on', 8]\nroboflow: {license: x}\n",
            YoloData(
                names={0: "no", 1: "on", 2: "8"},
                path="../coco",
                splits={"train": ("a/images", "b/images"), "val": ("val.txt",)},
            ),
        ),
        (b"names:\n  0: dog\n  7: night  cat\n", YoloData(names={0: "dog", 7: "night cat"})),
        (
            b"names: [dog, cat]\nkpt_shape: [2, 3]\nflip_idx: [1, 0]\n"
            b"kpt_names:\n  1: [left eye, right eye]\n",
            YoloData(
                names={0: "dog", 1: "cat"},
                keypoints={0: ("keypoint_1", "keypoint_2"), 1: ("left eye", "right eye")},
                point_values=3,
            ),
        ),
        (b"names: [dog]\nkpt_shape:\nflip_idx:\n", YoloData(names={0: "dog"})),
    ],
)
def test_data_yaml(text: bytes, expected: YoloData) -> None:
    assert parse_data_yaml(text, uri="data.yaml") == expected


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
        *(
            (b"names: [a]\nkpt_shape: " + shape, "line 2: kpt_shape", problem)
            for shape, problem in (
                (b"[17]", "expected [keypoints, 2 or 3]"),
                (b"[17, 4]", "expected [keypoints, 2 or 3]"),
                (b"[0, 3]", "expected [keypoints, 2 or 3]"),
                (b"[1001, 3]", "at most 1,000 keypoints"),
                (b"[17, x]", "expected a list of whole numbers"),
                (b"{a: b}", "expected text"),
            )
        ),
        *(
            (b"names: [a]\nkpt_shape: [2, 2]\n" + line, f"line 3: {place}", problem)
            for line, place, problem in (
                (b"flip_idx: [0, 2]", "flip_idx", "expected each of 0 to 1 once"),
                (b"flip_idx: [0]", "flip_idx", "as kpt_shape has 2 keypoints"),
                (b"kpt_names: {0: [a]}", "kpt_names.0", "expected 2 names, each once"),
                (b"kpt_names: {0: [a, a]}", "kpt_names.0", "expected 2 names, each once"),
                (b"kpt_names: {1: [a, b]}", "kpt_names.1", "there is no such class"),
            )
        ),
        (b"a: " + b"[" * 1_000, "", "nested too deeply"),
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


def test_names_file() -> None:
    assert parse_names(b"dog\r\n night heron \r\n\r\n", uri="x") == {0: "dog", 1: "night heron"}


@pytest.mark.parametrize(
    ("parser", "data", "problem"),
    [
        (parse_obj_data, b"train: x\n", "line 1: expected `key = value`"),
        (parse_obj_data, b"train = x\n", "missing; expected a file of names"),
        (parse_obj_data, b"names = x\nnames = y\n", "line 2: names is given twice"),
        # A blank line would shift the classes behind it.
        (parse_names, b"dog\n\ncat\n", "line 2: expected a class name, the line is empty"),
        (parse_names, b"\n\n", "names no classes"),
    ],
)
def test_bad_files_of_classes(parser: Callable[..., object], data: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parser(data, uri="x")


# Files that belong together


@pytest.mark.parametrize(
    ("image", "labels", "same"),
    [
        ("images/a.jpg", "labels/a.txt", True),
        ("images/train/a.b.jpg", "labels/train/a.b.txt", True),
        ("train/images/a.jpg", "train/labels/a.txt", True),
        ("images/x/images/a.jpg", "images/x/labels/a.txt", True),
        ("labels/images/a.jpg", "labels/labels/a.txt", True),
        ("obj_train_data/a.PNG", "obj_train_data/a.txt", True),
        ("a.jpg", "a.txt", True),
        ("images/a.jpg", "images/a.txt", True),
        ("Images/a.jpg", "Annotations/a.txt", True),
        ("labels/a.jpg", "labels/a.txt", True),
        ("images/a.jpg", "labels/b.txt", False),
        ("images/train/a.jpg", "labels/val/a.txt", False),
        ("images/x/images/a.jpg", "labels/x/images/a.txt", False),
        ("images/a.JPG", "labels/A.txt", False),
    ],
)
def test_images_and_their_labels(image: str, labels: str, same: bool) -> None:
    assert (join_of_image(image) == join_of_labels(labels)) is same


def _as_image(key: str, join: str | None = None) -> Place:
    return Place(role=Role.IMAGE, key=key, join=join or key)


# All that is read of these when a format is resolved is their names.
BESIDE = {"classes.txt": "dog\n", "a.jpg": THERE, "a.txt": "", "sub/b.jpg": THERE, "readme.txt": ""}
APART = {
    "data.yaml": "names: [dog]\ntrain: images/train\nval: val.txt\n",
    "val.txt": "images/val/b.jpg\n",
    "images/train/a.jpg": THERE,
    "images/val/b.jpg": THERE,
    "labels/train/a.txt": b"",
}


@pytest.mark.parametrize(
    ("files", "path", "place"),
    [
        (APART, "labels/train/a.txt", Place(role=Role.ANNOTATION, join="labels/train/a")),
        (APART, "images/train/a.jpg", _as_image("images/train/a.jpg", "labels/train/a")),
        (APART, "data.yaml", Place(role=Role.OTHER)),
        (APART, "val.txt", Place(role=Role.OTHER)),
        # Files beside the images may be their labels.
        (APART, "images/train/a.txt", Place(role=Role.BESIDE, join="labels/train/a")),
        (APART, "notes.txt", Place(role=Role.BESIDE, join="notes")),
        # Other files are excluded, and counted.
        *(
            (APART, path, _as_image(path))
            for path in (
                *("README.txt", "labels/classes.txt"),
                *("labels/train.cache", "images/.a.jpg", "labels/train/._a.txt"),
            )
        ),
        (BESIDE, "sub/b.txt", Place(role=Role.ANNOTATION, join="sub/b")),
        (BESIDE, "sub/b.jpg", _as_image("sub/b.jpg", "sub/b")),
        (BESIDE, "classes.txt", Place(role=Role.OTHER)),
        (BESIDE, "readme.txt", _as_image("readme.txt")),
    ],
)
def test_place(tmp_path: Path, files: Files, path: str, place: Place) -> None:
    assert resolve(tmp_path, files).place(path, root=0) == place


@pytest.mark.parametrize("masks", [False, True])
def test_annotations(tmp_path: Path, masks: bool) -> None:
    files: Files = {
        "data.yaml": "names: [dog, cat]\ntrain: train/images\n",
        "train/images/a.jpg": THERE,
        "train/labels/a.txt": THERE,
    }
    source = resolve(tmp_path, files, _masks=masks)
    text = b"1 0.5 0.5 0.5 0.5 0.9\n0 0 0 1 0 1 1\n"

    (entry,) = source.read_listed(text, path="train/labels/a.txt", root=0)

    found = decode_annotations(entry.annotations)
    assert (entry.key, entry.split) == ("train/labels/a", "train")
    assert found.normalized
    assert found.corrections == {Correction.CONFIDENCE_DROPPED.value: 1}
    assert [(item.label, bool(item.segmentation)) for item in found.objects] == [
        ("cat", False),
        ("dog", masks),
    ]
    assert (Kind.INSTANCE_MASKS in source.kinds) == masks


# Splits

_IMAGES: Files = {
    "train/images/a.jpg": THERE,
    "train/labels/a.txt": "",
    "valid/images/b.jpg": THERE,
}


_ABC = {f"images/{letter}/x.jpg": THERE for letter in "abc"}


@pytest.mark.parametrize(
    ("files", "settings", "splits"),
    [
        # The root that the file names is not where it is.
        *(
            (
                {
                    "data.yaml": f"{path}names: [a]\ntrain: images/a\nval: [images/b, images/c]",
                    "labels/a/x.txt": "",
                    **_ABC,
                },
                {},
                ["train", "val", "val"],
            )
            for path in ("", "path: .\n", "path: ../datasets/coco\n", "path: /x/coco\n")
        ),
        # Folders.
        *(
            (
                {
                    "data.yaml": f'names: [dog]\ntrain: "{train}"\nval: "{val}"\ntest:\n',
                    "other/c.jpg": THERE,
                    "train/images2/c.jpg": THERE,
                    **_IMAGES,
                },
                settings,
                ["train", "val"],
            )
            for settings in ({}, {"data": "{root}/data.yaml"})
            for train, val in (
                ("train/images", "valid/images"),
                ("./train/images/", "valid"),
                ("../train/images", "../valid/images"),
                ("../train/images", "../val/images"),
                ("/content/project/train/images", "C:\\\\project\\\\valid\\\\images"),
                ("{root}/train/images", "{root}/valid/images"),
            )
        ),
        # Lists, of which one names an image that is missing.
        *(
            (
                {
                    "data.yaml": f"names: [dog]\ntrain: {path}\n",
                    path: lines,
                    **{f"images/{letter}.jpg": THERE for letter in "abc"},
                    "labels/a.txt": "",
                },
                {},
                ["train", "train"],
            )
            for path, lines in (
                ("train.txt", "./images/a.jpg\nimages/b.jpg\n"),
                ("train.txt", "/content/set/images/a.jpg\n/content/set/images/b.jpg\n"),
                ("train.txt", "images/missing.jpg\nimages/a.jpg\nimages/b.jpg"),
                ("lists/train.txt", "../images/a.jpg\n../images/b.jpg\n"),
                ("lists/train.txt", "images/a.jpg\r\nimages/b.jpg\r\n"),
                ("train.txt", "{root}/images/a.jpg\n# comment\n\n{root}/images/b.jpg\n"),
                # Each kind of path is read in its own way.
                ("train.txt", "/content/set/images/a.jpg\nimages/b.jpg\n"),
                ("train.txt", "images/a.jpg\nC:\\set\\images\\b.jpg\n"),
                ("lists/train.txt", "../images/a.jpg\ngs://bucket/set/images/b.jpg\n"),
                ("train.txt", "images/a.jpg\nimages/b.jpg\n/elsewhere/d.jpg\n"),
            )
        ),
        # The file is elsewhere.
        (
            {
                "../cfg/x.yaml": "names: [dog]\npath: ../set\ntrain: images/b\n",
                "labels/b/x.txt": "",
                **_ABC,
            },
            {"data": "{root}/../cfg/x.yaml"},
            ["train"],
        ),
        # Darknet's.
        (
            {
                "obj.data": "classes = 1\nnames = data/obj.names\ntrain = data/train.txt\n",
                "obj.names": "dog\n",
                "train.txt": "data/obj_train_data/a.jpg\n",
                "obj_train_data/a.jpg": THERE,
                "obj_train_data/a.txt": "",
            },
            {},
            ["train"],
        ),
        # Folders named like splits.
        *(
            (
                {
                    "classes.txt": "dog\n",
                    "labels/x.txt": "",
                    **{
                        f"{layout.format(name)}/a.jpg": THERE for name in ("test", "train", "valid")
                    },
                },
                {},
                ["test", "train", "val"],
            )
            for layout in ("images/{}", "{}/images")
        ),
    ],
)
def test_layouts(tmp_path: Path, files: Files, settings: dict[str, str], splits: list[str]) -> None:
    root = tmp_path / "set"
    settings = {key: value.replace("{root}", str(root)) for key, value in settings.items()}

    files = {
        path: content.replace("{root}", str(root)) if isinstance(content, str) else content
        for path, content in files.items()
    }
    source = resolve(root, files, **settings)

    listed = splits_of_lists(source)
    found = [
        listed.get(place.join, "") or source.split_listed(place.key)
        for path in sorted(files)
        if (place := source.place(path, root=0)).role is Role.IMAGE and path.endswith(".jpg")
    ]
    assert [split for split in found if split] == splits
    assert set(source.predefined_splits()) == set(splits)
    for path in ("obj.data", "obj.names", "classes.txt", "data.yaml"):
        assert path not in files or source.place(path, root=0) == Place(role=Role.OTHER)


LABELS: Files = {"images/train/a.jpg": THERE, "labels/train/a.txt": "0 .5 .5 .2 .2\n"}
_FOLDERS = ("labels", "images", "train", "train/labels", "labels/train", "images/train")


@pytest.mark.parametrize("folder", _FOLDERS)
def test_names_beside_labels(tmp_path: Path, folder: str) -> None:
    path = f"{folder}/classes.txt"
    source = resolve(tmp_path, {**LABELS, path: "dog\ncat\n"})
    assert source._layout.names == ((0, "dog"), (1, "cat"))
    assert source.place(path, root=0) == Place(role=Role.OTHER)


@pytest.mark.parametrize("other", ["labels/train", "labels/val", "valid/labels"])
def test_names_in_several_folders_must_be_equal(tmp_path: Path, other: str) -> None:
    files: Files = {**LABELS, "labels/classes.txt": "dog\ncat\n"}
    equal = resolve(tmp_path / "equal", {**files, f"{other}/classes.txt": "dog\ncat"})
    assert equal._layout.names == ((0, "dog"), (1, "cat"))
    for names in ("cat\ndog\n", "dog\n"):
        with pytest.raises(InputError) as caught:
            resolve(tmp_path / names, {**files, f"{other}/classes.txt": names})
        assert caught.value.problem.startswith(
            f"labels/classes.txt and {other}/classes.txt name different classes, or name them in "
        )
    # A file in the root decides.
    for root_file, content in (("classes.txt", "dog\n"), ("data.yaml", "names: [dog]\n")):
        more: Files = {f"{other}/classes.txt": "cat\n", root_file: content}
        assert resolve(tmp_path / root_file, {**files, **more})._layout.names == ((0, "dog"),)


def test_a_yaml_is_used_before_names_beside_labels(tmp_path: Path) -> None:
    # LabelImg leaves a file with its own names there.
    files: Files = {**LABELS, "labels/train/classes.txt": "cat\n", "pets.yaml": "names: [dog]\n"}
    assert resolve(tmp_path, files)._layout.names == ((0, "dog"),)


@pytest.mark.parametrize(
    ("data", "settings", "problem"),
    [
        (
            "train: ../images/train\nval: train/images\n",
            {},
            "data.yaml: train: '../images/train' is not there: tried images/train below the root",
        ),
        ("train: train/images\nval: ./train/images\n", {}, "val (train/images) lies within train"),
        ("train: .\nval: valid/images\n", {}, "val (valid/images) lies within train (.)"),
        ("train: x.txt\n", {}, "'x.txt' is not there: tried x.txt"),
        ("train: bad.txt\n", {}, "bad.txt: none of the first images that it names is below"),
        ("train: ../../../etc\n", {}, "'../../../etc' is not there: tried etc"),
        ("train: train/images/a.jpg\n", {}, "'train/images/a.jpg' is not there"),
        (
            "train: train/images\n",
            {"splits": ["tain"]},
            "no split 'tain'; did you mean 'train'?; found: train",
        ),
    ],
)
def test_splits_that_cannot_be_found(
    tmp_path: Path, data: str, settings: dict[str, Any], problem: str
) -> None:
    files = {"data.yaml": f"names: [dog]\n{data}", "bad.txt": "q.jpg\n", **_IMAGES}
    source = resolve(tmp_path, files, **settings)

    # It is no problem where the config names the splits.
    with pytest.raises(InputError) as raised:
        source.predefined_splits()
    assert problem in str(raised.value)


_NO_DATASET: Files = {"images/a.jpg": THERE, "texts/a.txt": ""}


@pytest.mark.parametrize(
    ("files", "below", "problem"),
    [
        (
            {**_NO_DATASET, "b.yml": "", "a.yaml": "", "c/d.yaml": ""},
            "",
            "a.yaml, b.yml may name the classes; name one with `data`",
        ),
        (_NO_DATASET, "", "no file names the classes: looked for data.yaml"),
        ({**_NO_DATASET, "classes.txt": "dog"}, "", "no labels found: .*text files are in texts"),
        ({**_NO_DATASET, "obj.data": "names = x.y\n"}, "", "'x.y' is not there: tried x.y"),
        ({**_NO_DATASET, "data.yaml": "names: dog"}, "", "line 1: names: expected a list"),
        ({}, "/nowhere", "there is no such folder"),
        ({"data.yaml": ""}, "/data.yaml", "expected a folder, found a file"),
    ],
)
def test_folders_that_are_no_dataset(
    tmp_path: Path, files: Files, below: str, problem: str
) -> None:
    write_files(tmp_path, files)

    with pytest.raises(InputError, match=problem):
        YoloFormat(root=f"{tmp_path}{below}").resolve()


def test_a_file_of_classes_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.yaml: no such file"):
        resolve(tmp_path, _NO_DATASET, data=f"{tmp_path}/x.yaml")


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
