"""The ready configs of classic layouts write exactly the keys that their readers know."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.examples.example_pb2 import Example
from tests.conftest import PROJECT_ROOT
from tests.support.builds import WrittenExample
from tests.support.cifar_files import write_cifar10
from tests.support.dataset import run

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")

CONFIGS = PROJECT_ROOT / "configs"


def build_config(name: str, *settings: str, output: Path) -> None:
    """Builds a ready config, its paths overridden."""
    words = [
        word for setting in (*settings, f"output.path={output}") for word in ("--set", setting)
    ]
    result = run("build", str(CONFIGS / name), *words)
    assert result.exit_code == 0, result.stderr


def examples(path: Path) -> list[WrittenExample]:
    """All Examples of a plain file, in order."""
    found = []
    with path.open("rb") as file:
        for record in read_records(file):
            features = Example.FromString(record).features.feature
            found.append(
                WrittenExample(
                    {
                        key: list(getattr(value, str(value.WhichOneof("kind"))).value)
                        for key, value in features.items()
                    }
                )
            )
    return found


def kinds(path: Path) -> set[tuple[str, str | None]]:
    """Keys and kinds, the same in every Example."""
    with path.open("rb") as file:
        found = {
            frozenset(
                (key, value.WhichOneof("kind"))
                for key, value in Example.FromString(record).features.feature.items()
            )
            for record in read_records(file)
        }
    (only,) = found
    return set(only)


def check_readers(folder: Path, file_name: str, *, split: str, count: int, keys: set[str]) -> None:
    """Checks that `show`, `load_dataset` and TFDS read the folder, and `show` the plain file."""
    from shardbeam.pipelines.read import load_dataset

    for words in ([str(folder), "--split", split], [str(folder / file_name)]):
        shown = run("show", *words, "--limit", "1")
        assert shown.exit_code == 0
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


def test_class_folder(shapes: Path, tmp_path: Path) -> None:
    folders = shapes / "class_folders"
    build_config("class_folder.yaml", f"splits.train.images={folders}", output=tmp_path / "out")

    file = tmp_path / "out" / "train.tfrecords"
    assert kinds(file) == {("train/image", "bytes_list"), ("train/label", "bytes_list")}
    found = [
        (each.features["train/image"], each.features["train/label"]) for each in examples(file)
    ]
    expected = [
        ([path.read_bytes()], [path.parent.name.encode()]) for path in folders.glob("*/*.jpg")
    ]
    assert sorted(found) == sorted(expected)
    check_readers(
        tmp_path / "out",
        file.name,
        split="train",
        count=len(expected),
        keys={"train/image", "train/label"},
    )


def test_filename_label(tmp_path: Path) -> None:
    labels = ["rose", "iris", "rose", "aster"]
    for index, label in enumerate(labels):
        picture = Image.new("RGB", (20 + index, 10), (index, 0, 0))
        (tmp_path / "flat").mkdir(exist_ok=True)
        picture.save(tmp_path / "flat" / f"img_{index}_{label}.jpg")
    build_config(
        "single_record.yaml", f"splits.train.images={tmp_path}/flat", output=tmp_path / "out"
    )

    file = tmp_path / "out" / "train.record"
    assert kinds(file) == {
        ("image/encoded", "bytes_list"),
        ("image/format", "bytes_list"),
        ("image/class/label", "int64_list"),
        ("image/height", "int64_list"),
        ("image/width", "int64_list"),
    }
    ids = {"aster": 0, "iris": 1, "rose": 2}
    found = {}
    for example in examples(file):
        assert example.features["image/format"] == [b"jpeg"]
        assert example.features["image/height"] == [10]
        (width,) = example.features["image/width"]
        found[width - 20] = (example.encoded, example.features["image/class/label"])
    assert found == {
        index: ((tmp_path / "flat" / f"img_{index}_{label}.jpg").read_bytes(), [ids[label]])
        for index, label in enumerate(labels)
    }
    check_readers(
        tmp_path / "out",
        file.name,
        split="train",
        count=4,
        keys={key for key, _ in kinds(file)},
    )


def test_cifar10(tmp_path: Path) -> None:
    pixels = write_cifar10(tmp_path / "cifar")
    build_config("cifar10_raw.yaml", f"source.root={tmp_path}/cifar", output=tmp_path / "out")

    for split, batches in (
        ("train", ["data_batch_1.bin", "data_batch_2.bin"]),
        ("test", ["test_batch.bin"]),
    ):
        file = tmp_path / "out" / f"{split}.tfrecords"
        assert kinds(file) == {("image", "bytes_list"), ("label", "int64_list")}
        found = [(each.features["image"], each.features["label"]) for each in examples(file)]
        expected = [
            ([image.transpose(2, 0, 1).tobytes()], [index % 10])
            for batch in batches
            for index, image in enumerate(pixels[batch])
        ]
        assert sorted(found) == sorted(expected)
        check_readers(
            tmp_path / "out",
            file.name,
            split=split,
            count=len(expected),
            keys={"image", "label"},
        )


def test_cifar10_as_pictures(tmp_path: Path) -> None:
    pixels = write_cifar10(tmp_path / "cifar")
    output = tmp_path / "out"
    words = ("build", "cifar10", "--root", str(tmp_path / "cifar"), "--output", str(output))
    built = run(*words)
    assert built.exit_code == 0
    # Every image is in a split that its file tells.
    assert "(no split)" not in built.stdout + built.stderr

    for example in examples(output / "cifar10-test.tfrecord-00000-of-00001"):
        batch, _, index = example.key.partition("/")
        picture = Image.open(io.BytesIO(example.encoded))
        assert picture.format == "PNG"
        assert np.array_equal(np.asarray(picture), pixels[batch][int(index)])
        assert example.size == (32, 32)
