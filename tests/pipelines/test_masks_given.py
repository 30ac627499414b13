"""Masks are only asked for if the source gives some; and objects that are all crowds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardbeam.transforms.examples.geometry.segmentation import mask_problem
from tests.support.archive_files import write_files
from tests.support.builds import Build, Json, build_config, coco_document, coco_source
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg
from tests.support.voc_files import voc_object, voc_xml

_PNG = "iVBORw0KGgo" + 40 * "A"
TRIANGLE = [[4, 4, 16, 4, 16, 16]]


def coco(folder: Path, *objects: Json) -> Json:
    """Makes a picture with objects of 12 x 12 pixels; a source."""
    write_files(folder, {"images/a.jpg": plain_jpeg()})
    boxes = [{"bbox": [4, 4, 12, 12], **each} for each in objects]
    return coco_source(folder, coco_document({"a.jpg": boxes}, size=(32, 24)))


def _files(folder: Path, name: str) -> Json:
    files: dict[str, Json] = {
        "yolo": {"labels/a.txt": "0 0.3 0.4 0.3 0.4\n", "data.yaml": "names: [cat]"},
        "labelme": {
            "images/a.json": json.dumps(
                {
                    "imagePath": "a.jpg",
                    "shapes": [
                        {"label": "cat", "points": [[4, 4], [9, 9]], "shape_type": "rectangle"}
                    ],
                }
            )
        },
        "voc": {"Annotations/a.xml": voc_xml(voc_object(xmin=5, xmax=9, ymin=5, ymax=9))},
    }
    write_files(folder, {"images/a.jpg": plain_jpeg(), **files[name]})
    return {"format": name, "root": str(folder)}


def build(*sources: Json, folder: Path, exit_code: int = 0) -> Build:
    config = {"splits": {"train": [*sources]}, "masks": "png"}
    return build_config(config, folder=folder, exit_code=exit_code)


def test_masks_of_boxes_alone_end_the_build(tmp_path: Path) -> None:
    built = build(coco(tmp_path, {}, {}), folder=tmp_path, exit_code=1)

    problem = (
        "config: masks: none of the 2 objects has polygons, run lengths or a mask; to go without "
        "masks: --set masks=none"
    )
    assert problem in built.stderr
    assert not (tmp_path / "out" / "dataset_info.json").exists()
    planned = run("plan", str(tmp_path / "out.yaml"))
    assert (planned.exit_code, problem in planned.stderr) == (1, True)
    # A sample need not show a mask.
    assert run("build", str(tmp_path / "out.yaml"), "--limit", "1").exit_code == 0


@pytest.mark.parametrize("name", ["yolo", "labelme", "voc"])
def test_each_format_says_that_it_gives_no_masks(name: str, tmp_path: Path) -> None:
    built = build(_files(tmp_path / "data", name), folder=tmp_path, exit_code=1)
    assert "masks: none of the 1 objects has polygons" in built.stderr


NO_MASKS: list[tuple[object, str]] = [
    ([[4, 4, 16, 16]], "no polygon that can be drawn"),
    # Beside the image.
    ([[54, 4, 56, 4, 56, 16]], "no pixels"),
    ({"counts": [9, 9999], "size": [24, 32]}, "more pixels than the mask has"),
    ({"counts": "~~", "size": [24, 32]}, "not the characters of runs"),
    (_PNG, "a PNG as base64, neither polygons nor run lengths"),
    ({"counts": _PNG, "size": [9, 9]}, "counts: a PNG as base64 and no runs"),
]


@pytest.mark.parametrize(("segmentation", "problem"), NO_MASKS)
def test_segmentations_that_give_no_mask(segmentation: object, problem: str) -> None:
    text = json.dumps(segmentation).encode()
    assert mask_problem(text, size=(32, 24), box=(4, 4, 12, 12)) == problem


def test_segmentations_that_all_give_no_mask_end_the_build(tmp_path: Path) -> None:
    segmentation = {"counts": _PNG, "size": [9, 9]}
    built = build(coco(tmp_path, {"segmentation": segmentation}, {}), folder=tmp_path, exit_code=1)

    assert (
        "masks: 1 of 2 objects have a segmentation, and none gives a mask, such as a.jpg: "
        f'{{"counts": "{_PNG[:48]}…: counts: a PNG as base64 and no runs (docs/reference/masks.md'
    ) in built.stderr


def test_one_mask_that_can_be_drawn_is_enough(tmp_path: Path) -> None:
    objects = [{"segmentation": each} for each in (*(each for each, _ in NO_MASKS), TRIANGLE)]
    good = build(coco(tmp_path, *objects), folder=tmp_path)
    (example,) = good.examples()
    assert len(example.features["image/object/mask"]) == len(NO_MASKS) + 1


def test_a_source_without_masks_may_stand_beside_one_that_gives_some(tmp_path: Path) -> None:
    sources = coco(tmp_path / "a", {}), coco(tmp_path / "b", {"segmentation": TRIANGLE})
    built = build(*sources, folder=tmp_path)
    assert built.counts()["corrections"] == {"mask_empty_no_segmentation": 1}


@pytest.mark.parametrize(("others", "is_said"), [(1, True), (0, False)])
def test_objects_that_are_all_crowds_are_warned_of(
    others: int, is_said: bool, tmp_path: Path
) -> None:
    runs = {"counts": [100, 20, 648], "size": [24, 32]}
    objects = [{"iscrowd": crowd, "segmentation": runs} for crowd in (1, others)]
    built = build(coco(tmp_path, *objects), folder=tmp_path)
    warning = "all 2 objects are crowds (iscrowd), which many trainers skip"
    assert any(text.startswith(warning) for text in built.summary["warnings"]) == is_said
