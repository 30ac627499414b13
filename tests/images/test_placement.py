"""Where pixels go if all images get one size: Pillow's own functions are the oracle."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from shardbeam.configs.schema import ImageConfig, ResizeConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.check import check_image, measure_stored, store_cifar
from shardbeam.transforms.images.convert import place
from tests.support.image_makers import photograph, save, with_orientation

LANCZOS = Image.Resampling.LANCZOS
BACKGROUND = "#102030"
PICTURE = photograph()
SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300))


def resized(size: tuple[int, int], fit: str, **settings: Any) -> ImageConfig:  # noqa: ANN401  # Those of ImageConfig.
    resize = ResizeConfig(width=size[0], height=size[1], fit=fit)  # type: ignore[arg-type]
    return ImageConfig(resize=resize, encoding="png", background=BACKGROUND, **settings)


def pixels_of(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


# The picture has 64 x 48 pixels. Pillow's fractions of pixels are whole with these sizes.
@pytest.mark.parametrize("size", [(32, 32), (96, 96), (128, 32), (16, 128), (64, 32)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        ("stretch", lambda image, size: image.resize(size, LANCZOS)),
        ("crop", lambda image, size: ImageOps.fit(image, size, LANCZOS)),
        ("pad", lambda image, size: ImageOps.pad(image, size, LANCZOS, color=BACKGROUND)),
    ],
)
def test_pixels_are_those_of_pillow(
    fit: str,
    expected: Callable[[Image.Image, tuple[int, int]], Image.Image],
    mode: str,
    size: tuple[int, int],
) -> None:
    picture = PICTURE.convert(mode)
    stored = check_image(save(picture, "PNG"), name="", settings=resized(size, fit))
    assert (stored.width, stored.height) == size
    assert (stored.file_width, stored.file_height) == picture.size
    assert stored.channels == len(mode)
    assert stored.corrections == {Correction.IMAGE_RESIZED: (picture.size, size)}
    np.testing.assert_array_equal(
        np.asarray(pixels_of(stored.data)), np.asarray(expected(picture, size))
    )


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_an_image_of_that_size_stays_as_it_is(fit: str) -> None:
    data = save(PICTURE, "JPEG")
    assert check_image(data, name="", settings=resized(PICTURE.size, fit)).data is data


@pytest.mark.parametrize("orientation", ["apply", "keep"])
def test_a_turned_picture_is_resized_as_it_is_written(orientation: str) -> None:
    data = save(PICTURE, "PNG")
    settings = resized((40, 20), "crop", orientation=orientation)
    stored = check_image(with_orientation(save(PICTURE, "JPEG"), 6), name="", settings=settings)
    assert pixels_of(stored.data).size == (40, 20)
    assert stored.placement is not None
    # Of 48 x 64 pixels upright, 48 x 24; of 64 x 48 as they are stored, 64 x 32.
    assert stored.placement.crop == ((0, 20, 48, 44) if orientation == "apply" else (0, 8, 64, 40))
    assert stored.upright is (orientation == "apply")
    again = measure_stored(stored.data, image_format="png", settings=settings)
    assert again == stored.measures
    assert check_image(data, name="", settings=settings).orientation == 1


@given(SIZES, SIZES)
def test_a_placement_keeps_the_aspect_ratio_and_the_centre(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    pad = place(size, settings=resized(target, "pad"))
    crop = place(size, settings=resized(target, "crop"))
    stretch = place(size, settings=resized(target, "stretch"))
    if size == target:
        assert pad is crop is stretch is None
        return
    assert pad is not None
    assert crop is not None
    assert stretch is not None
    assert stretch.crop_size == pad.crop_size == size
    assert stretch.target_size == crop.target_size == target
    for (width, height), outer, ratio in (
        (pad.target_size, target, size),
        (crop.crop_size, size, target),
    ):
        # As large as it can be, and rounded to a pixel.
        assert 1 <= width <= outer[0]
        assert 1 <= height <= outer[1]
        exact_height, exact_width = width * ratio[1] / ratio[0], height * ratio[0] / ratio[1]
        is_widest = width == outer[0] and abs(max(1, exact_height) - height) <= 0.5
        assert is_widest or (height == outer[1] and abs(max(1, exact_width) - width) <= 0.5)
    for window, outer in ((pad.target, target), (crop.crop, size)):
        assert 0 <= outer[0] - window[2] - window[0] <= 1
        assert 0 <= outer[1] - window[3] - window[1] <= 1
    for found in (pad, crop, stretch):
        left, top, right, bottom = found.crop
        corners = found.to_fractions(left, top), found.to_fractions(right, bottom)
        np.testing.assert_allclose(
            np.multiply(corners, target).ravel(), found.target, rtol=0, atol=1e-9
        )


def test_a_picture_that_takes_too_much_memory_on_the_way_is_refused() -> None:
    # 3 MB, but Pillow would hold 60,000 rows of 4,000 pixels.
    data = save(Image.new("RGB", (10, 60_000)), "PNG")
    settings = resized((4000, 10), "stretch", max_decoded_mb=100)
    with pytest.raises(RejectedError) as caught:
        check_image(data, name="", settings=settings)
    assert caught.value.reason is Reason.DECODE_BOMB
    assert check_image(data, name="", settings=resized((40, 10), "stretch", max_decoded_mb=100))


def test_pictures_of_cifar_get_the_size_as_png() -> None:
    picture = photograph(width=32, height=32)
    planes = np.asarray(picture).transpose(2, 0, 1).tobytes()
    settings = resized((64, 48), "pad")
    stored = store_cifar(planes, raw=False, settings=settings)
    expected = ImageOps.pad(picture, (64, 48), LANCZOS, color=BACKGROUND)
    np.testing.assert_array_equal(np.asarray(pixels_of(stored.data)), np.asarray(expected))
    assert (stored.width, stored.height, stored.file_width) == (64, 48, 32)
    assert measure_stored(stored.data, image_format="png", settings=settings) == stored.measures
