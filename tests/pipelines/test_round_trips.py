"""What COCO's own evaluation finds in the shards: exactly what the sources hold."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.support.builds import Build, Json, WrittenExample, build

# pycocotools on NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

_Pixels = npt.NDArray[Any]
PERFECT = {"AP": 1.0, "AP50": 1.0, "AR": 1.0}


def read_json(path: Path) -> Json:
    document: Json = json.loads(path.read_bytes())
    return document


def read_png(data: bytes) -> _Pixels:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image)


def evaluate(truth: Json, detections: list[Json], kind: str) -> Mapping[str, float]:
    """What pycocotools says about detections."""
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth = coco.COCO()
        ground_truth.dataset = json.loads(json.dumps(truth))
        for each in ground_truth.dataset["annotations"]:
            each.setdefault("iscrowd", 0)
        ground_truth.createIndex()
        # It writes into what it is given.
        results = ground_truth.loadRes([dict(each) for each in detections])
        evaluation = cocoeval.COCOeval(ground_truth, results, kind)
        evaluation.params.maxDets = [1, 10, 200] if kind != "keypoints" else [200]
        if kind == "keypoints":
            number = max(len(each["keypoints"]) // 3 for each in detections)
            evaluation.params.kpt_oks_sigmas = np.full(number, 0.05)
        evaluation.evaluate()
        evaluation.accumulate()
    # precision: overlaps x recalls x categories x areas x numbers of detections
    precision = evaluation.eval["precision"][..., 0, -1]
    recall = evaluation.eval["recall"][..., 0, -1]
    return {
        "AP": precision[precision > -1].mean(),
        "AP50": precision[0][precision[0] > -1].mean(),
        "AR": recall[recall > -1].mean(),
    }


def detections_of(built: Build) -> list[Json]:
    """Boxes, masks and keypoints as the shards hold them, as if a detector had found them."""
    mask_api = pytest.importorskip("pycocotools.mask")
    detections: list[Json] = []
    for example in built.examples():
        width, height = example.size
        features = example.features
        keypoints = _keypoints(example)
        for index, (xmin, ymin, xmax, ymax) in enumerate(example.boxes):
            detection = {
                "image_id": int(features["image/source_id"][0]),
                "category_id": example.labels[index][1],
                "score": 1.0,
                "bbox": [
                    *(xmin * width, ymin * height),
                    *((xmax - xmin) * width, (ymax - ymin) * height),
                ],
            }
            if "image/object/mask" in features:
                mask = read_png(features["image/object/mask"][index])
                assert mask.shape == (height, width)
                assert mask.max() <= 1
                detection["segmentation"] = mask_api.encode(np.asfortranarray(mask))
            if keypoints is not None:
                detection["keypoints"] = keypoints[index].ravel().tolist()
            # A crowd is no object that could be found.
            if not features["image/object/is_crowd"][index]:
                detections.append(detection)
    return detections


def _keypoints(example: WrittenExample) -> _Pixels | None:
    features = example.features
    if "image/object/keypoint/x" not in features:
        return None
    width, height = example.size
    triples = np.stack(
        [
            np.array(features["image/object/keypoint/x"]) * width,
            np.array(features["image/object/keypoint/y"]) * height,
            features["image/object/keypoint/visibility"],
        ],
        axis=1,
    )
    number = len(triples) // max(1, len(example.labels))
    return triples.reshape(len(example.labels), number, 3)


def only(detections: list[Json], kind: str) -> list[Json]:
    """What `loadRes` is to see: it guesses the kind."""
    keys = {"image_id", "category_id", "score", {"segm": "segmentation"}.get(kind, kind)}
    return [{key: each[key] for key in keys} for each in detections]


def coco(root: Path, file: str, output: Path, *more: str) -> Build:
    words: list[str | Path] = ["--images", root / "images", "--annotations", root / file]
    built = build("coco", *words, *more, output=output)
    assert built.exit_code == 0, built.stderr
    return built


@pytest.mark.parametrize("sample", ["shapes", "coco_pixelwise"])
def test_boxes_and_masks(sample: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if sample == "shapes":
        root: Path = request.getfixturevalue("shapes")
        file = "annotations/instances.json"
    else:
        root = request.getfixturevalue("shared_data") / "dali" / sample
        file = "instances.json"
    built = coco(root, file, tmp_path / "out", "--set", "masks=png")
    truth = read_json(root / file)

    detections = detections_of(built)

    assert len(detections) == sum(not each.get("iscrowd") for each in truth["annotations"])
    segm = only(detections, "segm")
    assert evaluate(truth, only(detections, "bbox"), "bbox") == pytest.approx(PERFECT)
    assert evaluate(truth, segm, "segm") == pytest.approx(PERFECT)
    # It can tell: without one, or with one empty, it is less.
    assert evaluate(truth, segm[1:], "segm")["AR"] < 1
    mask_api = pytest.importorskip("pycocotools.mask")
    height, width = segm[0]["segmentation"]["size"]
    segm[0]["segmentation"] = mask_api.encode(np.zeros((height, width), np.uint8, order="F"))
    assert evaluate(truth, segm, "segm")["AR"] < 1


def test_masks_are_pycocotools_own_pixel_by_pixel(shapes: Path, tmp_path: Path) -> None:
    coco_api = pytest.importorskip("pycocotools.coco")
    built = coco(shapes, "annotations/instances.json", tmp_path / "out", "--set", "masks=png")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco_api.COCO(str(shapes / "annotations" / "instances.json"))

    masks = 0
    for example in built.examples():
        annotations = truth.imgToAnns[int(example.features["image/source_id"][0])]
        for data, annotation in zip(
            example.features["image/object/mask"], annotations, strict=True
        ):
            np.testing.assert_array_equal(read_png(data), truth.annToMask(annotation))
            masks += 1
    assert masks == len(truth.anns) > 100


def test_keypoints(shapes: Path, tmp_path: Path) -> None:
    file = "annotations/person_keypoints.json"
    built = coco(shapes, file, tmp_path / "out")
    truth = read_json(shapes / file)

    detections = [
        each for each in only(detections_of(built), "keypoints") if any(each["keypoints"])
    ]

    assert len(detections) > 50
    assert evaluate(truth, detections, "keypoints") == pytest.approx(PERFECT)
    moved = json.loads(json.dumps(detections))
    moved[0]["keypoints"] = [value + 40 for value in moved[0]["keypoints"]]
    assert evaluate(truth, moved, "keypoints")["AR"] < 1


def test_keypoints_of_a_real_toy(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "datumaro" / "coco_dataset" / "coco_person_keypoints"
    file = root / "annotations" / "person_keypoints_val.json"
    built = build(
        *("coco", "--images", root / "images" / "val", "--annotations", file),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr

    detections = only(detections_of(built), "keypoints")

    assert evaluate(read_json(file), detections, "keypoints") == pytest.approx(PERFECT)


@pytest.mark.parametrize(
    ("sample", "split"),
    [
        ("shapes", ""),
        ("coco", "train"),
        ("coco", "val"),
        ("coco_panoptic", "val"),
    ],
)
def test_panoptic_segments(
    sample: str, split: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if sample == "shapes":
        root: Path = request.getfixturevalue("shapes")
        images, file, masks = (
            root / "images",
            root / "annotations" / "panoptic.json",
            root / "panoptic",
        )
    else:
        root = request.getfixturevalue("shared_data") / "datumaro" / "coco_dataset" / sample
        images, masks = root / "images" / split, root / "annotations" / f"panoptic_{split}"
        file = root / "annotations" / f"panoptic_{split}.json"
    built = build(
        *("coco", "--images", images, "--panoptic", file, "--panoptic-masks", masks),
        *("--set", "panoptic.stuff=index"),
        output=tmp_path / "out",
    )
    assert built.exit_code == 0, built.stderr
    truth = read_json(file)
    found = {int(each.features["image/source_id"][0]): each for each in built.examples()}

    for annotation in truth["annotations"]:
        features = found[annotation["image_id"]].features
        ids = np.array([0, *features["image/panoptic/segment_id"]])
        rebuilt = ids[read_png(features["image/panoptic/instance_mask"][0])]
        rgb = read_png((masks / annotation["file_name"]).read_bytes()).astype(int)
        expected = rgb[..., 0] + 256 * rgb[..., 1] + 65_536 * rgb[..., 2]
        declared = [segment["id"] for segment in annotation["segments_info"]]
        np.testing.assert_array_equal(rebuilt, np.where(np.isin(expected, declared), expected, 0))
        categories = read_png(features["image/panoptic/category_mask"][0])
        for segment in annotation["segments_info"]:
            assert set(categories[expected == segment["id"]]) <= {segment["category_id"]}
    assert len(truth["annotations"]) > 20 or sample != "shapes"


def test_a_real_panoptic_png_of_another_size_is_rejected(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "datumaro" / "coco_dataset" / "coco_panoptic"
    masks = root / "annotations" / "panoptic_train"
    built = build(
        *("coco", "--images", root / "images" / "train"),
        *("--panoptic", f"{masks}.json", "--panoptic-masks", masks),
        output=tmp_path / "out",
    )

    assert built.exit_code == 3
    assert built.reasons() == {("a.jpg", "mask_mismatch"): 1}
    assert "5x5" in built.rejects()[0]["detail"]
