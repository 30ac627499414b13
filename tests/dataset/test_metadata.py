"""TensorFlow Datasets loads the folders that the tests write; protobuf reads the label maps."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.metadata import (
    dataset_info_json,
    features_json,
    label_map_pbtxt,
    labels_txt,
)
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.formats.base import Kind
from tests.support.example_builders import (
    encode_picture,
    make_image,
    make_label_map,
    render,
)
from tests.support.manifests import make_dataset, make_files, make_shard_result

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
    shards: list[ShardResult] = []
    for index, length in enumerate(shard_lengths):
        path = folder / f"toy-train.tfrecord-{index:05d}-of-{len(shard_lengths):05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(length):
                mode, image_format, size, annotations = next(remaining)
                picture = encode_picture(mode=mode, format=image_format, size=size)
                (example,) = render(
                    annotations,
                    key="a/b.img",
                    image=make_image(data=picture, format=image_format, size=size),
                    label_map=label_map,
                    **features,
                ).encoded
                writer.write(example.data)
        data = describe_data(path.name, path.read_bytes())
        shards.append(make_shard_result(data, shard_index=index, examples=length))
    dataset = make_dataset(features=schema)
    for name, content in make_files(shards=shards, label_map=label_map, dataset=dataset).items():
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
    # Files of TensorFlow's own writer are read here, too.
    files = [io.BytesIO(path.read_bytes()) for path in sorted(tmp_path.glob("*tfrecord*"))]
    assert [len([*read_records(file)]) for file in files] == [1, 0, 3]
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


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ({"cat": 1, "dog": 2}, ["unused 0", "cat", "dog"]),
        ({"dog": 3, "cat": 0}, ["cat", "unused 1", "unused 2", "dog"]),
    ],
)
def test_gaps_between_ids_have_names(ids: dict[str, int], names: list[str], tmp_path: Path) -> None:
    kinds = [Kind.CLASSIFICATION]
    label_map = make_label_map(ids, objects=False)
    write_dataset(tmp_path, CLASSIFIED[:1], label_map=label_map, kinds=kinds)
    labels = tmp_path / "image.class.label.labels.txt"
    assert labels.read_text().splitlines() == names
    builder, _ = load(tmp_path)
    assert builder.info.features["image/class/label"].names == names


@pytest.mark.parametrize(
    "ids", [{" cat": 0}, {}, {"cat": 10_001}, {"cat": 1, "unused 0": 2}, {"cat": -1}]
)
def test_other_labels_are_integers(ids: dict[str, int]) -> None:
    label_map = make_label_map(ids, objects=False)
    schema = plan_features(EncoderSettings(kinds=frozenset({Kind.CLASSIFICATION}))).schema()
    files = make_files(label_map=label_map, dataset=make_dataset(features=schema))
    assert "image.class.label.labels.txt" not in files
    assert b"ClassLabel" not in files["features.json"]


def test_renamed_dropped_and_constant_keys(tmp_path: Path) -> None:
    write_dataset(
        tmp_path,
        CLASSIFIED,
        label_map=make_label_map(FROM_0, objects=False),
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
    assert [example["train/label"].tolist() for example in examples] == [[2], [0, 1], []]
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
    shards = [
        make_shard_result(describe_data(path, b"123"), examples=examples)
        for path, examples in (("0", 2**40), ("1", 0))
    ]
    info = dataset_info_json(make_dataset(), shards={"train": shards}).decode()
    assert json.loads(info)["splits"] == [
        {"name": "train", "shardLengths": [str(2**40), "0"], "numBytes": "6"}
    ]
    kinds = frozenset({Kind.CLASSIFICATION, Kind.DETECTION, Kind.INSTANCE_MASKS, Kind.PANOPTIC})
    schema = plan_features(EncoderSettings(kinds=kinds)).schema()
    label_map = make_label_map(FROM_0, objects=False)
    forwards = features_json(schema, label_map=label_map)
    assert features_json(schema[::-1], label_map=label_map) == forwards
    for text in (info, forwards.decode()):
        expected = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
        assert text == expected + "\n"


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
label_ids = st.dictionaries(names, st.integers(0, 2**31 - 1), max_size=5).filter(
    lambda ids: len(set(ids.values())) == len(ids)
)


def parse_pbtxt(text: str) -> list[tuple[str, int]]:
    """Parses with a `StringIntLabelMap` that is built here, field by field."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="string_int_label_map.proto", package="tfod")
    item = file.message_type.add(name="StringIntLabelMapItem")
    item.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    item.field.add(name="id", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    label_map = file.message_type.add(name="StringIntLabelMap")
    label_map.field.add(
        name="item",
        number=1,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=".tfod.StringIntLabelMapItem",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("tfod.StringIntLabelMap")
    message: Any = message_factory.GetMessageClass(descriptor)()
    text_format.Parse(text, message)
    return [(entry.name, entry.id) for entry in message.item]


def test_pbtxt() -> None:
    label_map = make_label_map({"traffic light": 10, 'say "hi"\\\t': 1, "Füchse": 2})
    assert label_map_pbtxt(label_map).decode() == (
        'item {\n  name: "say \\"hi\\"\\\\\\011"\n  id: 1\n}\n\n'
        'item {\n  name: "Füchse"\n  id: 2\n}\n\n'
        'item {\n  name: "traffic light"\n  id: 10\n}\n'
    )


@given(label_ids)
def test_pbtxt_comes_back(ids: dict[str, int]) -> None:
    parsed = parse_pbtxt(label_map_pbtxt(make_label_map(ids, objects=False)).decode())
    assert parsed == sorted(ids.items(), key=lambda item: item[1])


def test_labels_txt() -> None:
    label_map = make_label_map({"b": 1, "traffic light": 30, "a\\n": 0, " é ": 2}, objects=False)
    assert labels_txt(label_map).decode() == "a\\n\nb\n é \ntraffic light\n"


def test_control_characters_are_escaped() -> None:
    label_map = make_label_map({"a\nb\t": 0, "c\u2028d\0": 1, "e\x85f": 2}, objects=False)
    assert labels_txt(label_map) == b"a\\nb\\t\nc\\u2028d\\x00\ne\\x85f\n"
    lines = label_map_pbtxt(label_map).decode().splitlines()
    assert [line for line in lines if "name" in line] == [
        '  name: "a\\012b\\011"',
        '  name: "c\\342\\200\\250d\\000"',
        '  name: "e\\302\\205f"',
    ]
