"""The ready configs of classic layouts write exactly the keys that their readers know."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import PROJECT_ROOT
from tests.support.builds import read_written
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


def kinds(path: Path) -> set[tuple[str, type]]:
    """Keys and the types of their values, the same in every Example."""
    (found,) = {
        frozenset(
            (key, type(value)) for key, values in example.features.items() for value in values
        )
        for example in read_written(path)
    }
    return set(found)


def check_readers(file: Path, *, split: str, count: int) -> None:
    """Checks that `show` and `load_dataset` read the folder and the plain file, TFDS the folder."""
    from shardbeam.pipelines.read import load_dataset

    folder = file.parent
    keys = {key for key, _ in kinds(file)}
    for words in ([str(folder), "--split", split], [str(file)]):
        shown = run("show", *words, "--limit", "1")
        assert shown.exit_code == 0
        for key in keys:
            assert f"\n{key} " in shown.stdout
    for path, name in ((folder, split), (file, None)):
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
    assert kinds(file) == {("train/image", bytes), ("train/label", bytes)}
    found = [
        (each.features["train/image"], each.features["train/label"]) for each in read_written(file)
    ]
    expected = [
        ([path.read_bytes()], [path.parent.name.encode()]) for path in folders.glob("*/*.jpg")
    ]
    assert sorted(found) == sorted(expected)
    check_readers(file, split="train", count=len(expected))


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
        ("image/encoded", bytes),
        ("image/format", bytes),
        ("image/class/label", int),
        ("image/height", int),
        ("image/width", int),
    }
    ids = {"aster": 0, "iris": 1, "rose": 2}
    found = {}
    for example in read_written(file):
        assert example.features["image/format"] == [b"jpeg"]
        assert example.features["image/height"] == [10]
        (width,) = example.features["image/width"]
        found[width - 20] = (example.encoded, example.features["image/class/label"])
    assert found == {
        index: ((tmp_path / "flat" / f"img_{index}_{label}.jpg").read_bytes(), [ids[label]])
        for index, label in enumerate(labels)
    }
    check_readers(file, split="train", count=4)


def test_cifar10(tmp_path: Path) -> None:
    pixels = write_cifar10(tmp_path / "cifar")
    build_config("cifar10_raw.yaml", f"source.root={tmp_path}/cifar", output=tmp_path / "out")

    for split, batches in (
        ("train", ["data_batch_1.bin", "data_batch_2.bin"]),
        ("test", ["test_batch.bin"]),
    ):
        file = tmp_path / "out" / f"{split}.tfrecords"
        assert kinds(file) == {("image", bytes), ("label", int)}
        found = [(each.features["image"], each.features["label"]) for each in read_written(file)]
        expected = [
            ([image.transpose(2, 0, 1).tobytes()], [index % 10])
            for batch in batches
            for index, image in enumerate(pixels[batch])
        ]
        assert sorted(found) == sorted(expected)
        check_readers(file, split=split, count=len(expected))


def test_cifar10_as_pictures(tmp_path: Path) -> None:
    pixels = write_cifar10(tmp_path / "cifar")
    output = tmp_path / "out"
    words = ("build", "cifar10", "--root", str(tmp_path / "cifar"), "--output", str(output))
    built = run(*words)
    assert built.exit_code == 0
    # Every image is in a split that its file tells.
    assert "(no split)" not in built.stdout + built.stderr

    for example in read_written(output / "cifar10-test.tfrecord-00000-of-00001"):
        batch, _, index = example.key.partition("/")
        picture = Image.open(io.BytesIO(example.encoded))
        assert picture.format == "PNG"
        assert np.array_equal(np.asarray(picture), pixels[batch][int(index)])
        assert example.size == (32, 32)
