"""The sample: its layout, its determinism, and the truth of its annotations."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from shardbeam.pipelines.commands.sample import SHAPES, write_shapes
from shardbeam.pipelines.failures import UsageError
from shardbeam.transforms.core.counters import counters

IMAGES = 48
WIDTH, HEIGHT = 320, 240
FILES = ("captions", "instances", "panoptic", "person_keypoints")
CORNERS = {"circle": 0, "square": 4, "triangle": 3, "star": 5}


def draw(output: Path, *, images: int = IMAGES, seed: int = 7, workers: int = 1) -> int:
    return write_shapes(
        output=output, images=images, seed=seed, workers=workers, width=WIDTH, height=HEIGHT
    )


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "shapes"
    assert draw(folder) == len(load(folder, "instances")["annotations"])
    return folder


@pytest.fixture(scope="module")
def keypoints(sample: Path) -> COCO:
    return COCO(sample / "annotations" / "person_keypoints.json")


def load(sample: Path, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((sample / "annotations" / f"{file}.json").read_bytes())
    return content


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def panoptic_ids(sample: Path, file_name: str) -> npt.NDArray[np.int64]:
    with Image.open(sample / "panoptic" / file_name) as png:
        ids: npt.NDArray[np.int64] = np.asarray(png, np.int64) @ np.array([1, 256, 256**2])
        return ids


def test_layout(sample: Path) -> None:
    names = [f"{number:012}" for number in range(1, IMAGES + 1)]
    files = contents(sample)
    assert sorted(files) == sorted(
        [
            *(f"annotations/{file}.json" for file in FILES),
            *(f"images/{name}.jpg" for name in names),
            *(f"panoptic/{name}.png" for name in names if int(name) % 16),
            *(f"class_folders/{SHAPES[int(name) % len(SHAPES)]}/{name}.jpg" for name in names),
        ]
    )
    # No two pictures are alike.
    assert len({data for name, data in files.items() if name.endswith(".jpg")}) == 2 * IMAGES
    for path in (sample / "class_folders").rglob("*.jpg"):
        with Image.open(path) as picture:
            assert all(160 <= side <= 224 for side in picture.size)


def test_same_bytes_whatever_the_workers(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw(Path("again"), workers=2)
    assert contents(tmp_path / "again") == contents(sample)


def test_a_picture_depends_on_seed_and_number_only(sample: Path, tmp_path: Path) -> None:
    draw(tmp_path / "few", images=5)
    files, all_files = contents(tmp_path / "few"), contents(sample)
    for name, data in files.items():
        if not name.startswith("annotations/"):
            assert data == all_files[name]
    for file in FILES:
        some, everything = load(tmp_path / "few", file), load(sample, file)
        assert some["images"] == everything["images"][:5]
        assert some["annotations"]
        assert some["annotations"] == everything["annotations"][: len(some["annotations"])]
    draw(tmp_path / "other", images=3, seed=8)
    other = contents(tmp_path / "other")
    assert all(data != all_files[name] for name, data in other.items() if name in all_files)


@pytest.mark.parametrize("file", FILES)
def test_annotation_files_have_the_structure_of_coco(sample: Path, file: str) -> None:
    content = load(sample, file)
    sections = ["info", "licenses", "images", "annotations"]
    assert list(content) == (sections if file == "captions" else [*sections, "categories"])
    assert [image["id"] for image in content["images"]] == list(range(1, IMAGES + 1))
    for image in content["images"]:
        with Image.open(sample / "images" / image["file_name"]) as picture:
            assert (picture.format, picture.mode) == ("JPEG", "RGB")
            assert picture.size == (image["width"], image["height"]) == (WIDTH, HEIGHT)
    if file != "panoptic":
        ids = Counter(annotation["id"] for annotation in content["annotations"])
        assert set(ids.values()) == {1}
    assert {annotation["image_id"] for annotation in content["annotations"]} == {
        number for number in range(1, IMAGES + 1) if number % 16
    }


def test_categories_have_gaps_and_agree_between_files(sample: Path) -> None:
    things = {1: "circle", 3: "square", 4: "triangle", 7: "star"}
    for file in ("instances", "person_keypoints"):
        assert {entry["id"]: entry["name"] for entry in load(sample, file)["categories"]} == things
    panoptic = load(sample, "panoptic")["categories"]
    assert {entry["id"]: entry["name"] for entry in panoptic if entry["isthing"]} == things
    assert min(entry["id"] for entry in panoptic if not entry["isthing"]) > max(things)
    for entry in load(sample, "person_keypoints")["categories"]:
        corners = CORNERS[entry["name"]]
        edges = [[number, number % corners + 1] for number in range(1, corners + 1)]
        assert entry["skeleton"] == edges


def test_area_and_box_are_those_of_the_mask(keypoints: COCO) -> None:
    instances = keypoints.anns.values()
    assert {entry["category_id"] for entry in instances if not entry["iscrowd"]} == {1, 3, 4, 7}
    assert any(entry["iscrowd"] for entry in instances)
    for annotation in instances:
        mask = keypoints.annToMask(annotation)
        assert annotation["area"] == mask.sum() > 0
        encoded = coco_mask.encode(np.asfortranarray(mask))
        assert annotation["bbox"] == coco_mask.toBbox(encoded).tolist()
        if annotation["iscrowd"]:
            assert sum(annotation["segmentation"]["counts"]) == HEIGHT * WIDTH


def test_keypoints_are_the_corners(sample: Path, keypoints: COCO) -> None:
    instances = {entry["id"]: entry for entry in load(sample, "instances")["annotations"]}
    seen: Counter[int] = Counter()
    for annotation_id, annotation in keypoints.anns.items():
        points = np.reshape(annotation["keypoints"], (5, 3))
        instance = dict(annotation)
        del instance["keypoints"], instance["num_keypoints"]
        assert instance == instances[annotation_id]
        name = keypoints.cats[annotation["category_id"]]["name"]
        corners = 0 if annotation["iscrowd"] else CORNERS[name]
        assert annotation["num_keypoints"] == corners
        assert not points[corners:].any()
        x, y, visible = points[:corners].T
        seen.update(visible.tolist())
        if corners:
            vertices = np.reshape(annotation["segmentation"][0], (-1, 2)).tolist()
            assert all(vertex in vertices for vertex in points[:corners, :2].tolist())
            # Clockwise: twice the signed area, where y points down.
            assert x @ np.roll(y, -1) - y @ np.roll(x, -1) > 0
    assert seen[1] > 0
    assert seen[2] > IMAGES
    for objects in keypoints.imgToAnns.values():
        masks = [keypoints.annToMask(annotation) for annotation in objects]
        for number, annotation in enumerate(objects):
            for x, y, visibility in np.reshape(annotation["keypoints"], (5, 3)):
                if visibility:
                    hidden = any(mask[int(y), int(x)] for mask in masks[:number])
                    assert visibility == (1 if hidden else 2)


def test_panoptic_segments_are_what_is_seen_of_the_instances(sample: Path, keypoints: COCO) -> None:
    panoptic = load(sample, "panoptic")
    is_thing = {entry["id"]: entry["isthing"] for entry in panoptic["categories"]}
    greatest = 0
    for annotation in panoptic["annotations"]:
        ids = panoptic_ids(sample, annotation["file_name"])
        segments = annotation["segments_info"]
        assert sorted(segment["id"] for segment in segments) == np.unique(ids).tolist()
        greatest = max(greatest, ids.max())
        for segment in segments:
            rows, columns = np.nonzero(ids == segment["id"])
            x, y = columns.min(), rows.min()
            assert segment["area"] == len(rows)
            assert segment["bbox"] == [x, y, columns.max() + 1 - x, rows.max() + 1 - y]
        above = np.zeros((HEIGHT, WIDTH), bool)
        # From the topmost down, each without what lies above.
        for instance, segment in zip(
            keypoints.imgToAnns[annotation["image_id"]],
            [segment for segment in segments if is_thing[segment["category_id"]]],
            strict=True,
        ):
            whole = keypoints.annToMask(instance).astype(bool)
            assert segment["category_id"] == instance["category_id"]
            assert segment["iscrowd"] == instance["iscrowd"]
            np.testing.assert_array_equal(ids == segment["id"], whole & ~above)
            above |= whole
    # All three channels are used.
    assert greatest > 256**2


def test_captions_name_what_is_seen(sample: Path) -> None:
    panoptic = load(sample, "panoptic")
    names = {entry["id"]: entry["name"] for entry in panoptic["categories"]}
    seen = {
        annotation["image_id"]: [
            (names[segment["category_id"]], bool(segment["iscrowd"]))
            for segment in annotation["segments_info"]
        ]
        for annotation in panoptic["annotations"]
    }
    captions: dict[int, list[str]] = {}
    for annotation in load(sample, "captions")["annotations"]:
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    assert captions.keys() == seen.keys()
    for image_id, (where, what) in captions.items():
        assert re.fullmatch(r"A [a-z ]+ (on the left|in the middle|on the right)\.", where)
        parts = [part.removesuffix(".") for part in re.split(", | and ", what)]
        found = [(part.split()[-1], "crowd" in part) for part in parts]
        assert [(name.removesuffix("s") if crowd else name, crowd) for name, crowd in found] == (
            seen[image_id]
        )
        assert where.startswith(parts[0])


@pytest.mark.parametrize(("width", "height"), [(64, 64), (64, 4096), (67, 1031)])
def test_unusual_sizes(tmp_path: Path, width: int, height: int) -> None:
    output = tmp_path / "sample"
    write_shapes(output=output, images=2, seed=0, workers=1, width=width, height=height)
    with Image.open(output / "images" / "000000000001.jpg") as picture:
        assert picture.size == (width, height)


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_left_when_it_is_interrupted(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = iter(range(3))

    def interrupt() -> None:
        if next(done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(counters, "pictures", SimpleNamespace(add=interrupt))
    # An empty folder may be there.
    with pytest.raises(KeyboardInterrupt):
        write_shapes(output=tmp_path, images=20, seed=0, workers=workers)
    assert next(done, None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_killed_command_has_left_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".shardbeam-killed").mkdir()
    draw(tmp_path, images=1)
    assert (tmp_path / "images" / "000000000001.jpg").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "images" / "mine.jpg"
    kept.parent.mkdir()
    kept.write_bytes(b"mine")
    with pytest.raises(UsageError, match=rf"{re.escape(str(tmp_path))} is not empty; name a new"):
        draw(tmp_path, images=1)
    assert contents(tmp_path) == {"images/mine.jpg": b"mine"}
    with pytest.raises(UsageError, match="is a file"):
        draw(kept, images=1)
