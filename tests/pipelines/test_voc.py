"""Pascal VOC end to end: datasets that the tests write, and broken ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.archive_files import write_files
from tests.support.builds import build, build_config
from tests.support.image_makers import plain_jpeg
from tests.support.voc_files import small_voc, voc_object, voc_xml

# Nearly all images that its lists name are not in the sample.
TOLERANT = ("--set", "rejects.max_ratio=1")
# The colours of values 0 to 3, and 255, in VOC's maps.
PALETTE = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 3: (128, 128, 0), 255: (224, 224, 192)}


def _map(values: np.ndarray[Any, Any], *, rgb: bool = False) -> bytes:
    """Writes a map as VOC does: with a palette, or in the palette's colours."""
    picture = Image.fromarray(values.astype(np.uint8), "P")
    palette = [PALETTE.get(value, (value, 1, 2)) for value in range(256)]
    picture.putpalette([channel for colour in palette for channel in colour])
    buffer = io.BytesIO()
    (picture.convert("RGB") if rgb else picture).save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize("rgb", [False, True], ids=["palette", "rgb"])
def test_masks_and_maps(tmp_path: Path, rgb: bool) -> None:
    numbers = np.zeros((24, 32), np.uint8)
    numbers[2:10, 1:9] = 1
    numbers[12:20, 10:30] = 3
    numbers[10, 1:9] = 255
    classes = numbers.copy()
    classes[numbers == 1] = 2
    box = {"xmin": 2, "ymin": 3, "xmax": 9, "ymax": 10}
    # The second object has no box: it is left out, and takes its number along.
    objects: tuple[dict[str, object], ...] = (
        {"name": "bicycle", **box},
        {"name": "cat"},
        {"name": "bird", "xmin": 11, "ymin": 13, "xmax": 30, "ymax": 20},
    )
    root = write_files(
        tmp_path / "voc",
        small_voc(
            **{
                "Annotations/a.xml": voc_xml(*objects, size=(32, 24)),
                "SegmentationObject/a.png": _map(numbers, rgb=rgb),
                "SegmentationClass/a.png": _map(classes, rgb=rgb),
            }
        ),
    )
    built = build(
        "voc",
        *("--root", root, "--semantic", "--set", "masks=png"),
        output=tmp_path / "out",
    )

    assert built.exit_code == 0, built.stderr
    (example,) = built.examples("train")
    assert example.labels == [("bicycle", 2), ("bird", 3)]
    masks = [
        np.asarray(Image.open(io.BytesIO(data))) for data in example.features["image/object/mask"]
    ]
    np.testing.assert_array_equal(masks, [numbers == 1, numbers == 3])
    (encoded,) = example.features["image/segmentation/class/encoded"]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encoded))), classes)
    assert built.counts("train")["corrections"] == {"object_without_box_dropped": 1}


def test_what_objects_say(tmp_path: Path) -> None:
    built = build(
        "voc", "--root", write_files(tmp_path / "voc", small_voc()), output=tmp_path / "out"
    )

    assert built.exit_code == 0, built.stderr
    (train,), (val,) = built.examples("train"), built.examples("val")
    assert train.features["image/object/difficult"] == [1]
    assert train.features["image/object/truncated"] == [0]
    assert train.features["image/object/view"] == [b"Left"]
    assert val.boxes == []
    assert val.features["image/object/view"] == []


def test_an_archive_is_read_as_its_folder(tmp_path: Path) -> None:
    root = write_files(tmp_path / "voc", small_voc())
    archive = tmp_path / "voc.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path, content in small_voc().items():
            file.writestr(f"VOCdevkit/VOC2012/{path}", content)

    folder = build("voc", "--root", root, output=tmp_path / "folder")
    packed = build("voc", "--root", archive, output=tmp_path / "packed")

    assert (folder.exit_code, packed.exit_code) == (0, 0), packed.stderr
    for split in ("train", "val"):
        (plain,), (zipped,) = folder.examples(split), packed.examples(split)
        assert zipped.key == f"VOCdevkit/VOC2012/{plain.key}"
        assert zipped.boxes == plain.boxes
        assert zipped.encoded == plain.encoded


def test_images_and_annotations_side_by_side(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "train/a.jpg": plain_jpeg(),
        "train/a.xml": voc_xml(voc_object(), size=(32, 24)),
        "train/b.jpg": plain_jpeg(),
        "valid/c.jpg": plain_jpeg(),
        "valid/c.xml": voc_xml(size=(32, 24)),
    }
    root = write_files(tmp_path / "export", files)

    # As docs/formats/voc.md says: a source for each folder.
    built = build_config(
        {
            "splits": {
                "train": {"format": "voc", "root": f"{root}/train"},
                "validation": {"format": "voc", "root": f"{root}/valid"},
            }
        },
        folder=tmp_path,
    )

    assert built.exit_code == 0, built.stderr
    assert {key: len(found.boxes) for key, found in built.by_key("train").items()} == {
        "a.jpg": 1,
        "b.jpg": 0,
    }
    assert built.counts("train")["unannotated"] == 1
    assert list(built.by_key("validation")) == ["c.jpg"]


def _bomb() -> str:
    levels = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    return f'<!DOCTYPE a [<!ENTITY l0 "ha">{levels}]><annotation>&l11;</annotation>'


def test_bad_files_are_rejects(tmp_path: Path) -> None:
    good = voc_xml(voc_object(), size=(32, 24))
    files: dict[str, bytes | str] = {
        "JPEGImages/good.jpg": plain_jpeg(),
        "Annotations/good.xml": good,
        # Its map alone is not enough.
        "JPEGImages/broken.jpg": plain_jpeg(),
        "Annotations/broken.xml": "<annotation>\n<object>",
        "SegmentationObject/broken.png": _map(np.zeros((24, 32))),
        "JPEGImages/bomb.jpg": plain_jpeg(),
        "Annotations/bomb.xml": _bomb(),
        "JPEGImages/twice.jpg": plain_jpeg(),
        "JPEGImages/twice.png": plain_jpeg(),
        "Annotations/twice.xml": good,
        "JPEGImages/both.jpg": plain_jpeg(),
        "Annotations/both.xml": good,
        "Annotations/xmls/both.xml": good,
        "JPEGImages/size.jpg": plain_jpeg((16, 16)),
        "Annotations/size.xml": good,
        "Annotations/alone.xml": good,
        "SegmentationObject/alone_too.png": _map(np.zeros((24, 32))),
        "JPEGImages/unlisted.jpg": plain_jpeg(),
        "Annotations/trimaps/good.png": _map(np.zeros((24, 32))),
        "ImageSets/Main/train.txt": "\n".join(
            ["good", "broken", "bomb", "twice", "both", "size", "missing"]
        ),
    }
    root = write_files(tmp_path / "voc", files)
    built = build(
        "voc",
        *("--root", root, "--set", "masks=png", *TOLERANT),
        output=tmp_path / "out",
    )

    assert built.exit_code == 0, built.stderr
    assert sorted(built.by_key("train")) == ["JPEGImages/both.jpg", "JPEGImages/good.jpg"]
    assert [len(example.boxes) for example in built.examples("train")] == [1, 1]
    assert built.reasons() == {
        ("JPEGImages/broken.jpg", "annotation_malformed"): 1,
        ("JPEGImages/bomb.jpg", "annotation_malformed"): 1,
        ("JPEGImages/twice.jpg", "ambiguous_stem"): 1,
        ("JPEGImages/twice.png", "ambiguous_stem"): 1,
        ("JPEGImages/both.jpg", "duplicate_key"): 1,
        ("JPEGImages/size.jpg", "size_mismatch"): 1,
        ("missing", "missing_image"): 1,
        ("alone", "missing_image"): 1,
        ("alone_too", "missing_image"): 1,
    }
    details = {reject["key"]: reject["detail"] for reject in built.rejects()}
    assert details["JPEGImages/broken.jpg"] == (
        "Annotations/broken.xml: line 2, column 9: the XML is broken: no element found"
    )
    assert str(tmp_path) not in "".join(details.values())
    assert built.counts("")["excluded"] == {"annotation_folder": 1, "in_no_split": 1}


def test_an_image_in_two_splits_stays_in_the_first(tmp_path: Path) -> None:
    files = small_voc(**{"ImageSets/Main/val.txt": "a\nb\n"})
    built = build(
        "voc", "--root", write_files(tmp_path / "voc", files), *TOLERANT, output=tmp_path / "out"
    )

    assert built.exit_code == 0, built.stderr
    assert list(built.by_key("train")) == ["JPEGImages/a.jpg"]
    assert built.reasons() == {("JPEGImages/a.jpg", "duplicate_key"): 1}


def test_splits_of_the_lists_and_of_the_config_are_not_mixed(tmp_path: Path) -> None:
    root = write_files(tmp_path / "voc", small_voc())

    refused = build("voc", "--root", root, "--splits", "val", "--split", "x", output=tmp_path / "x")
    assert refused.exit_code == 2
    assert "the config names the splits already, with splits" in refused.stderr
    only = build("voc", "--root", root, "--splits", "val", output=tmp_path / "val")
    assert list(only.info["splits"][0]["name"]) == list("val")
    assert list(only.by_key("val")) == ["JPEGImages/b.jpg"]
    assert only.counts("")["excluded"] == {"in_no_split": 1}
    unknown = build("voc", "--root", root, "--splits", "vla", output=tmp_path / "vla")
    assert unknown.exit_code == 1
    assert "no list ImageSets/Main/vla.txt; did you mean 'val'?" in unknown.stderr
