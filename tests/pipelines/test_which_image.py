"""Which annotations belong to which image: whole builds of layouts that leave it open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import Build, Json, build, write_coco
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg

TOLERANT = ("--set", "rejects.max_ratio=1")


def check_sum(built: Build) -> None:
    """Every listed file is exactly one of written, rejected and excluded."""
    assert built.exit_code == 0, built.stderr
    for counts in built.summary["splits"].values():
        rejected = sum(counts["rejected"].values()) - counts["unlisted"]
        excluded = sum(counts["excluded"].values())
        assert counts["listed"] == counts["images"] + rejected + excluded


def coco_file(path: Path, images: list[Json], *annotated: object) -> Path:
    """Writes a COCO file with a box for each of the image ids."""
    boxes = [
        {"id": number, "image_id": image_id, "category_id": 1, "bbox": [number, 2, 9, 9]}
        for number, image_id in enumerate(annotated, 1)
    ]
    document = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    return write_coco(path, document)


def test_images_that_share_an_id_are_rejected_even_if_another_file_is_sure(tmp_path: Path) -> None:
    write_files(tmp_path, {f"images/{name}.jpg": plain_jpeg() for name in "abc"})
    images: list[Json] = [{"id": 1, "file_name": f"{name}.jpg"} for name in "ab"]
    images.append({"id": 2, "file_name": "c.jpg"})
    boxes = coco_file(tmp_path / "boxes.json", images, 1, 1, 2)
    captions = write_coco(
        tmp_path / "captions.json",
        {
            "images": [{"id": 1, "file_name": "a.jpg"}],
            "annotations": [{"id": 1, "image_id": 1, "caption": "a cat"}],
        },
    )
    words = ("coco", "--images", tmp_path / "images", "--annotations", boxes)
    built = build(*words, "--annotations", captions, *TOLERANT, output=tmp_path / "out")

    check_sum(built)
    assert built.by_key().keys() == {"c.jpg"}
    assert built.reasons() == {
        ("a.jpg", "duplicate_image_id"): 1,
        ("b.jpg", "duplicate_image_id"): 1,
    }


@pytest.mark.parametrize("splits", [(), ("--fractions", "train=0.5,test=0.5", "--exact")])
def test_a_name_under_two_ids_is_one_image_in_one_file_or_two(
    tmp_path: Path, splits: tuple[str, ...]
) -> None:
    write_files(tmp_path, {f"images/{name}.jpg": plain_jpeg() for name in "ab"})
    twice: list[Json] = [{"id": number, "file_name": "a.jpg"} for number in (5, 6)]
    one = coco_file(tmp_path / "one.json", [*twice, {"id": 7, "file_name": "b.jpg"}], 5, 6, 7)
    other = coco_file(tmp_path / "other.json", [{"id": 1, "file_name": "a.jpg"}], 1)
    words = ("--images", tmp_path / "images", "--annotations", one, "--annotations", other)
    built = build("coco", *words, *splits, output=tmp_path / "out")

    check_sum(built)
    found = {}
    for split in built.summary["splits"]:
        found.update(built.by_key(split))
    assert [len(found[f"{name}.jpg"].boxes) for name in "ab"] == [2, 1]
    assert found["a.jpg"].features["image/source_id"] == [b"5"]
    corrections: dict[str, int] = {}
    for counts in built.summary["splits"].values():
        corrections.update(counts["corrections"])
    # The only box of the other file is the first one's.
    assert corrections == {"duplicate_annotation_dropped": 1, "entries_merged": 1}


LABEL = "0 0.5 0.5 0.25 0.25\n"


def test_yolo_labels_beside_images_are_read_though_there_is_a_folder_of_labels(
    tmp_path: Path,
) -> None:
    files: dict[str, bytes | str] = {f"images/{name}.jpg": plain_jpeg() for name in "abcd"}
    files |= {f"labels/{name}.txt": LABEL for name in "abc"}
    files |= {
        # An equal one, another one, the only one; and a file that is not beside an image.
        "images/b.txt": LABEL,
        "images/c.txt": "0 0.5 0.5 0.5 0.5\n",
        "images/d.txt": LABEL,
        "images/notes.txt": "remember the milk\n",
        "classes.txt": "cat\n",
    }
    write_files(tmp_path / "set", files)
    built = build("yolo", "--root", tmp_path / "set", *TOLERANT, output=tmp_path / "out")

    check_sum(built)
    widths = {
        key: [round(xmax - xmin, 3) for xmin, _, xmax, _ in example.boxes]
        for key, example in built.by_key().items()
    }
    assert widths == {f"images/{name}.jpg": [0.25] for name in "abcd"}
    counts = built.counts()
    assert (counts["unannotated"], counts["listed"], counts["unlisted"]) == (0, 4, 1)
    assert counts["corrections"] == {"entries_merged": 1}
    assert built.reasons() == {("images/c.jpg", "duplicate_key"): 1}


def test_images_that_no_split_names_are_said(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "data.yaml": "names: [cat]\ntrain: images/train\nval: images/val\n"
    }
    for name in ("train/a", "val/b", *(f"test/{letter}" for letter in "cdef")):
        files |= {f"images/{name}.jpg": plain_jpeg(), f"labels/{name}.txt": LABEL}
    write_files(tmp_path / "set", files)
    words = ("yolo", "--root", str(tmp_path / "set"))
    built = build(*words, output=tmp_path / "out")

    note = (
        "4 images belong to no split and are left out, such as images/test/c.jpg, "
        "images/test/d.jpg, images/test/e.jpg"
    )
    check_sum(built)
    assert built.summary["notes"] == [note]
    assert note in run("plan", *words, "--output", str(tmp_path / "plan")).stdout
    files["data.yaml"] = "names: [cat]\ntrain: images/train\nval: images/val\ntest: images/test\n"
    write_files(tmp_path / "set", files)
    assert not build(*words, output=tmp_path / "all").summary["notes"]


def labelme(name: str) -> str:
    points = [[1, 2], [9, 8]]
    shapes = [{"label": "cat", "points": points, "shape_type": "rectangle"}]
    return json.dumps({"version": "5", "shapes": shapes, "imagePath": name})


def test_json_of_other_tools_is_no_annotation_of_labelme(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        f"{split}/{split}.jpg": plain_jpeg() for split in ("train", "test")
    }
    files |= {f"{split}/{split}.json": labelme(f"{split}.jpg") for split in ("train", "test")}
    files |= {
        "package.json": '{"name": "x", "shape": [1]}',
        "train/list.json": "[1, 2]",
        "train/text.json": "\ufeff7",
        # These look like LabelMe's, or may have been.
        "train/half.json": '{"imagePath": "half.jpg"}',
        "test/broken.json": '{"name": ',
    }
    write_files(tmp_path / "set", files)
    built = build("labelme", "--root", tmp_path / "set", *TOLERANT, output=tmp_path / "out")

    check_sum(built)
    excluded = {name: counts["excluded"] for name, counts in built.summary["splits"].items()}
    assert excluded == {
        "train": {"not_an_annotation": 2},
        "test": {},
        "": {"not_an_annotation": 1},
    }
    assert built.reasons() == {
        ("train/half.json", "annotation_malformed"): 1,
        ("test/broken.json", "annotation_malformed"): 1,
    }
    # Other files do not make the share of rejects look small.
    assert built.counts()["reject_ratio"] == 1 / 2


def test_other_json_does_not_hide_that_no_image_is_there(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "a.jpg": plain_jpeg(),
        "b.json": labelme("b.jpg"),
        "package.json": "{}",
    }
    write_files(tmp_path / "set", files)
    built = build("labelme", "--root", tmp_path / "set", output=tmp_path / "out", exit_code=1)
    assert "none of the 1 annotated images is listed here" in built.summary["message"]


def test_names_without_extension_in_cvat_are_joined_by_name(tmp_path: Path) -> None:
    images = [
        f'<image id="{number}" name="frame_{number}" width="32" height="24">'
        '<box label="cat" xtl="1" ytl="2" xbr="9" ybr="8"/></image>'
        for number in range(2)
    ]
    files: dict[str, bytes | str] = {
        f"images/frame_{number}.jpg": plain_jpeg() for number in range(2)
    }
    files |= {"annotations.xml": f"<annotations>{''.join(images)}</annotations>"}
    write_files(tmp_path / "set", files)
    run("init", str(tmp_path / "set"), "--output", str(tmp_path / "cvat.yaml"), exit_code=0)
    assert "match: name" in (tmp_path / "cvat.yaml").read_text()
    built = build(str(tmp_path / "cvat.yaml"), output=tmp_path / "out")
    check_sum(built)
    assert [len(example.boxes) for example in built.examples()] == [1, 1]

    words = ("--images", tmp_path / "set/images", "--annotations", tmp_path / "set/annotations.xml")
    unmatched = build("cvat", *words, output=tmp_path / "unmatched", exit_code=1)
    assert "--match name (`match: name`)" in unmatched.summary["message"]
