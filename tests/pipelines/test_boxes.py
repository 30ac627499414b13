"""Boxes stay on the pixels they were drawn around, and each correction is counted by name."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import ExifTags, Image, ImageOps
from pycocotools import mask as coco_mask

from shardbeam.transforms.core.records import SizedImage
from shardbeam.transforms.examples.encode import size_fields
from shardbeam.transforms.examples.encode.size_fields import _read_header
from shardbeam.transforms.images.header import ImageHeader
from tests.support.builds import Json, WrittenExample, build_config, coco_source, write_coco
from tests.support.image_makers import photograph, save, with_orientation

# A red rectangle on blue, with neither centre nor corner in common with the picture.
SIZE = (96, 64)
RECTANGLE = (10, 6, 40, 22)

# How the upright picture must be stored so that an EXIF orientation turns it upright again.
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
ORIENTATIONS = range(1, 9)


def upright_picture() -> Image.Image:
    picture = Image.new("RGB", SIZE, (0, 0, 255))
    picture.paste((255, 0, 0), RECTANGLE)
    return picture


def stored_picture(orientation: int) -> Image.Image:
    method = STORED_AS.get(orientation)
    picture = upright_picture()
    return picture if method is None else picture.transpose(method)


def jpeg_file(orientation: int) -> bytes:
    jpeg = save(stored_picture(orientation), "JPEG", quality=95, subsampling="4:4:4")
    return with_orientation(jpeg, orientation)


def red_box(picture: Image.Image) -> npt.NDArray[np.int64]:
    """The box around all red pixels: `(xmin, ymin, xmax, ymax)`."""
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    rows, columns = np.nonzero(pixels[..., 0] > pixels[..., 2])
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])


def make_dataset(
    folder: Path,
    *,
    frame: str,
    scale: float = 1,
    orientations: Iterable[int] = ORIENTATIONS,
) -> Json:
    """Writes a picture of each orientation, annotated in a frame; returns the source of them.

    Args:
        folder: Where to.
        frame: The picture that is annotated, `upright` or `stored`.
        scale: How many pixels of it are one of the written picture.
        orientations: The orientations.
    """
    (folder / "images").mkdir()
    images: list[Json] = []
    annotations: list[Json] = []
    for orientation in orientations:
        name = f"{orientation}.jpg"
        (folder / "images" / name).write_bytes(jpeg_file(orientation))
        picture = upright_picture() if frame == "upright" else stored_picture(orientation)
        xmin, ymin, xmax, ymax = (red_box(picture) * scale).tolist()
        size = {"width": int(picture.width * scale), "height": int(picture.height * scale)}
        images.append({"id": orientation, "file_name": name, **size})
        box = [xmin, ymin, xmax - xmin, ymax - ymin]
        area = box[2] * box[3]
        annotations.append({"image_id": orientation, "category_id": 1, "bbox": box, "area": area})
    categories = [{"id": 1, "name": "rectangle"}]
    document = {"images": images, "annotations": annotations, "categories": categories}
    return coco_source(folder, document)


def check_box(example: WrittenExample, *, tolerance_px: float) -> None:
    """Checks by the stored pixels that the box is where the rectangle is."""
    picture = example.picture
    assert picture.size == example.size
    (box,) = example.boxes
    in_pixels = np.array(box) * (picture.size * 2)
    np.testing.assert_allclose(in_pixels, red_box(picture), atol=tolerance_px, err_msg=example.key)


# {split: how many pixels of the annotated picture are one of the written picture}
SCALES = {"same": 1, "half": 0.5, "triple": 3}


@pytest.mark.parametrize("orientation", ["apply", "keep"])
@pytest.mark.parametrize(
    ("annotated_as", "frame"),
    [
        ("auto", "upright"),
        ("upright", "upright"),
        ("stored", "stored"),
        # The aspect ratio tells that the stored pixels were annotated.
        ("auto", "stored"),
    ],
)
def test_a_box_stays_around_what_it_was_drawn_around(
    annotated_as: str, frame: str, orientation: str, tmp_path: Path
) -> None:
    orientations = range(5, 9) if (annotated_as, frame) == ("auto", "stored") else ORIENTATIONS
    splits = {}
    for split, scale in SCALES.items():
        (tmp_path / split).mkdir()
        splits[split] = make_dataset(
            tmp_path / split, frame=frame, scale=scale, orientations=orientations
        )
    image = {"annotated_as": annotated_as, "orientation": orientation}
    built = build_config({"splits": splits, "image": image}, folder=tmp_path)
    applied = len(orientations) - (1 in orientations) if orientation == "apply" else 0
    for split in splits:
        examples = built.by_key(split)
        assert set(examples) == {f"{number}.jpg" for number in orientations}
        for name, example in examples.items():
            check_box(example, tolerance_px=0.01)
            xmin, ymin, xmax, ymax = RECTANGLE
            area = example.features["image/object/area"]
            assert area == [pytest.approx((xmax - xmin) * (ymax - ymin))]
            if orientation == "keep":
                assert example.encoded == (tmp_path / split / "images" / name).read_bytes()
            else:
                assert example.size == SIZE
                assert example.picture.getexif().get(ExifTags.Base.Orientation, 1) == 1
                np.testing.assert_allclose(red_box(example.picture), RECTANGLE)
        scaled = 0 if split == "same" else len(orientations)
        assert built.counts(split)["corrections"] == {
            **({"orientation_applied": applied} if applied else {}),
            **({"annotated_size_scaled": scaled} if scaled else {}),
        }


def test_a_box_stays_around_it_in_a_resized_picture(tmp_path: Path) -> None:
    source = make_dataset(tmp_path, frame="upright")
    built = build_config({"splits": {"train": source}, "image": {"max_side": 48}}, folder=tmp_path)
    for example in built.examples():
        assert example.size == (48, 32)
        check_box(example, tolerance_px=0.6)
        xmin, ymin, xmax, ymax = RECTANGLE
        assert example.features["image/object/area"] == [(xmax - xmin) * (ymax - ymin) / 4]


@pytest.mark.parametrize(
    ("fit", "size", "area", "orientation"),
    [
        ("pad", (48, 48), 30 * 16 / 4, "keep"),
        ("stretch", (96, 32), 30 * 16 / 2, "apply"),
        # Of the upright picture, the columns from 16 to 80 are left.
        ("crop", (32, 32), 24 * 16 / 4, "keep"),
        ("crop", (32, 32), 24 * 16 / 4, "apply"),
    ],
)
def test_a_box_stays_around_it_where_all_pictures_get_one_size(
    fit: str, size: tuple[int, int], area: float, orientation: str, tmp_path: Path
) -> None:
    # The stored pixels of the first four have the sides of the upright picture.
    orientations = range(1, 5) if orientation == "keep" else ORIENTATIONS
    source = make_dataset(tmp_path, frame="upright", scale=2, orientations=orientations)
    resize = {"width": size[0], "height": size[1], "fit": fit}
    image = {"resize": resize, "orientation": orientation, "background": "#0000ff"}
    built = build_config({"splits": {"train": source}, "image": image}, folder=tmp_path)
    examples = built.examples()
    assert len(examples) == len(orientations)
    for example in examples:
        assert example.size == size
        check_box(example, tolerance_px=0.6)
        (found,) = example.features["image/object/area"]
        assert found == pytest.approx(area)
    corrections = built.counts()["corrections"]
    assert corrections["image_resized"] == len(orientations)
    assert corrections.get("box_cut_by_crop", 0) == (len(orientations) if fit == "crop" else 0)


def test_an_object_outside_of_a_crop_is_left_out_and_not_lost(tmp_path: Path) -> None:
    source = make_dataset(tmp_path, frame="upright")
    # The columns from 44 to 52 are left.
    image = {"resize": {"width": 8, "height": 64, "fit": "crop"}}
    config = {"splits": {"train": source}, "image": image}
    refused = build_config(config, folder=tmp_path, exit_code=3)
    assert "8 object_outside_crop_dropped" in refused.stderr
    built = build_config({**config, "objects": "none"}, folder=tmp_path, name="none")
    assert [example.boxes for example in built.examples()] == [[]] * 8
    assert built.counts()["corrections"]["object_outside_crop_dropped"] == 8
    assert built.rejects() == []


def test_each_object_is_cropped_by_itself(tmp_path: Path) -> None:
    source = make_dataset(tmp_path, frame="upright")
    document = json.loads(Path(source["annotations"][0]).read_bytes())
    for item in document["annotations"]:
        x, y, width, height = item["bbox"]
        item["segmentation"] = [[x, y, x + width, y, x + width, y + height, x, y + height]]
    write_coco(Path(source["annotations"][0]), document)
    config = {
        "splits": {"train": source},
        "image": {"resize": {"width": 32, "height": 32, "fit": "crop"}},
        "example_per": "annotation",
        "masks": "png",
    }
    built = build_config(config, folder=tmp_path)
    assert len(built.examples()) == 8
    for example in built.examples():
        # 16 to 40 and 6 to 22 of 64 x 64 pixels, at half the scale.
        np.testing.assert_allclose(example.features["annotation/bbox"], (0, 3, 12, 8))
        (mask,) = example.features["annotation/mask"]
        np.testing.assert_array_equal(
            np.asarray(Image.open(io.BytesIO(mask))),
            np.pad(np.ones((8, 12), np.uint8), ((3, 21), (0, 20))),
        )


def test_the_pictures_are_what_pillow_takes_them_for() -> None:
    for orientation in ORIENTATIONS:
        with Image.open(io.BytesIO(jpeg_file(orientation))) as picture:
            np.testing.assert_allclose(red_box(ImageOps.exif_transpose(picture)), RECTANGLE)


# Corrections


def annotation(**changes: object) -> Json:
    values: dict[str, Any] = {"category_id": 1, "bbox": [10, 10, 20, 20]} | changes
    return {key: value for key, value in values.items() if value is not None}


# {correction: (annotations of one 100 x 50 image, boxes in pixels that are written)}
CORRECTIONS: dict[str, tuple[list[Json], list[tuple[float, float, float, float]]]] = {
    "box_clipped": (
        [annotation(bbox=[-5, -6, 25, 26]), annotation(bbox=[80, 30, 40, 40])],
        [(0, 0, 20, 20), (80, 30, 100, 50)],
    ),
    "box_without_area_dropped": (
        [
            annotation(bbox=[10, 10, 0, 20]),
            annotation(bbox=[10, 60, 20, -5]),
            annotation(bbox=[200, 10, 5, 5]),
            annotation(bbox=[10, 50, 5, 5]),
        ],
        [],
    ),
    "box_corners_exchanged": ([annotation(bbox=[30, 10, -20, 20])], [(10, 10, 30, 30)]),
    "box_from_polygons": (
        [annotation(bbox=None, segmentation=[[1, 2, 30, 4, 5, 40], [50, 6, 70, 6, 60, 8]])],
        [(1, 2, 70, 40)],
    ),
    "object_without_box_dropped": (
        [
            annotation(bbox=None),
            annotation(bbox=[], segmentation=[]),
            annotation(bbox=None, segmentation={"counts": [5000], "size": [50, 100]}),
        ],
        [],
    ),
    "object_of_unknown_category_dropped": (
        [annotation(category_id=99), annotation(category_id=None)],
        [],
    ),
    "object_of_excluded_label_dropped": ([annotation(category_id=2)], []),
    "duplicate_annotation_dropped": ([annotation(id=5), annotation(id=5)], [(10, 10, 30, 30)]),
}


def test_each_correction_of_a_box_is_counted_by_name(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    jpeg = save(photograph(width=100, height=50), "JPEG")
    cases = {"none": ([annotation()], [(10, 10, 30, 30)]), **CORRECTIONS}
    images: list[Json] = []
    annotations: list[Json] = []
    for number, (case, (annotated, _)) in enumerate(cases.items()):
        (tmp_path / "images" / f"{case}.jpg").write_bytes(jpeg)
        images.append({"id": number, "file_name": f"{case}.jpg", "width": 100, "height": 50})
        annotations += [{**each, "image_id": number} for each in annotated]
    # The annotated size is wrong, but what is annotated lies in the image.
    (tmp_path / "images" / "size_corrected.jpg").write_bytes(jpeg)
    images.append({"id": 90, "file_name": "size_corrected.jpg", "width": 200, "height": 120})
    annotations.append(annotation(image_id=90))
    # It is that of the same picture, twice as large.
    (tmp_path / "images" / "annotated_size_scaled.jpg").write_bytes(jpeg)
    scaled = {"file_name": "annotated_size_scaled.jpg", "width": 200, "height": 100}
    images.append({"id": 91, **scaled})
    annotations.append(annotation(image_id=91, bbox=[20, 20, 40, 40]))
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    source = coco_source(
        tmp_path, {"images": images, "annotations": annotations, "categories": categories}
    )
    config = {"splits": {"train": source}, "labels": {"exclude": ["dog"]}, "objects_lost": "keep"}
    built = build_config(config, folder=tmp_path)

    expected = {
        "box_clipped": 2,
        "box_corners_exchanged": 1,
        "box_without_area_dropped": 4,
        "box_from_polygons": 1,
        "object_without_box_dropped": 3,
        "object_of_unknown_category_dropped": 2,
        "object_of_excluded_label_dropped": 1,
        "duplicate_annotation_dropped": 1,
        "size_corrected": 1,
        "annotated_size_scaled": 1,
    }
    assert built.counts()["corrections"] == expected
    assert built.manifest["splits"]["train"]["outcome"]["corrections"] == expected
    examples = built.by_key()
    cases |= dict.fromkeys(("size_corrected", "annotated_size_scaled"), cases["none"])
    for case, (_, boxes) in cases.items():
        written = np.array(examples[f"{case}.jpg"].boxes).reshape(-1, 4) * (100, 50, 100, 50)
        np.testing.assert_allclose(written, np.array(boxes).reshape(-1, 4), atol=1e-4, err_msg=case)


# Annotated sizes


def make_sizes(folder: Path, sizes: Mapping[str, tuple[int, int]], *, bbox: list[int]) -> Json:
    """Makes pictures of 100 x 50 pixels, each with a box and an annotated size; a source."""
    jpeg = save(photograph(width=100, height=50), "JPEG")
    images, annotations = [], []
    for number, (key, (width, height)) in enumerate(sizes.items()):
        path = folder / "images" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg)
        images.append({"id": number, "file_name": key, "width": width, "height": height})
        annotations.append(annotation(image_id=number, bbox=bbox))
    categories = [{"id": 1, "name": "cat"}]
    return coco_source(
        folder, {"images": images, "annotations": annotations, "categories": categories}
    )


# {annotated_size: (the box that is written, corrections, reasons of rejects)} of a picture
# annotated as 50 x 25 with the box [10, 10, 20, 10], and of one annotated as 80 x 80 with the same.
SETTINGS: dict[str, tuple[dict[str, list[int]], dict[str, int], dict[str, str]]] = {
    "scale": (
        {"ratio.jpg": [20, 20, 60, 40], "other.jpg": [10, 10, 30, 20]},
        {"annotated_size_scaled": 1, "size_corrected": 1},
        {},
    ),
    "ignore": (
        {"ratio.jpg": [10, 10, 30, 20], "other.jpg": [10, 10, 30, 20]},
        {"size_corrected": 2},
        {},
    ),
    "reject": ({}, {}, {"ratio.jpg": "size_mismatch", "other.jpg": "size_mismatch"}),
}


@pytest.mark.parametrize("annotated_size", SETTINGS)
def test_what_another_annotated_size_means_can_be_set(annotated_size: str, tmp_path: Path) -> None:
    boxes, corrections, rejects = SETTINGS[annotated_size]
    sizes = {"ratio.jpg": (50, 25), "other.jpg": (80, 80), "same.jpg": (100, 50)}
    source = make_sizes(tmp_path, sizes, bbox=[10, 10, 20, 10])
    config = {"splits": {"train": source}, "rejects": {"max_ratio": 1}}
    built = build_config({**config, "image": {"annotated_size": annotated_size}}, folder=tmp_path)

    found = {
        key: np.round(np.array(example.boxes[0]) * (100, 50, 100, 50)).tolist()
        for key, example in built.by_key().items()
    }
    assert found == {**boxes, "same.jpg": [10, 10, 30, 20]}
    assert built.counts()["corrections"] == corrections
    assert {reject["key"]: reject["reason"] for reject in built.rejects()} == rejects
    named = [text for text in built.summary["warnings"] if "image.annotated_size" in text]
    assert len(named) == (2 if annotated_size == "scale" else 0)


# {what the sizes are: (images of 100 x 50 pixels by annotated size, whether 50 x 100 is corrected)}
EXCHANGED: dict[str, tuple[dict[tuple[int, int], int], bool]] = {
    "two of six": ({(50, 100): 2, (100, 50): 4}, False),
    "nine beside one that fits": ({(50, 100): 9, (100, 50): 1}, False),
    "ten, and no other": ({(50, 100): 10}, True),
    "ten beside others that fit": ({(50, 100): 10, (100, 50): 90, (200, 100): 3}, True),
    "19 of 20 that do not fit": ({(50, 100): 19, (80, 80): 1}, True),
    "18 of 19 that do not fit": ({(50, 100): 18, (80, 80): 1}, False),
    # The first 200 by path decide.
    "from the 196th image on": ({(100, 50): 195, (50, 100): 30}, False),
}


@pytest.mark.parametrize("case", EXCHANGED)
def test_exchanged_sides_are_corrected_only_if_the_source_exchanges_them(
    case: str, tmp_path: Path
) -> None:
    counts, is_corrected = EXCHANGED[case]
    sizes = [size for size, count in counts.items() for _ in range(count)]
    named = {f"{number:03}.jpg": size for number, size in enumerate(sizes)}
    source = make_sizes(tmp_path, named, bbox=[10, 10, 20, 10])
    config = {"splits": {"train": source}, "rejects": {"max_ratio": 1}}
    built = build_config(config, folder=tmp_path)

    turned = {key for key, size in named.items() if size == (50, 100)}
    rejected = {key for key, reason in built.reasons() if reason == "size_mismatch"}
    assert rejected == (set() if is_corrected else turned)
    if rejected:
        detail = built.rejects()[0]["detail"]
        assert "annotated as 50x100, but the image is 100x50" in detail
        assert "set image.annotated_size: ignore" in detail
        ignoring = {**config, "image": {"annotated_size": "ignore"}}
        assert build_config(ignoring, folder=tmp_path, name="ignoring").reasons() == {}


def test_headers_are_read_only_if_an_image_has_exchanged_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def note(image: SizedImage) -> ImageHeader | None:
        read.append(image.image.uri)
        return _read_header(image)

    monkeypatch.setattr(size_fields, "_read_header", note)
    for name, last, expected in (("plain", (80, 80), 0), ("one", (50, 100), 30)):
        sizes = {f"{number:03}.jpg": (100, 50) for number in range(29)} | {"last.jpg": last}
        source = make_sizes(tmp_path / name, sizes, bbox=[10, 10, 20, 10])
        config = {"splits": {"train": source}, "rejects": {"max_ratio": 1}}
        build_config(config, folder=tmp_path / name)
        assert len(read) == expected


def test_masks_of_images_with_exchanged_sides_are_drawn(tmp_path: Path) -> None:
    """The run lengths have the true size, and the file is indented."""
    sizes = {f"{number:03}.jpg": (50, 100) for number in range(10)}
    source = make_sizes(tmp_path, sizes, bbox=[10, 10, 20, 10])
    pixels = np.zeros((50, 100), np.uint8, order="F")
    pixels[10:20, 10:30] = 1
    runs = {"size": [50, 100], "counts": coco_mask.encode(pixels)["counts"].decode()}
    path = Path(source["annotations"][0])
    document = json.loads(path.read_bytes())
    for each in document["annotations"]:
        each["segmentation"] = runs
    path.write_text(json.dumps(document, indent=1))
    config = {"splits": {"train": source}, "masks": "png"}
    built = build_config(config, folder=tmp_path)
    assert built.counts()["corrections"] == {"size_corrected": 10}
    for each in document["annotations"]:
        each["segmentation"] = {"size": [50, 100], "counts": [1, 2, 4, 5000]}
    path.write_text(json.dumps(document, indent=1))
    refused = build_config(config, folder=tmp_path, name="refused", exit_code=1)
    assert 'such as 000.jpg: { "size": [ 50, 100 ], "counts"' in refused.summary["message"]


def test_a_box_that_is_not_of_the_annotated_size_rejects_the_image(tmp_path: Path) -> None:
    sizes = {"a.jpg": (50, 25), "b.jpg": (100, 50)}
    source = make_sizes(tmp_path, sizes, bbox=[60, 10, 20, 10])

    built = build_config({"splits": {"train": source}}, folder=tmp_path, exit_code=3)

    # The gate does not let it pass.
    assert built.reasons() == {("a.jpg", "size_mismatch"): 1}
    assert "the centre of the box (60, 10, 80, 20) lies outside 50x25" in (built.summary["message"])
    assert "image.annotated_size: ignore" in built.summary["message"]


def test_the_warnings_name_the_first_images_however_they_were_written(tmp_path: Path) -> None:
    keys = [f"{folder}/{number}.jpg" for folder in "ba" for number in (3, 1, 2)]
    sizes = dict.fromkeys(keys, (50, 25)) | {"other\n.jpg": (80, 80)}
    source = make_sizes(tmp_path, sizes, bbox=[10, 10, 20, 10])
    config: Json = {"splits": {"train": source}, "output": {"num_shards": 4}}

    build_config({**config, "expect": {"min_images": 100}}, folder=tmp_path, exit_code=3)
    resumed = build_config(config, folder=tmp_path)
    one_shard = build_config(
        {**config, "output": {"num_shards": 1}}, folder=tmp_path, name="one_shard"
    )

    assert resumed.summary["resumed"]["shards"] == 4
    expected = [
        "6 images are annotated in another size, such as a/1.jpg (as 50x25), a/2.jpg (as 50x25), "
        "a/3.jpg (as 50x25), of the same aspect ratio: annotations in pixels were scaled to "
        "the image; with image.annotated_size: ignore, they are taken as pixels of the image; with "
        "reject, such images are rejected",
        "1 image is annotated in another size, such as other\\n.jpg (as 80x80), of another aspect "
        "ratio: all boxes lie in the image, and were taken as pixels of it; with "
        "image.annotated_size: reject, such images are rejected",
    ]
    for built in (resumed, one_shard):
        assert [each for each in built.summary["warnings"] if "annotated" in each] == expected
        assert all("\n" not in text for text in built.summary["warnings"])
