"""TFRecord files as a source: of anyone, and of Shardbeam."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from shardbeam.configs.load import make_config
from shardbeam.pipelines.plan import make_plan
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.decode.class_names import read_class_names
from shardbeam.transforms.formats.base import find_format
from shardbeam.transforms.formats.testing import check_format
from shardbeam.transforms.formats.tfrecord.tfrecord import TFRecordFormat
from tests.support.builds import Build, build, build_config
from tests.support.dataset import coco_words, run
from tests.support.example_builders import write_png
from tests.support.tfrecords import draw_image, make_example, tfrecord, write_tfrecord

WIDTH, HEIGHT = 20, 10
TWO: dict[str, object] = {
    "image/object/bbox/xmin": [0.125, 0.5],
    "image/object/bbox/ymin": [0.0, 0.5],
    "image/object/bbox/xmax": [0.5, 1.0],
    "image/object/bbox/ymax": [0.5, 0.75],
    "image/object/class/text": [b"cat", b"dog"],
    "image/object/class/label": [17, 18],
}


def picture(number: int) -> bytes:
    return draw_image("JPEG", width=WIDTH + number, height=HEIGHT)


def example(number: int = 0, **features: object) -> bytes:
    """Makes the Example of an image; keyword arguments use `__` for `/`."""
    return make_example(
        {
            "image/encoded": picture(number),
            "image/filename": f"{number}.jpg".encode(),
            **{name.replace("__", "/"): value for name, value in features.items()},
        }
    )


def with_keys(number: int, features: Mapping[str, object]) -> bytes:
    return example(number, **features)


def build_files(folder: Path, *more: str, exit_code: int = 0, **files: bytes) -> Build:
    """Writes TFRecord files, and builds the dataset of them."""
    data = folder / "data"
    data.mkdir()
    for name, content in files.items():
        (data / f"{name}.tfrecord").write_bytes(content)
    words = ("tfrecord", "--tfrecords", str(data), *more)
    return build(*words, output=folder / "out", exit_code=exit_code)


def test_objects_and_other_keys_come_back(tmp_path: Path) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[:5, 2:10] = 255
    built = build_files(
        tmp_path,
        train=tfrecord(
            with_keys(
                0,
                {
                    **TWO,
                    "image/source_id": b"77",
                    "image/object/is_crowd": [0, 1],
                    "image/object/mask": [write_png(mask), write_png(np.zeros_like(mask))],
                    "image/object/difficult": [1, 0],
                    "image/caption": [b"two animals", "Füchse".encode()],
                    "camera": b"left",
                    "weights": [0.5, 0.25],
                    "depth": b"\x89PNG\xff",
                },
            ),
            # The Model Garden writes no keys of objects for an image without any.
            example(1, camera=b"right", weights=[0.75]),
        ),
    )
    assert built.summary["warnings"] == ["depth is not carried over: its bytes are no text"]
    found = built.by_key()
    two = found["0.jpg"].features
    assert two["image/encoded"] == [picture(0)]
    assert two["image/source_id"] == [b"77"]
    for key, values in TWO.items():
        assert two[key] == values
    assert two["image/object/is_crowd"] == [0, 1]
    assert two["image/object/area"] == [7.5 * 5, 10 * 2.5]
    assert two["image/object/difficult"] == [1, 0]
    assert two["image/caption"] == [b"two animals", "Füchse".encode()]
    assert two["camera"] == [b"left"]
    assert two["weights"] == [0.5, 0.25]
    assert two["image/object/mask"] == [
        data for data in two["image/object/mask"] if data.startswith(b"\x89PNG")
    ]
    assert "depth" not in two
    none = found["1.jpg"].features
    assert none["image/object/class/text"] == []
    assert none["weights"] == [0.75]
    assert built.manifest["labels"] == {"cat": 17, "dog": 18}


def test_class_names_come_from_the_label_map_beside_the_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "label_map.pbtxt").write_text("item {\n id: 17\n name: 'cat'\n}\n")
    features = {**TWO, "image/object/class/text": []}
    write_tfrecord(data / "a.record-00000-of-00001", with_keys(0, features))
    report = check_format(TFRecordFormat(tfrecords=[str(data)]), damages=0)
    assert [item.label for item in report.annotations["0.jpg"].objects] == ["cat", "18"]
    assert [(each.name, each.source_id) for each in report.categories] == [("cat", 17), ("18", 18)]


def test_class_names_come_from_the_only_other_label_map(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "cells_label_map.pbtxt").write_text("item {\n id: 17\n name: 'cat'\n}\n")
    assert read_class_names(str(data)) == {17: "cat"}
    (data / "other.pbtxt").write_text("item {\n id: 17\n name: 'dog'\n}\n")
    assert read_class_names(str(data)) == {}
    (data / "label_map.pbtxt").write_text("item {\n id: 17\n name: 'ant'\n}\n")
    assert read_class_names(str(data)) == {17: "ant"}


def test_keys_of_tfds_are_named(tmp_path: Path) -> None:
    foreign = {"objects/bbox": [0.1, 0.1, 0.5, 0.5], "objects/label": [1]}
    path = write_tfrecord(tmp_path / "a.tfrecord", make_example({"image": picture(0), **foreign}))
    first, second = TFRecordFormat(tfrecords=[str(path)]).resolve().warnings()
    assert first.startswith("objects/bbox, objects/label: not read as boxes or classes")
    assert "the Examples hold no annotation that is read" in second


def test_images_without_a_name_are_numbered(tmp_path: Path) -> None:
    path = write_tfrecord(
        tmp_path / "some.tfrecord",
        make_example({"image/encoded": picture(0), "image/source_id": b"9"}),
        make_example({"image/encoded": picture(1)}),
        make_example({"image/encoded": picture(2), "image/filename": b"../a//b.jpg"}),
    )
    report = check_format(TFRecordFormat(tfrecords=[str(path)]), damages=0)
    assert sorted(report.annotations) == ["../a/b.jpg", "9", "some.tfrecord/000000001"]


def test_a_lone_image_under_another_key_is_found(tmp_path: Path) -> None:
    content = tfrecord(make_example({"jpg": picture(0), "cls": 3}))
    built = build_files(tmp_path, some=content)
    (found,) = built.examples()
    assert found.encoded == picture(0)
    assert found.features["cls"] == [3]
    assert "jpg" not in found.features
    (warning,) = built.summary["warnings"]
    assert "the Examples hold no annotation that is read" in warning


def test_splits_come_from_the_names_of_files(tmp_path: Path) -> None:
    for number, name in enumerate(("x_train", "x_val")):
        write_tfrecord(tmp_path / f"{name}.tfrecord", example(number))
    source = TFRecordFormat(tfrecords=[str(tmp_path)])
    assert check_format(source, damages=0).splits == {"0.jpg": "train", "1.jpg": "val"}
    # One file without a split is enough to make one split of all.
    write_tfrecord(tmp_path / "more.tfrecord", example(2))
    assert list(source.resolve().predefined_splits()) == []


def test_of_two_examples_with_one_key_the_first_is_written(tmp_path: Path) -> None:
    one = {**TWO, "image/object/class/text": [b"cat", b"cat"]}
    built = build_files(
        tmp_path,
        *("--set", "rejects.max_ratio=1", "--ids", "contiguous"),
        a=tfrecord(with_keys(0, TWO), example(1)),
        b=tfrecord(with_keys(0, one)),
    )
    assert built.reasons() == {("0.jpg", "duplicate_key"): 1}
    assert [label for label, _ in built.by_key()["0.jpg"].labels] == ["cat", "dog"]
    assert built.counts()["listed"] == 3


BAD_EXAMPLES: list[tuple[Mapping[str, object], str, str]] = [
    ({"image/encoded": b""}, "missing_image", "record 1, byte"),
    ({"image/encoded": [b"a", b"b"]}, "annotation_malformed", "2 images in image/encoded"),
    ({**TWO, "image/object/bbox/xmin": [0.5]}, "annotation_malformed", "1 values for 2"),
    ({**TWO, "image/object/bbox/xmin": []}, "annotation_malformed", "a side of the boxes"),
    ({**TWO, "image/object/bbox/xmax": [10.0, 20.0]}, "annotation_malformed", "in pixels?"),
    ({**TWO, "image/object/class/text": [b"\xff", b""]}, "annotation_malformed", "not UTF-8"),
    ({"image/encoded": b"no image"}, "not_an_image", ""),
]
WRONG_MASKS = {"image/object/mask": [write_png(np.ones((3, 3), np.uint8))] * 2}


@pytest.mark.parametrize(
    ("bad", "masks"),
    [
        (BAD_EXAMPLES, "none"),
        ([({**TWO, **WRONG_MASKS}, "mask_mismatch", "the mask is 3x3, the image 21x10")], "png"),
    ],
    ids=["no masks", "masks"],
)
def test_a_bad_example_is_rejected_with_its_place(
    tmp_path: Path, bad: list[tuple[Mapping[str, object], str, str]], masks: str
) -> None:
    def good(number: int) -> Mapping[str, object]:
        given = {"image/object/mask": [write_png(np.ones((10, 20 + number), np.uint8))] * 2}
        return {**TWO, "camera": b"left", **(given if masks == "png" else {})}

    last = len(bad) + 1
    examples = [good(0), *({"camera": b"right", **each} for each, _, _ in bad), good(last)]
    built = build_files(
        tmp_path,
        *("--set", "rejects.max_ratio=1", "--set", f"masks={masks}"),
        train=tfrecord(*(with_keys(number, each) for number, each in enumerate(examples))),
    )
    found = {reject["key"]: reject for reject in built.rejects()}
    assert len(found) == len(built.rejects()) == len(bad)
    for number, (_, reason, detail) in enumerate(bad, 1):
        reject = found[f"{number}.jpg"]
        assert reject["reason"] == reason
        assert detail in reject["detail"]
    assert sorted(built.by_key()) == ["0.jpg", f"{last}.jpg"]


def test_what_is_odd_is_counted(tmp_path: Path) -> None:
    built = build_files(
        tmp_path,
        train=tfrecord(
            *(with_keys(number, TWO) for number in range(70)),
            with_keys(70, {**TWO, "late": 1}),
            with_keys(71, {**TWO, "image/width": 5, "image/height": 5}),
            with_keys(72, {**TWO, "image/object/bbox/xmin": [float("nan"), 0.5]}),
            with_keys(73, {**TWO, "image/object/bbox/xmin": [0.75, 0.5]}),
            with_keys(74, {**TWO, "image/object/bbox/ymax": [1.5, 0.75]}),
        ),
    )
    assert built.counts()["corrections"] == {
        "box_clipped": 1,
        "box_corners_exchanged": 1,
        "key_not_carried_over": 1,
        "object_without_box_dropped": 1,
        "size_corrected": 1,
    }
    wrong = built.by_key()["71.jpg"]
    assert wrong.size == (WIDTH + 71, HEIGHT)
    assert wrong.boxes[0] == (0.125, 0.0, 0.5, 0.5)


def cut(content: bytes) -> bytes:
    return content[:-3]


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (gzip.compress, "compressed with gzip; decompress it first (gunzip)"),
        (cut, "cut off within a record"),
        (flip, "the checksum of a record's data does not match; copy or make the file again"),
        (lambda _: b"some text that is no TFRecord file", "not a TFRecord file"),
        (lambda _: tfrecord(b"\x0a\x03abc"), "not a tf.train.Example"),
        (lambda _: tfrecord(make_example({"x": 1})), "none of the first 1 Examples holds an image"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_with_its_place(
    tmp_path: Path, damage: object, problem: str
) -> None:
    assert callable(damage)
    built = build_files(tmp_path, train=damage(tfrecord(example(0))), exit_code=1)
    assert problem in built.stderr
    assert str(tmp_path / "data" / "train.tfrecord") in built.stderr
    assert not (tmp_path / "out").exists()


def test_damage_behind_the_first_examples_is_an_error_with_its_place(tmp_path: Path) -> None:
    records = [example(number) for number in range(100)]
    content = tfrecord(*records)
    built = build_files(tmp_path, train=content[:-3], exit_code=1)
    begin = len(tfrecord(*records[:-1]))
    assert f"byte {begin}: cut off within a record of {len(records[-1])} bytes" in built.stderr


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none", "there is no such file or folder"),
        ("empty", "the folder is empty"),
        ("other", "no TFRecord file found"),
    ],
)
def test_a_path_without_files_is_an_error(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    built = build("tfrecord", "--tfrecords", tmp_path / name, output=tmp_path / "out", exit_code=1)
    assert problem in built.stderr


def test_a_dataset_of_ours_is_split_filtered_and_merged_again(tmp_path: Path, shapes: Path) -> None:
    settings = ("--set", "features.rename={image/encoded: picture}", "--set", "masks=png")
    assert run(*coco_words(shapes, tmp_path / "first", *settings)).exit_code == 0
    first = Build(tmp_path / "first", 0, {}, "")
    built = build_config(
        {
            "source": [
                {"format": "tfrecord", "tfrecords": [str(tmp_path / "first")]},
                {
                    "format": "image-folder",
                    "images": str(shapes / "class_folders"),
                },
            ],
            "fractions": {"train": 0.7, "test": 0.3},
            "labels": {"exclude": ["star"], "ids": "contiguous"},
        },
        folder=tmp_path,
    )
    found = {
        example.key: example for split in ("train", "test") for example in built.examples(split)
    }
    for before in first.examples():
        after = found[before.key]
        assert after.encoded == before.features["picture"][0]
        kept = [index for index, (label, _) in enumerate(before.labels) if label != "star"]
        assert [label for label, _ in after.labels] == [before.labels[index][0] for index in kept]
        for key in ("bbox/xmin", "bbox/ymax", "area", "mask"):
            values = before.features[f"image/object/{key}"]
            assert after.features[f"image/object/{key}"] == [values[index] for index in kept]
    assert any(label == "star" for before in first.examples() for label, _ in before.labels)


def test_a_dataset_that_is_not_committed_is_refused(tmp_path: Path, shapes: Path) -> None:
    assert run(*coco_words(shapes, tmp_path / "first")).exit_code == 0
    (tmp_path / "first" / "dataset_info.json").unlink()
    words = ("tfrecord", "--tfrecords", tmp_path / "first")
    built = build(*words, output=tmp_path / "out", exit_code=1)
    assert "the dataset is not committed" in built.stderr


def test_another_programs_manifest_is_not_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text(json.dumps({"files": []}))
    write_tfrecord(data / "a.tfrecord", with_keys(0, TWO))
    TFRecordFormat(tfrecords=[str(data)]).resolve()


def test_init_recognizes_the_files(tmp_path: Path) -> None:
    names = ("train-00000-of-00002", "train-00001-of-00002", "val-00000-of-00001")
    for number, name in enumerate(names):
        write_tfrecord(tmp_path / f"cats-{name}", with_keys(number, TWO))
    (tmp_path / "label_map.pbtxt").write_text("item { id: 17 name: 'cat' }")
    result = run("init", str(tmp_path), exit_code=0)
    assert "tfrecord: 3 TFRecord files; splits train, val" in result.stderr
    assert f"tfrecords: [{tmp_path}/cats-train-0000*]" in result.stdout
    assert f"tfrecords: [{tmp_path}/cats-val-00000-of-00001]" in result.stdout
    (tmp_path / "cats-train-00000-of-00002").write_bytes(b"no TFRecord file at all")
    assert run("init", str(tmp_path)).exit_code == 1


def test_the_format_keeps_its_contract(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "train.tfrecord", *(with_keys(n, TWO) for n in range(3)))
    check_format(TFRecordFormat(tfrecords=[str(path)]).resolve())


def test_keys_of_two_kinds_in_two_files_are_an_error(tmp_path: Path) -> None:
    one = write_tfrecord(tmp_path / "a.tfrecord", example(0, camera=1))
    other = write_tfrecord(tmp_path / "b.tfrecord", example(1, camera=b"x"))
    raw = {
        "name": "x",
        "source": {"format": "tfrecord", "tfrecords": [str(one), str(other)]},
        "output": {"path": str(tmp_path / "out")},
    }
    with pytest.raises(InputError, match="camera: a list of bytes values here, and of int64"):
        make_plan(make_config(raw, origin="", find_format=find_format))
