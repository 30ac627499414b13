"""Boxes, masks, keypoints, captions and panoptic segments come out as the sources hold them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.support.builds import Build, Json, WrittenExample, build

pytestmark = [
    # pycocotools on NumPy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # TFDS's use of protobuf.
    pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated"),
]

_Pixels = npt.NDArray[Any]
PERFECT = {"AP": 1.0, "AP50": 1.0, "AR": 1.0}


def read_json(path: Path) -> Json:
    document: Json = json.loads(path.read_bytes())
    return document


def read_png(data: bytes) -> _Pixels:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image)


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
    """The input for `loadRes`, which guesses the kind."""
    keys = {"image_id", "category_id", "score", {"segm": "segmentation"}.get(kind, kind)}
    return [{key: each[key] for key in keys} for each in detections]


@pytest.fixture(scope="module")
def everything(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The sample with all that its annotation files say."""
    annotations = shapes / "annotations"
    return build(
        "coco",
        *("--images", shapes / "images"),
        *("--annotations", annotations / "instances.json"),
        *("--annotations", annotations / "person_keypoints.json"),
        *("--annotations", annotations / "captions.json"),
        *("--panoptic", annotations / "panoptic.json", "--panoptic-masks", shapes / "panoptic"),
        *("--set", "masks=png", "--set", "panoptic.stuff=index"),
        output=tmp_path_factory.mktemp("everything") / "out",
    )


def load(built: Build) -> Iterator[dict[str, Any]]:
    pytest.importorskip("tensorflow")
    from shardbeam.readers.open.tf_data import load_dataset

    return load_dataset(built.output, split="train").as_numpy_iterator()


def load_tfds(built: Build) -> Iterator[dict[str, Any]]:
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(built.output))
    return iter(tfds.as_numpy(builder.as_dataset(split="train")))


def of_image(document: Json, example: Mapping[str, Any]) -> list[Json]:
    """An image's annotations, in the file's order."""
    image_id = int(np.ravel(example["image/source_id"])[0])
    return [each for each in document["annotations"] if each["image_id"] == image_id]


def test_all_kinds_of_files_are_merged_on_the_image(everything: Build, shapes: Path) -> None:
    truth, captions, panoptic = (
        read_json(shapes / "annotations" / f"{name}.json")
        for name in ("person_keypoints", "captions", "panoptic")
    )
    names = truth["categories"][0]["keypoints"]
    unannotated = len(panoptic["images"]) - len(panoptic["annotations"])
    assert everything.counts()["corrections"] == {"map_missing_left_void": unannotated}
    assert not everything.rejects()
    examples = everything.examples()
    assert len(examples) == len(truth["images"]) == 40
    for features in (each.features for each in examples):
        objects = of_image(truth, features)
        # Objects that are in both files, instances and keypoints, are written once.
        assert features["image/object/class/label"] == [each["category_id"] for each in objects]
        triples = np.array([each["keypoints"] for each in objects]).reshape(-1, 3)
        assert features["image/object/keypoint/visibility"] == triples[:, 2].tolist()
        numbers = [each["num_keypoints"] for each in objects]
        assert features["image/object/keypoint/num"] == numbers
        texts = [text.decode() for text in features["image/object/keypoint/text"]]
        assert texts == names * len(objects)
        assert [text.decode() for text in features["image/caption"]] == [
            each["caption"] for each in of_image(captions, features)
        ]


def test_tfds_decodes_masks_that_are_pycocotools_own(everything: Build, shapes: Path) -> None:
    coco_api = pytest.importorskip("pycocotools.coco")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco_api.COCO(str(shapes / "annotations" / "instances.json"))
    compared = 0
    for example in load_tfds(everything):
        annotations = truth.imgToAnns[int(example["image/source_id"])]
        for mask, annotation in zip(example["image/object/mask"], annotations, strict=True):
            np.testing.assert_array_equal(mask[..., 0], truth.annToMask(annotation))
            compared += 1
    assert compared == len(truth.anns) == 146


def evaluate(truth: Json, detections: list[Json], kind: str) -> Mapping[str, float]:
    """Evaluates detections with pycocotools."""
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth = coco.COCO()
        ground_truth.dataset = json.loads(json.dumps(truth))
        for each in ground_truth.dataset["annotations"]:
            each.setdefault("iscrowd", 0)
        ground_truth.createIndex()
        # pycocotools changes the detections that it is given.
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


def check_evaluation(truth: Json, detections: list[Json], kind: str) -> None:
    """Checks that all is found, and that the evaluation can tell if it were not."""
    found = [each for each in only(detections, kind) if np.any(each.get("keypoints", 1))]
    assert evaluate(truth, found, kind) == pytest.approx(PERFECT)
    assert evaluate(truth, found[1:], kind)["AR"] < 1


def test_coco_s_own_evaluation_finds_everything(everything: Build, shapes: Path) -> None:
    truth = read_json(shapes / "annotations" / "person_keypoints.json")
    detections = detections_of(everything)
    assert len(detections) == sum(not each["iscrowd"] for each in truth["annotations"])
    for kind in ("bbox", "segm", "keypoints"):
        check_evaluation(truth, detections, kind)


def test_coco_s_own_evaluation_of_real_images(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "dali" / "coco_pixelwise"
    file = root / "instances.json"
    words = ("coco", "--images", root / "images", "--annotations", file, "--set", "masks=png")
    detections = detections_of(build(*words, output=tmp_path / "out"))
    for kind in ("bbox", "segm"):
        check_evaluation(read_json(file), detections, kind)


# Panoptic segments


def segment_ids(shapes: Path, example: Mapping[str, Any]) -> _Pixels:
    """The ids in an image's panoptic PNG; none where it has no PNG."""
    path = shapes / "panoptic" / Path(example["image/filename"].decode()).with_suffix(".png")
    if not path.exists():
        return np.zeros(example["image/encoded"].shape[:2], np.int64)
    return np.asarray(Image.open(path)) @ np.array([1, 256, 65_536])


def test_panoptic_segments_can_be_rebuilt(everything: Build, shapes: Path) -> None:
    panoptic = read_json(shapes / "annotations" / "panoptic.json")
    segments = {each["image_id"]: each["segments_info"] for each in panoptic["annotations"]}
    for examples in (load(everything), load_tfds(everything)):
        count = 0
        for example in examples:
            indices = example["image/panoptic/instance_mask"][..., 0]
            assert indices.dtype == np.uint8
            table = np.array([0, *example["image/panoptic/segment_id"]])
            ids = segment_ids(shapes, example)
            np.testing.assert_array_equal(table[indices], ids)
            categories = example["image/panoptic/category_mask"]
            for segment in segments.get(int(example["image/source_id"]), ()):
                assert set(categories[ids == segment["id"]].ravel()) == {segment["category_id"]}
            count += 1
        assert count == 40


def test_ids_that_do_not_fit_into_8_bits_end_the_build(shapes: Path, tmp_path: Path) -> None:
    document = read_json(shapes / "annotations" / "panoptic.json")
    for each in (*document["categories"], *document["annotations"]):
        if "category_id" not in each and "segments_info" not in each:
            each["id"] += 300
        for segment in each.get("segments_info", ()):
            segment["category_id"] += 300
    file = tmp_path / "panoptic.json"
    file.write_text(json.dumps(document))
    words = ("--images", shapes / "images", "--panoptic", file)
    masks = ("--panoptic-masks", shapes / "panoptic")

    refused = build("coco", *words, *masks, output=tmp_path / "refused", exit_code=1)
    wide, renumbered = (
        build("coco", *words, *masks, "--set", setting, output=tmp_path / setting)
        for setting in ("panoptic.bits=16", "labels.ids=contiguous")
    )

    assert "labels.ids: contiguous; or set panoptic.bits: 16" in refused.stderr
    assert max(each["image/panoptic/category_mask"].max() for each in load(renumbered)) == 8
    for example in load(wide):
        category_mask = example["image/panoptic/category_mask"]
        assert category_mask.dtype == np.uint16
        # Stuff is zero unless it is indexed; the sample's ids of it begin at 92.
        things = example["image/segmentation/class/encoded"] == 1
        np.testing.assert_array_equal(example["image/panoptic/instance_mask"] != 0, things)
        assert set(np.unique(category_mask[~things])) - {0} <= {392, 395, 399, 406, 409}


def test_a_real_panoptic_png_of_another_size_is_rejected(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "datumaro" / "coco_dataset" / "coco_panoptic"
    masks = root / "annotations" / "panoptic_train"
    built = build(
        *("coco", "--images", root / "images" / "train"),
        *("--panoptic", f"{masks}.json", "--panoptic-masks", masks),
        output=tmp_path / "out",
        exit_code=3,
    )

    assert built.reasons() == {("a.jpg", "mask_mismatch"): 1}
    assert "5x5" in built.rejects()[0]["detail"]
