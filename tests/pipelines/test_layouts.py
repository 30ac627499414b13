"""Datasets as people lay them out are written as they are meant, and the summary says what is not.

Each is modelled on a public dataset, or on a mistake that once made a wrong dataset silently.
`SHARDBEAM_DATA` names the folder of the real samples.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.support.archive_files import write_files
from tests.support.builds import Build
from tests.support.dataset import run

# {split: {key of an image: class names of its objects, then of the image}}
Written = Mapping[str, Mapping[str, Sequence[str]]]

_DUMMY = "dali/coco_dummy"
_FACES = "facemask/coco"
_LABELME = "labelme/bbox_detection/data_annotated"
_VOC = "labelme/bbox_detection/data_dataset_voc"


class Expected(NamedTuple):
    """The expected result of building a layout.

    Attributes:
        words: The words after `shardbeam build`.
        written: The dataset's content.
        says: Texts that the command must print on stdout or stderr.
        boxes: `{key: boxes in fractions of the image}`, for layouts about frames.
    """

    words: Sequence[str | Path]
    written: Written
    says: Sequence[str] = ()
    boxes: Mapping[str, Sequence[Sequence[float]]] = {}


def _copy(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, folder / file.name)


def _coco_classes(document: Any) -> dict[str, list[str]]:  # noqa: ANN401  # JSON.
    """The class names of each image, read without our code."""
    names = {category["id"]: category["name"] for category in document["categories"]}
    files = {image["id"]: image["file_name"] for image in document["images"]}
    written: dict[str, list[str]] = {name: [] for name in files.values()}
    for annotation in document.get("annotations", ()):
        written[files[annotation["image_id"]]].append(names[annotation["category_id"]])
    return written


def _part(document: Any, images: list[Any]) -> Any:  # noqa: ANN401  # JSON.
    ids = {image["id"] for image in images}
    annotations = [each for each in document["annotations"] if each["image_id"] in ids]
    return {**document, "images": images, "annotations": annotations}


def _write_coco(folder: Path, documents: Mapping[str, Any]) -> list[str | Path]:
    for name, document in documents.items():
        write_files(folder, {f"{name}.json": json.dumps(document)})
    return ["coco", "--images", folder / "images"]


def _dummy(folder: Path, data: Path) -> Any:  # noqa: ANN401  # JSON.
    _copy((data / _DUMMY / "images").iterdir(), folder / "images")
    return json.loads((data / _DUMMY / "instances.json").read_bytes())


def coco_of_both_splits(folder: Path, data: Path) -> Expected:
    """Two files share a folder of images, each for a split of its own."""
    document = _dummy(folder, data)
    parts = {
        name: _part(document, document["images"][images])
        for name, images in (("train", slice(40)), ("val", slice(40, 60)))
    }
    _write_coco(folder, parts)
    splits = {
        name: {
            "format": "coco",
            "images": str(folder / "images"),
            "annotations": [str(folder / f"{name}.json")],
        }
        for name in parts
    }
    config = {"name": "both", "splits": splits}
    write_files(folder, {"both.yaml": json.dumps(config)})
    return Expected(
        [folder / "both.yaml"],
        {name: _coco_classes(part) for name, part in parts.items()},
        ["24 of 64 images of train are named by no row", "44 of 64 images of val are named by no"],
    )


def coco_annotated_four_times_smaller(folder: Path, data: Path) -> Expected:
    """Images that are larger than their annotations say."""
    document = json.loads((data / _FACES / "annotations/custom_train.json").read_bytes())
    images = [each for each in document["images"] if each["width"] == 400][:3]
    document = _part(document, images)
    (folder / "images").mkdir(parents=True)
    boxes: dict[str, list[list[float]]] = {image["file_name"]: [] for image in images}
    names = {image["id"]: image for image in images}
    for image in images:
        size = image["width"], image["height"]
        picture = Image.open(next((data / _FACES).glob(f"*/{image['file_name']}")))
        picture.resize((size[0] * 4, size[1] * 4)).save(folder / "images" / image["file_name"])
    for each in document["annotations"]:
        image = names[each["image_id"]]
        left, top, width, height = each["bbox"]
        box = [left, top, left + width, top + height]
        sides = [image["width"], image["height"]] * 2
        parts = [min(max(value / side, 0), 1) for value, side in zip(box, sides, strict=True)]
        boxes[image["file_name"]].append(parts)
    words = _write_coco(folder, {"a": document})
    return Expected(
        [*words, "--annotations", folder / "a.json"],
        {"train": _coco_classes(document)},
        ["annotated_size_scaled", "image.annotated_size"],
        boxes=boxes,
    )


def _labelme_classes(file: Path) -> list[str]:
    return [shape["label"] for shape in json.loads(file.read_bytes())["shapes"]]


def labelme_with_paths_elsewhere(folder: Path, data: Path) -> Expected:
    """The files name the folder in which the annotator's machine had the pictures."""
    written = {}
    for file in sorted((data / _LABELME).glob("*.json")):
        document = json.loads(file.read_bytes())
        document["imagePath"] = f"..\\test-2\\{file.stem}.jpg"
        write_files(folder, {f"all/{file.name}": json.dumps(document)})
        _copy([file.with_suffix(".jpg")], folder / "all")
        written[f"all/{file.stem}.jpg"] = _labelme_classes(file)
    return Expected(["labelme", "--root", folder], {"train": written})


def _voc(folder: Path, data: Path) -> dict[str, list[str]]:
    for name in ("Annotations", "AnnotationsVisualization", "JPEGImages"):
        _copy((data / _VOC / name).iterdir(), folder / name)
    return {
        f"JPEGImages/{file.stem}.jpg": _labelme_classes(file)
        for file in sorted((data / _LABELME).glob("*.json"))
    }


def voc_maps_of_lions(folder: Path, data: Path) -> Expected:
    """Numbers 0 and 1 in a palette that is not VOC's, and no labelmap."""
    _voc(folder, data)
    (folder / "SegmentationClass").mkdir()
    written = {}
    for file in sorted((folder / "JPEGImages").iterdir()):
        size = Image.open(file).size
        values = np.zeros((size[1], size[0]), np.uint8)
        values[10:50, 10:50] = 1
        mask = Image.fromarray(values)
        mask.putpalette([0, 0, 0, 255, 255, 255])
        mask.save(folder / "SegmentationClass" / f"{file.stem}.png")
        written[f"JPEGImages/{file.name}"] = list[str]()
    shutil.rmtree(folder / "Annotations")
    return Expected(
        ["voc", "--root", folder, "--semantic", "--split", "train"],
        {"train": written},
        ["labelmap"],
    )


def yolo_without_a_file_of_labels(folder: Path, data: Path) -> Expected:
    """The documented way to say that a picture shows nothing."""
    source = data / "ultralytics-hub/coco8"
    shutil.copytree(source, folder / "coco8")
    gone = folder / "coco8/labels/train/000000000009.txt"
    gone.unlink()
    yaml = (source / "coco8.yaml").read_text()
    names = {
        int(number): name.strip()
        for number, _, name in (line.strip().partition(":") for line in yaml.splitlines())
        if number.isdigit()
    }
    written: dict[str, dict[str, list[str]]] = {"train": {}, "val": {}}
    for image in sorted((folder / "coco8/images").glob("*/*.jpg")):
        split = image.parent.name
        labels = folder / "coco8/labels" / split / f"{image.stem}.txt"
        lines = labels.read_text().splitlines() if labels.exists() else []
        written[split][f"images/{split}/{image.name}"] = [
            names[int(each.split()[0])] for each in lines
        ]
    return Expected(
        ["yolo", "--data", folder / "coco8/coco8.yaml"],
        written,
        ["1 of 4 images of train have no annotations and are written as negatives"],
    )


@pytest.mark.parametrize(
    "layout",
    [
        coco_of_both_splits,
        coco_annotated_four_times_smaller,
        labelme_with_paths_elsewhere,
        voc_maps_of_lions,
        yolo_without_a_file_of_labels,
    ],
)
def test_a_layout(
    layout: Callable[[Path, Path], Expected], shared_data: Path, tmp_path: Path
) -> None:
    """Each lays a dataset out in a folder, from the real samples in another."""
    expected = layout(tmp_path / "data", shared_data)
    output = tmp_path / "out"

    result = run("build", *map(str, expected.words), "--output", str(output), exit_code=0)

    said = result.stdout + result.stderr
    assert [words for words in expected.says if words not in said] == [], said
    built = Build(output=output, exit_code=0, summary={}, stderr="")
    # Images of no split are counted in one without a name.
    found = {split: built.by_key(split) for split in filter(None, built.manifest["splits"])}
    classes = {
        split: {
            key: [
                name.decode()
                for kind in ("image/object/class/text", "image/class/text")
                for name in example.features.get(kind, ())
            ]
            for key, example in examples.items()
        }
        for split, examples in found.items()
    }
    assert classes == expected.written
    for key, boxes in expected.boxes.items():
        assert found["train"][key].boxes == [pytest.approx(box, abs=1e-3) for box in boxes]
