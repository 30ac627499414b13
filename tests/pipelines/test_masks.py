"""Masks and maps through the command, read back with TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from tests.support.builds import Build, Json, build_config

SIZE = (160, 120)


def instances_config(shapes: Path, **more: object) -> Json:
    source = {
        "format": "coco",
        "images": str(shapes / "images"),
        "annotations": [str(shapes / "annotations" / "instances.json")],
    }
    return {"source": source, "masks": "png", **more}


def panoptic_config(shapes: Path, *, file: Path | None = None, **more: object) -> Json:
    source = {
        "format": "coco",
        "images": str(shapes / "images"),
        "panoptic": str(file or shapes / "annotations" / "panoptic.json"),
        "panoptic_masks": str(shapes / "panoptic"),
    }
    return {"source": source, **more}


def drawn_by_pycocotools(annotation: Json) -> npt.NDArray[np.uint8]:
    segmentation = annotation["segmentation"]
    runs = coco_mask.frPyObjects(segmentation, SIZE[1], SIZE[0])
    return coco_mask.decode(coco_mask.merge(runs) if isinstance(runs, list) else runs)


def segment_ids(shapes: Path, key: str) -> npt.NDArray[np.int64]:
    """The ids in an image's panoptic PNG; none where it has no PNG."""
    path = shapes / "panoptic" / Path(key).with_suffix(".png")
    if not path.exists():
        return np.zeros(SIZE[::-1], np.int64)
    ids: npt.NDArray[np.int64] = np.asarray(Image.open(path)) @ np.array([1, 256, 65_536])
    return ids


def load(build: Build) -> Iterator[dict[str, Any]]:
    pytest.importorskip("tensorflow")
    from shardbeam.pipelines.read import load_dataset

    return load_dataset(build.output, split="train").as_numpy_iterator()


def load_tfds(build: Build) -> Iterator[dict[str, Any]]:
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(build.output))
    return iter(tfds.as_numpy(builder.as_dataset(split="train")))


def test_masks_are_pycocotools_own(shapes: Path, tmp_path: Path) -> None:
    document = json.loads((shapes / "annotations" / "instances.json").read_bytes())
    by_image: dict[int, list[Json]] = {image["id"]: [] for image in document["images"]}
    for annotation in document["annotations"]:
        by_image[annotation["image_id"]].append(annotation)

    build = build_config(instances_config(shapes), folder=tmp_path)

    assert build.exit_code == 0, build.stderr
    compared = 0
    # TFDS decodes each mask by what `features.json` says of it.
    for example in load_tfds(build):
        annotations = by_image[int(example["image/source_id"])]
        masks = example["image/object/mask"]
        assert len(masks) == len(annotations)
        for mask, annotation in zip(masks, annotations, strict=True):
            np.testing.assert_array_equal(mask[..., 0], drawn_by_pycocotools(annotation))
            compared += 1
    assert compared == len(document["annotations"]) == 119


def test_without_masks_there_is_no_such_key(shapes: Path, tmp_path: Path) -> None:
    build = build_config(instances_config(shapes, masks="none"), folder=tmp_path)

    assert "image/object/mask" not in build.examples()[0].features


@pytest.mark.parametrize("bits", [8, 16])
def test_panoptic_segments_can_be_rebuilt(bits: int, shapes: Path, tmp_path: Path) -> None:
    config = panoptic_config(shapes, panoptic={"stuff": "index", "bits": bits})

    build = build_config(config, folder=tmp_path)

    assert build.exit_code == 0, build.stderr
    for examples in (load(build), load_tfds(build)):
        count = 0
        for example in examples:
            indices = example["image/panoptic/instance_mask"][..., 0]
            assert indices.dtype == {8: np.uint8, 16: np.uint16}[bits]
            table = np.array([0, *example["image/panoptic/segment_id"]])
            key = example["image/filename"].decode()
            np.testing.assert_array_equal(table[indices], segment_ids(shapes, key))
            count += 1
        assert count == 40


def test_stuff_is_zero_unless_it_is_indexed(shapes: Path, tmp_path: Path) -> None:
    build = build_config(panoptic_config(shapes), folder=tmp_path)

    seen = 0
    for example in load(build):
        things = example["image/segmentation/class/encoded"] == 1
        indices = example["image/panoptic/instance_mask"]
        np.testing.assert_array_equal(indices != 0, things)
        # The sample's ids of stuff.
        assert set(np.unique(example["image/panoptic/category_mask"][~things])) <= {
            *(0, 92, 95, 99, 106, 109)
        }
        seen += bool((~things).any())
    assert seen == 40


def test_ids_that_do_not_fit_into_8_bits_end_the_build(shapes: Path, tmp_path: Path) -> None:
    document = json.loads((shapes / "annotations" / "panoptic.json").read_bytes())
    for category in document["categories"]:
        category["id"] += 300
    for annotation in document["annotations"]:
        for segment in annotation["segments_info"]:
            segment["category_id"] += 300
    file = tmp_path / "panoptic.json"
    file.write_text(json.dumps(document))

    refused = build_config(panoptic_config(shapes, file=file), folder=tmp_path)
    wide = build_config(
        panoptic_config(shapes, file=file, panoptic={"bits": 16}), folder=tmp_path, name="wide"
    )
    renumbered = build_config(
        panoptic_config(shapes, file=file, labels={"ids": "contiguous"}),
        folder=tmp_path,
        name="renumbered",
    )

    assert refused.exit_code == 1
    assert "labels.ids: contiguous; or set panoptic.bits: 16" in refused.stderr
    assert wide.exit_code == 0, wide.stderr
    assert max(example["image/panoptic/category_mask"].max() for example in load(wide)) > 300
    assert renumbered.exit_code == 0, renumbered.stderr
    assert max(example["image/panoptic/category_mask"].max() for example in load(renumbered)) == 8
