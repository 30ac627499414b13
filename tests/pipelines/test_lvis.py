"""LVIS end to end: both versions' names of images, and the lists of categories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.builds import Build, Json, build
from tests.support.making import draw

NEGATIVE = "image/neg_category_ids"


@pytest.fixture(scope="module")
def sample(shared_data: Path) -> Json:
    """Three images of the sample: v0.5, of val2017 under their names of 2014."""
    document: Json = json.loads((shared_data / "lvis" / "lvis_val_100.json").read_bytes())
    images = document["images"][:3]
    ids = {image["id"] for image in images}
    annotations = [each for each in document["annotations"] if each["image_id"] in ids]
    return {**document, "images": images, "annotations": annotations}


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


def build_lvis(document: Json, *, folder: Path, images: Path, setting: str) -> Build:
    (folder / "lvis.json").write_text(json.dumps(document))
    words = ("--images", images, "--annotations", folder / "lvis.json", "--set", setting)
    return build("lvis", *words, output=folder / "out")


@pytest.mark.parametrize("version", ["v0.5", "v1"])
def test_images_of_2017_are_found_and_ids_follow_the_label_map(
    sample: Json, tmp_path: Path, version: str
) -> None:
    images = tmp_path / "coco" / "val2017"
    for image in sample["images"]:
        draw(images, image, name_of_2017(image))
    document = sample if version == "v0.5" else as_v1(sample)

    built = build_lvis(document, folder=tmp_path, images=images, setting="labels.ids=contiguous")

    assert sum(len(each.labels) for each in built.examples()) == len(sample["annotations"])
    ids = [category["id"] for category in sample["categories"]]
    assert {key: each.features[NEGATIVE] for key, each in built.by_key().items()} == {
        name_of_2017(image): [ids.index(each) + 1 for each in image["neg_category_ids"]]
        for image in sample["images"]
    }
