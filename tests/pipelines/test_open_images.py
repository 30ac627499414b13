"""Open Images end to end: the real layout's toys, and drawn images with every oddity."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from shardbeam.transforms.formats.open_images import OpenImagesFormat
from tests.support.builds import Build, build
from tests.support.dataset import read_dataset

BOX_COLUMNS = (
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
)


@pytest.fixture(scope="module")
def v6(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    root = shared_data / "datumaro" / "open_images_dataset" / "v6"
    annotations = root / "annotations"
    return build(
        "open-images",
        *("--images", root / "images"),
        *("--boxes", annotations / "oidv6-train-annotations-bbox.csv"),
        *("--boxes", annotations / "test-annotations-bbox.csv"),
        *("--classes", annotations / "oidv6-class-descriptions.csv"),
        *("--image-labels", annotations / "oidv6-train-annotations-human-imagelabels.csv"),
        *("--image-labels", annotations / "test-annotations-human-imagelabels.csv"),
        output=tmp_path_factory.mktemp("v6") / "out",
    )


def test_version_6(v6: Build) -> None:
    assert v6.exit_code == 0, v6.stderr
    counts = v6.counts()
    assert (counts["listed"], counts["examples"], counts["rejected"]) == (4, 4, {})
    found = v6.by_key()
    assert set(found) == {"train/a.jpg", "train/b.jpg", "test/c.jpg", "validation/d.png"}
    assert found["train/a.jpg"].image_labels == [("Generic label #0", 1)]
    assert found["train/a.jpg"].boxes == []

    boxed = found["train/b.jpg"]
    assert boxed.image_labels == []
    assert boxed.features["image/class/absent/label"] == [1]
    assert boxed.features["image/class/absent/text"] == [b"Generic label #0"]
    assert boxed.labels == [("Generic label #0", 1)]
    assert boxed.boxes == [pytest.approx((0.2, 0.3, 1.0, 0.5))]
    for name in ("occluded", "truncated", "group_of", "depiction", "inside"):
        assert boxed.features[f"image/object/{name}"] == [-1]
    assert boxed.features["image/object/confidence"] == [1.0]

    tested = found["test/c.jpg"]
    assert tested.labels == [("Generic label #3", 4)]
    assert tested.features["image/object/confidence"] == pytest.approx([0.7])
    flags = ("occluded", "truncated", "group_of", "depiction", "inside")
    assert [tested.features[f"image/object/{name}"] for name in flags] == [[1], [0], [1], [0], [0]]
    assert tested.image_labels == [("Generic label #1", 2), ("Generic label #3", 4)]
    assert tested.features["image/class/confidence"] == [1.0, 1.0]
    assert tested.features["image/source_id"] == [b"c"]

    # Nobody says anything about it.
    assert found["validation/d.png"].boxes == []
    assert counts["unannotated"] == 1
    assert all(set(each.features) == set(boxed.features) for each in v6.examples())


def test_version_5_is_told_without_classes_too(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "datumaro" / "open_images_dataset" / "v5"
    boxes = tmp_path / "boxes.csv"
    boxes.write_text(
        f"{','.join(BOX_COLUMNS)}\naa,xclick,/m/1,1,0,1,0,0.5,0,0,0,0,0\n"
        "cc,xclick,/m/0,1,0,1,0,0.5,0,0,0,0,0\n"
    )
    words: list[str | Path] = ["--images", root / "images", "--boxes", boxes]
    bare = build("open-images", *words, output=tmp_path / "bare")
    assert {key: each.labels for key, each in bare.by_key().items()} == {
        "train/aa.jpg": [("/m/1", 2)],
        "test/cc.jpg": [("/m/0", 1)],
    }
    classes = root / "annotations" / "class-descriptions.csv"
    named = build("open-images", *words, "--classes", classes, output=tmp_path / "named")
    assert {key: each.labels for key, each in named.by_key().items()} == {
        "train/aa.jpg": [("Generic label #1", 2)],
        "test/cc.jpg": [("Generic label #0", 1)],
    }


def test_every_row_is_written_or_rejected_whatever_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(6):
        Image.new("RGB", (40, 20), (40 * number, 0, 0)).save(images / f"{number:02x}.jpg")
    (images / "00.txt").write_text("beside the image")
    rows = [
        # Rows of two images that alternate, so that they are merged by the join.
        *(
            [f"{number % 2:02x}", "s", f"/m/{number % 3}", "1", "0", "0.5", "0", "1"]
            for number in range(300)
        ),
        ["02", "s", "/m/0", "1", "0", "0.5", "0", "x"],
        ["03", "s", "/m/0", "1", "0", "0.5", "0", "y"],
        ["03", "s", "/m/0", "1", "0", "0.5", "0", "1"],
        ["04", "s", "/m/9", "1", "0.9", "1.2", "0", "1"],
        ["05", "s", "/m/0", "1", "0.5", "0.5", "0", "1"],
        ["ff", "s", "/m/0", "1", "0", "0.5", "0", "1"],
    ]
    boxes = tmp_path / "boxes.csv"
    with boxes.open("w", newline="") as file:
        csv.writer(file).writerows([BOX_COLUMNS[:8], *rows])
    outputs = []
    for name, chunk_bytes in (("whole", 32 << 20), ("parts", 1000)):
        monkeypatch.setattr(OpenImagesFormat, "chunk_bytes", chunk_bytes)
        built = build(
            "open-images",
            *("--images", images, "--boxes", boxes),
            *("--set", "rejects.max_ratio=0.5"),
            output=tmp_path / name,
        )
        assert built.exit_code == 0, built.stderr
        outputs.append(built)
    whole = outputs[0]
    assert read_dataset(tmp_path / "whole") == read_dataset(tmp_path / "parts")

    counts = whole.counts()
    assert (counts["listed"], counts["examples"]) == (7, 4)
    assert counts["excluded"] == {"not_an_image_name": 1}
    assert whole.reasons() == {
        ("02.jpg", "annotation_malformed"): 1,
        # The other of its rows is good; it alone would not be all that is there.
        ("03.jpg", "annotation_malformed"): 1,
        ("ff", "missing_image"): 1,
    }
    places = [row for row in whole.rejects() if row["reason"] == "annotation_malformed"]
    assert all(row["detail"].startswith("boxes.csv: byte ") for row in places)
    found = whole.by_key()
    assert {key: len(example.boxes) for key, example in found.items()} == {
        "00.jpg": 150,
        "01.jpg": 150,
        "04.jpg": 1,
        "05.jpg": 0,
    }
    assert found["01.jpg"].labels[:3] == [("/m/1", 2), ("/m/0", 1), ("/m/2", 3)]
    assert counts["corrections"] == {"box_clipped": 1, "box_without_area_dropped": 1}


def test_what_one_file_verified_to_be_absent_is_no_label_of_another(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.jpg")
    header = "ImageID,Source,LabelName,Confidence\n"
    (tmp_path / "machine.csv").write_text(f"{header}a,machine,/m/0,0.9\na,machine,/m/1,0.6\n")
    (tmp_path / "human.csv").write_text(f"{header}a,verification,/m/0,0\n")
    built = build(
        "open-images",
        *("--images", tmp_path / "images"),
        *("--image-labels", tmp_path / "machine.csv"),
        *("--image-labels", tmp_path / "human.csv"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    (example,) = built.examples()
    assert example.image_labels == [("/m/1", 1)]
    assert example.features["image/class/confidence"] == pytest.approx([0.6])
    assert example.features["image/class/absent/text"] == [b"/m/0"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ImageID,LabelName\na,b\n", "boxes.csv: line 1: the columns XMin, YMin, XMax, YMax are"),
        ("", "are missing; those that are there: none"),
        (f"{','.join(BOX_COLUMNS)}\nzz,s,/m/0,1,0,1,0,1,0,0,0,0,0\n", "none of the 1 annotated"),
        (None, "boxes.csv: no such file"),
    ],
)
def test_a_wrong_file_is_one_line_that_says_so(
    tmp_path: Path, content: str | None, message: str
) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.jpg")
    if content is not None:
        (tmp_path / "boxes.csv").write_text(content)
    built = build(
        "open-images",
        *("--images", tmp_path / "images", "--boxes", tmp_path / "boxes.csv"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 1
    assert message in built.summary["message"]
    assert "\n" not in built.summary["message"]
