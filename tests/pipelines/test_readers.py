"""Readers without Shardbeam's code find the content of the sources in the shards."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from pathlib import Path

import google_crc32c
import pytest
from PIL import Image
from pyarrow import parquet

from tests.support.builds import Build, build, build_config, build_shapes

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")

# More shards than images, so that readers meet empty ones.
NUM_SHARDS = 50


@pytest.fixture(scope="module")
def coco(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    output = tmp_path_factory.mktemp("coco") / "out"
    return build_shapes(shapes, "--set", f"output.num_shards={NUM_SHARDS}", output=output)


@pytest.fixture(scope="module")
def folders(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(
        "image-folder",
        *("--images", shapes / "class_folders"),
        *("--fractions", "train=0.6,validation=0.4"),
        *("--name", "class_folders", "--version", "2.3.4"),
        *("--set", "description=Shapes, one a picture."),
        output=tmp_path_factory.mktemp("folders") / "out",
    )


def test_tfds_loads_class_folders_with_their_names(folders: Build, shapes: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(folders.output))
    classes = sorted(path.name for path in (shapes / "class_folders").iterdir())
    assert (builder.info.name, str(builder.info.version)) == ("class_folders", "2.3.4")
    assert builder.info.description == "Shapes, one a picture."
    assert builder.info.features["image/class/label"].names == classes
    assert builder.info.supervised_keys == ("image/encoded", "image/class/label")

    parts = [builder.as_dataset(split=part) for part in ("train[:50%]", "train[50%:]")]
    assert sum(map(len, parts)) == builder.info.splits["train"].num_examples
    assert min(map(len, parts)) > 1

    keys = []
    for split in ("train", "validation"):
        found = list(tfds.as_numpy(builder.as_dataset(split=split)))
        assert builder.info.splits[split].num_examples == len(found) > 0
        for example in found:
            key = example["image/filename"].decode()
            keys.append(key)
            label = classes[example["image/class/label"]]
            assert (label, label.encode()) == (key.split("/")[0], example["image/class/text"])
            with Image.open(shapes / "class_folders" / key) as picture:
                assert example["image/encoded"].shape == (picture.height, picture.width, 3)
    root = shapes / "class_folders"
    assert sorted(keys) == sorted(path.relative_to(root).as_posix() for path in root.glob("*/*"))


@pytest.mark.parametrize(
    ("container", "name"),
    # The second name is also in TFDS's catalog, in other versions and with several configs.
    [("tfrecord", "my_shapes"), ("array_record", "coco")],
)
def test_tfds_finds_a_dataset_by_its_name_and_version(
    container: str, name: str, shapes: Path, tmp_path: Path
) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    if container == "array_record":
        pytest.importorskip("array_record")
    build(
        *("image-folder", "--images", shapes / "class_folders", "--name", name),
        *("--set", f"output.container={container}"),
        output=tmp_path / name / "{version}",
    )
    classes = sorted(path.name for path in (shapes / "class_folders").iterdir())
    if container == "array_record":
        source = tfds.data_source(f"{name}:1.0.0", data_dir=tmp_path, split="train")
        labels = {row["image/class/label"] for row in source}
    else:
        dataset = tfds.load(f"{name}:1.0.0", data_dir=tmp_path, split="train", as_supervised=True)
        pairs = list(tfds.as_numpy(dataset))
        assert all(image.shape[-1] == 3 for image, _ in pairs)
        labels = {label for _, label in pairs}
    assert labels == set(range(len(classes)))


@pytest.mark.parametrize("container", ["webdataset", "hf_parquet"])
def test_tfds_refuses_what_it_cannot_read(container: str, shapes: Path, tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    words = ("image-folder", "--images", shapes / "class_folders")
    output = tmp_path / "out"
    build(*words, "--set", f"output.container={container}", output=output)
    with pytest.raises(ValueError, match=f"{container}.* is not a valid"):
        tfds.builder_from_directory(str(output))


def test_images_whose_label_is_left_out_do_not_make_lists(shapes: Path, tmp_path: Path) -> None:
    words = ("image-folder", "--images", shapes / "class_folders")
    built = build(*words, "--set", "labels.exclude=[star]", output=tmp_path / "out")
    assert {len(example.features["image/class/label"]) for example in built.examples()} == {1}
    assert built.counts()["excluded"]["label_excluded"] > 0


def test_a_format_with_lists_decides_for_all_sources(shapes: Path, tmp_path: Path) -> None:
    folders = {"format": "image-folder", "images": f"{shapes}/class_folders"}
    objects = {
        "format": "coco",
        "images": f"{shapes}/images",
        "annotations": [f"{shapes}/annotations/instances.json"],
    }
    built = build_config({"splits": {"train": [folders, objects]}}, folder=tmp_path)
    assert {len(example.features["image/class/label"]) for example in built.examples()} == {0, 1}
    features = json.loads((built.output / "features.json").read_bytes())["featuresDict"]["features"]
    assert "sequence" in features["image/class/label"]
    assert "supervisedKeys" not in built.info


def test_the_index_points_at_the_examples(coco: Build) -> None:
    from tensorflow.train import Example

    keys = []
    for index, shard in enumerate(coco.shards()):
        data = (coco.output / shard).read_bytes()
        end = 0
        for row in parquet.read_table(coco.output / "index" / f"{shard}.parquet").to_pylist():
            # The record's frame, see "TFRecords format details" in TensorFlow's guide.
            assert row["offset"] == end
            (length,) = struct.unpack_from("<Q", data, row["offset"])
            assert length == row["length"]
            start = row["offset"] + 12
            serialized = data[start : start + length]
            features = Example.FromString(serialized).features.feature
            image = features["image/encoded"].bytes_list.value[0]
            assert len(row.pop("labels")) == 16
            assert isinstance(row.pop("dhash"), int)
            # There are objects, and no classes of the image.
            assert row.pop("classes_digest") == ""
            assert row.pop("map_classes") is None
            assert row.pop("crop_hashes") is None
            labels = features["image/object/class/label"].int64_list.value
            counts = sorted(Counter(labels).items())
            assert list(zip(row.pop("classes"), row.pop("class_objects"), strict=True)) == counts
            assert isinstance(row.pop("findings"), list)
            assert row == {
                "key": features["image/filename"].bytes_list.value[0].decode(),
                "source": "train",
                "split": "train",
                "shard": index,
                "offset": end,
                "length": length,
                "sha256": hashlib.sha256(image).hexdigest(),
                "width": features["image/width"].int64_list.value[0],
                "height": features["image/height"].int64_list.value[0],
                "format": "jpeg",
                "objects": len(features["image/object/area"].float_list.value),
                "crc32c": google_crc32c.value(serialized),
            }
            keys.append(row["key"])
            end = start + length + 4
        assert end == len(data)
    assert sorted(keys) == sorted(coco.by_key())
