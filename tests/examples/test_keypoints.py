from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.records import Category, ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from tests.support.example_builders import make_image, render, upright

SIZE = (40, 20)
# Two names in common.
CATEGORIES = (
    Category("person", 1, keypoints=("nose", "left_eye", "right_eye")),
    Category("bird", 2, keypoints=("beak", "right_eye", "left_eye")),
    Category("car", 3),
)
NAMES = [b"nose", b"left_eye", b"right_eye", b"beak"]
PREFIX = "image/object/keypoint/"


def labels(settings: LabelSettings | None = None) -> LabelMap:
    return build_label_map(
        categories=CATEGORIES, settings=settings or LabelSettings(), objects=True
    )


def thing(label: str, *keypoints: tuple[float, float, float]) -> ObjectAnnotation:
    return ObjectAnnotation(
        label=label,
        bbox=(1, 1, 5, 5),
        keypoints=tuple(value for keypoint in keypoints for value in keypoint),
    )


def keypoints(
    *objects: ObjectAnnotation,
    label_map: LabelMap | None = None,
    image: StoredImage | None = None,
    normalized: bool = False,
) -> dict[str, list[Any]]:
    """Returns `{key below image/object/keypoint/: values}`."""
    values = render(
        ImageAnnotations("1", SIZE[0], SIZE[1], objects=objects, normalized=normalized),
        label_map=label_map or labels(),
        kinds=(Kind.DETECTION, Kind.KEYPOINTS),
        annotated_as="stored",
        image=image or make_image(size=SIZE),
    ).values
    return {
        key.removeprefix(PREFIX): found for key, found in values.items() if key.startswith(PREFIX)
    }


def test_coordinates_are_fractions_and_what_is_not_labelled_is_zero() -> None:
    assert keypoints(thing("person", (10, 5, 2), (20, 10, 1), (30, 15, 0))) == {
        "x": [0.25, 0.5, 0, 0],
        "y": [0.25, 0.5, 0, 0],
        "visibility": [2, 1, 0, 0],
        "num": [2],
        "text": NAMES,
    }
    assert keypoints() == {"x": [], "y": [], "visibility": [], "num": [], "text": []}


def test_all_objects_have_the_keypoints_of_all_categories_by_name() -> None:
    found = keypoints(
        thing("bird", (4, 2, 2), (8, 4, 2), (12, 6, 1)),
        thing("car"),
        thing("person", (20, 10, 2), (24, 12, 2), (28, 14, 2)),
    )

    rows = np.reshape(found["x"], (3, 4))
    np.testing.assert_allclose(rows * 40, [[0, 12, 8, 4], [0, 0, 0, 0], [20, 24, 28, 0]])
    np.testing.assert_array_equal(
        np.reshape(found["visibility"], (3, 4)), [[0, 1, 2, 2], [0, 0, 0, 0], [2, 2, 2, 0]]
    )
    assert found["num"] == [3, 0, 3]
    assert found["text"] == NAMES * 3


def test_merged_categories_keep_their_keypoints() -> None:
    settings = LabelSettings(merge={"animal": ["person", "bird"]})

    found = keypoints(thing("bird", (4, 2, 2)), label_map=labels(settings))

    assert found["x"] == pytest.approx([0, 0, 0, 0.1])


def test_keypoints_beyond_the_border_stay() -> None:
    found = keypoints(thing("person", (-4, 30, 2)))

    assert (found["x"][0], found["y"][0]) == pytest.approx((-0.1, 1.5))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_what_no_float_can_hold_is_not_labelled(value: float) -> None:
    found = keypoints(thing("person", (value, 5, 2), (5, value, 2), (10, 5, 2)))

    assert found["visibility"] == [0, 0, 2, 0]
    assert found["x"] == [0, 0, 0.25, 0]
    assert found["num"] == [1]


@pytest.mark.parametrize(
    ("given", "written"), [(0, 0), (1, 1), (2, 2), (3, 2), (math.inf, 2), (-1, 0), (math.nan, 0)]
)
def test_visibilities(given: float, written: int) -> None:
    assert keypoints(thing("person", (10, 5, given)))["visibility"][0] == written


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_any_number_of_values(count: int) -> None:
    item = ObjectAnnotation("person", (1, 1, 5, 5), keypoints=(10.0, 5.0, 2.0, 1.0, 2.0)[:count])

    found = keypoints(item)

    assert len(found["x"]) == 4
    assert found["num"] == [int(count >= 3)]


def test_coordinates_in_fractions() -> None:
    item = ObjectAnnotation(label="person", bbox=(0.1, 0.1, 0.2, 0.2), keypoints=(0.25, 0.75, 2.0))

    found = keypoints(item, normalized=True)

    assert (found["x"][0], found["y"][0]) == pytest.approx((0.25, 0.75))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_keypoints_stay_on_their_pixels_and_keep_their_names(orientation: int) -> None:
    places = {"nose": (3, 2), "left_eye": (30, 4), "right_eye": (11, 17)}
    pixels = np.zeros(SIZE[::-1], np.uint8)
    for number, (x, y) in enumerate(places.values(), start=1):
        pixels[y, x] = number
    turned = upright(pixels, orientation)
    height, width = turned.shape
    image = make_image(size=(width, height), file_size=SIZE, orientation=orientation)
    # The middle of the pixel.
    item = thing("person", *((x + 0.5, y + 0.5, 2) for x, y in places.values()))

    found = keypoints(item, image=image)

    for number, (x, y) in enumerate(zip(found["x"][:3], found["y"][:3], strict=True), start=1):
        assert turned[int(y * height), int(x * width)] == number
    assert found["text"] == NAMES
