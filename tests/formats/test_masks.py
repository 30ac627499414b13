from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.records import MaskRole
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.masks import MasksFormat, Naming, find_pairs
from shardbeam.transforms.formats.recognition import Folder
from shardbeam.transforms.formats.testing import check_format
from tests.support.archive_files import Files, write_files
from tests.support.image_makers import jpegs, plain_jpeg, save

MASK = save(Image.new("L", (4, 3), 1), "PNG")


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("images/a.jpg", "masks/a.png"),
        ("images/train/a.jpg", "labels/train/a.png"),
        ("train/images/a.jpg", "train/annotations/a.png"),
        ("train/a.png", "train_labels/a_L.png"),
        ("train/a.png", "trainannot/a.png"),
        ("img_dir/val/a.jpg", "ann_dir/val/a.png"),
        ("train_images/a.jpg", "train_masks/a.jpg.png"),
        ("images_256/a.jpg", "masks_256/a_color_mask.png"),
        ("JPEGImages/a.png", "SegmentationClass/a.png"),
        ("images/a.jpg", "annotations/trimaps/a.png"),
        ("image/1.png", "ground_truth/1.png"),
        ("x/a_jpg.rf.12.jpg", "x/a_jpg.rf.12_mask.png"),
        ("leftImg8bit/b/b_1_leftImg8bit.png", "gtFine/b/b_1_gtFine_labelIds.png"),
        ("b/1_sat.jpg", "b/1_mask.png"),
        ("aug/image_0_1.png", "aug/mask_0_1.png"),
        ("images/image_0002.png", "masks/gt_0002.png"),
    ],
)
def test_which_mask_belongs_to_an_image(image: str, mask: str) -> None:
    other = image.replace("a", "other", 1)
    naming, joins = find_pairs([image, other, mask])
    assert [*joins.values()] == [[mask]]
    assert naming.is_mask(mask)
    assert not naming.is_mask(image)
    assert naming.join_mask(mask) == naming.join_image(image)


def test_nothing_is_a_mask_of_these() -> None:
    assert not find_pairs(["with_mask/1.jpg", "without_mask/1.jpg"]).joins
    assert not find_pairs(["images/a.jpg", "masks/b.png"]).joins
    assert not find_pairs(["a/1.jpg", "b/1.jpg"]).joins
    assert not find_pairs(["_mask.png", "a.jpg"]).joins


def test_the_ending_of_most_masks_counts() -> None:
    images = [f"images/{name}.jpg" for name in ("a", "b", "c", "c_mask")]
    masks = ["masks/a_mask.png", "masks/b_mask.png", "masks/c.png"]
    naming, joins = find_pairs([*images, *masks])
    assert naming == Naming(mask_end="_mask")
    assert joins.keys() == {"a", "b", "c"}
    # The picture may be the mask of another one: its reject says so.
    assert sorted(joins["c"]) == ["images/c_mask.jpg", "masks/c.png"]


FILES: Files = {
    **jpegs("train/images/a.jpg", "train/images/b.jpg", "val/images/a.jpg"),
    "train/masks/a.png": MASK,
    "train/masks/z.png": MASK,
    "val/masks/a.png": MASK,
    "class_dict.csv": "name,r,g,b\nroad,0,0,0\ncar,9,8,7\n",
}


def test_what_is_read(tmp_path: Path) -> None:
    report = check_format(MasksFormat(images=str(write_files(tmp_path, FILES))))

    assert report.splits == {"train/images/a.jpg": "train", "val/images/a.jpg": "val"}
    mask = report.annotations["val/images/a.jpg"].masks[MaskRole.SEMANTIC]
    assert mask.uri == str(tmp_path / "val/masks/a.png")
    assert [(each.key, each.reason.value) for each in report.rejects] == [
        ("train/masks/z.png", "missing_image")
    ]
    assert report.excluded == {"unannotated": 1}
    assert [(each.name, each.source_id) for each in report.categories] == [("road", 0), ("car", 1)]


def test_two_masks_of_an_image_are_not_guessed(tmp_path: Path) -> None:
    files = {**FILES, "train/images/c.jpg": plain_jpeg(), "train/labels/a.png": MASK}
    report = check_format(MasksFormat(images=str(write_files(tmp_path, files))))

    assert [(each.key, each.reason.value, each.detail) for each in report.rejects][:1] == [
        (
            "train/images/a.jpg",
            "ambiguous_stem",
            "several masks fit it: train/labels/a.png, train/masks/a.png",
        )
    ]


NUMBERED = ["a.png", "b.png", "a_mask.png", "a_mask_1.png", "a_mask_2.png", "b_mask.png"]


@pytest.mark.parametrize(
    ("paths", "joins"),
    [
        (NUMBERED, {"a": NUMBERED[2:5], "b": ["b_mask.png"]}),
        (["a.png", "a_mask_1.png", "a_mask1.png"], {"a": ["a_mask1.png", "a_mask_1.png"]}),
        (["images/a.jpg", "masks/a.png", "masks/a_1.png"], {"a": ["masks/a.png", "masks/a_1.png"]}),
        (
            ["images/a.jpg", "masks/a_1.png", "masks/a_2.png"],
            {"a": ["masks/a_1.png", "masks/a_2.png"]},
        ),
        # The second is the mask of another image.
        (
            ["images/a.jpg", "images/a_1.jpg", "masks/a.png", "masks/a_1.png"],
            {"a": ["masks/a.png"], "a_1": ["masks/a_1.png"]},
        ),
        (
            ["images/a_1.jpg", "images/a_2.jpg", "masks/a_1.png", "masks/a_2.png"],
            {"a_1": ["masks/a_1.png"], "a_2": ["masks/a_2.png"]},
        ),
    ],
)
def test_names_that_differ_by_a_number_are_of_one_image(
    paths: list[str], joins: dict[str, list[str]]
) -> None:
    naming, pairs = find_pairs(paths)
    assert pairs == joins
    for masks in joins.values():
        assert len({naming.split_number(mask)[0] for mask in masks}) == 1
    assert naming.join_image("images/x_1.jpg") == "x_1"


def test_masks_with_numbers_are_joined_and_others_are_not_guessed(tmp_path: Path) -> None:
    names = [*NUMBERED, "c.png", "c_mask.png", "c_mask_left.png"]
    write_files(tmp_path, dict.fromkeys(names, MASK))
    report = check_format(MasksFormat(images=str(tmp_path)))

    masks = report.annotations["a.png"].masks
    assert {key: file.uri for key, file in masks.items()} == {
        "semantic": str(tmp_path / "a_mask.png"),
        "semantic#_1": str(tmp_path / "a_mask_1.png"),
        "semantic#_2": str(tmp_path / "a_mask_2.png"),
    }
    assert [(each.key, each.reason.value, each.detail) for each in report.rejects] == [
        ("c.png", "ambiguous_stem", "several masks fit it: c_mask.png, c_mask_left.png")
    ]
    assert not report.excluded


@pytest.mark.parametrize("masks", [("a_MA", "a_HE"), ("a_left", "a_right"), ("a", "a_old")])
def test_masks_with_several_endings_are_asked_about(tmp_path: Path, masks: tuple[str, str]) -> None:
    files = {"images/a.jpg": plain_jpeg(), **{f"masks/{name}.png": MASK for name in masks}}
    recognized = MasksFormat.recognize(Folder(str(write_files(tmp_path, files))))
    assert recognized is not None
    assert "most images have several masks, such as masks/a" in recognized.problem


def test_the_key_replaces_the_file(tmp_path: Path) -> None:
    write_files(tmp_path, {**FILES, "id2label.json": "no JSON"})
    made = MasksFormat(images=str(tmp_path), mask_classes={"1": "grass"}).resolve()
    assert [each.name for each in made.declared_categories()] == ["grass"]
    assert not made.annotation_files()


def test_files_of_equal_classes_are_one(tmp_path: Path) -> None:
    equal = {"val/id2label.json": '{"0": "road", "1": "car"}'}
    made = MasksFormat(images=str(write_files(tmp_path, {**FILES, **equal}))).resolve()
    assert made.annotation_files() == (str(tmp_path / "class_dict.csv"),)


def test_a_table_of_images_names_no_classes(tmp_path: Path) -> None:
    files = {path: each for path, each in FILES.items() if not path.endswith(".csv")}
    files["train/_classes.csv"] = "filename, cat, dog\na.jpg, 0, 1\n"
    made = MasksFormat(images=str(write_files(tmp_path, files))).resolve()
    assert not [*made.declared_categories()]
    assert "have no names" in next(iter(made.warnings()))


def test_pascal_vocs_masks_of_objects_are_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"JPEGImages/a.jpg": plain_jpeg(), "SegmentationClass/a.png": MASK})
    made = MasksFormat(images=str(tmp_path)).resolve()
    assert made.place("SegmentationObject/a.png", root=0).role is Role.OTHER
    assert made.place("SegmentationClass/a.png", root=0).mask is MaskRole.VOC_CLASS


def test_values_in_steps_must_be_named(tmp_path: Path) -> None:
    steps = np.array([[0, 127, 254]] * 3, np.uint8)
    files = {"images/a.jpg": plain_jpeg(), "masks/a.png": save(Image.fromarray(steps), "PNG")}
    write_files(tmp_path, files)
    with pytest.raises(Problem, match="look like steps of gray"):
        MasksFormat(images=str(tmp_path)).resolve()
    named = {"127": 1, "254": "ignore"}
    made = MasksFormat(images=str(tmp_path), mask_values=named).resolve()  # type: ignore[arg-type]
    values = made.place("masks/a.png", root=0).values
    assert values.ids == ((0, 0), (127, 1), (254, None))
