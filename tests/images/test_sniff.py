from __future__ import annotations

import pytest

from shardbeam.transforms.images.header import FileFormat, claimed_format, sniff_format
from tests.support.image_makers import photograph, save


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
