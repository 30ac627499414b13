from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.decode import ImageData, open_image, verify_png
from shardbeam.transforms.images.header import FileFormat, ImageHeader
from shardbeam.transforms.images.png import scan_png
from tests.support.image_makers import chunk, exif, photograph, png, save, with_chunk

RGB = save(photograph(), "PNG")


def scan(data: bytes) -> ImageHeader:
    header = scan_png(data, complete=True)
    verify_png(data)
    with open_image(ImageData(data, FileFormat.PNG, ImageConfig())).decode():
        return header


def reason_of(data: bytes) -> Reason:
    with pytest.raises(RejectedError) as caught:
        scan(data)
    return caught.value.reason


@pytest.mark.parametrize(
    ("data", "storable", "gray"),
    [
        (RGB, True, False),
        (save(photograph().convert("L"), "PNG"), True, True),
        (save(photograph().convert("1"), "PNG"), True, True),
        (save(photograph().convert("LA"), "PNG"), False, False),
        (save(photograph().convert("RGBA"), "PNG"), False, False),
        (save(photograph().convert("P"), "PNG"), False, False),
        (save(photograph(), "PNG", transparency=(1, 2, 3)), False, False),
        (save(photograph().convert("I;16"), "PNG"), False, True),
        (with_chunk(RGB, b"acTL", bytes(8)), False, False),
    ],
)
def test_kinds_of_pixels(data: bytes, storable: bool, gray: bool) -> None:
    expected = ImageHeader(width=64, height=48, orientation=1, storable=storable, gray=gray)
    assert scan(data) == expected


def test_orientation_is_found_before_and_after_the_pixels() -> None:
    assert scan(with_chunk(RGB, b"eXIf", exif(6))).orientation == 6
    end = RGB.rindex(b"\0\0\0\0IEND")
    assert scan(RGB[:end] + chunk(b"eXIf", exif(8)) + RGB[end:]).orientation == 8


def test_every_prefix_is_truncated() -> None:
    for length in range(8, len(RGB)):
        assert reason_of(RGB[:length]) is Reason.TRUNCATED
    assert scan(RGB + b"trailer") == scan(RGB)


def test_the_header_is_enough_if_nothing_more_is_asked() -> None:
    assert scan_png(RGB[:33], complete=False).width == 64
    assert scan_png(RGB[:33] + b"\0" * 20, complete=False).width == 64
    with pytest.raises(RejectedError) as caught:
        scan_png(RGB[:32], complete=False)
    assert caught.value.reason is Reason.TRUNCATED


def test_a_changed_byte_in_any_chunk_is_found() -> None:
    data = with_chunk(RGB, b"tEXt", b"Comment\0text")
    for position in (20, 45, 80, len(data) - 1):
        changed = bytearray(data)
        changed[position] ^= 1
        assert reason_of(bytes(changed)) is Reason.CORRUPT
        scan_png(bytes(changed), complete=True)


@pytest.mark.parametrize(
    "shape",
    [
        {"width": 0},
        {"height": 0},
        {"bit_depth": 3},
        {"bit_depth": 16, "color_type": 3},
        {"color_type": 1},
        {"color_type": 255},
        {"interlacing": 2},
    ],
)
def test_impossible_headers_are_corrupt(shape: dict[str, Any]) -> None:
    fields = {"width": 1, "height": 1, "bit_depth": 8, "color_type": 0, "rows": b"\0\0"}
    assert reason_of(png(**{**fields, **shape})) is Reason.CORRUPT


def test_the_header_must_be_first_and_alone() -> None:
    header = RGB[16:29]
    assert reason_of(with_chunk(RGB, b"IHDR", header)) is Reason.CORRUPT
    assert reason_of(RGB[:8] + chunk(b"gAMA", bytes(4)) + RGB[8:]) is Reason.CORRUPT
    assert reason_of(RGB[:8] + chunk(b"IHDR", header[:12]) + RGB[33:]) is Reason.CORRUPT
    # What follows it is no chunk.
    assert reason_of(RGB[:33] + bytes(20) + RGB[33:]) is Reason.CORRUPT


@pytest.mark.parametrize("pixel_data", [b"", chunk(b"IDAT", b"\x78\x9c\xff")])
def test_pixel_data_that_is_not_there_or_does_not_inflate_is_corrupt(pixel_data: bytes) -> None:
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    data = RGB[:8] + chunk(b"IHDR", header) + pixel_data + chunk(b"IEND", b"")
    assert reason_of(data) is Reason.CORRUPT


def test_a_bomb_in_the_pixel_data_is_not_inflated_whole() -> None:
    compressor = zlib.compressobj()
    packed = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(64)) + compressor.flush()
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    data = RGB[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    tracemalloc.start()
    try:
        assert scan(data).width == 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 << 20


@given(
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    mode=st.sampled_from(["1", "L", "RGB", "RGBA", "LA", "P"]),
)
def test_whatever_pillow_writes_is_complete(width: int, height: int, mode: str) -> None:
    image = Image.new("RGB", (width, height), "red").convert(mode)
    header = scan(save(image, "PNG"))
    assert (header.width, header.height) == (width, height)
