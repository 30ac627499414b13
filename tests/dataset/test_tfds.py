"""TensorFlow Datasets itself loads the directories that the tests write."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.dataset.tfds import (
    SplitSize,
    class_name_files,
    dataset_info_json,
    features_json,
)
from shardbeam.transforms.examples.schema import EncoderSettings, plan_features
from shardbeam.transforms.formats.base import Kind
from tests.support.example_builders import (
    encode_picture,
    make_image,
    make_label_map,
    render,
)

# (Pillow mode, stored format, size) of an image, and its annotations.
Picture = tuple[str, str, tuple[int, int], ImageAnnotations]

DETECTED: list[Picture] = [
    (
        "RGB",
        "jpeg",
        (8, 4),
        ImageAnnotations(
            image_id="17",
            objects=(
                ObjectAnnotation("dog", (2, 1, 4, 3), area=2.5, is_crowd=True),
                ObjectAnnotation("Füchse", (0, 0, 8, 4)),
            ),
        ),
    ),
    ("L", "png", (3, 5), ImageAnnotations(image_id="")),
    ("RGB", "png", (2, 2), ImageAnnotations(image_id="99")),
    ("L", "jpeg", (4, 4), ImageAnnotations(image_id="x")),
]
CLASSIFIED: list[Picture] = [
    ("RGB", "jpeg", (8, 4), ImageAnnotations(image_id="1", labels=("Füchse",))),
    ("RGB", "png", (8, 4), ImageAnnotations(image_id="2", labels=("cat", "dog"))),
    ("L", "png", (8, 4), ImageAnnotations(image_id="3")),
]
FROM_0 = {"cat": 0, "dog": 1, "Füchse": 2}
FROM_1 = {"cat": 1, "dog": 2, "Füchse": 3}


def write_dataset(
    folder: Path,
    pictures: Sequence[Picture],
    *,
    label_map: LabelMap,
    kinds: Collection[Kind],
    shard_lengths: Sequence[int] | None = None,
    rename: Mapping[str, str] | None = None,
    drop: Collection[str] = (),
    constants: Mapping[str, Any] | None = None,
) -> None:
    """Writes a dataset with one split, its records framed by TensorFlow."""
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    features: dict[str, Any] = {
        "kinds": frozenset(kinds),
        "rename": rename or {},
        "drop": list(drop),
        "constants": constants or {},
    }
    schema = plan_features(EncoderSettings(**features)).schema()
    shard_lengths = shard_lengths or [len(pictures)]
    remaining = iter(pictures)
    num_bytes = 0
    for index, length in enumerate(shard_lengths):
        path = folder / f"toy-train.tfrecord-{index:05d}-of-{len(shard_lengths):05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(length):
                mode, image_format, size, annotations = next(remaining)
                data = encode_picture(mode=mode, format=image_format, size=size)
                (example,) = render(
                    annotations,
                    key="a/b.img",
                    image=make_image(data=data, format=image_format, size=size),
                    label_map=label_map,
                    **features,
                ).encoded
                writer.write(example.data)
        num_bytes += path.stat().st_size
    info = dataset_info_json(
        name="toy",
        version="1.2.3",
        description="A “toy”.",
        splits=[SplitSize("train", shard_lengths, num_bytes)],
    )
    (folder / "dataset_info.json").write_bytes(info)
    (folder / "features.json").write_bytes(features_json(schema=schema, label_map=label_map))
    for name, content in class_name_files(schema=schema, label_map=label_map).items():
        (folder / name).write_bytes(content)


def load(folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    """Returns the builder and its examples, as NumPy values."""
    tfds = pytest.importorskip("tensorflow_datasets", reason="TFDS is not installed")
    builder = tfds.builder_from_directory(folder)
    return builder, list(builder.as_dataset(split="train").as_numpy_iterator())


def test_detection(tmp_path: Path) -> None:
    write_dataset(
        tmp_path,
        DETECTED,
        label_map=make_label_map(FROM_1),
        kinds=[Kind.DETECTION],
        shard_lengths=[1, 0, 3],
    )
    builder, examples = load(tmp_path)
    assert builder.info.full_name == "toy/1.2.3"
    assert builder.info.description == "A “toy”."
    split = builder.info.splits["train"]
    assert (split.num_examples, split.num_shards) == (4, 3)
    assert split.num_bytes == sum(path.stat().st_size for path in tmp_path.glob("*tfrecord*"))

    first, second = examples[0], examples[1]
    assert [example["image/encoded"].shape for example in examples] == [
        (4, 8, 3),
        (5, 3, 3),
        (2, 2, 3),
        (4, 4, 3),
    ]
    assert np.allclose(first["image/encoded"], (200, 100, 50), atol=3)
    assert (second["image/encoded"] == 128).all()
    assert [example["image/format"] for example in examples] == [b"jpeg", b"png", b"png", b"jpeg"]
    assert (first["image/height"], first["image/width"]) == (4, 8)
    assert (first["image/source_id"], second["image/source_id"]) == (b"17", b"a/b.img")
    assert first["image/object/bbox/xmin"].tolist() == [0.25, 0]
    assert first["image/object/bbox/xmax"].tolist() == [0.5, 1]
    assert first["image/object/bbox/ymin"].tolist() == [0.25, 0]
    assert first["image/object/bbox/ymax"].tolist() == [0.75, 1]
    assert first["image/object/class/label"].tolist() == [2, 3]
    assert first["image/object/class/text"].tolist() == [b"dog", "Füchse".encode()]
    assert first["image/object/is_crowd"].tolist() == [1, 0]
    assert first["image/object/area"].tolist() == [2.5, 32]
    for key in (key for key in second if "/object/" in key):
        assert second[key].shape == (0,)
        assert second[key].dtype == first[key].dtype


def test_labels_from_0_are_class_labels(tmp_path: Path) -> None:
    write_dataset(
        tmp_path, CLASSIFIED, label_map=make_label_map(FROM_0), kinds=[Kind.CLASSIFICATION]
    )
    assert (tmp_path / "image.class.label.labels.txt").read_bytes() == "cat\ndog\nFüchse\n".encode()
    builder, examples = load(tmp_path)
    assert builder.info.features["image/class/label"].names == ["cat", "dog", "Füchse"]
    assert [example["image/class/label"].tolist() for example in examples] == [[2], [0, 1], []]


@pytest.mark.parametrize("ids", [{"cat": 1, "dog": 2}, {"cat": 0, "dog": 2}, {" cat": 0}, {}])
def test_other_labels_are_integers(ids: dict[str, int]) -> None:
    label_map = make_label_map(ids)
    schema = plan_features(EncoderSettings(kinds=frozenset({Kind.CLASSIFICATION}))).schema()
    assert class_name_files(schema=schema, label_map=label_map) == {}
    assert b"ClassLabel" not in features_json(schema=schema, label_map=label_map)


def test_renamed_dropped_and_constant_keys(tmp_path: Path) -> None:
    write_dataset(
        tmp_path,
        CLASSIFIED,
        label_map=make_label_map(FROM_0),
        kinds=[Kind.CLASSIFICATION],
        rename={"image/encoded": "train/image", "image/class/label": "train/label"},
        drop=[
            "image/class/text",
            "image/filename",
            "image/format",
            "image/height",
            "image/key/sha256",
            "image/source_id",
            "image/width",
        ],
        constants={"train": "é", "channels": 3, "mean": [0.5, 0.25], "one": 1.5, "tags": ["a"]},
    )
    builder, examples = load(tmp_path)
    assert builder.info.features["train/label"].names == ["cat", "dog", "Füchse"]
    first = examples[0]
    assert first.pop("train/image").shape == (4, 8, 3)
    assert {key: np.asarray(value).tolist() for key, value in first.items()} == {
        "train/label": [2],
        "train": "é".encode(),
        "channels": 3,
        "mean": [0.5, 0.25],
        "one": 1.5,
        "tags": [b"a"],
    }


def test_json_is_deterministic() -> None:
    info = dataset_info_json(
        name="toy", version="1.0.0", description="", splits=[SplitSize("train", [2**40, 0], 9)]
    ).decode()
    assert json.loads(info)["splits"] == [
        {"name": "train", "shardLengths": [str(2**40), "0"], "numBytes": "9"}
    ]
    kinds = frozenset({Kind.CLASSIFICATION, Kind.DETECTION, Kind.INSTANCE_MASKS, Kind.PANOPTIC})
    schema = plan_features(EncoderSettings(kinds=kinds)).schema()
    label_map = make_label_map(FROM_0)
    forwards = features_json(schema=schema, label_map=label_map)
    assert features_json(schema=reversed(schema), label_map=label_map) == forwards
    for text in (info, forwards.decode()):
        expected = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
        assert text == expected + "\n"
