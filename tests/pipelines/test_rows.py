"""Tables without images, and the ready configs of tables, end to end."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import PROJECT_ROOT
from tests.support.builds import Build, build
from tests.support.dataset import read_dataset, run

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")

CONFIGS = PROJECT_ROOT / "configs"
ROWS: list[dict[str, Any]] = [
    {
        "feature0": number % 3 == 0,
        "feature1": number - 5,
        "feature2": ["cat", "dog, or so", 'a "goat"', ""][number % 4],
        "feature3": number / 7,
    }
    for number in range(40)
]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def build_ready(config: str, *, output: Path, **settings: str) -> Build:
    """Builds by a ready config, its paths overridden as a user would."""
    given = {**settings, "output.path": str(output)}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    exit_code, stdout, stderr = run("build", str(CONFIGS / config), *words, "--json")
    assert exit_code == 0, stderr
    return Build(output=output, exit_code=0, summary=json.loads(stdout), stderr=stderr)


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["feature1"])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("rows")
    manifest = write_csv(folder / "rows.csv", ROWS)
    return build_ready("rows.yaml", output=folder / "out", **{"source.manifest": f"[{manifest}]"})


def test_rows_yaml_writes_the_columns_and_nothing_else(rows: Build) -> None:
    assert rows.shards() == ["rows.tfrecord"]
    counts = rows.counts()
    assert (counts["listed"], counts["examples"], counts["rejected"]) == (40, 40, {})
    kinds = {"feature0": "int64", "feature1": "int64", "feature2": "string", "feature3": "float32"}
    schema = json.loads((rows.output / "features.json").read_bytes())["featuresDict"]["features"]
    assert set(schema) == set(kinds)
    found = [
        {
            "feature0": bool(example.features["feature0"][0]),
            "feature1": example.features["feature1"][0],
            "feature2": example.features["feature2"][0].decode(),
            "feature3": example.features["feature3"][0],
        }
        for example in rows.examples()
    ]
    assert all(len(values) == 1 for each in rows.examples() for values in each.features.values())
    assert [row.pop("feature3") for row in sorted_rows(found)] == pytest.approx(
        [row["feature3"] for row in sorted_rows(ROWS)]
    )
    assert sorted_rows(found) == [
        {name: value for name, value in row.items() if name != "feature3"}
        for row in sorted_rows(ROWS)
    ]
    # In an order that the hash gives, not the file.
    assert found != sorted_rows(found)


def test_rows_are_read_by_tf_data_and_tfds(rows: Build) -> None:
    import tensorflow as tf

    spec = {
        "feature0": tf.io.FixedLenFeature([], tf.int64),
        "feature1": tf.io.FixedLenFeature([], tf.int64),
        "feature2": tf.io.FixedLenFeature([], tf.string),
        "feature3": tf.io.FixedLenFeature([], tf.float32),
    }
    dataset = tf.data.TFRecordDataset([str(rows.output / "rows.tfrecord")]).map(
        lambda data: tf.io.parse_single_example(data, spec)
    )
    parsed = [
        {name: value.item() if name != "feature2" else value for name, value in each.items()}
        for each in dataset.as_numpy_iterator()
    ]
    expected = [
        {
            **row,
            "feature0": int(row["feature0"]),
            "feature2": row["feature2"].encode(),
            "feature3": float(np.float32(row["feature3"])),
        }
        for row in sorted_rows(ROWS)
    ]
    assert sorted_rows(parsed) == expected

    tfds = pytest.importorskip("tensorflow_datasets")
    loaded = tfds.builder_from_directory(str(rows.output)).as_dataset(split="train")
    found = [
        {name: value.item() if name != "feature2" else value for name, value in each.items()}
        for each in tfds.as_numpy(loaded)
    ]
    assert sorted_rows(found) == expected


@pytest.mark.parametrize("format_name", ["csv", "jsonl"])
def test_types_follow_from_the_values_and_bytes_from_the_input(
    format_name: str, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"i": 1, "s": "x", "f": 0.5, "l": [1, 2], "split": "TRAIN"},
        {"i": 2, "s": "y", "f": "", "l": [], "split": "TEST"},
        {"i": 3, "s": "z", "f": "", "l": [3], "split": "DISCARD"},
        {"i": 4, "s": "z", "f": 1.5, "l": [4], "split": "fold_1"},
    ]
    if format_name == "csv":
        manifest = write_csv(
            tmp_path / "rows.csv", [{**row, "l": json.dumps(row["l"])} for row in rows]
        )
    else:
        manifest = write_jsonl(
            tmp_path / "rows.jsonl",
            [{name: value for name, value in row.items() if value != ""} for row in rows],
        )
    built = build(format_name, "--manifest", manifest, output=tmp_path / "a")
    assert built.exit_code == 0, built.stderr
    assert list(built.summary["splits"]) == ["train", "test", "fold_1", ""]
    assert built.counts("")["excluded"] == {"discarded": 1}
    (train,), (test,), (fold,) = map(built.examples, ("train", "test", "fold_1"))
    assert train.features == {"i": [1], "s": [b"x"], "f": [0.5], "l": [1, 2]}
    assert test.features == {"i": [2], "s": [b"y"], "f": [], "l": []}
    assert fold.features == {"i": [4], "s": [b"z"], "f": [1.5], "l": [4]}

    again = build(format_name, "--manifest", manifest, output=tmp_path / "b")
    assert again.exit_code == 0
    assert read_dataset(tmp_path / "a") == read_dataset(tmp_path / "b")


def test_bad_rows_are_rejects_of_no_image(tmp_path: Path) -> None:
    lines = [f"{number},x" for number in range(300)]
    lines[7] = "7"
    (tmp_path / "rows.csv").write_text("\n".join(["a,b", *lines]))
    built = build("csv", "--manifest", tmp_path / "rows.csv", output=tmp_path / "out")
    assert built.exit_code == 0
    counts = built.counts()
    assert (counts["listed"], counts["examples"]) == (300, 299)
    assert counts["rejected"] == {"annotation_malformed": 1}
    (reject,) = built.rejects()
    assert reject["key"] == "rows.csv: line 9"
    assert reject["detail"] == "rows.csv: line 9: expected 2 cells, got 1"

    lines[8:] = ["7"] * len(lines[8:])
    (tmp_path / "rows.csv").write_text("\n".join(["a,b", *lines]))
    refused = build("csv", "--manifest", tmp_path / "rows.csv", output=tmp_path / "refused")
    assert refused.exit_code == 3


def test_a_row_that_names_no_split_is_a_reject(tmp_path: Path) -> None:
    manifest = write_csv(tmp_path / "r.csv", [{"a": 1, "split": "train"}, {"a": 2, "split": ""}])
    built = build("csv", "--manifest", manifest, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    assert built.counts("train")["examples"] == 1
    assert built.reasons() == {("r.csv: line 3", "unknown_split"): 1}


def test_rows_may_be_split_by_fractions(tmp_path: Path) -> None:
    manifest = write_csv(tmp_path / "rows.csv", ROWS)
    built = build(
        "csv", "--manifest", manifest, "--fractions", "train=0.5,test=0.5", output=tmp_path / "out"
    )
    assert built.exit_code == 0
    train, test = built.counts("train")["examples"], built.counts("test")["examples"]
    assert train + test == 40
    assert min(train, test) > 5


def test_two_images_yaml(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (20, 10), "red").save(images / "cat.jpg")
    Image.new("L", (6, 8), 200).save(images / "bridge.png")
    manifest = write_csv(
        tmp_path / "images.csv",
        [{"image": "cat.jpg", "label": 0}, {"image": str(images / "bridge.png"), "label": 1}],
    )
    roots = {"source.manifest": f"[{manifest}]", "source.image_root": f"[{images}]"}
    built = build_ready("two_images.yaml", output=tmp_path / "out", **roots)
    assert built.shards() == ["images.tfrecords"]
    found = {example.features["label"][0]: example.features for example in built.examples()}
    assert found == {
        0: {
            "height": [10],
            "width": [20],
            "depth": [3],
            "label": [0],
            "image_raw": [(images / "cat.jpg").read_bytes()],
        },
        1: {
            "height": [8],
            "width": [6],
            "depth": [1],
            "label": [1],
            "image_raw": [(images / "bridge.png").read_bytes()],
        },
    }

    # As the tutorial reads it.
    import tensorflow as tf

    spec = {
        **{name: tf.io.FixedLenFeature([], tf.int64) for name in ("height", "width", "depth")},
        "label": tf.io.FixedLenFeature([], tf.int64),
        "image_raw": tf.io.FixedLenFeature([], tf.string),
    }
    dataset = tf.data.TFRecordDataset([str(built.output / "images.tfrecords")]).map(
        lambda data: tf.io.parse_single_example(data, spec)
    )
    for example in dataset.as_numpy_iterator():
        pixels = tf.io.decode_image(example["image_raw"])
        assert pixels.shape == (example["height"], example["width"], example["depth"])
