"""Each ready config writes exactly the files and keys that its readers know."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.examples.encode import encode
from shardbeam.transforms.storage.image_bytes import read_bytes
from tests.conftest import PROJECT_ROOT
from tests.support.builds import Build
from tests.support.cifar_files import write_cifar10
from tests.support.dataset import run
from tests.support.image_makers import pixels

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")

Features = dict[str, list[Any]]


def build_ready(config: str, *, output: Path, **settings: object) -> Build:
    """Builds by a ready config, its paths overridden as a user would."""
    given = {**settings, "output.path": output}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    result = run("build", str(PROJECT_ROOT / "configs" / config), *words, "--json", exit_code=0)
    return Build(output=output, exit_code=0, summary=json.loads(result.stdout), stderr="")


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


class Given(NamedTuple):
    """Input for a ready config, and what it must give.

    Attributes:
        settings: Where the input is.
        examples: The Examples' features by file and split, in any order.
    """

    settings: dict[str, object]
    examples: dict[tuple[str, str], list[Features]]


def class_folder(_: Path, shapes: Path) -> Given:
    folders = shapes / "class_folders"
    examples: list[Features] = [
        {"train/image": [path.read_bytes()], "train/label": [path.parent.name.encode()]}
        for path in folders.glob("*/*.jpg")
    ]
    return Given({"splits.train.images": folders}, {("train.tfrecords", "train"): examples})


def single_record(folder: Path, _: Path) -> Given:
    examples: list[Features] = []
    for index, (label, number) in enumerate({"rose": 2, "iris": 1, "aster": 0}.items()):
        path = folder / f"img_{index}_{label}.jpg"
        Image.new("RGB", (20 + index, 10), (index, 0, 0)).save(path)
        size: Features = {"image/height": [10], "image/width": [20 + index]}
        named: Features = {"image/format": [b"jpeg"], "image/class/label": [number]}
        examples.append({"image/encoded": [path.read_bytes()], **size, **named})
    return Given({"splits.train.images": folder}, {("train.record", "train"): examples})


def cifar10_raw(folder: Path, _: Path) -> Given:
    written = write_cifar10(folder / "cifar")
    batches = {"train": ["data_batch_1.bin", "data_batch_2.bin"], "test": ["test_batch.bin"]}
    return Given(
        {"source.root": folder / "cifar"},
        {
            (f"{split}.tfrecords", split): [
                {"image": [image.transpose(2, 0, 1).tobytes()], "label": [index % 10]}
                for name in names
                for index, image in enumerate(written[name])
            ]
            for split, names in batches.items()
        },
    )


def rows(folder: Path, _: Path) -> Given:
    table: list[dict[str, Any]] = [
        {
            "feature0": number % 3 == 0,
            "feature1": number - 5,
            "feature2": ["cat", "dog, or so", 'a "goat"', ""][number % 4],
            "feature3": number / 7,
        }
        for number in range(40)
    ]
    examples: list[Features] = [
        {
            "feature0": [int(row["feature0"])],
            "feature1": [row["feature1"]],
            "feature2": [row["feature2"].encode()],
            "feature3": [float(np.float32(row["feature3"]))],
        }
        for row in table
    ]
    manifest = write_csv(folder / "rows.csv", table)
    return Given({"source.manifest": f"[{manifest}]"}, {("rows.tfrecord", "train"): examples})


def two_images(folder: Path, _: Path) -> Given:
    Image.new("RGB", (20, 10), "red").save(folder / "cat.jpg")
    Image.new("L", (6, 8), 200).save(folder / "bridge.png")
    names = ["cat.jpg", str(folder / "bridge.png")]
    manifest = write_csv(
        folder / "images.csv",
        [{"image": name, "label": number} for number, name in enumerate(names)],
    )
    examples: list[Features] = [
        {
            "height": [height],
            "width": [width],
            "depth": [depth],
            "label": [label],
            "image_raw": [(folder / names[label]).read_bytes()],
        }
        for label, (width, height, depth) in enumerate([(20, 10, 3), (6, 8, 1)])
    ]
    return Given(
        {"source.manifest": f"[{manifest}]", "source.image_root": f"[{folder}]"},
        {("images.tfrecords", "train"): examples},
    )


def check_readers(folder: Path, file_name: str, *, split: str, count: int, keys: set[str]) -> None:
    """Checks that `show`, `load_dataset` and TFDS read the folder, and `show` the plain file."""
    from shardbeam.readers.open.tf_data import load_dataset

    for words in ([str(folder), "--split", split], [str(folder / file_name)]):
        shown = run("show", *words, "--limit", "1", exit_code=0)
        for key in keys:
            assert f"\n{key} " in shown.stdout
    for path, name in ((folder, split), (folder / file_name, None)):
        dataset = load_dataset(path, split=name)
        assert set(dataset.element_spec) == keys
        assert sum(1 for _ in dataset) == count
    if sys.version_info < (3, 11):
        return
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(folder))
    assert builder.info.splits[split].num_examples == count
    loaded = list(builder.as_dataset(split=split))
    assert len(loaded) == count
    assert set(loaded[0]) == keys


@pytest.mark.parametrize("make", [class_folder, single_record, cifar10_raw, rows, two_images])
def test_files_and_keys_are_as_the_readers_know_them(
    make: Callable[[Path, Path], Given], shapes: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    settings, expected = make(tmp_path / "in", shapes)
    built = build_ready(f"{make.__name__}.yaml", output=tmp_path / "out", **settings)
    for (file_name, split), examples in expected.items():
        assert built.shards(split) == [file_name]
        found = [dict(each.features) for each in built.examples(split)]
        # In an order that a hash gives, not the input.
        assert found != examples
        assert sorted(map(sorted_items, found)) == sorted(map(sorted_items, examples))
        keys = set(examples[0])
        check_readers(built.output, file_name, split=split, count=len(examples), keys=keys)


def sorted_items(features: Features) -> list[tuple[str, list[Any]]]:
    return sorted(features.items())


def coco_settings(shapes: Path, *splits: str) -> dict[str, object]:
    annotations = f"[{shapes / 'annotations' / 'instances.json'}]"
    return {
        f"splits.{split}.{key}": value
        for split in splits
        for key, value in (("images", shapes / "images"), ("annotations", annotations))
    }


def test_coco2017(shapes: Path, tmp_path: Path) -> None:
    settings = coco_settings(shapes, "train", "validation")
    built = build_ready("coco2017.yaml", output=tmp_path / "out", **settings)
    assert [len(built.examples(split)) for split in ("train", "validation")] == [40, 40]
    example = built.by_key("validation")["000000000001.jpg"]
    assert set(example.features) == {
        *(f"image/{name}" for name in ("encoded", "format", "height", "width", "filename")),
        *("image/source_id", "image/key/sha256"),
        *(f"image/object/bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax")),
        *(f"image/object/class/{name}" for name in ("label", "text")),
        *(f"image/object/{name}" for name in ("is_crowd", "area", "mask")),
    }
    masks = example.features["image/object/mask"]
    assert len(masks) == len(example.boxes) > 0
    assert pixels(masks[0]).shape == example.size[::-1]


def test_coco2017_per_annotation(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()

    def count(image: ImageRef, *, unreadable: Reason = Reason.IMAGE_UNREADABLE) -> bytes:
        reads[image.uri] += 1
        return read_bytes(image, unreadable=unreadable)

    monkeypatch.setattr(encode, "read_bytes", count)
    settings = {**coco_settings(shapes, "train"), "output.shard_size_mb": 0.5}
    built = build_ready("coco2017_per_annotation.yaml", output=tmp_path / "out", **settings)

    instances = json.loads((shapes / "annotations" / "instances.json").read_bytes())
    images = {image["id"]: image for image in instances["images"]}
    empty = images.keys() - {each["image_id"] for each in instances["annotations"]}
    assert empty
    assert built.counts()["excluded"] == {"no_objects": len(empty)}
    examples = [each.features for each in built.examples()]
    found = {features["id"][0]: features for features in examples}
    assert len(found) == len(examples) == len(instances["annotations"])
    for annotation in instances["annotations"]:
        name = images[annotation["image_id"]]["file_name"]
        assert found[annotation["id"]] == {
            "image": [(shapes / "images" / name).read_bytes()],
            "path": [name.encode()],
            "area": pytest.approx([annotation["area"]]),
            "bbox": pytest.approx(annotation["bbox"], abs=1e-3),
            **{key: [annotation[key]] for key in ("category_id", "id", "image_id")},
        }
    # An image is read once, and its Examples follow each other.
    assert max(reads.values()) == 1
    paths = [features["path"][0] for features in examples]
    blocks = [path for path, before in zip(paths, [None, *paths], strict=False) if path != before]
    assert len(blocks) == len(set(blocks)) == len(images) - len(empty)
    # Shards are as large as was asked for, though each image is in them several times.
    assert len(built.shards()) == pytest.approx(built.counts()["num_bytes"] / 500_000, abs=1)
    assert sum(path.stat().st_size for path in (shapes / "images").iterdir()) < 250_000 * len(
        built.shards()
    )
