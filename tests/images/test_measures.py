from __future__ import annotations

import numpy as np
import pytest

from shardbeam.transforms.images.measures import PICTURE_KINDS, GrayImage, measure_pixels


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ((0, 63), {"dark_picture": 192}),
        ((0, 64), {}),
        ((201, 255), {"bright_picture": 201}),
        ((200, 255), {}),
        ((100, 131), {"low_contrast": 224}),
        ((100, 132), {}),
        ((0, 0), {"dark_picture": 255, "low_contrast": 255}),
    ],
)
def test_findings_by_levels(levels: tuple[int, int], found: dict[str, int]) -> None:
    pixels = np.repeat(np.array([levels], np.uint8), 50, axis=0)
    image = GrayImage(pixels, size=(2, 50))
    assert image.levels == levels
    measured = measure_pixels(image)
    assert {name: measured[name] for name in PICTURE_KINDS if name in measured} == found


def test_one_pixel_of_a_hundred_is_no_level() -> None:
    pixels = np.full((20, 20), 100, np.uint8)
    pixels[0, :3] = 0, 0, 255
    assert GrayImage(pixels, size=(20, 20)).levels == (100, 100)
