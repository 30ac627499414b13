"""All that COCO files may say, end to end: on the sample, real toys, and through ready configs."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.examples import encode
from shardbeam.transforms.storage.image_bytes import read_bytes
from tests.conftest import PROJECT_ROOT
from tests.support.builds import Build, Json, WrittenExample, build
from tests.support.dataset import read_dataset, run

KEYPOINTS = "image/object/keypoint"


def read_json(path: Path) -> Json:
    document: Json = json.loads(path.read_bytes())
    return document


def read_png(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image)


def write_json(path: Path, **sections: list[Json]) -> Path:
    path.write_text(json.dumps(sections), encoding="utf-8")
    return path


def write_images(folder: Path, *names: str, size: tuple[int, int] = (8, 6)) -> list[Json]:
    """Draws images, and describes them as COCO's `images`, with ids from 1."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (number, 50, 100)).save(folder / name)
    return [
        {"id": number, "file_name": name, "width": size[0], "height": size[1]}
        for number, name in enumerate(names, 1)
    ]


def write_png(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def everything(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    annotations = shapes / "annotations"
    return build(
        "coco",
        *("--images", shapes / "images"),
        *("--annotations", annotations / "instances.json"),
        *("--annotations", annotations / "person_keypoints.json"),
        *("--annotations", annotations / "captions.json"),
        *("--panoptic", annotations / "panoptic.json"),
        *("--panoptic-masks", shapes / "panoptic"),
        *("--set", "masks=png"),
        output=tmp_path_factory.mktemp("everything") / "out",
    )


def test_all_kinds_of_files_are_merged_on_the_image(everything: Build, shapes: Path) -> None:
    assert everything.exit_code == 0, everything.stderr
    keypoints = read_json(shapes / "annotations" / "person_keypoints.json")
    captions = read_json(shapes / "annotations" / "captions.json")
    panoptic = read_json(shapes / "annotations" / "panoptic.json")
    names = keypoints["categories"][0]["keypoints"]
    found = everything.by_key()

    assert len(found) == len(keypoints["images"]) == 40
    unannotated = len(panoptic["images"]) - len(panoptic["annotations"])
    assert everything.counts()["corrections"] == {"map_missing_left_void": unannotated}
    assert not everything.rejects()
    for image in keypoints["images"]:
        features = found[image["file_name"]].features
        objects = [each for each in keypoints["annotations"] if each["image_id"] == image["id"]]
        # Those of the keypoints' file are those of the instances', and not doubled.
        assert features["image/object/class/label"] == [each["category_id"] for each in objects]
        assert len(features["image/object/mask"]) == len(objects)
        triples = np.array([each["keypoints"] for each in objects], float).reshape(-1, 3)
        np.testing.assert_allclose(
            features[f"{KEYPOINTS}/x"], triples[:, 0] / image["width"], atol=1e-6
        )
        np.testing.assert_allclose(
            features[f"{KEYPOINTS}/y"], triples[:, 1] / image["height"], atol=1e-6
        )
        assert features[f"{KEYPOINTS}/visibility"] == triples[:, 2].tolist()
        assert features[f"{KEYPOINTS}/num"] == [each["num_keypoints"] for each in objects]
        assert [text.decode() for text in features[f"{KEYPOINTS}/text"]] == names * len(objects)
        assert [text.decode() for text in features["image/caption"]] == [
            each["caption"] for each in captions["annotations"] if each["image_id"] == image["id"]
        ]


def test_semantic_and_panoptic_maps_exclude_each_other(shapes: Path, tmp_path: Path) -> None:
    built = build(
        "coco",
        *("--images", shapes / "images"),
        *("--panoptic", shapes / "annotations" / "panoptic.json"),
        *("--panoptic-masks", shapes / "panoptic"),
        *("--semantic-masks", shapes / "panoptic"),
        output=tmp_path / "out",
    )

    assert built.exit_code == 2
    assert "either semantic or panoptic maps" in built.stderr


# Panoptic masks


def panoptic_source(folder: Path, *names: str) -> tuple[str | Path, ...]:
    """Writes a source of panoptic segments; a PNG's left half is segment 300, class 18."""
    images = write_images(folder / "images", *(f"{name}.jpg" for name in names))
    annotations = []
    for image, name in zip(images, names, strict=True):
        pixels = np.zeros((6, 8, 3), np.uint8)
        pixels[:, :4] = [300 % 256, 300 // 256, 0]
        write_png(folder / "masks" / f"{name}.png", pixels)
        segments = [{"id": 300, "category_id": 18, "iscrowd": 0, "area": 24, "bbox": [0, 0, 4, 6]}]
        annotations.append(
            {"image_id": image["id"], "file_name": f"{name}.png", "segments_info": segments}
        )
    file = write_json(
        folder / "panoptic.json",
        images=images,
        annotations=annotations,
        categories=[{"id": 18, "name": "dog", "isthing": 1}],
    )
    return (
        "coco",
        *("--images", folder / "images", "--panoptic", file),
        *("--panoptic-masks", folder / "masks"),
    )


def test_a_changed_png_is_a_changed_input(tmp_path: Path) -> None:
    words = (*panoptic_source(tmp_path, "a"), "--if-changed", "--overwrite")
    output = tmp_path / "out"
    assert build(*words, output=output).exit_code == 0
    before = read_dataset(output)

    assert "nothing to do" in json.dumps(build(*words, output=output).summary)
    write_png(tmp_path / "masks" / "a.png", np.full((6, 8, 3), [44, 1, 0], np.uint8))
    assert build(*words, output=output).exit_code == 0

    assert read_dataset(output) != before


def test_panoptic_masks_in_an_archive(tmp_path: Path) -> None:
    import zipfile

    words = panoptic_source(tmp_path, "a", "b")
    expected = build(*words, output=tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "masks.zip", "w") as archive:
        for path in (tmp_path / "masks").iterdir():
            archive.write(path, f"panoptic_val/{path.name}")

    archived = tmp_path / "masks.zip" / "panoptic_val"
    built = build(*words[:-1], archived, output=tmp_path / "archived")

    assert built.exit_code == 0, built.stderr
    assert [each.features for each in built.examples()] == [
        each.features for each in expected.examples()
    ]


# Semantic maps


def test_stuff_becomes_a_map(tmp_path: Path) -> None:
    mask_api = pytest.importorskip("pycocotools.mask")
    images = write_images(tmp_path / "images", "a.jpg", "b.jpg")
    regions = np.zeros((2, 6, 8), np.uint8)
    regions[0, :3] = 1
    regions[1, 2:, 4:] = 1
    sky = mask_api.encode(np.asfortranarray(regions[0]))
    segmentations = [
        {"counts": sky["counts"].decode(), "size": [6, 8]},
        # Uncompressed, column by column.
        {"counts": [26, 4, 2, 4, 2, 4, 2, 4], "size": [6, 8]},
    ]
    file = write_json(
        tmp_path / "stuff_val.json",
        images=images,
        annotations=[
            {"id": k, "image_id": 1, "category_id": 92 + k, "segmentation": each, "iscrowd": 0}
            for k, each in enumerate(segmentations)
        ],
        categories=[{"id": 92, "name": "sky"}, {"id": 93, "name": "grass"}],
    )

    built = build(
        "coco", "--images", tmp_path / "images", "--annotations", file, output=tmp_path / "out"
    )

    assert built.exit_code == 0, built.stderr
    assert not any("object" in key for key in built.examples()[0].features)
    found = built.by_key()
    pixels = read_png(found["a.jpg"].features["image/segmentation/class/encoded"][0])
    np.testing.assert_array_equal(
        pixels, np.where(regions[1], 93, np.where(regions[0], 92, pixels[-1, 0]))
    )
    assert pixels[-1, 0] in (0, 255)
    assert built.counts()["corrections"]["map_missing_left_void"] == 1


def test_semantic_masks_are_found_by_stem(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", "val/a.jpg", "val/b.jpg", "val/c.jpg", "val/c.png")
    file = write_json(
        tmp_path / "instances.json",
        images=images[:2],
        annotations=[{"id": 1, "image_id": 1, "category_id": 18, "bbox": [0, 0, 4, 3]}],
        categories=[{"id": 18, "name": "dog"}, {"id": 92, "name": "sky"}],
    )
    pixels = np.full((6, 8), 92, np.uint8)
    pixels[:3] = 18
    write_png(tmp_path / "maps" / "val" / "a.png", pixels)
    (tmp_path / "maps" / "readme.txt").write_text("maps")

    built = build(
        "coco",
        *("--images", tmp_path / "images", "--annotations", file),
        *("--semantic-masks", tmp_path / "maps", "--set", "rejects.max_ratio=0.5"),
        output=tmp_path / "out",
    )

    assert built.exit_code == 0, built.stderr
    found = built.by_key()
    assert found.keys() == {"val/a.jpg", "val/b.jpg"}
    assert built.reasons() == {
        (f"val/c.{extension}", "ambiguous_stem"): 1 for extension in ("jpg", "png")
    }
    features = found["val/a.jpg"].features
    assert features["image/object/class/label"] == [18]
    np.testing.assert_array_equal(read_png(features["image/segmentation/class/encoded"][0]), pixels)


# Real toys of every kind


def toy(root: Path, *, split: str, output: Path, kinds: str) -> Build:
    words: list[str | Path] = []
    for kind in kinds.split():
        words += ["--annotations", root / "annotations" / f"{kind}_{split}.json"]
    return build(
        *("coco", "--images", root / "images" / split, *words, "--split", split), output=output
    )


@pytest.mark.parametrize("split", ["train", "val"])
def test_toys_of_every_kind(shared_data: Path, tmp_path: Path, split: str) -> None:
    root = shared_data / "datumaro" / "coco_dataset" / "coco"
    kinds = "instances person_keypoints captions labels stuff image_info"
    built = toy(root, split=split, output=tmp_path / "out", kinds=kinds)

    assert built.exit_code == 0, built.stderr
    (example,) = built.examples(split)
    features = example.features
    if split == "train":
        assert (example.key, example.labels) == ("a.jpg", [("b", 2)])
        assert example.image_labels == [("b", 2)]
        assert features["image/caption"] == [b"hello"]
        assert features[f"{KEYPOINTS}/num"] == [2]
        np.testing.assert_allclose(features[f"{KEYPOINTS}/x"], [0, 0, 0.4])
        np.testing.assert_allclose(example.boxes, [(0.2, 0.4, 0.5, 0.6)])
        stuff = np.zeros((5, 10), bool)
        stuff.T.flat[10:20] = True
        stuff.T.flat[25:35] = True
        label = 1
    else:
        assert (example.key, example.labels) == ("b.jpg", [("a", 1), ("b", 2)])
        assert example.image_labels == [("a", 1), ("b", 2)]
        assert features["image/caption"] == [b"world", b"text"]
        assert features[f"{KEYPOINTS}/visibility"] == [2] * 6
        assert features["image/object/is_crowd"] == [0, 1]
        stuff = np.zeros((10, 5), bool)
        stuff.T.flat[:20] = True
        label = 2
    pixels = read_png(features["image/segmentation/class/encoded"][0])
    assert set(pixels[stuff]) == {label}
    assert label not in pixels[~stuff]


# Ready configs


def ready(config: str, *, output: Path, **settings: object) -> Build:
    """Builds by a ready config, its paths overridden as a user would."""
    given = {**settings, "output.path": output}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    exit_code, stdout, stderr = run(
        "build", str(PROJECT_ROOT / "configs" / config), *words, "--json"
    )
    return Build(output=output, exit_code=exit_code, summary=json.loads(stdout), stderr=stderr)


def test_coco2017(shapes: Path, shared_data: Path, tmp_path: Path) -> None:
    pixelwise = shared_data / "dali" / "coco_pixelwise"
    built = ready(
        "coco2017.yaml",
        output=tmp_path / "out",
        **{
            "splits.train.images": shapes / "images",
            "splits.train.annotations": f"[{shapes / 'annotations' / 'instances.json'}]",
            "splits.validation.images": pixelwise / "images",
            "splits.validation.annotations": f"[{pixelwise / 'instances.json'}]",
            "labels.ids": "contiguous",
        },
    )

    assert built.exit_code == 0, built.stderr
    assert [len(built.examples(split)) for split in ("train", "validation")] == [40, 6]
    (example, *_) = built.examples("validation")
    assert set(example.features) == {
        *(f"image/{name}" for name in ("encoded", "format", "height", "width", "filename")),
        *("image/source_id", "image/key/sha256"),
        *(f"image/object/bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax")),
        *(f"image/object/class/{name}" for name in ("label", "text")),
        *(f"image/object/{name}" for name in ("is_crowd", "area", "mask")),
    }
    assert (
        sum(len(each.features["image/object/mask"]) for each in built.examples("validation")) == 12
    )
    width, height = example.size
    mask = read_png(example.features["image/object/mask"][0])
    assert mask.shape == (height, width)
    assert set(np.unique(mask)) == {0, 1}


PER_ANNOTATION_KINDS = {
    "image": bytes,
    "path": bytes,
    "area": float,
    "bbox": float,
    "category_id": int,
    "id": int,
    "image_id": int,
}


def test_coco2017_per_annotation(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()

    def count(image: ImageRef, *, unreadable: Reason = Reason.IMAGE_UNREADABLE) -> bytes:
        reads[image.uri] += 1
        return read_bytes(image, unreadable=unreadable)

    monkeypatch.setattr(encode, "read_bytes", count)
    built = ready(
        "coco2017_per_annotation.yaml",
        output=tmp_path / "out",
        **{
            "splits.train.images": shapes / "images",
            "splits.train.annotations": f"[{shapes / 'annotations' / 'instances.json'}]",
            "output.shard_size_mb": 0.5,
        },
    )

    assert built.exit_code == 0, built.stderr
    instances = read_json(shapes / "annotations" / "instances.json")
    images = {image["id"]: image for image in instances["images"]}
    annotations = {each["id"]: each for each in instances["annotations"]}
    empty = images.keys() - {each["image_id"] for each in annotations.values()}
    assert empty
    assert built.counts()["excluded"] == {"no_objects": len(empty)}
    examples = built.examples()
    assert sorted(each.features["id"][0] for each in examples) == sorted(annotations)
    # An image is read once, and its Examples stand together.
    assert max(reads.values()) == 1
    paths = [each.features["path"][0] for each in examples]
    blocks = [path for path, before in zip(paths, [None, *paths], strict=False) if path != before]
    assert len(blocks) == len(set(blocks)) == len(images) - len(empty)
    for each in examples:
        _check_annotation(each, annotations=annotations, images=images, folder=shapes / "images")
    # Shards are as large as was asked for, though each image is in them several times.
    size = built.counts()["num_bytes"]
    assert len(built.shards()) == pytest.approx(size / 500_000, abs=1)
    assert (
        len(built.shards())
        > 2 * sum(path.stat().st_size for path in (shapes / "images").iterdir()) / 500_000
    )


def _check_annotation(
    example: WrittenExample, *, annotations: Json, images: Json, folder: Path
) -> None:
    features = example.features
    assert {key: type(values[0]) for key, values in features.items()} == PER_ANNOTATION_KINDS
    assert {key for key, values in features.items() if len(values) != 1} == {"bbox"}
    annotation = annotations[features["id"][0]]
    image = images[annotation["image_id"]]
    assert features["image_id"] == [image["id"]]
    assert features["category_id"] == [annotation["category_id"]]
    assert features["path"] == [image["file_name"].encode()]
    assert features["image"] == [(folder / image["file_name"]).read_bytes()]
    np.testing.assert_allclose(features["bbox"], annotation["bbox"], atol=1e-3)
    np.testing.assert_allclose(features["area"], [annotation["area"]], rtol=1e-6)
