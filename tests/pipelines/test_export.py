"""`shardbeam export`: what comes back from a dataset, and what is counted as lost or changed."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from pycocotools import mask as coco_mask

from shardbeam.pipelines import temporary
from shardbeam.pipelines.commands import export
from shardbeam.readers.export import coco
from tests.support.builds import Build, Json, build, wait_for
from tests.support.coco_evaluation import PERFECT, evaluate
from tests.support.dataset import Run, Tree, finish, read_tree, run, start
from tests.support.format_samples import SAMPLES, FormatSample, SharedData
from tests.support.tfrecords import draw_image, make_example, write_tfrecord

pytestmark = [
    # pycocotools on NumPy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

JPEG = draw_image("JPEG", width=40, height=20)
SLOW = pytest.mark.slow
SIDES = ("xmin", "ymin", "xmax", "ymax")


def export_to(path: Path, output: Path, layout: str, *more: str) -> str:
    """Exports a dataset, and returns what was printed."""
    result = run("export", str(path), "--format", layout, "--output", str(output), *more)
    assert result.exit_code == 0, result.stderr
    assert not result.stderr
    return result.stdout


def refused(path: Path, output: Path, *more: str, layout: str = "coco") -> str:
    result = run("export", str(path), "--format", layout, "--output", str(output), *more)
    assert result.exit_code in (1, 2)
    assert not result.stdout
    assert result.stderr.count("\n") == 1
    return result.stderr


def losses(printed: str) -> dict[str, int]:
    """Returns the counts of what was lost or changed."""
    _, _, table = printed.partition("lost or changed")
    rows = (re.fullmatch(r" *([\d,]+)  (.*?)(  .*)?", line) for line in table.splitlines()[1:])
    return {row[2]: int(row[1].replace(",", "")) for row in rows if row is not None}


def read_coco(folder: Path, name: str) -> Json:
    document: Json = json.loads((folder / "annotations" / f"{name}.json").read_bytes())
    return document


def init_and_build(folder: Path, output: Path, *more: str) -> Build:
    """Writes a config for an exported folder, and builds it without a change."""
    config = output.with_suffix(".yaml")
    result = run("init", str(folder), "--output", str(config))
    assert result.exit_code == 0, result.stderr
    words = (str(config), "--set", f"output.path={output}", *more)
    result = run("build", *words, "--json")
    return Build(output, result.exit_code, json.loads(result.stdout), result.stderr)


def objects(
    *boxes: tuple[float, float, float, float], ids: list[int] | None = None, **more: object
) -> Json:
    """The keys of an Example's objects; boxes are fractions of the image."""
    columns = zip(*boxes, strict=True) if boxes else [()] * 4
    return {
        **{
            f"image/object/bbox/{side}": list(map(float, column))
            for side, column in zip(SIDES, columns, strict=True)
        },
        "image/object/class/label": ids or [1] * len(boxes),
        **{f"image/object/{key.replace('__', '/')}": values for key, values in more.items()},
    }


def examples(folder: Path, *features: Json, name: str = "train.tfrecord") -> Path:
    """Writes TFRecord files of Examples with an image each, unless it is given."""
    folder.mkdir(exist_ok=True)
    records = [
        make_example({"image/encoded": JPEG, "image/filename": f"{number}.jpg".encode(), **each})
        for number, each in enumerate(features, 1)
    ]
    write_tfrecord(folder / name, *records)
    return folder


# Datasets of Shardbeam, exported and built again.


@pytest.fixture(scope="module")
def built(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The sample with boxes, masks, keypoints and captions, in two splits."""
    annotations = shapes / "annotations"
    result = build(
        *("coco", "--images", shapes / "images", "--fractions", "train=0.7,holdout=0.3"),
        *("--annotations", annotations / "person_keypoints.json"),
        *("--annotations", annotations / "captions.json"),
        *("--set", "masks=png", "--set", "output.num_shards=2", "--name", "shapes"),
        output=tmp_path_factory.mktemp("built") / "out",
    )
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def as_coco(built: Build) -> tuple[Path, str]:
    folder = built.output.parent / "coco"
    return folder, export_to(built.output, folder, "coco")


@pytest.fixture(scope="module")
def truth(shapes: Path) -> Json:
    document: Json = json.loads((shapes / "annotations/person_keypoints.json").read_bytes())
    return document


def merged(folder: Path, name: str) -> Json:
    """The JSON files of both splits as one."""
    parts = [read_coco(folder, f"{name}_{split}") for split in ("train", "holdout")]
    return {
        "images": [each for part in parts for each in part["images"]],
        "annotations": [each for part in parts for each in part["annotations"]],
        "categories": parts[0]["categories"],
    }


def test_images_come_back_byte_for_byte(
    as_coco: tuple[Path, str], built: Build, shapes: Path
) -> None:
    folder, _ = as_coco
    found: Tree = {}
    for split in ("train", "holdout"):
        tree = read_tree(folder / "images" / split)
        assert len(tree) == built.counts(split)["images"]
        assert {each["file_name"] for each in read_coco(folder, f"captions_{split}")["images"]} == {
            *tree
        }
        found |= tree
    assert found == read_tree(shapes / "images")


def check_evaluation(truth: Json, exported: Json, kind: str) -> None:
    """Checks that COCO's own evaluation finds everything, as if a detector had exported it."""
    key = {"segm": "segmentation"}.get(kind, kind)
    found = [
        {name: each[name] for name in ("image_id", "category_id", key)} | {"score": 1.0}
        for each in exported["annotations"]
        if not each["iscrowd"] and np.any(each["keypoints"] if key == "keypoints" else 1)
    ]
    assert evaluate(truth, found, kind) == pytest.approx(PERFECT)
    assert evaluate(truth, found[1:], kind)["AR"] < 1
    # The exported file can be the ground truth, too.
    assert evaluate(exported, found, kind) == pytest.approx(PERFECT)


def test_coco_s_own_evaluation_finds_everything(as_coco: tuple[Path, str], truth: Json) -> None:
    for kind in ("bbox", "segm"):
        check_evaluation(truth, merged(as_coco[0], "instances"), kind)
    check_evaluation(truth, merged(as_coco[0], "person_keypoints"), "keypoints")


def test_every_value_comes_back(as_coco: tuple[Path, str], truth: Json, shapes: Path) -> None:
    exported, posed = (merged(as_coco[0], name) for name in ("instances", "person_keypoints"))

    def by_image(document: Json, *names: str, classes: set[int]) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {each["id"]: [] for each in document["images"]}
        for each in document["annotations"]:
            if each["category_id"] in classes:
                area = float(np.float32(each["area"]))
                found[each["image_id"]].append([area, *(each[name] for name in names)])
        return found

    names = ("bbox", "category_id", "iscrowd")
    every = {each["id"] for each in truth["categories"]}
    assert by_image(exported, *names, classes=every) == by_image(truth, *names, classes=every)
    # A circle has no corners, and so no keypoints.
    more = (*names, "keypoints", "num_keypoints")
    assert by_image(posed, *more, classes=every) == by_image(truth, *more, classes=every - {1})
    categories = {each["id"]: {**each, "supercategory": ""} for each in truth["categories"]}
    assert posed["categories"] == [each for id_, each in categories.items() if id_ != 1]
    assert exported["categories"] == [
        {key: each[key] for key in ("id", "name", "supercategory")} for each in categories.values()
    ]
    # An object has one id, and one mask.
    of_object = {each["id"]: each for each in exported["annotations"]}
    for each in posed["annotations"]:
        assert {key: each[key] for key in of_object[each["id"]]} == of_object[each["id"]]
    captions = json.loads((shapes / "annotations/captions.json").read_bytes())
    found = merged(as_coco[0], "captions")
    assert Counter((each["image_id"], each["caption"]) for each in found["annotations"]) == Counter(
        (each["image_id"], each["caption"]) for each in captions["annotations"]
    )
    assert any(not group for group in by_image(exported, classes=every).values())


def test_what_does_not_come_back_is_counted(as_coco: tuple[Path, str], truth: Json) -> None:
    _, printed = as_coco
    found = losses(printed)
    assert found == {
        "annotation ids, renumbered from 1": len(truth["annotations"]) + 80 - 2 * 2,
        "polygons: masks are written as run lengths (RLE)": len(truth["annotations"]),
        "licenses and URLs of images": 40,
        "supercategories of classes": 4,
    }


def test_an_exported_folder_builds_the_same_dataset(
    as_coco: tuple[Path, str], built: Build, tmp_path: Path
) -> None:
    again = init_and_build(as_coco[0], tmp_path / "again", "--set", "masks=png")
    assert again.exit_code == 0, again.stderr
    for split in ("train", "holdout"):
        before = {each.key: each.features for each in built.examples(split)}
        assert {each.key: each.features for each in again.examples(split)} == before
    assert again.manifest["labels"] == built.manifest["labels"]
    assert again.manifest["skeletons"] == built.manifest["skeletons"]


def test_yolo_holds_the_same_boxes_and_keypoints(built: Build, tmp_path: Path) -> None:
    printed = export_to(built.output, tmp_path / "yolo", "yolo", "--split", "train")
    data = yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())
    # Ids with gaps are numbered from 0.
    assert built.manifest["labels"] == {"circle": 1, "square": 3, "triangle": 4, "star": 7}
    assert data["names"] == dict(enumerate(["circle", "square", "triangle", "star"]))
    assert (data["nc"], data["kpt_shape"], data["train"]) == (4, [5, 3], "images/train")
    again = init_and_build(tmp_path / "yolo", tmp_path / "again")
    assert again.exit_code == 0, again.stderr
    before = built.by_key("train")
    crowds = 0
    for each in again.examples("train"):
        old = before.pop(each.key.removeprefix("images/train/"))
        assert each.encoded == old.encoded
        is_crowd = old.features["image/object/is_crowd"]
        crowds += sum(is_crowd)
        kept = [index for index, flag in enumerate(is_crowd) if not flag]
        assert [name for name, _ in each.labels] == [old.labels[index][0] for index in kept]
        np.testing.assert_allclose(
            np.reshape(each.boxes, (-1, 4)), np.reshape(old.boxes, (-1, 4))[kept], atol=1.1e-6
        )
        for key in ("x", "y", "visibility"):
            new_points, old_points = (
                np.reshape(one.features[f"image/object/keypoint/{key}"], (-1, 5))
                for one in (each, old)
            )
            np.testing.assert_allclose(new_points, old_points[kept], atol=1e-6)
    assert not before
    assert losses(printed)["crowds, left out"] == crowds > 0
    assert again.counts("train")["unannotated"] == 0


def test_yolo_holds_the_same_masks(built: Build, tmp_path: Path) -> None:
    words = ("--split", "train", "--task", "segment")
    printed = export_to(built.output, tmp_path / "yolo", "yolo", *words)
    assert "(YOLO, task segment)" in printed
    data = yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())
    assert "kpt_shape" not in data
    again = init_and_build(tmp_path / "yolo", tmp_path / "again", "--set", "masks=png")
    assert again.exit_code == 0, again.stderr
    before = built.by_key("train")
    masks = 0
    for each in again.examples("train"):
        old = before.pop(each.key.removeprefix("images/train/"))
        old_masks = [
            np.asarray(Image.open(io.BytesIO(mask)))
            for mask, crowd in zip(
                old.features["image/object/mask"],
                old.features["image/object/is_crowd"],
                strict=True,
            )
            if not crowd
        ]
        new_masks = each.features["image/object/mask"]
        for mask, old_mask in zip(new_masks, old_masks, strict=True):
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(mask))), old_mask)
            masks += 1
    assert not before
    assert masks > 50
    found = losses(printed)
    assert found["polygons: outlines are traced from the pixels of masks"] == masks
    assert found["image/object/keypoint/x (images)"] > 0
    assert not any("outlined by their box" in name for name in found)


def test_a_mask_of_parts_and_holes_and_an_object_without_one(tmp_path: Path) -> None:
    pixels = np.zeros((20, 40), np.uint8)
    pixels[2:12, 2:12] = pixels[5, 30] = 1
    pixels[5:8, 5:8] = 0
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    empty = io.BytesIO()
    Image.fromarray(pixels * 0).save(empty, "PNG")
    boxes = [(0.05, 0.1, 31 / 40, 0.6), (0.25, 0.25, 0.5, 1.5), (0.0, 0.0, 1.0, 1.0)]
    masks = [file.getvalue(), empty.getvalue(), mask_of(40, 20)]
    folder = examples(tmp_path / "in", objects(), objects(*boxes, mask=masks))
    # Programs that write no masks where there are no objects.
    for words in (("--task", "segment"), ()):
        output = tmp_path / f"out{len(words)}"
        if words:
            assert "has no masks, which --task segment writes" in refused(
                examples(tmp_path / "none", objects(boxes[0])), output, *words, layout="yolo"
            )
        printed = losses(export_to(folder, output, "yolo", *words))
        first, second, third = (output / "labels/train/2.txt").read_text().splitlines()
        if not words:
            # The first Example has no masks, so boxes are written.
            assert first == "0 0.4125 0.35 0.725 0.5"
            assert printed["image/object/mask (images)"] == 1
            continue
        assert second == "0 0.25 0.25 0.5 0.25 0.5 1 0.25 1"
        assert third == "0 0 0 0.5 0 0.5 1 0 1"
        points = np.array(first.split()[1:], float).reshape(-1, 2) * (40, 20)
        runs = coco_mask.frPyObjects([points.ravel().tolist()], 20, 40)
        assert (coco_mask.decode(runs)[..., 0] == pixels).all()
        assert printed == {
            "polygons: outlines are traced from the pixels of masks": 2,
            "objects without a mask, outlined by their box": 1,
            "boxes that reach beyond the image, clipped": 1,
            "boxes that differ from their mask's by more than 1 px": 1,
        }


def test_tasks(built: Build, tmp_path: Path) -> None:
    output = tmp_path / "out"
    error = refused(built.output, output, "--task", "segment")
    assert error.endswith("--task: not with --format coco\n")
    printed = export_to(built.output, output, "yolo", "--task", "detect", "--split", "train")
    assert "(YOLO, task detect)" in printed
    assert "kpt_shape" not in (output / "data.yaml").read_text()
    label = next(iter(read_tree(output / "labels").values())).decode()
    assert {len(line.split()) for line in label.splitlines()} == {5}
    assert {"image/object/mask (images)", "image/object/keypoint/x (images)"} <= {*losses(printed)}
    plain = examples(tmp_path / "in", objects((0.0, 0.0, 0.5, 0.5)))
    for task, what in (("segment", "masks"), ("pose", "keypoints")):
        error = refused(plain, tmp_path / "no", "--task", task, layout="yolo")
        assert f"has no {what}, which --task {task} writes; leave it out" in error


def test_a_box_of_two_decimals_is_exact_up_to_12_000_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = np.round(np.sort(rng.uniform(0, 12_000, (300, 2, 2)), axis=2), 2)
    boxes = (np.concatenate([edges[..., 0], edges[..., 1]], axis=1) / 12_000).astype(np.float32)
    # Only the header is read.
    png = bytearray(draw_image("PNG", width=8, height=8))
    png[16:24] = (12_000).to_bytes(4, "big") * 2
    folder = examples(tmp_path / "in", {"image/encoded": bytes(png), **objects(*boxes.tolist())})
    export_to(folder, tmp_path / "out", "coco")
    found = [each["bbox"] for each in read_coco(tmp_path / "out", "instances_train")["annotations"]]
    expected = np.concatenate([edges[..., 0], edges[..., 1] - edges[..., 0]], axis=1)
    assert found == np.round(expected, 2).tolist()


@pytest.mark.parametrize(
    "container",
    ["webdataset", *(pytest.param(name, marks=SLOW) for name in ("hf_parquet", "array_record"))],
)
def test_every_container_gives_the_same_files(
    container: str, as_coco: tuple[Path, str], built: Build, tmp_path: Path
) -> None:
    if container == "array_record":
        pytest.importorskip("array_record")
    words = ("--container", container, "--output", str(tmp_path / "out"))
    assert run("convert", str(built.output), *words).exit_code == 0
    export_to(tmp_path / "out", tmp_path / "coco", "coco")
    assert read_tree(tmp_path / "coco") == read_tree(as_coco[0])


# YOLO datasets, built and exported again.


def check_yolo(root: Path, data: Path, tmp_path: Path, *, splits: list[str]) -> None:
    """Checks that labels and images of a YOLO dataset come back, in the same folders."""
    before = build("yolo", "--data", data, output=tmp_path / "shards")
    assert before.exit_code == 0, before.stderr
    export_to(tmp_path / "shards", tmp_path / "back", "yolo")
    for split in splits:
        for what in ("images", "labels"):
            old, new = (read_tree(each / what / split) for each in (root, tmp_path / "back"))
            old = {name: old.get(name, b"") for name in new} if what == "labels" else old
            assert new.keys() == old.keys()
            for name in new:
                if what == "images":
                    assert new[name] == old[name]
                    continue
                lines: list[Any] = [
                    np.loadtxt(each[name].decode().splitlines(), ndmin=2) if each[name] else []
                    for each in (old, new)
                ]
                np.testing.assert_allclose(lines[1], np.round(lines[0], 6), atol=1.1e-6)
    one, other = (yaml.safe_load(file.read_text()) for file in (data, tmp_path / "back/data.yaml"))
    assert other["names"] == one["names"]
    assert other.get("kpt_shape") == one.get("kpt_shape")


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    """Two splits, boxes of six digits, a class that never occurs, an image without objects."""
    root = tmp_path / "animals"
    for path, lines in {
        "train/a": "0 0.479492 0.688771 0.955609 0.5955\n2 0.5 0.5 1 1\n",
        "train/deep/b": "",
        "val/c": "2 0.000001 0.1 0.000002 0.2\n",
    }.items():
        for what, data in (("images", JPEG), ("labels", lines.encode())):
            file = root / what / f"{path}.{'jpg' if what == 'images' else 'txt'}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    names = {0: "no", 1: "é: x", 2: "cat"}
    (root / "data.yaml").write_text(
        yaml.safe_dump({"train": "images/train", "val": "images/val", "names": names})
    )
    return root


def test_yolo_comes_back(yolo: Path, tmp_path: Path) -> None:
    check_yolo(yolo, yolo / "data.yaml", tmp_path, splits=["train", "val"])
    assert (tmp_path / "back/labels/train/deep/b.txt").read_bytes() == b""


# Examples of other programs.


def test_classes_keep_their_ids_in_coco_and_are_numbered_in_yolo(tmp_path: Path) -> None:
    box = (0.25, 0.5, 0.75, 1.0)
    folder = examples(
        tmp_path / "in",
        objects(box, ids=[90], class__text=[b"zebra"]),
        objects(box, box, ids=[7, 3], class__text=[b"ant", b"bee"]),
        objects(),
    )
    export_to(folder, tmp_path / "coco", "coco")
    export_to(folder, tmp_path / "yolo", "yolo")
    document = read_coco(tmp_path / "coco", "instances_train")
    assert {each["id"]: each["name"] for each in document["categories"]} == {
        **{3: "bee", 7: "ant", 90: "zebra"}
    }
    assert [each["category_id"] for each in document["annotations"]] == [90, 7, 3]
    # Areas of boxes, where Examples have none.
    assert [each["area"] for each in document["annotations"]] == [200.0] * 3
    assert [each["bbox"] for each in document["annotations"]] == [[10, 10, 20, 10]] * 3
    data = yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())
    assert data == {
        "train": "images/train",
        "nc": 3,
        "names": {0: "bee", 1: "ant", 2: "zebra"},
    }
    labels = read_tree(tmp_path / "yolo/labels/train")
    assert labels == {
        "1.txt": b"2 0.5 0.75 0.5 0.5\n",
        "2.txt": b"1 0.5 0.75 0.5 0.5\n0 0.5 0.75 0.5 0.5\n",
        "3.txt": b"",
    }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # A label map may declare classes that never occur, and lack one that does.
        ("item {id: 1 name: 'ant'}\nitem {id: 4 name: 'dog'}", {1: "ant", 4: "dog", 2: "2"}),
        ("", {1: "1", 2: "2"}),
    ],
)
def test_classes_without_names(names: str, expected: dict[int, str], tmp_path: Path) -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    folder = examples(tmp_path / "in", objects(box, box, ids=[2, 1]))
    if names:
        (folder / "label_map.pbtxt").write_text(names)
    export_to(folder, tmp_path / "coco", "coco")
    found = read_coco(tmp_path / "coco", "instances_train")["categories"]
    assert {each["id"]: each["name"] for each in found} == expected
    export_to(folder, tmp_path / "yolo", "yolo")
    data = yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())
    assert list(data["names"].values()) == list(expected.values())


def test_image_ids(tmp_path: Path) -> None:
    ids = [b"7", b"x", b"7", b"0", b"007", None, b"1"]
    folder = examples(tmp_path / "in", *({"image/source_id": each} if each else {} for each in ids))
    printed = export_to(folder, tmp_path / "out", "coco")
    found = [each["id"] for each in read_coco(tmp_path / "out", "instances_train")["images"]]
    assert found == [7, 1, 2, 0, 3, 4, 5]
    what = "image ids that are not integers or occur twice, renumbered"
    assert losses(printed)[what] == 4


def test_hostile_names_stay_in_the_folder(tmp_path: Path) -> None:
    keys = [
        "../x.jpg",
        "/etc/x.jpg",
        "a\\b.jpg",
        "x\0y.jpg",
        "a.jpg",
        "A.jpg",
        "é.jpg",
        "e\u0301.jpg",
    ]
    keys += ["a.jpg/b.jpg", "n" * 300 + ".jpg", "images/labels/x.jpg", "a.png", "..", "x\n.jpg"]
    # The label file of a.jpg is a.txt.
    keys += ["a.txt/b.jpg", "a.txt_/b.jpg", "A.TXT/c.jpg", "d/a.txt/b.jpg", "d/a.jpg"]
    box = objects((0.0, 0.0, 0.5, 1.0))
    folder = examples(tmp_path / "in", *({"image/filename": key.encode(), **box} for key in keys))
    before = read_tree(tmp_path)
    for layout in ("coco", "yolo"):
        output = tmp_path / layout
        printed = export_to(folder, output, layout)
        images = read_tree(output / "images" / "train")
        assert len({name.casefold() for name in images}) == len(keys)
        assert set(images.values()) == {JPEG}
        assert losses(printed)["changed names of images"] > 8
        again = init_and_build(output, tmp_path / f"{layout}-again")
        assert again.exit_code == 0, again.stderr
        assert len(again.examples()) == len(keys)
        assert all(len(each.boxes) == 1 for each in again.examples())
        shutil.rmtree(output)
        shutil.rmtree(again.output)
        again.output.with_suffix(".yaml").unlink()
    assert read_tree(tmp_path) == before


def test_names_that_windows_refuses_are_counted_and_kept(tmp_path: Path) -> None:
    keys = ["a:b.jpg", "aux/b.jpg", "a./b.jpg", "auxiliary.jpg", "a/nul.x.jpg", "a.b/c d.jpg"]
    box = objects((0.0, 0.0, 0.5, 1.0))
    features = [{"image/filename": key.encode(), **box} for key in keys]
    folder = examples(tmp_path / "in", *features, name="what?.tfrecord")
    for layout, split in (("coco", "what?"), ("yolo", "train")):
        counts = losses(export_to(folder, tmp_path / layout, layout))
        assert counts["names of images that Windows refuses"] == 4
        assert counts.get("names of splits that Windows refuses", 0) == (layout == "coco")
        assert read_tree(tmp_path / layout / "images" / split).keys() == {*keys}


def test_the_longest_name_of_a_split(tmp_path: Path) -> None:
    """Its JSON files have longer names than its folder."""
    name = f"{'n' * 246}.tfrecord"
    features = objects((0.0, 0.0, 0.5, 1.0), keypoint__x=[0.5], keypoint__y=[0.5])
    more = {"keypoint__visibility": [2], "keypoint__num": [1]}
    features |= {f"image/object/{key.replace('__', '/')}": value for key, value in more.items()}
    printed = export_to(examples(tmp_path / "in", features, name=name), tmp_path / "out", "coco")
    assert losses(printed)["changed names of splits"] == 1
    (folder,) = os.listdir(tmp_path / "out/images")
    assert sorted(os.listdir(tmp_path / "out/annotations")) == [
        f"{kind}_{folder}.json" for kind in ("instances", "person_keypoints")
    ]


def test_a_path_of_very_many_folders(small: Path, deep_folder: Path) -> None:
    output = deep_folder / Path("a/" * 1899)
    export_to(small, output, "coco")
    assert (output / "annotations").is_dir()
    # This one has more bytes than a path can have.
    assert refused(small, Path("b/" * 2100)).endswith(
        ": File name too long (ENAMETOOLONG); fix it and run the same command again\n"
    )
    assert sorted(os.listdir()) == ["a", "in"]


def test_objects_of_one_image_in_several_examples(tmp_path: Path) -> None:
    def one(key: str, x: float, number: int) -> Json:
        return {
            "image/filename": key.encode(),
            "annotation/bbox": [x, 2.0, 10.0, 5.0],
            "annotation/area": 12.5,
            "annotation/is_crowd": number % 2,
            "annotation/class/label": number,
            "annotation/image_id": 42,
            "depth": [0.5],
        }

    folder = examples(tmp_path / "in", one("a.jpg", 1.0, 1), one("a.jpg", 3.0, 2), one("b", 0.0, 2))
    printed = export_to(folder, tmp_path / "out", "coco")
    assert losses(printed)["depth (images)"] == 2
    document = read_coco(tmp_path / "out", "instances_train")
    assert [(each["file_name"], each["id"]) for each in document["images"]] == [
        *(("a.jpg", 42), ("b.jpg", 1))
    ]
    names = ("image_id", "bbox", "area", "iscrowd", "category_id")
    assert [[each[name] for name in names] for each in document["annotations"]] == [
        [42, [1.0, 2.0, 10.0, 5.0], 12.5, 1, 1],
        [42, [3.0, 2.0, 10.0, 5.0], 12.5, 0, 2],
        [1, [0.0, 2.0, 10.0, 5.0], 12.5, 0, 2],
    ]


def test_labels_of_images(tmp_path: Path) -> None:
    folder = examples(
        tmp_path / "in",
        {"image/class/label": [5], "image/class/text": [b"cat"]},
        {"image/class/label": [2, 5], "image/class/text": [b"dog", b"cat"]},
    )
    export_to(folder, tmp_path / "out", "coco")
    assert os.listdir(tmp_path / "out/annotations") == ["labels_train.json"]
    document = read_coco(tmp_path / "out", "labels_train")
    assert document["annotations"] == [
        {"id": 1, "image_id": 1, "category_id": 5},
        {"id": 2, "image_id": 2, "category_id": 2},
        {"id": 3, "image_id": 2, "category_id": 5},
    ]
    again = init_and_build(tmp_path / "out", tmp_path / "again")
    assert {each.key: each.image_labels for each in again.examples()} == {
        **{"1.jpg": [("cat", 5)], "2.jpg": [("dog", 2), ("cat", 5)]}
    }
    assert again.manifest["labels"] == {"cat": 5, "dog": 2}
    error = refused(folder, tmp_path / "yolo", layout="yolo")
    assert "has no objects, and YOLO describes nothing else" in error
    assert not (tmp_path / "yolo").exists()


def test_a_dataset_without_objects_is_refused_before_it_is_read(
    built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "shards"
    shutil.copytree(built.output, output)
    manifest = output / "manifest.json"
    manifest.write_text(manifest.read_text().replace("image/object/bbox/xmin", "xmin"))
    monkeypatch.setattr(export, "read_images", None)
    assert "has no objects" in refused(output, tmp_path / "yolo", layout="yolo")


def test_object_storage_is_read(small: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(small / "train.tfrecord"), "/export/train.tfrecord")
    result = run(
        *("export", "memory://export", "--format", "coco", "--output", str(tmp_path / "far"))
    )
    memory.rm("/export", recursive=True)
    assert result.exit_code == 0, result.stderr
    export_to(small, tmp_path / "near", "coco")
    far, near = (read_coco(tmp_path / name, "instances_train") for name in ("far", "near"))
    assert far["annotations"] == near["annotations"]
    assert read_tree(tmp_path / "far/images") == read_tree(tmp_path / "near/images")


def test_yolo_clips_boxes_and_leaves_out_crowds(tmp_path: Path) -> None:
    folder = examples(
        tmp_path / "in",
        {
            **objects(
                (-0.5, 0.0, 0.5, 1.5),
                (1.2, 0.0, 1.5, 1.0),
                (0.0, 0.0, 1.0, 1.0),
                (0.25, 0.25, 0.75, 0.75),
                is_crowd=[0, 0, 1, 0],
            ),
            "image/object/keypoint/x": [0.5, 0.0, 0.5, 0.5, 0.5, 0.5, 1.005, 1.5],
            "image/object/keypoint/y": [0.25] * 8,
            "image/object/keypoint/visibility": [2, 0, 2, 2, 2, 2, 1, 2],
        },
    )
    printed = export_to(folder, tmp_path / "out", "yolo")
    assert (tmp_path / "out/labels/train/1.txt").read_text().splitlines() == [
        "0 0.25 0.5 0.5 1 0.5 0.25 2 0 0 0",
        "0 0.5 0.5 0.5 0.5 1.005 0.25 1 0 0 0",
    ]
    assert losses(printed) == {
        "crowds, left out": 1,
        "boxes that reach beyond the image, clipped": 1,
        "boxes without area in the image, left out": 1,
        "keypoints outside of the image, not labelled": 1,
    }


def test_all_objects_have_the_keypoints_that_kpt_shape_promises(tmp_path: Path) -> None:
    def points(*xs: float) -> Json:
        return {"keypoint__x": list(xs), "keypoint__y": [0.25] * len(xs)}

    box = (0.0, 0.0, 1.0, 1.0)
    folder = examples(
        tmp_path / "in",
        objects(box, box),
        objects(box, **points(0.5)),
        objects(),
        objects(box, **points(0.5, 0.75)),
    )
    # With declared classes, no Example is read before the first one is written.
    (folder / "label_map.pbtxt").write_text("item {id: 1 name: 'ant'}")
    export_to(folder, tmp_path / "out", "yolo")
    data = yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert (data["kpt_shape"], data["kpt_names"]) == ([2, 3], {0: ["0", "1"]})
    start = "0 0.5 0.5 1 1"
    assert read_tree(tmp_path / "out/labels/train") == {
        "1.txt": f"{start} 0 0 0 0 0 0\n".encode() * 2,
        "2.txt": f"{start} 0.5 0.25 2 0 0 0\n".encode(),
        "3.txt": b"",
        "4.txt": f"{start} 0.5 0.25 2 0.75 0.25 2\n".encode(),
    }


def test_many_keys_are_counted_together(tmp_path: Path) -> None:
    keys = {f"key_{number}": 1 for number in range(250)}
    features: list[Json] = [keys, keys, {"another": 1}]
    found = losses(export_to(examples(tmp_path / "in", *features), tmp_path / "out", "coco"))
    named = {what: count for what, count in found.items() if what.startswith("key_")}
    assert len(named) == 200
    assert set(named.values()) == {2}
    assert found["other keys (images)"] == 3


def test_other_keys_are_named(tmp_path: Path) -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    folder = examples(
        tmp_path / "in",
        {
            **objects(box, difficult=[1]),
            "depth": [1.0, 2.0],
            "image/object/area": [3.0],
            # Markup and control characters are printed as texts.
            "[/red]\x1b": [1],
        },
        objects(box, difficult=[0]),
    )
    assert (
        losses(export_to(folder, tmp_path / "coco", "coco")).items()
        >= {
            "image/object/difficult (images)": 2,
            "depth (images)": 1,
            r"[/red]\x1b (images)": 1,
        }.items()
    )
    found = losses(export_to(folder, tmp_path / "yolo", "yolo"))
    assert found["image/object/area (images)"] == 1


def test_bare_pixels_and_turned_images(tmp_path: Path) -> None:
    turned = Image.fromarray(np.zeros((20, 40, 3), np.uint8))
    turned.getexif()[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=turned.getexif())
    pixels = bytes(range(256)) * 12
    folder = examples(
        tmp_path / "in",
        {"image/encoded": (tmp_path / "turned.jpg").read_bytes(), "image/filename": b"t.jpg"},
        {"image/encoded": pixels, "image/filename": b"p"},
        {"image/encoded": draw_image("WEBP", width=9, height=8), "image/filename": b"w.jpg"}
        | {"image/height": 8, "image/width": 9},
    )
    printed = export_to(folder, tmp_path / "out", "coco")
    found = losses(printed)
    assert found["images of bare pixels, written as PNG"] == 1
    assert sum(count for what, count in found.items() if "EXIF" in what) == 1
    document = read_coco(tmp_path / "out", "instances_train")
    assert [(each["file_name"], each["width"], each["height"]) for each in document["images"]] == [
        *(("t.jpg", 40, 20), ("p.png", 32, 32), ("w.webp", 9, 8))
    ]
    with Image.open(tmp_path / "out/images/train/p.png") as image:
        assert image.convert("RGB").tobytes()[::3] == pixels[:1024]


def turned_image(orientation: int) -> bytes:
    """A JPEG image of 40 x 20 stored pixels with an EXIF orientation."""
    image = Image.new("RGB", (40, 20))
    exif = image.getexif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    return file.getvalue()


def mask_of(width: int, height: int) -> bytes:
    """A mask whose left half is 1."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[:, : width // 2] = 1
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


TURNED = "images that viewers turn (EXIF); annotations are of the upright image"
OTHER_SIZE = "images of another size than their Example says; annotations are scaled"
OTHER_MASKS = "masks of another size than the image, left out"


@pytest.mark.parametrize(
    ("orientation", "stated", "size", "counted"),
    [
        (1, (40, 20), (40, 20), set()),
        # A quarter turn, and fractions of the upright image.
        (6, (20, 40), (20, 40), {TURNED}),
        (5, (20, 40), (20, 40), {TURNED}),
        # Nothing turns these images, so the stated size is wrong.
        (1, (20, 40), (40, 20), {OTHER_SIZE}),
        (3, (20, 40), (40, 20), {OTHER_SIZE}),
        (6, (30, 30), (40, 20), {OTHER_SIZE}),
    ],
)
def test_boxes_and_masks_fit_the_size_of_the_image(
    orientation: int,
    stated: tuple[int, int],
    size: tuple[int, int],
    counted: set[str],
    tmp_path: Path,
) -> None:
    image = {
        "image/encoded": turned_image(orientation),
        **{"image/width": stated[0], "image/height": stated[1]},
    }
    # A mask of the size that the Example states, and one of the stored image's.
    masks = [mask_of(*stated), mask_of(40, 20)]
    box = (0.0, 0.25, 0.5, 0.75)
    points = {"x": [0.25] * 2, "y": [0.5] * 2, "visibility": [2] * 2}
    more: Json = {f"keypoint__{key}": values for key, values in points.items()}
    area = stated[0] * stated[1] / 4
    folder = examples(
        tmp_path / "in",
        {**image, **objects(box, box, mask=masks, area=[area] * 2, **more)},
        # Pixels, as `example_per: annotation` has them.
        {
            **image,
            "annotation/bbox": [0.0, stated[1] / 4, stated[0] / 2, stated[1] / 2],
            "annotation/class/label": 1,
        },
    )
    printed = losses(export_to(folder, tmp_path / "out", "coco"))
    width, height = size
    document = read_coco(tmp_path / "out", "instances_train")
    assert {(each["width"], each["height"]) for each in document["images"]} == {size}
    for each in document["annotations"]:
        assert each["bbox"] == [0, height / 4, width / 2, height / 2]
        assert each["area"] == width * height / 4
    first, second, _ = document["annotations"]
    posed = read_coco(tmp_path / "out", "person_keypoints_train")["annotations"]
    assert [each["keypoints"] for each in posed] == [[width / 4, height / 2, 2]] * 2
    found = [each.get("segmentation") for each in (first, second)]
    fitting = [mask for mask in (stated, (40, 20)) if mask == size]
    assert [each["size"] for each in found if each] == [[height, width]] * len(fitting)
    for each in filter(None, found):
        assert coco_mask.decode(each).sum() == width * height / 2
    assert printed.get(OTHER_MASKS, 0) == 2 - len(fitting)
    assert {
        name: printed[name] for name in (TURNED, OTHER_SIZE) if name in printed
    } == dict.fromkeys(counted, 2)


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        ({"image/encoded": b""}, "the image (image/encoded) is missing"),
        ({"image/encoded": b"text"}, "the image (image/encoded) is not an image file"),
        (
            {"image/encoded": draw_image("WEBP", width=9, height=8)},
            "the size of the image is not known",
        ),
        ({"image/object/class/label": [1, 1]}, "image/object/class/label has 2 values for 1"),
        ({"image/object/class/label": [-1]}, "neither a name nor an id"),
        ({"image/object/mask": [draw_image("PNG", width=3, height=3)]}, "mask is 3x3, the image"),
    ],
)
def test_examples_that_cannot_be_exported(features: Json, problem: str, tmp_path: Path) -> None:
    box = objects((0.0, 0.0, 1.0, 1.0))
    folder = examples(tmp_path / "in", box, {**box, **features})
    error = refused(folder, tmp_path / "out")
    assert problem in error
    assert "train, Example 2 (train.tfrecord): " in error
    assert not (tmp_path / "out").exists()


# Splits


def test_names_of_splits(tmp_path: Path) -> None:
    box = objects((0.0, 0.0, 1.0, 1.0))
    names = ["coco_train.record", "validation.tfrecord", "extra.tfrecord"]
    for name in names:
        examples(tmp_path / "in", box, name=name)
    export_to(tmp_path / "in", tmp_path / "coco", "coco")
    assert sorted(os.listdir(tmp_path / "coco/annotations")) == [
        f"instances_{split}.json" for split in ("coco_train", "extra", "validation")
    ]
    export_to(tmp_path / "in", tmp_path / "yolo", "yolo")
    data = yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())
    assert {key: data[key] for key in data if key not in ("nc", "names")} == {
        split: f"images/{split}" for split in ("coco_train", "extra", "val")
    }
    export_to(tmp_path / "in", tmp_path / "one", "yolo", "--split", "extra")
    assert os.listdir(tmp_path / "one/images") == ["train"]
    assert "no split 'exta'; did you mean" in refused(
        tmp_path / "in", tmp_path / "x", "--split", "exta"
    )


def test_splits_with_colliding_names_have_folders_of_their_own(tmp_path: Path) -> None:
    box = objects((0.0, 0.0, 1.0, 1.0))
    splits = ["names", "NC", "path", "images", "train", "Train", "a\\b", "a_b", "A_b", "x"]
    for split in splits:
        examples(tmp_path / "in", box, name=f"{split}.tfrecord")
    for layout, unchanged in (("coco", 7), ("yolo", 3)):
        output = tmp_path / layout
        printed = export_to(tmp_path / "in", output, layout)
        folders = os.listdir(output / "images")
        assert len({folder.casefold() for folder in folders}) == len(splits)
        assert len(set(folders) & set(splits)) == unchanged
        assert losses(printed)["changed names of splits"] == len(splits) - unchanged
    assert len(os.listdir(tmp_path / "coco/annotations")) == len(splits)
    data = yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())
    assert (data["nc"], data["names"]) == (1, {0: "1"})
    assert sorted(data) == sorted([*os.listdir(tmp_path / "yolo/images"), "nc", "names"])
    assert {"names", "nc", "path", "images"}.isdisjoint(map(str.casefold, folders))


# Safety


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return examples(tmp_path / "in", objects((0.0, 0.0, 1.0, 1.0)))


def test_only_an_export_is_replaced_and_only_if_asked(small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    export_to(small, output, "coco")
    before = read_tree(output)
    assert "with --overwrite" in refused(small, output)
    (output / "images/train/mine.jpg").write_bytes(b"")
    export_to(small, output, "yolo", "--overwrite")
    assert {path.partition("/")[0] for path in read_tree(output)} == {
        "data.yaml",
        "images",
        "labels",
    }
    export_to(small, output, "coco", "--overwrite")
    assert read_tree(output) == before
    assert os.listdir(output) != []

    (output / "notes.txt").write_text("mine")
    assert "holds other files than a finished export" in refused(small, output, "--overwrite")
    (output / "notes.txt").unlink()
    (output / "annotations/instances_train.json").write_text("{}")
    assert "holds other files than a finished export" in refused(small, output, "--overwrite")


def test_places_that_are_refused(small: Path, tmp_path: Path, built: Build) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(small, tmp_path / "file")
    assert "lies in a dataset" in refused(small, built.output / "export")
    assert "holds other files" in refused(small, small)
    for output, problem in (("", "expected a path, got ''"), ("gs://b/x", "a folder on disk")):
        result = run("export", str(small), "--format", "coco", "--output", output)
        assert (result.exit_code, problem in result.stderr) == (2, True)
    result = run("export", str(small))
    assert result.stderr == "shardbeam: error: export: missing --format, --output\n"
    result = run("export", str(small), "--format", "voc", "--output", "x")
    assert "--format: expected" in result.stderr


def test_a_link_in_an_earlier_export_is_not_followed(small: Path, tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    export_to(small, output, "coco")
    os.rename(output / "images", elsewhere)
    (output / "images").symlink_to(elsewhere)
    before = read_tree(elsewhere)
    export_to(small, output, "coco", "--overwrite")
    assert read_tree(elsewhere) == before
    assert not (output / "images").is_symlink()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_what_was_there(
    overwrite: bool, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "deep" / "out"
    if overwrite:
        export_to(small, output, "coco")
    before = read_tree(tmp_path)

    def fill(layout: coco.CocoLayout, path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(coco.CocoLayout, "write", fill)
    error = refused(small, output, *(["--overwrite"] if overwrite else []))
    assert (
        f"{output}: No space left on device (ENOSPC); fix it and run the same command again"
        in error
    )
    assert read_tree(tmp_path) == before
    assert output.exists() == overwrite


@pytest.mark.parametrize("failing", range(5))
def test_an_export_that_cannot_be_replaced_stays(
    failing: int, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    export_to(small, output, "coco")
    before = read_tree(output)
    rename, renamed = os.rename, []

    def fail(source: str, target: str) -> None:
        renamed.append(target)
        if len(renamed) == failing + 1:
            raise OSError(5, "Input/output error")
        rename(source, target)

    # Two folders are moved away, then two folders and a file are moved up.
    monkeypatch.setattr(os, "rename", fail)
    assert "Input/output error" in refused(small, output, "--overwrite", layout="yolo")
    assert len(renamed) > failing
    assert read_tree(output) == before
    assert sorted(os.listdir(output)) == ["annotations", "images"]


# Sends itself a signal while an export is replaced: the earlier one is away, and the new one has
# some of its folders.
SIGNALLED = """
import os, signal, sys, time

number = int(sys.argv.pop(1))

def send(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("/out/labels"):
        os.kill(os.getpid(), number)
        # Time to end the process, for a thread that does not wait.
        time.sleep(0.5)

sys.addaudithook(send)
from shardbeam.__main__ import console
sys.exit(console())
"""


def replace_with_signal(number: int, folder: Path, output: Path) -> Run:
    words = ("export", str(folder), "--format", "yolo", "--output", str(output), "--overwrite")
    command = (sys.executable, "-c", SIGNALLED, str(number))
    return finish(start(*words, cwd=output.parent, command=command))


@pytest.mark.timing
def test_a_signal_waits_until_an_export_is_replaced(small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    export_to(small, output, "coco")
    result = replace_with_signal(signal.SIGTERM, small, output)
    words = f"shardbeam: error: interrupted; the export is complete: {output}\n"
    assert (result.exit_code, result.stderr) == (130, words)
    export_to(small, tmp_path / "expected", "yolo")
    assert read_tree(output) == read_tree(tmp_path / "expected")
    assert sorted(os.listdir(output)) == ["data.yaml", "images", "labels"]


def test_a_kill_while_an_export_is_replaced_keeps_it(small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    export_to(small, output, "coco")
    before = read_tree(output)
    result = replace_with_signal(signal.SIGKILL, small, output)
    assert result.exit_code == -signal.SIGKILL
    assert read_tree(output / ".earlier-export") == before
    for more in ([], ["--overwrite"]):
        assert "or was replacing when it was killed" in refused(small, output, *more)
    # As the error says.
    for name in os.listdir(output / ".earlier-export"):
        shutil.rmtree(output / name, ignore_errors=True)
        os.rename(output / ".earlier-export" / name, output / name)
    os.rmdir(output / ".earlier-export")
    assert "with --overwrite" in refused(small, output)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough images for an export that takes a second."""
    folder = tmp_path_factory.mktemp("many") / "in"
    return examples(folder, *[objects((0.0, 0.0, 1.0, 1.0))] * 6_000)


def begin_export(folder: Path, output: Path, *, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Starts an export, and waits until it has written an image."""
    words = ("export", folder, "--format", "yolo", "--output", output)
    process = start(*map(str, words), cwd=cwd or output.parent)
    wait_for(lambda: any(output.glob(".shardbeam-*/export/images/train/1.jpg")), process)
    return process


def test_a_killed_export_leaves_nothing_that_looks_finished(
    many: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    process = begin_export(many, output)
    process.kill()
    finish(process)
    assert [name.startswith(".shardbeam-") for name in os.listdir(output)] == [True]
    # The next export removes what is left. Folders of running commands are young, and locked.
    monkeypatch.setattr(temporary, "_YOUNG_S", 0)
    export_to(small, output, "yolo")
    assert sorted(os.listdir(output)) == ["data.yaml", "images", "labels"]


def test_an_interrupted_export_leaves_nothing(many: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    process = begin_export(many, output, cwd=tmp_path)
    process.terminate()
    result = finish(process)
    words = "shardbeam: error: interrupted; nothing was written\n"
    assert (result.exit_code, result.stderr) == (130, words)
    assert list(tmp_path.rglob("*")) == []


def test_an_export_that_fails_leaves_no_empty_folder(small: Path, tmp_path: Path) -> None:
    assert "no split 'x'" in refused(small, tmp_path / "a/b", "--split", "x")
    shard = next(small.iterdir())
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "cut off" in refused(small, tmp_path / "a/b")
    assert os.listdir(tmp_path) == [small.name]


def test_two_exports_into_one_folder(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    other = examples(tmp_path / "other", objects((0.0, 0.0, 0.5, 0.5)))

    def export_another(folder: str) -> None:
        monkeypatch.undo()
        assert os.path.isdir(folder)
        export_to(other, output, "yolo")

    monkeypatch.setattr(export, "_sync", export_another)
    error = refused(small, output, layout="yolo")
    assert "images: Directory not empty (ENOTEMPTY); fix it" in error
    assert sorted(os.listdir(output)) == ["data.yaml", "images", "labels"]
    assert (output / "labels/train/1.txt").read_text() == "0 0.25 0.25 0.5 0.5\n"


# Every format


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_every_format_comes_back(
    sample: FormatSample, tmp_path: Path, find_shared_data: SharedData
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    before = build(*sample.command(data), output=tmp_path / "shards")
    assert before.exit_code == 0, before.stderr
    keys = {spec["key"] for spec in before.manifest["features"]}
    if "image/encoded" not in keys:
        assert "the image (image/encoded) is missing" in refused(before.output, tmp_path / "out")
        return
    splits = [split for split in before.manifest["splits"] if split]
    has_boxes = "image/object/bbox/xmin" in keys
    for layout in ("coco", "yolo"):
        output = tmp_path / layout
        if layout == "yolo" and not has_boxes:
            assert "has no objects" in refused(before.output, output, layout=layout)
            continue
        export_to(before.output, output, layout)
        old = [each for split in splits for each in before.examples(split)]
        files = [path for path in (output / "images").rglob("*") if path.is_file()]
        stored = [each.encoded for each in old if each.features["image/format"] != [b"raw"]]
        assert Counter(path.read_bytes() for path in files) >= Counter(stored)
        assert len(files) == len(old)
        if not any(each.features.get("image/object/class/text") for each in old):
            continue
        again = init_and_build(output, tmp_path / f"{layout}-again")
        assert again.exit_code == 0, again.stderr
        new = [each for split in again.manifest["splits"] for each in again.examples(split)]
        counts = [
            Counter(
                (each.encoded, name)
                for each in found
                for name in each.features.get("image/object/class/text", ())
            )
            for found in (old, new)
        ]
        # In YOLO there are no crowds, and a line that occurs twice is one object.
        assert counts[0] == counts[1] if layout == "coco" else counts[0] >= counts[1]
