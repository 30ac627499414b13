"""YOLO end to end: datasets that the tests write, and broken ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image, ImageDraw

from tests.support.archive_files import write_files
from tests.support.builds import build

SIZE = (40, 30)
TOLERANT = ("--set", "rejects.max_ratio=1")


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", SIZE, (10, 200, 30)).save(buffer, "jpeg")
    return buffer.getvalue()


def small_yolo(**more: bytes | str) -> dict[str, bytes | str]:
    """A dataset as Roboflow exports it."""
    data = {"train": "../train/images", "val": "../valid/images", "names": ["dog", "cat"], "nc": 2}
    return {
        "data.yaml": yaml.safe_dump(data),
        "README.dataset.txt": "# Animals\nlicense: none\n",
        "train/images/a.jpg": _jpeg(),
        "train/labels/a.txt": "1 0.5 0.5 0.25 0.2\n",
        "train/images/empty.jpg": _jpeg(),
        "train/labels/empty.txt": "",
        "train/images/unlabelled.jpg": _jpeg(),
        "valid/images/b.jpg": _jpeg(),
        "valid/labels/b.txt": "0 0.5 0.5 1 1\n0 0.25 0.5 0.1 0.2\n",
        **more,
    }


def test_splits_of_a_data_yaml(tmp_path: Path) -> None:
    root = write_files(tmp_path / "yolo", small_yolo())
    built = build("yolo", "--data", root / "data.yaml", output=tmp_path / "out")

    assert built.exit_code == 0, built.stderr
    assert [split["name"] for split in built.info["splits"]] == ["train", "val"]
    train, val = built.by_key("train"), built.by_key("val")
    # A file without labels and no file are both an image without objects; the latter is counted.
    assert {key: len(example.boxes) for key, example in train.items()} == {
        "train/images/a.jpg": 1,
        "train/images/empty.jpg": 0,
        "train/images/unlabelled.jpg": 0,
    }
    assert built.counts("train")["unannotated"] == 1
    assert train["train/images/a.jpg"].labels == [("cat", 2)]
    assert train["train/images/a.jpg"].boxes[0] == pytest.approx((0.375, 0.4, 0.625, 0.6))
    assert [*val["valid/images/b.jpg"].labels] == [("dog", 1), ("dog", 1)]
    assert built.counts("")["excluded"] == {"not_an_image_name": 1}

    dropped = build("yolo", "--root", root, "--set", "unannotated=drop", output=tmp_path / "drop")
    assert dropped.counts("train")["excluded"] == {"unannotated": 1}
    assert len(dropped.examples("train")) == 2


def test_segments_become_masks(tmp_path: Path) -> None:
    points = [(4, 3), (20, 3), (20, 15), (4, 15)]
    values = " ".join(f"{x / SIZE[0]:.6f} {y / SIZE[1]:.6f}" for x, y in points)
    files = small_yolo(**{"train/labels/a.txt": f"0 {values}\n1 0.5 0.5 0.5 0.5\n"})
    root = write_files(tmp_path / "yolo", files)
    built = build("yolo", "--root", root, "--set", "masks=png", output=tmp_path / "out")

    assert built.exit_code == 0, built.stderr
    example = built.by_key("train")["train/images/a.jpg"]
    mask, of_box = (
        np.asarray(Image.open(io.BytesIO(data))) for data in example.features["image/object/mask"]
    )
    drawn = Image.new("L", SIZE)
    # Pillow draws the last row and column, too; polygons end at them.
    ImageDraw.Draw(drawn).rectangle((4, 3, 19, 14), fill=1)
    np.testing.assert_array_equal(mask, np.asarray(drawn))
    assert of_box.shape == mask.shape
    assert example.features["image/object/area"][0] == pytest.approx(16 * 12, rel=1e-4)
    assert example.boxes[0] == pytest.approx((0.1, 0.1, 0.5, 0.5), abs=1e-5)


def test_an_archive_is_read_as_its_folder(tmp_path: Path) -> None:
    root = write_files(tmp_path / "yolo", small_yolo())
    archive = tmp_path / "yolo.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path, content in small_yolo().items():
            file.writestr(path, content)

    folder = build("yolo", "--root", root, output=tmp_path / "folder")
    packed = build("yolo", "--root", archive, output=tmp_path / "packed")

    assert (folder.exit_code, packed.exit_code) == (0, 0), packed.stderr
    for split in ("train", "val"):
        assert packed.by_key(split) == folder.by_key(split)


def test_bad_labels_are_rejects(tmp_path: Path) -> None:
    bad: dict[str, bytes | str] = {
        "train/labels/a.txt": "0 0.5 0.5 0.5 0.5\n2 0.5 0.5 0.5 0.5\n",
        "train/labels/empty.txt": "0 20 15 10 5\n",
        "train/labels/nowhere.txt": "0 0.5 0.5 0.5 0.5\n",
        "train/images/twice.jpg": _jpeg(),
        "train/images/twice.png": _jpeg(),
        "train/images/sure.jpg": _jpeg(),
        "train/labels/sure.txt": "0 0.5 0.5 0.5 0.5 0.9\n0 0.9 0.9 0.3 0.3\n0 0.5 0.5 0 0\n",
    }
    root = write_files(tmp_path / "yolo", small_yolo(**bad))
    built = build("yolo", "--root", root, *TOLERANT, output=tmp_path / "out")

    assert built.exit_code == 0, built.stderr
    assert built.reasons() == {
        ("train/images/a.jpg", "annotation_malformed"): 1,
        ("train/images/empty.jpg", "annotation_malformed"): 1,
        ("train/labels/nowhere", "missing_image"): 1,
        ("train/images/twice.jpg", "ambiguous_stem"): 1,
        ("train/images/twice.png", "ambiguous_stem"): 1,
    }
    details = {reject["key"]: reject["detail"] for reject in built.rejects()}
    assert details["train/images/a.jpg"] == (
        "train/labels/a.txt: line 2: class 2 has no name: 2 classes are named"
    )
    assert str(tmp_path) not in "".join(details.values())
    assert {reject["split"] for reject in built.rejects()} == {"train"}
    assert built.counts("train")["corrections"] == {
        "box_clipped": 1,
        "box_without_area_dropped": 1,
        "confidence_dropped": 1,
    }


def test_lists_that_name_missing_images(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "data.yaml": "names: [dog]\ntrain: train.txt\n",
        "train.txt": "./images/a.jpg\n./images/gone.jpg\n",
        "images/a.jpg": _jpeg(),
        "images/b.jpg": _jpeg(),
        "labels/a.txt": "0 0.5 0.5 0.5 0.5\n",
    }
    root = write_files(tmp_path / "yolo", files)
    built = build("yolo", "--root", root, *TOLERANT, output=tmp_path / "out")

    assert built.exit_code == 0, built.stderr
    assert list(built.by_key("train")) == ["images/a.jpg"]
    assert built.reasons() == {("labels/gone", "missing_image"): 1}
    assert built.counts("")["excluded"] == {"in_no_split": 1}
    # Where the config makes the splits, the list says nothing.
    fractions = build(
        "yolo", "--root", root, "--fractions", "all_of_it=1.0", output=tmp_path / "fractions"
    )
    assert len(fractions.examples("all_of_it")) == 2
    assert not fractions.rejects()


def test_missing_splits_are_errors_where_they_matter(tmp_path: Path) -> None:
    text = "names: [dog, cat]\ntrain: ../train/images\ntest: ../test/images\n"
    root = write_files(tmp_path / "yolo", small_yolo(**{"data.yaml": text}))

    missing = build("yolo", "--root", root, output=tmp_path / "missing")
    assert missing.exit_code == 1
    assert (
        f"{root}/data.yaml: test: '../test/images' is not there: tried test/images below the root"
        in missing.stderr
    )
    chosen = build("yolo", "--root", root, "--splits", "train", output=tmp_path / "chosen")
    assert [split["name"] for split in chosen.info["splits"]] == ["train"]
    made = build("yolo", "--root", root, "--split", "mine", output=tmp_path / "made")
    assert len(made.examples("mine")) == 4
