"""Tests of the sample: its layout, its determinism, and that its annotations are true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFilter
from pycocotools import mask as rle
from pycocotools.coco import COCO

from shardbeam.pipelines.polygons import polygon_area
from shardbeam.pipelines.sample import SampleSummary, write_shapes
from shardbeam.pipelines.shapes import COLOURS, SHAPES, draw_picture

IMAGES = 48
WIDTH, HEIGHT = 320, 240
FILES = ("captions", "instances", "panoptic", "person_keypoints")

Mask = npt.NDArray[np.bool_]


def draw(output: Path, *, images: int = IMAGES, seed: int = 7, workers: int = 1) -> SampleSummary:
    return write_shapes(
        output=output, images=images, seed=seed, workers=workers, width=WIDTH, height=HEIGHT
    )


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> SampleSummary:
    return draw(tmp_path_factory.mktemp("sample") / "shapes")


@pytest.fixture(scope="module")
def sample(summary: SampleSummary) -> Path:
    return summary.output


@pytest.fixture(scope="module")
def instances(sample: Path) -> COCO:
    return COCO(sample / "annotations" / "instances.json")


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


def outline(annotation: dict[str, Any]) -> npt.NDArray[np.float64]:
    (polygon,) = annotation["segmentation"]
    return np.reshape(polygon, (-1, 2))


def single_shapes(coco: COCO) -> list[dict[str, Any]]:
    return [annotation for annotation in coco.anns.values() if not annotation["iscrowd"]]


def crowds(coco: COCO) -> list[dict[str, Any]]:
    return [annotation for annotation in coco.anns.values() if annotation["iscrowd"]]


def panoptic_segments(sample: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], Mask]]:
    """Yields every panoptic annotation, each of its segments, and the segment's pixels."""
    for annotation in load(sample, "panoptic")["annotations"]:
        png = np.asarray(Image.open(sample / "panoptic" / annotation["file_name"]), np.int64)
        ids = png @ [1, 256, 256**2]
        segments = annotation["segments_info"]
        assert sorted(segment["id"] for segment in segments) == np.unique(ids).tolist()
        for segment in segments:
            yield annotation, segment, ids == segment["id"]


def test_layout(sample: Path) -> None:
    names = [f"{number:012}" for number in range(1, IMAGES + 1)]
    annotated = [name for name in names if int(name) % 16]
    assert sorted(contents(sample)) == sorted(
        [
            *(f"annotations/{file}.json" for file in FILES),
            *(f"images/{name}.jpg" for name in names),
            *(f"panoptic/{name}.png" for name in annotated),
            *(
                f"class_folders/{list(SHAPES)[int(name) % len(SHAPES)]}/{name}.jpg"
                for name in names
            ),
        ]
    )


def test_summary_is_what_is_there(summary: SampleSummary) -> None:
    annotations = load(summary.output, "instances")["annotations"]
    files = contents(summary.output)
    assert summary.images == IMAGES
    assert summary.image_bytes == sum(
        len(data) for name, data in files.items() if name.startswith("images/")
    )
    assert summary.unannotated_images == IMAGES - len({entry["image_id"] for entry in annotations})
    assert summary.instances == len(annotations)
    assert summary.crowds == sum(entry["iscrowd"] for entry in annotations) > 0
    assert summary.class_images == dict.fromkeys(SHAPES, IMAGES // len(SHAPES))


def test_same_bytes_whatever_the_workers(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A relative path, which the other processes must not look for elsewhere.
    monkeypatch.chdir(tmp_path)
    draw(Path("again"), workers=2)
    assert contents(tmp_path / "again") == contents(sample)


def test_a_picture_does_not_depend_on_how_many_there_are(sample: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    draw(few, images=5)
    files, all_files = contents(few), contents(sample)
    assert len(files) == 5 + 5 + 5 + len(FILES)
    for name, data in files.items():
        if not name.startswith("annotations/"):
            assert data == all_files[name]
    for file in FILES:
        some, everything = load(few, file), load(sample, file)
        assert some["images"] == everything["images"][:5]
        assert some["annotations"]
        assert some["annotations"] == everything["annotations"][: len(some["annotations"])]
        assert some.get("categories") == everything.get("categories")


def test_another_seed_draws_other_pictures(sample: Path, tmp_path: Path) -> None:
    draw(tmp_path / "other", images=3, seed=8)
    files, all_files = contents(tmp_path / "other"), contents(sample)
    assert all(data != all_files[name] for name, data in files.items() if name in all_files)


def test_pictures_differ(sample: Path) -> None:
    pictures = {data for name, data in contents(sample).items() if name.endswith(".jpg")}
    assert len(pictures) == 2 * IMAGES


@pytest.mark.parametrize("file", FILES)
def test_annotation_files_have_the_structure_of_coco(sample: Path, file: str) -> None:
    content = load(sample, file)
    sections = ["info", "licenses", "images", "annotations"]
    assert list(content) == (sections if file == "captions" else [*sections, "categories"])
    assert [image["id"] for image in content["images"]] == list(range(1, IMAGES + 1))
    for image in content["images"]:
        with Image.open(sample / "images" / image["file_name"]) as picture:
            assert picture.format == "JPEG"
            assert picture.mode == "RGB"
            assert picture.size == (image["width"], image["height"]) == (WIDTH, HEIGHT)
    if file != "panoptic":
        ids = [annotation["id"] for annotation in content["annotations"]]
        assert len(set(ids)) == len(ids)
    assert {annotation["image_id"] for annotation in content["annotations"]} == {
        number for number in range(1, IMAGES + 1) if number % 16
    }


def test_categories_have_gaps_and_agree_between_files(sample: Path) -> None:
    things = {entry["id"]: entry["name"] for entry in load(sample, "instances")["categories"]}
    assert things == {1: "circle", 3: "square", 4: "triangle", 7: "star"}
    panoptic = load(sample, "panoptic")["categories"]
    assert {entry["id"]: entry["name"] for entry in panoptic if entry["isthing"]} == things
    stuff = {entry["id"]: entry["name"] for entry in panoptic if not entry["isthing"]}
    assert set(stuff.values()) == {"sky", "sand", "grass", "water", "gravel"}
    assert min(stuff) > max(things)
    keypoints = load(sample, "person_keypoints")["categories"]
    assert {entry["id"]: entry["name"] for entry in keypoints} == things


def test_every_shape_is_drawn(instances: COCO) -> None:
    assert {annotation["category_id"] for annotation in single_shapes(instances)} == {1, 3, 4, 7}


def test_boxes_and_areas_are_those_of_the_polygons(instances: COCO) -> None:
    for annotation in single_shapes(instances):
        polygon = outline(annotation)
        x, y, width, height = annotation["bbox"]
        assert [x, y] == polygon.min(axis=0).tolist()
        assert [x + width, y + height] == polygon.max(axis=0).tolist()
        assert 0 <= x < x + width <= WIDTH
        assert 0 <= y < y + height <= HEIGHT
        assert annotation["area"] == polygon_area(polygon) > 0


def test_some_shapes_are_cut_by_the_border(instances: COCO) -> None:
    boxes = np.array([annotation["bbox"] for annotation in single_shapes(instances)])
    cut = (boxes[:, :2] == 0).any(axis=1) | (boxes[:, :2] + boxes[:, 2:] == (WIDTH, HEIGHT)).any(1)
    assert 0 < cut.sum() < len(boxes) / 2


def test_masks_of_the_polygons_have_their_areas(instances: COCO) -> None:
    for annotation in single_shapes(instances):
        area = instances.annToMask(annotation).sum()
        # pycocotools rounds vertices to a fifth of a pixel.
        circumference = 2 * (annotation["bbox"][2] + annotation["bbox"][3])
        assert area == pytest.approx(annotation["area"], abs=circumference / 2)


def test_crowds_are_uncompressed_rle(instances: COCO) -> None:
    for annotation in crowds(instances):
        segmentation = annotation["segmentation"]
        assert segmentation["size"] == [HEIGHT, WIDTH]
        assert sum(segmentation["counts"]) == HEIGHT * WIDTH
        encoded = rle.frPyObjects(segmentation, HEIGHT, WIDTH)
        assert rle.area(encoded) == annotation["area"] > 0
        assert rle.toBbox(encoded).tolist() == annotation["bbox"]


def test_crowds_have_many_members() -> None:
    picture = draw_picture(
        rng=np.random.default_rng(0),
        width=WIDTH,
        height=HEIGHT,
        shapes=["star"],
        radius_range=(0.1, 0.2),
        crowd="square",
    )
    crowd, star = picture.things
    assert (crowd.shape, crowd.is_crowd) == ("square", True)
    assert (star.shape, star.is_crowd) == ("star", False)
    assert 8 <= len(crowd.outlines) <= 16
    areas = [polygon_area(member) for member in crowd.outlines]
    # Some of them overlap.
    assert max(areas) < crowd.patch.mask.sum() <= 1.1 * sum(areas)


def test_keypoints_are_the_corners(keypoints: COCO, instances: COCO) -> None:
    corners = {1: 0, 3: 4, 4: 3, 7: 5}
    seen: set[int] = set()
    for annotation_id, annotation in keypoints.anns.items():
        points = np.reshape(annotation["keypoints"], (-1, 3))
        labelled = points[points[:, 2] > 0]
        assert len(points) == 5
        assert annotation["num_keypoints"] == len(labelled)
        assert not points[points[:, 2] == 0].any()
        instance = dict(annotation)
        del instance["keypoints"], instance["num_keypoints"]
        assert instance == instances.anns[annotation_id]
        if annotation["iscrowd"]:
            assert len(labelled) == 0
            continue
        assert not points[corners[annotation["category_id"]] :].any()
        seen.update(points[: corners[annotation["category_id"]], 2].astype(int).tolist())
        assert (labelled[:, :2] >= 0).all()
        assert (labelled[:, :2] < (WIDTH, HEIGHT)).all()
        vertices = outline(annotation).tolist()
        assert all(point in vertices for point in labelled[:, :2].tolist())
        if points[0, 2]:
            assert points[0, 1] == labelled[:, 1].min()
    assert seen == {0, 1, 2}


def test_keypoints_are_clockwise(keypoints: COCO) -> None:
    found = 0
    for annotation in single_shapes(keypoints):
        points = np.reshape(annotation["keypoints"], (-1, 3))
        points = points[points[:, 2] > 0, :2]
        if len(points) >= 3:
            x, y = points.T
            # Twice the signed area; y points down.
            assert x @ np.roll(y, -1) - y @ np.roll(x, -1) > 0
            found += 1
    assert found > IMAGES


def test_hidden_keypoints_lie_under_a_shape_above(keypoints: COCO) -> None:
    for image_id, objects in keypoints.imgToAnns.items():
        masks = [keypoints.annToMask(annotation).astype(bool) for annotation in objects]
        for number, annotation in enumerate(objects):
            for x, y, visibility in np.reshape(annotation["keypoints"], (-1, 3)):
                # Away from the edges, where pycocotools' masks are not as exact.
                near = (
                    slice(max(int(y) - 1, 0), int(y) + 2),
                    slice(max(int(x) - 1, 0), int(x) + 2),
                )
                above = [mask[near] for mask in masks[number + 1 :]]
                if visibility == 1:
                    assert any(mask.any() for mask in above), image_id
                if visibility == 2:
                    assert not any(mask.all() for mask in above), image_id


def test_skeletons_join_a_shapes_own_corners(sample: Path) -> None:
    skeletons = {
        entry["name"]: entry["skeleton"] for entry in load(sample, "person_keypoints")["categories"]
    }
    assert skeletons == {
        "circle": [],
        "square": [[1, 2], [2, 3], [3, 4], [4, 1]],
        "triangle": [[1, 2], [2, 3], [3, 1]],
        "star": [[1, 2], [2, 3], [3, 4], [4, 5], [5, 1]],
    }


def test_panoptic_segments_are_those_of_the_png(sample: Path) -> None:
    categories = {entry["id"]: entry for entry in load(sample, "panoptic")["categories"]}
    greatest = 0
    for _, segment, mask in panoptic_segments(sample):
        rows, columns = np.nonzero(mask)
        x, y = columns.min(), rows.min()
        assert segment["area"] == mask.sum()
        assert segment["bbox"] == [x, y, columns.max() + 1 - x, rows.max() + 1 - y]
        assert segment["id"] > 0
        assert categories[segment["category_id"]]["isthing"] or not segment["iscrowd"]
        greatest = max(greatest, segment["id"])
    # All three channels are used.
    assert greatest > 256**2


def test_panoptic_segments_are_what_is_seen_of_the_instances(sample: Path, instances: COCO) -> None:
    segments: dict[int, list[tuple[dict[str, Any], Mask]]] = {}
    for annotation, segment, mask in panoptic_segments(sample):
        if segment["category_id"] < 90:
            segments.setdefault(annotation["image_id"], []).append((segment, mask))
    for image_id, objects in instances.imgToAnns.items():
        above = np.zeros((HEIGHT, WIDTH), bool)
        # From the topmost down, each without what lies above.
        for annotation, (segment, seen) in zip(
            reversed(objects), reversed(segments.pop(image_id)), strict=True
        ):
            whole = instances.annToMask(annotation).astype(bool)
            assert segment["category_id"] == annotation["category_id"]
            assert segment["iscrowd"] == annotation["iscrowd"]
            edge = 2 * sum(annotation["bbox"][2:])
            assert (seen ^ (whole & ~above)).sum() <= edge
            # Half a shape at least is seen.
            assert 2 * seen.sum() >= whole.sum() - edge
            above |= seen
    assert not segments


def test_captions(sample: Path, instances: COCO) -> None:
    captions: dict[int, list[str]] = {}
    for annotation in load(sample, "captions")["annotations"]:
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    names = {entry["id"]: entry["name"] for entry in instances.cats.values()}
    numbers = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
    for image_id, (where, what) in captions.items():
        assert re.fullmatch(r"[A-Z][a-z, ]+\.", where)
        told = {}
        for number, crowd, name in re.findall(
            rf"\b({'|'.join(numbers)})( crowd of small)? (?:\w+ )?({'|'.join(SHAPES)})s?\b",
            what.lower(),
        ):
            told[name, bool(crowd)] = numbers[number]
        there: dict[tuple[str, bool], int] = {}
        for annotation in instances.imgToAnns[image_id]:
            group = names[annotation["category_id"]], bool(annotation["iscrowd"])
            there[group] = there.get(group, 0) + 1
        assert told == there, what


def test_captions_about_sides_are_true(sample: Path, instances: COCO) -> None:
    names = {entry["name"]: entry["id"] for entry in instances.cats.values()}
    shape = "|".join(SHAPES)
    found = 0
    for annotation in load(sample, "captions")["annotations"]:
        match = re.search(
            rf"({shape})s? (left of|right of|above|below) .*?({shape})s?\.", annotation["caption"]
        )
        if match is None or "crowd" in annotation["caption"]:
            continue
        one, other = (
            [
                np.add(entry["bbox"][:2], np.divide(entry["bbox"][2:], 2))
                for entry in instances.imgToAnns[annotation["image_id"]]
                if entry["category_id"] == names[name] and not entry["iscrowd"]
            ]
            for name in (match[1], match[3])
        )
        axis = 0 if match[2] in ("left of", "right of") else 1
        sign = 1 if match[2] in ("left of", "above") else -1
        # Boxes end anywhere in a pixel, the captions' centres do not.
        assert all(sign * (b - a)[axis] > -1 for a in one for b in other), annotation
        found += 1
    assert found > 5


@pytest.mark.parametrize("shape", SHAPES)
def test_class_folders(sample: Path, shape: str) -> None:
    for path in (sample / "class_folders" / shape).iterdir():
        with Image.open(path) as picture:
            picture.load()
            assert picture.format == "JPEG"
            assert all(160 <= side <= 224 for side in picture.size)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_drawn_where_the_annotations_say_in_their_colour(shape: str) -> None:
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        picture = draw_picture(
            rng=rng, width=160, height=120, shapes=[shape], radius_range=(0.2, 0.4)
        )
        (thing,) = picture.things
        if thing.colour not in ("red", "purple"):  # No background has these.
            continue
        told = np.array(COLOURS[thing.colour], float)
        pixels = picture.pixels.astype(float)
        # Of the same hue, however dark.
        alike = pixels @ told > 0.975 * np.linalg.norm(pixels, axis=2) * np.linalg.norm(told)
        mask = picture.segments == len(picture.textures)
        near, further = (
            np.asarray(Image.fromarray(mask).convert("L").filter(ImageFilter.MaxFilter(size))) > 0
            for size in (3, 7)
        )
        assert alike[mask].mean() > 0.97
        assert alike[further & ~near].mean() < 0.2
        found += 1
    assert found >= 5


def test_pictures_have_the_size_of_photographs(tmp_path: Path) -> None:
    summary = write_shapes(output=tmp_path / "default", images=32, seed=0, workers=1)
    assert 125_000 < summary.image_bytes / summary.images < 145_000


def test_quality_has_an_effect(tmp_path: Path) -> None:
    sizes = [
        write_shapes(
            output=tmp_path / str(quality), images=1, seed=0, workers=1, quality=quality
        ).image_bytes
        for quality in (1, 50, 100)
    ]
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize(("width", "height"), [(64, 64), (64, 4096), (67, 1031)])
def test_unusual_sizes(tmp_path: Path, width: int, height: int) -> None:
    output = tmp_path / "sample"
    write_shapes(output=output, images=2, seed=0, workers=1, width=width, height=height)
    with Image.open(output / "images" / "000000000001.jpg") as picture:
        assert picture.size == (width, height)


def test_progress_is_reported_for_each_picture(tmp_path: Path) -> None:
    reported: list[int] = []
    write_shapes(
        output=tmp_path / "sample",
        images=4,
        seed=0,
        workers=1,
        width=64,
        height=64,
        report=reported.append,
    )
    assert reported == [1, 2, 3, 4]


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    draw(tmp_path, images=1)
    assert (tmp_path / "annotations" / "instances.json").is_file()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "images" / "mine.jpg"
    kept.parent.mkdir()
    kept.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=rf"{re.escape(str(tmp_path))} is not empty; delete"):
        draw(tmp_path, images=1)
    assert contents(tmp_path) == {"images/mine.jpg": b"mine"}


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="is a file"):
        draw(path, images=1)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("images", 0, "1 or more"),
        ("seed", -1, "0 or more"),
        ("workers", 0, "1 or more"),
        ("width", 63, "64 to 4096"),
        ("height", 5000, "64 to 4096"),
        ("quality", 101, "1 to 100"),
    ],
)
def test_numbers_out_of_range_are_refused(
    tmp_path: Path, argument: str, value: int, expected: str
) -> None:
    arguments: dict[str, Any] = {"images": 1, "seed": 0, argument: value}
    with pytest.raises(ValueError, match=f"{argument} must be {expected}, not {value}"):
        write_shapes(output=tmp_path / "sample", **arguments)
    assert not (tmp_path / "sample").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path, workers: int) -> None:
    def interrupt(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shapes(
            output=tmp_path / "sample",
            images=20,
            seed=0,
            workers=workers,
            width=64,
            height=64,
            report=interrupt,
        )
    assert list((tmp_path / "sample").iterdir()) == []


def test_neither_beam_nor_tensorflow_is_imported() -> None:
    code = (
        "import sys, shardbeam.pipelines.sample\n"
        "print({'apache_beam', 'tensorflow'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
