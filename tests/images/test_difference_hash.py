from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from shardbeam.configs.decoding import convert_value
from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.images.check import check_image, measure_stored, store_cifar
from shardbeam.transforms.images.measures import (
    MEASURES_VERSION,
    GrayImage,
    difference_hash,
    hash_crops,
    jpeg_scale,
    measure_image,
)
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
    assert difference_hash(GrayImage(pixels, size=(width, height))) == hash_by_hand(pixels)


@given(st.integers(72, 300), st.integers(72, 300), st.integers(0, 2**32 - 1))
def test_squares_count_by_their_pixels(height: int, width: int, seed: int) -> None:
    shape = math.ceil(height / 8), math.ceil(width / 8)
    squares = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    pixels = squares.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    assert difference_hash(GrayImage(squares, size=(width, height), scale=8)) == hash_by_hand(
        pixels
    )


@pytest.mark.parametrize("size", [(641, 463), (263, 259), (256, 255), (900, 256)])
def test_large_pictures_that_look_alike_have_nearly_the_same_hash(size: tuple[int, int]) -> None:
    picture = photograph(width=size[0], height=size[1])

    def find_hash(image: Image.Image, file_format: str = "JPEG", **options: object) -> int | None:
        data = save(image, file_format, **options)
        return check_image(data, name="", settings=ImageConfig()).measures.get("dhash")

    found = find_hash(picture)
    for alike in (
        find_hash(picture, quality=40),
        find_hash(picture, progressive=True, subsampling=0),
        find_hash(picture, "PNG"),
        find_hash(picture.convert("L")),
        find_hash(picture.resize((size[0] // 2, size[1] // 2))),
        find_hash(picture.resize((size[0] * 2, size[1] * 2))),
        find_hash(ImageEnhance.Brightness(picture).enhance(0.8)),
    ):
        assert distance(alike, found) <= 3


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
    assert distance(measure_image(alike).get("dhash"), measure_image(PICTURE).get("dhash")) <= 3


def test_others_have_not() -> None:
    hashes = [measure_image(photograph(seed=seed)).get("dhash") for seed in range(20)]
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
    height, width = pixels.shape
    assert difference_hash(GrayImage(pixels, size=(width, height))) is None


HASH = measure_image(PICTURE).get("dhash")
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
    assert distance(decoded.measures.get("dhash"), HASH) <= 3
    for verify in ("header", "none"):
        settings = ImageConfig(verify=verify)
        assert check_image(data, name="", settings=settings).measures == {}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_it_is_that_of_the_upright_picture(orientation: int) -> None:
    jpeg = with_orientation(JPEG, orientation)
    png = with_chunk(PNG, b"eXIf", exif(orientation))
    for data in (jpeg, png):
        turned = check_image(data, name="", settings=ImageConfig())
        kept = check_image(data, name="", settings=ImageConfig(orientation="keep"))
        shrunk = check_image(data, name="", settings=ImageConfig(orientation="keep", max_side=90))
        assert distance(kept.measures.get("dhash"), turned.measures.get("dhash")) <= 1
        assert distance(shrunk.measures.get("dhash"), turned.measures.get("dhash")) <= 3


@pytest.mark.parametrize("raw", [False, True])
def test_cifar_has_one(raw: bool) -> None:
    picture = photograph(width=32, height=32)
    stored = store_cifar(np.asarray(picture).transpose(2, 0, 1).tobytes(), raw=raw)
    assert stored.measures.get("dhash") == measure_image(picture).get("dhash") is not None


@pytest.mark.parametrize("settings", [{}, {"encoding": "png"}, {"encoding": "png", "max_side": 90}])
@pytest.mark.parametrize(
    "data",
    [
        JPEG,
        save(photograph(width=400, height=300), "JPEG", progressive=True),
        with_orientation(JPEG, 6),
        # Kept, though it is damaged.
        JPEG[:-200] + JPEG[-180:],
        PNG,
        save(PICTURE.convert("1"), "PNG"),
        save(PICTURE, "WEBP"),
    ],
    ids=["JPEG", "large JPEG", "turned JPEG", "damaged JPEG", "PNG", "PNG of 1 bit", "WebP"],
)
def test_a_stored_picture_has_the_hash_of_its_file(
    data: bytes, settings: dict[str, str | int]
) -> None:
    config = convert_value({"damaged": "keep", **settings}, ImageConfig)
    stored = check_image(data, name="", settings=config)
    is_encoded = stored.data is not data
    if not is_encoded or stored.format == "png":
        again = measure_stored(stored.data, image_format=stored.format, settings=config)
        assert again == stored.measures


@pytest.mark.parametrize("raw", [False, True])
def test_a_stored_picture_of_cifar_has_the_same_hash(raw: bool) -> None:
    planes = np.asarray(photograph(width=32, height=32)).transpose(2, 0, 1)
    stored = store_cifar(planes.tobytes(), raw=raw)
    again = measure_stored(stored.data, image_format=stored.format, settings=ImageConfig())
    assert again == stored.measures


def test_other_hashes_need_another_version() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80), dtype=np.uint8)
    large = Image.fromarray(pixels.repeat(10, axis=0).repeat(9, axis=1))
    found = (
        difference_hash(GrayImage(pixels, size=(80, 60))),
        difference_hash(GrayImage(pixels, size=(637, 474), scale=8, orientation=6)),
        measure_image(large).get("dhash"),
        GrayImage(np.asarray(large), size=large.size).levels,
    )
    scales = [jpeg_scale(256, 900), jpeg_scale(900, 255)]
    assert scales == [8, 1]
    assert (
        MEASURES_VERSION == "dhash 2 dark_picture 1 bright_picture 1 low_contrast 1 crop_hashes 1"
    )
    assert found == (164964730385028369, 3044635974293317924, 2475311476514034961, (2, 253))


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("scale", [1, 8])
def test_crop_hashes_are_those_of_crops(orientation: int, scale: int) -> None:
    pixels = np.asarray(photograph(width=720 // scale, height=480 // scale, seed=4).convert("L"))
    whole = np.kron(pixels, np.ones((scale, scale), np.uint8))
    expected = [
        difference_hash(
            GrayImage(
                whole[12 * part : 480 - 12 * part, 18 * part : 720 - 18 * part],
                size=(720 - 36 * part, 480 - 24 * part),
                orientation=orientation,
            )
        )
        for part in range(1, 6)
    ]
    gray = GrayImage(pixels, size=(720, 480), scale=scale, orientation=orientation)
    assert hash_crops(gray) == expected
    assert len({*expected}) > 1


def test_crops_are_hashed_on_request() -> None:
    settings = ImageConfig(crop_hashes=True)
    for data in (JPEG, PNG):
        found = check_image(data, name="", settings=settings).measures["crop_hashes"]
        width, height = PICTURE.size
        box = (width // 10, height // 10, width - width // 10, height - height // 10)
        cropped = measure_image(PICTURE.crop(box)).get("dhash")
        assert min(distance(cropped, each) for each in found) <= 3 < distance(cropped, HASH)
        assert "crop_hashes" not in check_image(data, name="", settings=ImageConfig()).measures
    assert hash_crops(GrayImage(np.full((90, 90), 7, np.uint8), size=(90, 90))) is None
    assert hash_crops(GrayImage(np.eye(17, dtype=np.uint8) * 255, size=(17, 17))) is None
