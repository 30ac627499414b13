"""`shardbeam export`: what comes back from a dataset, and what is counted as lost or changed."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from PIL import Image
from pycocotools import mask as coco_mask

from shardbeam.pipelines import own_folders
from shardbeam.pipelines.commands import export
from shardbeam.readers.export import coco
from shardbeam.readers.open.stored_dataset import StoredDataset, open_dataset
from tests.support.builds import Build, Json, build
from tests.support.dataset import TIMEOUT_S, Run, Tree, finish, read_tree, run, start
from tests.support.format_samples import SAMPLES, FormatSample, SharedData
from tests.support.screens import check_screen
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
    return run("export", str(path), "--format", layout, "--output", str(output), *more).error


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
    run("init", str(folder), "--output", str(config), exit_code=0)
    return build(config, *more, output=output)


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
    return build(
        *("coco", "--images", shapes / "images", "--fractions", "train=0.7,holdout=0.3"),
        *("--annotations", annotations / "person_keypoints.json"),
        *("--annotations", annotations / "captions.json"),
        *("--set", "masks=png", "--set", "output.num_shards=2", "--name", "shapes"),
        output=tmp_path_factory.mktemp("built") / "out",
    )


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
    assert error.endswith("--task: not with --format coco")
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
    before = build("yolo", "--data", yolo / "data.yaml", output=tmp_path / "shards")
    back = tmp_path / "back"
    export_to(before.output, back, "yolo")
    assert read_tree(back / "images") == read_tree(yolo / "images")
    old, new = (read_tree(folder / "labels") for folder in (yolo, back))
    assert new.keys() == old.keys()
    for name, data in new.items():
        numbers = [[*map(float, each.split())] for each in (data, old[name])]
        assert numbers[0] == pytest.approx(numbers[1], abs=1.1e-6)
    names = [yaml.safe_load((each / "data.yaml").read_text())["names"] for each in (yolo, back)]
    assert names[0] == names[1]


# Examples of other programs.


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


class Scene(NamedTuple):
    """Examples that are exported.

    Attributes:
        examples: Their features; an image is added, unless it is given.
        files: The files that hold them, each of them all.
        label_map: A label map beside these.
    """

    examples: Sequence[Json]
    files: Sequence[str] = ("train.tfrecord",)
    label_map: str = ""


BOX = (0.25, 0.5, 0.75, 1.0)
WHOLE = (0.0, 0.0, 1.0, 1.0)


def keypoints(*triples: tuple[float, float, int]) -> Json:
    """The keypoints of objects, as `objects` takes them."""
    names = ("x", "y", "visibility")
    columns = zip(names, zip(*triples, strict=True), strict=True)
    return {f"keypoint__{name}": list(column) for name, column in columns}


def of_size(orientation: int, stated: tuple[int, int]) -> Scene:
    """An image of 40 x 20 stored pixels, and what its Examples say of its size."""
    width, height = stated
    image = {
        "image/encoded": turned_image(orientation),
        **{"image/width": width, "image/height": height},
    }
    # A mask of the size that the Example states, and one of the stored image's.
    masks = [mask_of(*stated), mask_of(40, 20)]
    more = {"area": [width * height / 4] * 2, **keypoints(*[(0.25, 0.5, 2)] * 2)}
    box = (0.0, 0.25, 0.5, 0.75)
    # Pixels, as `example_per: annotation` has them.
    pixels = [0.0, height / 4, width / 2, height / 2]
    one = {"annotation/bbox": pixels, "annotation/class/label": 1}
    return Scene([{**image, **objects(box, box, mask=masks, **more)}, {**image, **one}])


def object_of_image(key: str, x: float, number: int) -> Json:
    return {
        "image/filename": key.encode(),
        "annotation/bbox": [x, 2.0, 10.0, 5.0],
        "annotation/area": 12.5,
        "annotation/is_crowd": number % 2,
        "annotation/class/label": number,
        "annotation/image_id": 42,
        "depth": [0.5],
    }


WEBP = draw_image("WEBP", width=9, height=8)
# {what cannot be exported: features of an Example}
REFUSED: dict[str, Json] = {
    "no image": {"image/encoded": b""},
    "no image file": {"image/encoded": b"text"},
    "an unknown size": {"image/encoded": WEBP},
    "more ids than boxes": {"image/object/class/label": [1, 1]},
    "neither a name nor an id": {"image/object/class/label": [-1]},
    "a mask of another size": {"image/object/mask": [draw_image("PNG", width=3, height=3)]},
}
SCENES: dict[str, Scene] = {
    "ids of classes, and areas of boxes where Examples have none": Scene(
        [
            objects(BOX, ids=[90], class__text=[b"zebra"]),
            objects(BOX, BOX, ids=[7, 3], class__text=[b"ant", b"bee"]),
            objects(),
        ]
    ),
    "a label map that declares classes that never occur, and lacks one that does": Scene(
        [objects(WHOLE, WHOLE, ids=[2, 1])],
        label_map="item {id: 1 name: 'ant'}\nitem {id: 4 name: 'dog'}",
    ),
    "classes without names": Scene([objects(WHOLE, WHOLE, ids=[2, 1])]),
    "ids of images that are no numbers, or occur twice": Scene(
        [
            {**objects(WHOLE), **({"image/source_id": each} if each else {})}
            for each in (b"7", b"x", b"7", b"0", b"007", None, b"1")
        ]
    ),
    "names that Windows refuses": Scene(
        [
            {"image/filename": key.encode(), **objects(BOX)}
            for key in (
                *("a:b.jpg", "aux/b.jpg", "a./b.jpg"),
                *("auxiliary.jpg", "a/nul.x.jpg", "a.b/c d.jpg"),
            )
        ],
        ["what?.tfrecord"],
    ),
    # Its JSON files have longer names than its folder.
    "the longest name of a split": Scene(
        [objects(BOX, **keypoints((0.5, 0.5, 2)), keypoint__num=[1])], [f"{'n' * 246}.tfrecord"]
    ),
    "names of splits": Scene(
        [objects(WHOLE)], ["coco_train.record", "validation.tfrecord", "extra.tfrecord"]
    ),
    "splits whose names collide": Scene(
        [objects(WHOLE)],
        [
            f"{split}.tfrecord"
            for split in (
                *("names", "NC", "path", "images", "train"),
                *("Train", "a\\b", "a_b", "A_b", "x"),
            )
        ],
    ),
    "an Example an object": Scene(
        [object_of_image(*each) for each in (("a.jpg", 1.0, 1), ("a.jpg", 3.0, 2), ("b", 0.0, 2))]
    ),
    "boxes and keypoints beyond the image, and a crowd": Scene(
        [
            objects(
                *((-0.5, 0.0, 0.5, 1.5), (1.2, 0.0, 1.5, 1.0), WHOLE, (0.25, 0.25, 0.75, 0.75)),
                is_crowd=[0, 0, 1, 0],
                **keypoints(
                    *((0.5, 0.25, 2), (0.0, 0.25, 0), (0.5, 0.25, 2), (0.5, 0.25, 2)),
                    *((0.5, 0.25, 2), (0.5, 0.25, 2), (1.005, 0.25, 1), (1.5, 0.25, 2)),
                ),
            )
        ]
    ),
    # With declared classes, no Example is read before the first one is written.
    "as many keypoints in each object": Scene(
        [
            objects(WHOLE, WHOLE),
            objects(WHOLE, **keypoints((0.5, 0.25, 2))),
            objects(),
            objects(WHOLE, **keypoints((0.5, 0.25, 2), (0.75, 0.25, 2))),
        ],
        label_map="item {id: 1 name: 'ant'}",
    ),
    # Markup and control characters are printed as texts.
    "other keys": Scene(
        [
            {**objects(WHOLE, difficult=[1], area=[3.0]), "depth": [1.0, 2.0], "[/red]\x1b": [1]},
            objects(WHOLE, difficult=[0]),
        ]
    ),
    "bare pixels, a turned image, and one whose size only the Example says": Scene(
        [
            {"image/encoded": turned_image(6), "image/filename": b"t.jpg", **objects()},
            {"image/encoded": bytes(range(256)) * 12, "image/filename": b"p"},
            {"image/encoded": WEBP, "image/filename": b"w.jpg"}
            | {"image/height": 8, "image/width": 9},
        ]
    ),
    "the size of the image": of_size(1, (40, 20)),
    "a quarter turn, and fractions of the upright image": of_size(6, (20, 40)),
    "a quarter turn and a flip": of_size(5, (20, 40)),
    "nothing turns the image, so its stated size is wrong": of_size(1, (20, 40)),
    "half a turn, and a stated size that is wrong": of_size(3, (20, 40)),
    "a quarter turn, and a stated size that is wrong": of_size(6, (30, 30)),
    **{
        f"refused: {name}": Scene([objects(WHOLE), {**objects(WHOLE), **features}])
        for name, features in REFUSED.items()
    },
}


def show_export(output: Path) -> Iterator[str]:
    """Shows the files of an export: texts as they are, the sizes of images and masks."""
    for path, data in read_tree(output).items():
        yield path
        if path.endswith(".json"):
            document = json.loads(data)
            for section in ("images", "annotations", "categories"):
                for each in document[section]:
                    if "segmentation" in each:
                        pixels = int(coco_mask.decode(each["segmentation"]).sum())
                        each["segmentation"] = [*each["segmentation"]["size"], f"{pixels} px"]
                    yield f"    {json.dumps(each)}"
        elif path.endswith((".txt", ".yaml")):
            yield from (f"    {line}" for line in data.decode().splitlines())
        else:
            with Image.open(io.BytesIO(data)) as image:
                yield f"    {image.format} {image.size}"


def test_what_is_exported(tmp_path: Path) -> None:
    shown = []
    for number, (title, scene) in enumerate(SCENES.items()):
        shown.append(f"--- {title}")
        folder = tmp_path / str(number) / "in"
        folder.parent.mkdir()
        for name in scene.files:
            examples(folder, *scene.examples, name=name)
        if scene.label_map:
            (folder / "label_map.pbtxt").write_text(scene.label_map)
        for layout in ("coco", "yolo"):
            output = folder.parent / layout
            words = ("--format", layout, "--output", str(output))
            result = run("export", str(folder), *words)
            shown += [f"{layout}:", *show_export(output)]
            if result.exit_code:
                assert not output.exists()
                shown.append(result.stderr.replace(f"{folder.parent}/", ""))
            shown += [f"{count} {what}" for what, count in sorted(losses(result.stdout).items())]
    check_screen("exports", "\n".join(shown))


def test_bare_pixels(tmp_path: Path) -> None:
    pixels = bytes(range(256)) * 12
    export_to(examples(tmp_path / "in", {"image/encoded": pixels}), tmp_path / "out", "coco")
    with Image.open(tmp_path / "out/images/train/1.png") as image:
        assert image.convert("RGB").tobytes()[::3] == pixels[:1024]


def test_one_split(tmp_path: Path) -> None:
    for name in ("train.tfrecord", "extra.tfrecord"):
        examples(tmp_path / "in", objects(WHOLE), name=name)
    export_to(tmp_path / "in", tmp_path / "one", "yolo", "--split", "extra")
    assert os.listdir(tmp_path / "one/images") == ["train"]
    assert "no split 'exta'; did you mean" in refused(
        tmp_path / "in", tmp_path / "x", "--split", "exta"
    )


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
        if layout == "coco":
            listed = read_coco(output, "instances_train")["images"]
            assert {each["file_name"] for each in listed} == {*images}
            shutil.rmtree(output)
    # A label file is found by the name of its image.
    again = init_and_build(output, tmp_path / "again")
    assert len(again.examples()) == len(keys)
    assert all(len(each.boxes) == 1 for each in again.examples())
    shutil.rmtree(output)
    shutil.rmtree(again.output)
    again.output.with_suffix(".yaml").unlink()
    assert read_tree(tmp_path) == before


def test_a_path_of_very_many_folders(small: Path, deep_folder: Path) -> None:
    output = deep_folder / Path("a/" * 1899)
    export_to(small, output, "coco")
    assert (output / "annotations").is_dir()
    # This one has more bytes than a path can have.
    assert refused(small, Path("b/" * 2100)).endswith(
        ": File name too long (ENAMETOOLONG); fix it and run the same command again"
    )
    assert sorted(os.listdir()) == ["a", "in"]


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


def test_many_keys_are_counted_together(tmp_path: Path) -> None:
    keys = {f"key_{number}": 1 for number in range(250)}
    features: list[Json] = [keys, keys, {"another": 1}]
    found = losses(export_to(examples(tmp_path / "in", *features), tmp_path / "out", "coco"))
    named = {what: count for what, count in found.items() if what.startswith("key_")}
    assert len(named) == 200
    assert set(named.values()) == {2}
    assert found["other keys (images)"] == 3


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


# Sends itself a signal when it opens a file or renames one to a path, and waits meanwhile.
SIGNALLED = """
import os, signal, sys, time

number, path, wait_s = int(sys.argv.pop(1)), sys.argv.pop(1), float(sys.argv.pop(1))
places = {"open": 0, "os.rename": 1}

def send(event, arguments):
    if event in places and str(arguments[places[event]]).endswith(path):
        os.kill(os.getpid(), number)
        time.sleep(wait_s)

sys.addaudithook(send)
from shardbeam.__main__ import console
sys.exit(console())
"""


def export_with_signal(
    number: int, *more: str, at: str, wait_s: float, folder: Path, output: Path, cwd: Path
) -> Run:
    words = ("export", str(folder), "--format", "yolo", "--output", str(output), *more)
    command = (sys.executable, "-c", SIGNALLED, str(number), at, str(wait_s))
    return finish(start(*words, cwd=cwd, command=command))


def replace_with_signal(number: int, folder: Path, output: Path) -> Run:
    """Sends a signal when the earlier export is away, and the new one has some of its folders."""
    # The wait is time to end the process, for a thread that does not wait.
    return export_with_signal(
        *(number, "--overwrite"),
        at="/out/labels",
        wait_s=0.5,
        folder=folder,
        output=output,
        cwd=output.parent,
    )


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


def export_half(number: int, folder: Path, output: Path) -> Run:
    """Sends a signal when the first of two images has been written."""
    source = examples(folder / "two", *[objects((0.0, 0.0, 1.0, 1.0))] * 2)
    return export_with_signal(
        number,
        at="/export/images/train/2.jpg",
        wait_s=TIMEOUT_S,
        folder=source,
        output=output,
        cwd=folder,
    )


def test_a_killed_export_leaves_nothing_that_looks_finished(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    assert export_half(signal.SIGKILL, tmp_path, output).exit_code == -signal.SIGKILL
    assert len(list(output.glob(".shardbeam-*/export/images/train/1.jpg"))) == 1
    assert [name.startswith(".shardbeam-") for name in os.listdir(output)] == [True]
    # The next export removes what is left. Folders of running commands are young, and locked.
    monkeypatch.setattr(own_folders, "_YOUNG_S", 0)
    export_to(small, output, "yolo")
    assert sorted(os.listdir(output)) == ["data.yaml", "images", "labels"]


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    result = export_half(signal.SIGTERM, tmp_path, tmp_path / "new" / "out")
    words = "shardbeam: error: interrupted; nothing was written\n"
    assert (result.exit_code, result.stderr) == (130, words)
    assert os.listdir(tmp_path) == ["two"]


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
        # Neither waits for the other, and what one has written is never mixed with the other's.
        for layout in ("yolo", "coco"):
            for more in ((), ("--overwrite",)):
                result = run(*words(small, layout), *more, exit_code=4)
                assert f"{output}: another run on this machine is writing there" in result.stderr

    def words(folder: Path, layout: str) -> tuple[str, ...]:
        return "export", str(folder), "--format", layout, "--output", str(output)

    monkeypatch.setattr(export, "_sync", export_another)
    export_to(other, output, "yolo")
    assert sorted(os.listdir(output)) == ["data.yaml", "images", "labels"]
    assert (output / "labels/train/1.txt").read_text() == "0 0.25 0.25 0.5 0.5\n"


def test_an_export_that_ended_meanwhile_is_not_replaced(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"

    def export_before(dataset: str) -> StoredDataset:
        monkeypatch.undo()
        export_to(small, output, "coco")
        return open_dataset(dataset)

    monkeypatch.setattr(export, "open_dataset", export_before)
    assert "holds an export; name another folder" in refused(small, output, layout="yolo")
    assert sorted(os.listdir(output)) == ["annotations", "images"]


# Every format


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_every_format_comes_back(
    sample: FormatSample, tmp_path: Path, find_shared_data: SharedData
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    before = build(*sample.command(data), output=tmp_path / "shards")
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
