"""Boxes stay on what they were drawn around, and each correction of one is counted by name."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import ExifTags, Image, ImageOps

from tests.support.builds import Json, WrittenExample, build_config, write_coco
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


def make_dataset(folder: Path, *, frame: str) -> Json:
    """Writes a picture of each orientation, annotated in a frame; returns the source of them."""
    (folder / "images").mkdir()
    images: list[Json] = []
    annotations: list[Json] = []
    for orientation in ORIENTATIONS:
        name = f"{orientation}.jpg"
        (folder / "images" / name).write_bytes(jpeg_file(orientation))
        picture = upright_picture() if frame == "upright" else stored_picture(orientation)
        xmin, ymin, xmax, ymax = red_box(picture).tolist()
        size = {"width": picture.width, "height": picture.height}
        images.append({"id": orientation, "file_name": name, **size})
        box = [xmin, ymin, xmax - xmin, ymax - ymin]
        annotations.append({"image_id": orientation, "category_id": 1, "bbox": box})
    categories = [{"id": 1, "name": "rectangle"}]
    document = {"images": images, "annotations": annotations, "categories": categories}
    return coco_source(folder, document)


def coco_source(folder: Path, document: Json) -> Json:
    """A source of COCO images in `folder/images`."""
    annotations = write_coco(folder / "instances.json", document)
    return {
        "format": "coco",
        "images": str(folder / "images"),
        "annotations": [str(annotations)],
    }


def check_box(example: WrittenExample, *, tolerance_px: float) -> None:
    """Checks by the stored pixels that the box is where the rectangle is."""
    picture = example.picture
    assert picture.size == example.size
    (box,) = example.boxes
    in_pixels = np.array(box) * (picture.size * 2)
    np.testing.assert_allclose(in_pixels, red_box(picture), atol=tolerance_px, err_msg=example.key)


@pytest.mark.parametrize("orientation", ["apply", "keep"])
@pytest.mark.parametrize(
    ("annotated_as", "frame"),
    [("auto", "upright"), ("upright", "upright"), ("stored", "stored")],
)
def test_a_box_stays_around_what_it_was_drawn_around(
    annotated_as: str, frame: str, orientation: str, tmp_path: Path
) -> None:
    source = make_dataset(tmp_path, frame=frame)
    image = {"annotated_as": annotated_as, "orientation": orientation}
    built = build_config({"splits": {"train": source}, "image": image}, folder=tmp_path)
    assert built.exit_code == 0
    examples = built.by_key()
    assert set(examples) == {f"{orientation}.jpg" for orientation in ORIENTATIONS}
    for name, example in examples.items():
        check_box(example, tolerance_px=0.01)
        if orientation == "keep":
            assert example.encoded == (tmp_path / "images" / name).read_bytes()
        else:
            assert example.size == SIZE
            assert example.picture.getexif().get(ExifTags.Base.Orientation, 1) == 1
            np.testing.assert_allclose(red_box(example.picture), RECTANGLE)
    applied = {"orientation_applied": 7} if orientation == "apply" else {}
    assert built.counts()["corrections"] == applied


def test_a_box_stays_around_it_in_a_resized_picture(tmp_path: Path) -> None:
    source = make_dataset(tmp_path, frame="upright")
    built = build_config({"splits": {"train": source}, "image": {"max_side": 48}}, folder=tmp_path)
    assert built.exit_code == 0
    for example in built.examples():
        assert example.size == (48, 32)
        check_box(example, tolerance_px=0.6)
        xmin, ymin, xmax, ymax = RECTANGLE
        assert example.features["image/object/area"] == [(xmax - xmin) * (ymax - ymin) / 4]


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
            annotation(bbox=[10, 10, 20, -5]),
            annotation(bbox=[200, 10, 5, 5]),
            annotation(bbox=[10, 50, 5, 5]),
        ],
        [],
    ),
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
    images.append({"id": 90, "file_name": "size_corrected.jpg", "width": 200, "height": 100})
    annotations.append(annotation(image_id=90))
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    source = coco_source(
        tmp_path, {"images": images, "annotations": annotations, "categories": categories}
    )
    built = build_config(
        {"splits": {"train": source}, "labels": {"exclude": ["dog"]}}, folder=tmp_path
    )

    assert built.exit_code == 0
    expected = {
        "box_clipped": 2,
        "box_without_area_dropped": 4,
        "box_from_polygons": 1,
        "object_without_box_dropped": 3,
        "object_of_unknown_category_dropped": 2,
        "object_of_excluded_label_dropped": 1,
        "duplicate_annotation_dropped": 1,
        "size_corrected": 1,
    }
    assert built.counts()["corrections"] == expected
    assert built.manifest["splits"]["train"]["outcome"]["corrections"] == expected
    examples = built.by_key()
    for case, (_, boxes) in {**cases, "size_corrected": cases["none"]}.items():
        written = np.array(examples[f"{case}.jpg"].boxes).reshape(-1, 4) * (100, 50, 100, 50)
        np.testing.assert_allclose(written, np.array(boxes).reshape(-1, 4), atol=1e-4, err_msg=case)
