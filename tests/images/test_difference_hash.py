from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.images.check import check_image, store_cifar
from shardbeam.transforms.images.difference_hash import difference_hash, hash_image
from tests.support.image_makers import (
    Pixels,
    after_soi,
    exif,
    photograph,
    save,
    segment,
    with_chunk,
    with_orientation,
)

PICTURE = photograph(width=200, height=150)


def hash_by_hand(pixels: Pixels) -> int:
    """Takes the mean of each cell from pixels that are cut into 8 x 9 parts each."""
    height, width = pixels.shape
    parts = np.repeat(np.repeat(pixels.astype(np.int64), 8, axis=0), 9, axis=1)
    cells = parts.reshape(8, height, 9, width).sum(axis=(1, 3))
    bits = 0
    steps = np.diff(cells)
    for row, column in np.ndindex(steps.shape):
        bits = bits << 1 | int(3 * steps[row, column] * steps.size >= np.abs(steps).sum())
    return bits


def distance(one: int | None, other: int | None) -> int:
    assert one is not None
    assert other is not None
    return bin(one ^ other).count("1")


def reopen(image: Image.Image, **options: object) -> Image.Image:
    return Image.open(io.BytesIO(save(image, "JPEG", **options)))


@given(st.integers(8, 60), st.integers(9, 60), st.integers(0, 2**32 - 1))
def test_every_pixel_counts_as_much(height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    assert difference_hash(pixels) == hash_by_hand(pixels)


@pytest.mark.parametrize(
    "alike",
    [
        reopen(PICTURE, quality=50),
        PICTURE.resize((100, 75)),
        PICTURE.resize((301, 333)),
        ImageEnhance.Brightness(PICTURE).enhance(0.8),
        PICTURE.convert("L"),
        PICTURE.convert("RGBA"),
    ],
)
def test_pictures_that_look_alike_have_nearly_the_same_hash(alike: Image.Image) -> None:
    assert distance(hash_image(alike), hash_image(PICTURE)) <= 3


def test_others_have_not() -> None:
    hashes = [hash_image(photograph(seed=seed)) for seed in range(20)]
    assert min(distance(a, b) for i, a in enumerate(hashes) for b in hashes[:i]) > 10


@pytest.mark.parametrize(
    "pixels",
    [
        np.full((100, 100), 200, np.uint8),
        np.random.default_rng(0).integers(100, 103, (100, 100), dtype=np.uint8),
        # Something small on a wall: most cells are alike.
        np.pad(np.zeros((10, 10), np.uint8), 45, constant_values=255),
        np.random.default_rng(0).integers(0, 256, (7, 100), dtype=np.uint8),
        np.random.default_rng(0).integers(0, 256, (100, 8), dtype=np.uint8),
    ],
    ids=["one colour", "noise", "something small", "seven rows", "eight columns"],
)
def test_a_flat_picture_has_none(pixels: Pixels) -> None:
    assert difference_hash(pixels) is None


HASH = hash_image(PICTURE)
JPEG, PNG = save(PICTURE, "JPEG"), save(PICTURE, "PNG")


@pytest.mark.parametrize(
    "data",
    [
        JPEG,
        PNG,
        # Kept, though libjpeg complains of junk before its end.
        JPEG[:-2] + bytes(100) + JPEG[-2:],
        # Its header alone is odd.
        after_soi(JPEG, segment(0xE0, b"odd") + b"junk"),
        save(PICTURE, "GIF"),
        save(PICTURE, "WEBP"),
        save(PICTURE.convert("CMYK"), "JPEG"),
    ],
    ids=["JPEG", "PNG", "junk at the end", "junk at the start", "GIF", "WebP", "CMYK"],
)
def test_images_that_are_decoded_have_a_hash(data: bytes) -> None:
    decoded = check_image(data, name="", settings=ImageConfig())
    assert distance(decoded.dhash, HASH) <= 3
    for verify in ("header", "none"):
        settings = ImageConfig(verify=verify)
        assert check_image(data, name="", settings=settings).dhash is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_it_is_that_of_the_upright_picture(orientation: int) -> None:
    jpeg = with_orientation(JPEG, orientation)
    png = with_chunk(PNG, b"eXIf", exif(orientation))
    for data in (jpeg, png):
        turned = check_image(data, name="", settings=ImageConfig())
        kept = check_image(data, name="", settings=ImageConfig(orientation="keep"))
        shrunk = check_image(data, name="", settings=ImageConfig(orientation="keep", max_side=90))
        assert distance(kept.dhash, turned.dhash) <= 1
        assert distance(shrunk.dhash, turned.dhash) <= 3


@pytest.mark.parametrize("raw", [False, True])
def test_cifar_has_one(raw: bool) -> None:
    picture = photograph(width=32, height=32)
    stored = store_cifar(np.asarray(picture).transpose(2, 0, 1).tobytes(), raw=raw)
    assert stored.dhash == hash_image(picture) is not None
