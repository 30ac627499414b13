from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from shardbeam.transforms.examples.encode.maps import encode_map, encode_mask
from shardbeam.transforms.examples.geometry.mask_crops import MaskCrop, crop_mask
from shardbeam.transforms.images.decode import verify_png
from shardbeam.transforms.images.png import scan_png

MASKS = arrays.arrays(
    np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=40), elements=st.integers(0, 1)
)


def pixel_data(png: bytes) -> bytes:
    """The only IDAT chunk's content; zlib verifies its Adler-32, which Pillow does not."""
    position = png.index(b"IDAT")
    (length,) = struct.unpack_from(">I", png, position - 4)
    return zlib.decompress(png[position + 4 : position + 4 + length])


def decode(png: bytes) -> npt.NDArray[np.generic]:
    verify_png(png)
    pixel_data(png)
    return np.asarray(Image.open(io.BytesIO(png)))


@given(MASKS)
def test_masks_survive(mask: npt.NDArray[np.uint8]) -> None:
    height, width = mask.shape

    png = encode_mask(crop_mask(mask), width=width, height=height)

    np.testing.assert_array_equal(decode(png), mask)


def test_a_mask_has_one_channel_of_8_bits() -> None:
    png = encode_mask(None, width=30, height=20)

    header = scan_png(png, complete=True)
    image = Image.open(io.BytesIO(png))
    assert (header.gray, header.storable) == (True, True)
    assert (image.mode, image.size, image.getextrema()) == ("L", (30, 20), (0, 0))


def test_the_checksum_of_many_zeros_wraps_around() -> None:
    pixels = np.ones((1, 1), np.uint8)

    png = encode_mask(MaskCrop(pixels, left=3, top=65_520), width=4, height=65_530)

    assert pixel_data(png).count(1) == 1


def test_equal_masks_give_equal_bytes_and_take_little_space() -> None:
    rows, columns = np.mgrid[:480, :640]
    disc = ((rows - 240) ** 2 + (columns - 320) ** 2 < 100**2).astype(np.uint8)

    first, second = (encode_mask(crop_mask(disc), width=640, height=480) for _ in range(2))

    assert first == second
    assert len(first) < 2_000


MAPS = arrays.array_shapes(min_dims=2, max_dims=2, max_side=20)


@given(arrays.arrays(np.uint8, MAPS) | arrays.arrays(np.uint16, MAPS))
def test_maps_of_8_and_16_bits_survive(pixels: npt.NDArray[np.uint8 | np.uint16]) -> None:
    np.testing.assert_array_equal(decode(encode_map(pixels)), pixels)


def test_maps_may_be_views() -> None:
    pixels = np.arange(600, dtype=np.uint16).reshape(20, 30)

    np.testing.assert_array_equal(decode(encode_map(pixels.T[:, ::-1])), pixels.T[:, ::-1])
