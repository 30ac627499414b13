from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.header import (
    FileFormat,
    check_pixel_count,
    claimed_format,
    exif_orientation,
    sniff_format,
)
from tests.support.image_makers import exif, photograph, save


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("prefix", [b"", b"Exif\0\0"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_read(orientation: int, prefix: bytes, order: str, kind: int) -> None:
    assert exif_orientation(prefix + exif(orientation, order=order, kind=kind)) == orientation


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_invalid_orientation_is_none(orientation: int) -> None:
    assert exif_orientation(exif(orientation)) == 1


def test_an_orientation_of_another_type_is_none() -> None:
    block = bytearray(exif(6))
    block[12] = 2  # ASCII
    assert exif_orientation(bytes(block)) == 1


def test_an_exif_block_that_ends_early_has_no_orientation() -> None:
    block = exif(6)
    value_ends = 8 + 2 + 8 + 2
    for length in range(value_ends):
        assert exif_orientation(block[:length]) == 1
    assert exif_orientation(block[:value_ends]) == 6


@given(st.binary(max_size=64))
def test_any_exif_block_gives_an_orientation(tail: bytes) -> None:
    assert exif_orientation(b"MM\0*" + tail) in range(1, 9)
    assert exif_orientation(tail) in range(1, 9)


def test_pixels_are_counted() -> None:
    check_pixel_count(10, 10, max_pixels=100)
    with pytest.raises(RejectedError) as caught:
        check_pixel_count(10, 11, max_pixels=100)
    assert caught.value.reason is Reason.DECOMPRESSION_BOMB


# Formats by the first bytes, and extensions


@pytest.mark.parametrize(
    ("pillow_name", "expected"),
    [
        ("JPEG", FileFormat.JPEG),
        ("PNG", FileFormat.PNG),
        ("GIF", FileFormat.GIF),
        ("WEBP", FileFormat.WEBP),
        ("BMP", FileFormat.BMP),
        ("TIFF", FileFormat.TIFF),
        ("JPEG2000", FileFormat.JPEG_2000),
        ("AVIF", FileFormat.AVIF),
        ("PPM", FileFormat.PNM),
        ("ICO", FileFormat.ICO),
    ],
)
def test_formats_are_told_by_their_content(pillow_name: str, expected: FileFormat) -> None:
    assert sniff_format(save(photograph(), pillow_name)) is expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"MM\0+\0\x08\0\0", FileFormat.TIFF),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif", FileFormat.AVIF),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", FileFormat.HEIC),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", FileFormat.HEIC),
        (b"\xff\x0a\0\0", FileFormat.JPEG_XL),
        (b"8BPS\0\x01\0\0", FileFormat.PSD),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", None),
        (b"BMW and other makers of cars", None),
        (b"P5000 is a camera", None),
        (b"RIFF\x10\0\0\0WAVEfmt ", None),
        (b"%PDF-1.7", None),
        (b"\xff\xd8", None),
        (b"<svg/>", None),
    ],
)
def test_first_bytes(data: bytes, expected: FileFormat | None) -> None:
    assert sniff_format(data) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b.JPG", FileFormat.JPEG),
        ("a/b.jpeg", FileFormat.JPEG),
        ("b.jpe", FileFormat.JPEG),
        ("b.jfif", FileFormat.JPEG),
        ("b.png.jpg", FileFormat.JPEG),
        ("臉書.PnG", FileFormat.PNG),
        ("b.dib", FileFormat.BMP),
        ("a.jpg/b", None),
        ("a.jpg/.png", None),
        ("b", None),
        ("b.0001", None),
        ("b.heif", None),
        ("", None),
    ],
)
def test_names(name: str, expected: FileFormat | None) -> None:
    assert claimed_format(name) is expected
