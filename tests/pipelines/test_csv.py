"""CSV tables of images end to end, on real files and in TFRecorder's form."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.support.builds import Build, build
from tests.support.making import write_images

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")


def write_csv(path: Path, *rows: list[Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="module")
def tfrecorder(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("tfrecorder")
    images = write_images(folder / "images", *(f"{number}.jpg" for number in range(6)))
    other = write_images(folder / "elsewhere", "x.jpg")
    rows: list[list[Any]] = [
        ["TRAIN", images / "0.jpg", "cat"],
        ["TRAIN", f"{images}/./../images/1.jpg", "dog"],
        ["VALIDATION", images / "2.jpg", "cat"],
        ["TEST", "3.jpg", "dog"],
        ["DISCARD", images / "4.jpg", "cat"],
        ["TRAIN", other / "x.jpg", "cat"],
        ["TEST", images / "missing.jpg", "cat"],
    ]
    manifest = write_csv(folder / "data.csv", ["split", "image_uri", "label"], *rows)
    return build(
        "csv",
        *("--manifest", manifest, "--image-root", images),
        *("--set", "rejects.max_ratio=0.5"),
        output=folder / "out",
    )


def test_tfrecorder_columns_work_as_they_are(tfrecorder: Build) -> None:
    assert tfrecorder.exit_code == 0, tfrecorder.stderr
    found = {
        split: {key: each.image_labels for key, each in tfrecorder.by_key(split).items()}
        for split in ("train", "validation", "test")
    }
    assert found == {
        "train": {"0.jpg": [("cat", 0)], "1.jpg": [("dog", 1)]},
        "validation": {"2.jpg": [("cat", 0)]},
        "test": {"3.jpg": [("dog", 1)]},
    }
    assert [split["name"] for split in tfrecorder.info["splits"]] == ["train", "validation", "test"]


def test_tfrecorder_rows_all_end_somewhere(tfrecorder: Build) -> None:
    rejects = {reject["key"]: reject for reject in tfrecorder.rejects()}
    outside = next(reject for reject in rejects.values() if reject["reason"] == "outside_roots")
    assert outside["split"] == "train"
    assert outside["detail"] == (
        "data.csv: line 7: the image lies in none of the image_root folders"
    )
    assert rejects["missing.jpg"]["reason"] == "missing_image"
    assert rejects["missing.jpg"]["split"] == "test"
    assert len(rejects) == 2
    # One is discarded; no row names the other.
    assert tfrecorder.counts("")["excluded"] == {"discarded": 1, "unannotated": 1}


def test_kaggle(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "datumaro" / "kaggle_dataset" / "image_csv"
    expected = {"1.jpg": "dog", "2.jpg": "cat", "3.jpg": "dog", "4.jpg": "cat", "5.jpg": "cat"}
    for manifest in ("ann.csv", "ann_wo_ext.csv"):
        built = build(
            "csv",
            *("--manifest", folder / manifest, "--image-root", folder / "images"),
            output=tmp_path / manifest,
        )
        assert built.exit_code == 0, built.stderr
        ids = {"cat": 0, "dog": 1}
        assert {key: each.image_labels for key, each in built.by_key().items()} == {
            key: [(label, ids[label])] for key, label in expected.items()
        }


def test_kaggle_with_a_column_a_class(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "datumaro" / "kaggle_dataset" / "image_csv_multi_label"
    built = build(
        "csv",
        *("--manifest", folder / "ann.csv", "--image-root", folder / "images"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    names = ("dog", "cat", "person")
    found = {key: [each.features[name] for name in names] for key, each in built.by_key().items()}
    assert found == {
        "1.jpg": [[1], [0], [0]],
        "2.jpg": [[0], [1], [0]],
        "3.jpg": [[0], [0], [1]],
        "4.jpg": [[1], [1], [0]],
        "5.jpg": [[1], [0], [1]],
        "6.jpg": [[0], [1], [1]],
    }


def test_bccd_boxes(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "bccd-voc"
    built = build(
        "csv",
        *("--manifest", folder / "test.csv"),
        *("--image-root", folder / "BCCD" / "JPEGImages"),
        *("--label-column", "cell_type"),
        *("--set", "rejects.max_ratio=1"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    with (folder / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    images = {path.name for path in (folder / "BCCD" / "JPEGImages").iterdir()}
    counts = built.counts()
    assert counts["examples"] == len(images) == 24
    missing = {row["filename"] for row in rows} - images
    assert counts["rejected"] == {"missing_image": len(missing)}
    ids = {"Platelets": 1, "RBC": 2, "WBC": 3}
    dropped = 0
    for key, example in built.by_key().items():
        width, height = example.size
        labels, boxes = [], []
        for row in rows:
            if row["filename"] != key:
                continue
            xmin, ymin, xmax, ymax = (int(row[side]) for side in ("xmin", "ymin", "xmax", "ymax"))
            if xmin == xmax or ymin == ymax:
                dropped += 1
                continue
            labels.append((row["cell_type"], ids[row["cell_type"]]))
            boxes.append((xmin / width, ymin / height, xmax / width, ymax / height))
        assert example.labels == labels
        assert example.boxes == [pytest.approx(box) for box in boxes]
    assert counts["corrections"] == {"box_without_area_dropped": dropped}
    assert dropped == 2


def test_vott_boxes(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "datumaro" / "vott_csv_dataset" / "dataset"
    built = build(
        "csv",
        *("--manifest", folder / "train-export.csv", "--image-root", folder),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    found = {key: [label for label, _ in each.labels] for key, each in built.by_key().items()}
    # Most of the toys' boxes lie outside of their images of a few pixels.
    assert set(found) == {f"img{number:04}.jpg" for number in (1, 2, 3, 4)}
    assert (
        sum(map(len, found.values()))
        + built.counts()["corrections"].get("box_without_area_dropped", 0)
        == 3
    )


def test_a_table_without_a_header_is_an_error(shared_data: Path, tmp_path: Path) -> None:
    manifest = shared_data / "datumaro" / "mnist_csv_dataset" / "mnist_train.csv"
    built = build("csv", "--manifest", manifest, output=tmp_path / "out")
    assert built.exit_code != 0
    assert "mnist_train.csv: line 1: the column '1' is there twice; is the header" in built.stderr


@pytest.mark.parametrize("multiline", ["false", "true"])
def test_a_stray_quote_loses_no_row_silently(tmp_path: Path, multiline: str) -> None:
    names = [f"{number}.jpg" for number in range(8)]
    root = write_images(tmp_path / "images", *names)
    cells = ["cat"] * len(names)
    cells[2] = '"cat'
    rows = "".join(f"{name},{cell}\n" for name, cell in zip(names, cells, strict=True))
    (tmp_path / "m.csv").write_text(f"image,label\n{rows}")
    built = build(
        "csv",
        *("--manifest", tmp_path / "m.csv", "--image-root", root),
        *("--set", f"source.multiline={multiline}", "--set", "rejects.max_ratio=0.2"),
        output=tmp_path / "out",
    )
    # Whatever a quote takes along is counted, by row and by image.
    lost = range(4, 5) if multiline == "false" else range(4, 10)
    assert built.exit_code == (0 if multiline == "false" else 3)
    assert built.reasons() == {(f"m.csv: line {line}", "annotation_malformed"): 1 for line in lost}
    assert built.counts()["excluded"] == {"unannotated": len(lost)}
    assert (built.counts()["listed"], built.counts()["images"]) == (8, 8 - len(lost))


def test_features_beside_labels_and_twice_the_same_image(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", "a.jpg", "b.jpg")
    manifest = write_csv(
        tmp_path / "m.csv",
        ["image", "label", "age", "note"],
        ["a.jpg", "cat", 3, "x"],
        ["b.jpg", "dog", "", "y"],
        ["a.jpg", "dog", 4, "z"],
    )
    built = build(
        "csv",
        *("--manifest", manifest, "--image-root", root, "--set", "rejects.max_ratio=0.5"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    found = built.by_key()
    assert found["a.jpg"].features["age"] == [3]
    assert found["a.jpg"].image_labels == [("cat", 0)]
    assert (found["b.jpg"].features["age"], found["b.jpg"].features["note"]) == ([], [b"y"])
    (reject,) = built.rejects()
    assert (reject["key"], reject["reason"]) == ("a.jpg", "duplicate_key")
    assert "m.csv: line 4" in reject["detail"]
    assert "m.csv: line 2" in reject["detail"]


def test_several_labels_and_several_roots(tmp_path: Path) -> None:
    one = write_images(tmp_path / "data" / "one", "a.jpg")
    two = write_images(tmp_path / "data" / "two", "a.jpg")
    manifest = write_csv(
        tmp_path / "m.csv", ["image", "label"], ["one/a.jpg", "cat|dog"], [two / "a.jpg", "dog"]
    )
    built = build(
        "csv",
        *("--manifest", manifest, "--image-root", one, "--image-root", two),
        *("--label-separator", "|"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    assert {key: each.image_labels for key, each in built.by_key().items()} == {
        "one/a.jpg": [("cat", 0), ("dog", 1)],
        "two/a.jpg": [("dog", 1)],
    }


def test_numbers_as_labels_stay_ids(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", "a.jpg", "b.jpg")
    manifest = write_csv(tmp_path / "m.csv", ["image", "label"], ["a.jpg", 3], ["b.jpg", 7])
    built = build("csv", "--manifest", manifest, "--image-root", root, output=tmp_path / "out")
    assert {key: each.image_labels for key, each in built.by_key().items()} == {
        "a.jpg": [("3", 3)],
        "b.jpg": [("7", 7)],
    }


def test_a_root_too_low_is_an_error_that_says_so(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", "a.jpg")
    manifest = write_csv(tmp_path / "m.csv", ["image", "label"], ["images/a.jpg", "x"])
    built = build("csv", "--manifest", manifest, "--image-root", root, output=tmp_path / "out")
    assert built.exit_code == 1
    assert "none of the 1 annotated images is listed" in built.summary["message"]
    assert "move the root up" in built.summary["message"]
