"""LVIS end to end: the real sample, whose images are drawn here, and its two versions' names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.builds import Build, Json, build
from tests.support.making import draw

NEGATIVE = "image/neg_category_ids"
NOT_EXHAUSTIVE = "image/not_exhaustive_category_ids"


@pytest.fixture(scope="module")
def sample(shared_data: Path) -> Json:
    """The sample: v0.5, 100 images of val2017 under their names of 2014."""
    document: Json = json.loads((shared_data / "lvis" / "lvis_val_100.json").read_bytes())
    return document


def first_images(sample: Json, count: int) -> Json:
    images = sample["images"][:count]
    ids = {image["id"] for image in images}
    annotations = [each for each in sample["annotations"] if each["image_id"] in ids]
    return {**sample, "images": images, "annotations": annotations}


def as_v1(sample: Json) -> Json:
    """As v1 names images: by `coco_url` alone."""
    images = [
        {key: value for key, value in image.items() if key != "file_name"}
        for image in sample["images"]
    ]
    return {**sample, "images": images}


def name_of_2017(image: Json) -> str:
    name: str = image["coco_url"].rpartition("/")[2]
    return name


def build_lvis(document: Json, *, folder: Path, images: Path, **settings: str) -> Build:
    file = folder / "lvis.json"
    file.write_text(json.dumps(document))
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return build("lvis", "--images", images, "--annotations", file, *words, output=folder / "out")


@pytest.fixture(scope="module")
def built(sample: Json, tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("lvis")
    for image in sample["images"]:
        draw(folder / "images", image, image["file_name"])
    return build_lvis(sample, folder=folder, images=folder / "images", masks="png")


def test_the_real_sample(built: Build, sample: Json) -> None:
    assert built.exit_code == 0, built.stderr
    names = {category["id"]: category["name"] for category in sample["categories"]}
    found = built.by_key()

    assert len(found) == 100
    assert sum(len(each.labels) for each in found.values()) == 977
    for image in sample["images"]:
        example = found[image["file_name"]]
        objects = [each for each in sample["annotations"] if each["image_id"] == image["id"]]
        features = example.features
        assert features["image/source_id"] == [str(image["id"]).encode()]
        assert example.labels == [
            (names[each["category_id"]], each["category_id"]) for each in objects
        ]
        assert features["image/object/is_crowd"] == [0] * len(objects)
        assert len(features["image/object/mask"]) == len(objects)
        assert features[NEGATIVE] == image["neg_category_ids"]
        assert features[NOT_EXHAUSTIVE] == image["not_exhaustive_category_ids"]
        np.testing.assert_allclose(
            features["image/object/area"], [each["area"] for each in objects], rtol=1e-6
        )


def test_ids_of_the_lists_follow_the_label_map(sample: Json, tmp_path: Path) -> None:
    small = first_images(sample, 3)
    for image in small["images"]:
        draw(tmp_path / "images", image, image["file_name"])

    built = build_lvis(
        small, folder=tmp_path, images=tmp_path / "images", **{"labels.ids": "contiguous"}
    )

    ids = [category["id"] for category in sample["categories"]]
    found = built.by_key()
    for image in small["images"]:
        assert found[image["file_name"]].features[NEGATIVE] == [
            ids.index(category_id) + 1 for category_id in image["neg_category_ids"]
        ]


@pytest.mark.parametrize("version", ["v0.5", "v1"])
@pytest.mark.parametrize("root", ["val2017", "above"])
def test_images_of_2017_are_found_below_their_folder_and_above_it(
    sample: Json, tmp_path: Path, version: str, root: str
) -> None:
    small = first_images(sample, 3)
    for image in small["images"]:
        draw(tmp_path / "coco" / "val2017", image, name_of_2017(image))
    images = tmp_path / "coco" / ("val2017" if root == "val2017" else "")
    prefix = "" if root == "val2017" else "val2017/"

    built = build_lvis(small if version == "v0.5" else as_v1(small), folder=tmp_path, images=images)

    assert built.exit_code == 0, built.stderr
    assert built.by_key().keys() == {f"{prefix}{name_of_2017(image)}" for image in small["images"]}
    assert sum(len(each.labels) for each in built.examples()) == len(small["annotations"])


def test_the_same_image_of_both_years_is_ambiguous(sample: Json, tmp_path: Path) -> None:
    small = first_images(sample, 3)
    for image in small["images"]:
        draw(tmp_path / "images" / "val2017", image, name_of_2017(image))
    again = small["images"][0]
    draw(tmp_path / "images" / "val2014", again, again["file_name"])

    built = build_lvis(
        as_v1(small),
        folder=tmp_path,
        images=tmp_path / "images",
        **{"rejects.max_ratio": "0.5"},
    )

    assert built.exit_code == 0, built.stderr
    assert len(built.examples()) == 2
    assert built.reasons() == {
        (f"val2017/{name_of_2017(again)}", "ambiguous_stem"): 1,
        (f"val2014/{again['file_name']}", "ambiguous_stem"): 1,
    }


def test_a_wrong_root_is_an_error_with_names_of_both_sides(sample: Json, tmp_path: Path) -> None:
    small = first_images(sample, 2)
    draw(tmp_path / "images", small["images"][0], "other.jpg")

    built = build_lvis(as_v1(small), folder=tmp_path, images=tmp_path / "images")

    assert built.exit_code == 1
    assert "none of the 2 annotated images is listed here" in built.stderr
    assert "'other.jpg'" in built.stderr
