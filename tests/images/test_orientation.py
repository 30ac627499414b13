"""Orientations, compared pixel by pixel with the wording of the EXIF standard."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.images.check import check_image
from shardbeam.transforms.images.header import exif_orientation
from tests.support.image_makers import (
    Pixels,
    exif,
    photograph,
    pixels,
    save,
    with_chunk,
    with_orientation,
)

# Exif 2.32, 4.6.4: which side of the picture the first stored row is, and the first column.
SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def upright(stored: Pixels, orientation: int) -> Pixels:
    """Puts every stored pixel where the standard's words say."""
    height, width = stored.shape[:2]
    row_side, column_side = SIDES[orientation]
    rows_are_rows = row_side in ("top", "bottom")
    picture = np.empty_like(stored if rows_are_rows else np.swapaxes(stored, 0, 1))
    for row in range(height):
        for column in range(width):
            across, down = (column, row) if rows_are_rows else (row, column)
            if "right" in (row_side, column_side):
                across = picture.shape[1] - 1 - across
            if "bottom" in (row_side, column_side):
                down = picture.shape[0] - 1 - down
            picture[down, across] = stored[row, column]
    return picture


IMAGE = photograph(width=48, height=32)
PIXELS = np.asarray(IMAGE)
AS_PNG = ImageConfig(encoding="png")


def oriented_files(orientation: int) -> dict[str, bytes]:
    block = b"Exif\0\0" + exif(orientation)
    tag = Image.Exif()
    tag[0x0112] = orientation
    return {
        "png": with_chunk(save(IMAGE, "PNG"), b"eXIf", exif(orientation)),
        "webp": save(IMAGE, "WEBP", lossless=True, exif=block),
        "tiff": save(IMAGE, "TIFF", exif=tag),
        "jpeg": with_orientation(save(IMAGE, "JPEG"), orientation),
        "avif": save(IMAGE, "AVIF", quality=100, subsampling="4:4:4", exif=block),
    }


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "webp", "tiff", "jpeg", "avif"])
def test_pictures_are_turned_upright(kind: str, orientation: int) -> None:
    data = oriented_files(orientation)[kind]
    stored = check_image(data, name=f"image.{kind}", settings=AS_PNG)
    source = PIXELS
    if kind in ("jpeg", "avif"):  # Lossy: what the file holds is what is turned.
        source = pixels(oriented_files(1)[kind])
    expected = upright(source, orientation)
    assert np.array_equal(pixels(stored.data), expected)
    assert (stored.height, stored.width) == expected.shape[:2]
    assert (stored.file_width, stored.file_height) == (48, 32)
    assert (stored.orientation, stored.upright) == (orientation, True)
    assert (Correction.ORIENTATION_APPLIED in stored.corrections) == (orientation != 1)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_turned_picture_in_the_jpeg_itself(orientation: int) -> None:
    data = oriented_files(orientation)["jpeg"]
    stored = check_image(data, name="", settings=ImageConfig())
    difference = pixels(stored.data).astype(int) - upright(pixels(data), orientation)
    assert np.abs(difference).mean() < 1.5
    assert exif_orientation(Image.open(io.BytesIO(stored.data)).info.get("exif", b"")) == 1


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_an_orientation_that_is_kept_leaves_the_bytes_alone(kind: str) -> None:
    data = oriented_files(6)[kind]
    stored = check_image(data, name="", settings=ImageConfig(orientation="keep"))
    assert stored.data is data
    assert (stored.width, stored.height) == (48, 32)
    assert (stored.orientation, stored.upright, stored.corrections) == (6, False, {})


@pytest.mark.parametrize(
    "settings",
    [
        ImageConfig(orientation="keep", max_side=24),
        ImageConfig(orientation="keep", max_side=24, encoding="png"),
    ],
)
@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "avif"])
def test_an_orientation_that_is_kept_survives_conversion(kind: str, settings: ImageConfig) -> None:
    stored = check_image(oriented_files(6)[kind], name="", settings=settings)
    assert (stored.width, stored.height) == (24, 16)
    assert (stored.orientation, stored.upright) == (6, False)
    assert Correction.ORIENTATION_APPLIED not in stored.corrections
    assert exif_orientation(Image.open(io.BytesIO(stored.data)).info["exif"]) == 6
    again = check_image(stored.data, name="", settings=ImageConfig())
    assert (again.width, again.height) == (16, 24)


def test_a_tiff_is_always_upright() -> None:
    settings = ImageConfig(orientation="keep", encoding="png")
    stored = check_image(oriented_files(6)["tiff"], name="", settings=settings)
    assert np.array_equal(pixels(stored.data), upright(PIXELS, 6))
    assert (stored.orientation, stored.upright) == (6, True)
    assert Correction.ORIENTATION_APPLIED in stored.corrections


def test_an_orientation_in_xmp_is_none() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
    for kind in ("TIFF", "WEBP"):
        options = {"tiffinfo": {700: xmp}} if kind == "TIFF" else {"xmp": xmp}
        stored = check_image(save(IMAGE, kind, **options), name="", settings=ImageConfig())
        assert (stored.width, stored.height, stored.orientation) == (48, 32, 1)
