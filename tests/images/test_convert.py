"""Colours after conversion, compared with values worked out by hand."""

from __future__ import annotations

import io
import itertools
import struct

import numpy as np
import pytest
from PIL import Image, ImageSequence

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.images.check import check_image
from tests.support.image_makers import Pixels, photograph, pixels, png, save, without_segment


def convert(data: bytes, *, background: str = "#ffffff") -> Pixels:
    settings = ImageConfig(encoding="png", background=background)
    stored = check_image(data, name="", settings=settings)
    assert stored.data is not data
    return pixels(stored.data)


def row(data: bytes, *, background: str = "#ffffff") -> list[list[int]]:
    """The RGB values of an image of one row."""
    (values,) = convert(data, background=background).tolist()
    return list(values)


def gray(*values: int) -> list[list[int]]:
    return [[value] * 3 for value in values]


def samples(*values: int) -> bytes:
    """A filtered row of 16-bit samples."""
    return b"\0" + b"".join(value.to_bytes(2, "big") for value in values)


@pytest.mark.parametrize(
    ("color_type", "values", "expected"),
    [
        (0, (0, 255, 256, 0x1234, 0x8000, 0xFFFF), gray(0, 0, 1, 0x12, 0x80, 0xFF)),
        (2, (0, 0x1234, 0xFFFF), [[0, 0x12, 0xFF]]),
        (4, (0x4000, 0xFFFF, 0x4000, 0), gray(0x40, 0xFF)),
    ],
    ids=["gray", "RGB", "gray with alpha"],
)
def test_16_bits_are_scaled_and_not_clipped(
    color_type: int, values: tuple[int, ...], expected: list[list[int]]
) -> None:
    data = png(
        width=len(expected), height=1, bit_depth=16, color_type=color_type, rows=samples(*values)
    )
    assert row(data) == expected


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_16_bit_tiff_of_either_byte_order(dtype: str) -> None:
    values = np.array([[0, 0x1234, 0xFFFF]], dtype=dtype)
    assert row(save(Image.fromarray(values), "TIFF")) == gray(0, 0x12, 0xFF)


def test_16_bit_tiff_of_which_0_is_white_is_no_negative() -> None:
    data = save(Image.fromarray(np.array([[0, 0x1234, 0xFFFF]], dtype="<u2")), "TIFF")
    tag = struct.pack("<HHIHH", 262, 3, 1, 1, 0)
    assert data.count(tag) == 1
    white_is_zero = data.replace(tag, struct.pack("<HHIHH", 262, 3, 1, 0, 0))
    assert row(white_is_zero) == gray(0xFF, 0xFF - 0x12, 0)


def test_12_bit_tiff_reaches_white() -> None:
    strip = bytes((0x00, 0x08, 0x00, 0xFF, 0xF0, 0x00))  # 000 800 fff 000
    entries = {
        256: (3, 4),  # width
        257: (3, 1),  # height
        258: (3, 12),  # bits per sample
        259: (3, 1),  # uncompressed
        262: (3, 1),  # black is zero
        273: (4, 8),  # where the strip is
        277: (3, 1),  # samples per pixel
        278: (3, 1),  # rows per strip
        279: (4, len(strip)),
    }
    directory = len(entries).to_bytes(2, "little") + b"".join(
        tag.to_bytes(2, "little")
        + kind.to_bytes(2, "little")
        + (1).to_bytes(4, "little")
        + value.to_bytes(4, "little")
        for tag, (kind, value) in entries.items()
    )
    data = b"II*\0" + (14).to_bytes(4, "little") + strip + directory + bytes(4)
    assert row(data) == gray(0, 0x80, 0xFF, 0)


def test_16_bit_pgm() -> None:
    assert row(b"P5 3 1 65535\n" + samples(0, 0x8000, 0xFFFF)[1:]) == gray(0, 0x80, 0xFF)


def test_gray_with_8_bits_in_another_format_becomes_rgb() -> None:
    assert row(save(Image.frombytes("L", (3, 1), b"\0\x80\xff"), "TIFF")) == gray(0, 0x80, 0xFF)


@pytest.mark.parametrize(
    ("background", "expected"),
    [
        ("#ffffff", [[200, 100, 0], [255, 255, 255], [227, 177, 127]]),
        ("#0040FF", [[200, 100, 0], [0, 64, 255], [100, 82, 127]]),
    ],
)
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "WEBP"])
def test_alpha_is_laid_over_the_background(
    file_format: str, background: str, expected: list[list[int]]
) -> None:
    image = Image.new("RGBA", (3, 1), (200, 100, 0, 255))
    image.putpixel((1, 0), (200, 100, 0, 0))
    image.putpixel((2, 0), (200, 100, 0, 128))
    options = {"lossless": True, "exact": True} if file_format == "WEBP" else {}
    converted = row(save(image, file_format, **options), background=background)
    assert np.allclose(converted, expected, atol=1)


def test_gray_with_alpha() -> None:
    image = Image.new("LA", (2, 1), (100, 255))
    image.putpixel((1, 0), (100, 0))
    assert row(save(image, "PNG"), background="#0000ff") == [[100, 100, 100], [0, 0, 255]]


def palette(*, transparent: bytes = b"") -> bytes:
    """A PNG of the colours 0, 1 and 2 of a palette."""
    before = [(b"PLTE", bytes((255, 0, 0, 0, 255, 0, 0, 0, 255)))]
    if transparent:
        before.append((b"tRNS", transparent))
    return png(width=3, height=1, bit_depth=8, color_type=3, rows=b"\0\0\1\2", before=before)


@pytest.mark.parametrize(
    ("transparent", "expected"),
    [
        (b"", [[255, 0, 0], [0, 255, 0], [0, 0, 255]]),
        (b"\xff\x00", [[255, 0, 0], [255, 255, 255], [0, 0, 255]]),
        (b"\x80\xff\x00", [[255, 127, 127], [0, 255, 0], [255, 255, 255]]),
    ],
)
def test_palettes(transparent: bytes, expected: list[list[int]]) -> None:
    assert np.allclose(row(palette(transparent=transparent)), expected, atol=1)


def test_a_gif_with_a_transparent_colour() -> None:
    image = Image.frombytes("P", (2, 1), b"\0\1")
    image.putpalette([255, 0, 0, 0, 255, 0])
    data = save(image, "GIF", transparency=1)
    assert row(data, background="#123456") == [[255, 0, 0], [0x12, 0x34, 0x56]]


@pytest.mark.parametrize(
    ("bit_depth", "rows", "transparent", "expected"),
    [
        (1, b"\0\x40", 1, [0, 77]),
        (2, b"\0\x60", 2, [85, 77]),
        (4, b"\0\x23", 3, [34, 77]),
        (8, b"\0\x05\x06", 6, [5, 77]),
        (16, samples(0x1235, 0x1234), 0x1234, [0x12, 77]),
    ],
)
def test_a_transparent_gray_value(
    bit_depth: int, rows: bytes, transparent: int, expected: list[int]
) -> None:
    data = png(
        width=2,
        height=1,
        bit_depth=bit_depth,
        color_type=0,
        rows=rows,
        before=[(b"tRNS", transparent.to_bytes(2, "big"))],
    )
    assert row(data, background="#4d4d4d") == gray(*expected)


def test_a_transparent_rgb_value() -> None:
    transparent = bytes((0, 1, 0, 2, 0, 3))
    rows = b"\0\1\2\3\1\2\4"
    data = png(
        width=2, height=1, bit_depth=8, color_type=2, rows=rows, before=[(b"tRNS", transparent)]
    )
    assert row(data) == [[255, 255, 255], [1, 2, 4]]


def test_a_transparent_rgb_value_of_16_bits() -> None:
    """Its high bytes are those of other colours, too, and so are its low ones."""
    transparent = 0x1234, 0x5678, 0x9ABC
    colors = [
        transparent,
        *((0x1234, 0x5678, 0x9ABD), (0x1234, 0x5679, 0x9ABC), (0x1235, 0x5678, 0x9ABC)),
        *((0x1334, 0x5678, 0x9ABC), (0x1234, 0x5778, 0x9ABC), (0x1234, 0x5678, 0x9BBC)),
        (0x3412, 0x7856, 0xBC9A),
    ]
    data = png(
        width=len(colors),
        height=1,
        bit_depth=16,
        color_type=2,
        rows=samples(*itertools.chain(*colors)),
        before=[(b"tRNS", samples(*transparent)[1:])],
    )
    expected = [[sample >> 8 for sample in color] for color in colors]
    assert row(data, background="#0080ff") == [[0, 0x80, 0xFF], *expected[1:]]


CMYK = Image.merge(
    "CMYK", [Image.new("L", (16, 16), value) for value in (0, 128, 255, 51)]
)  # cyan, magenta, yellow, black
CMYK_AS_RGB = [204, 102, 0]  # (255 - ink) * (255 - black) / 255


def test_cmyk_of_adobe_is_inverted() -> None:
    data = save(CMYK, "JPEG", quality=100)
    assert b"Adobe" in data
    assert np.allclose(convert(data), CMYK_AS_RGB, atol=3)


def test_cmyk_of_others_is_not() -> None:
    inverted = Image.eval(CMYK, lambda value: 255 - value)
    data = without_segment(save(inverted, "JPEG", quality=100), 0xEE)
    assert np.allclose(convert(data), CMYK_AS_RGB, atol=3)


def test_ycck_is_understood() -> None:
    """YCCK takes 255 - CMYK for RGB; Adobe's CMYK is 255 - ink, which leaves the ink itself."""
    ink = Image.merge("RGB", CMYK.split()[:3])
    channels = [*ink.convert("YCbCr").split(), Image.new("L", (16, 16), 255 - 51)]
    # Pillow inverts what it stores.
    image = Image.merge("CMYK", [Image.eval(each, lambda value: 255 - value) for each in channels])
    data = bytearray(save(image, "JPEG", quality=100))
    transform = data.index(b"Adobe") + 11
    data[transform] = 2
    assert np.allclose(convert(bytes(data)), CMYK_AS_RGB, atol=4)


def test_cmyk_in_a_tiff() -> None:
    assert np.allclose(convert(save(CMYK, "TIFF")), CMYK_AS_RGB, atol=1)


def test_lab_in_a_tiff() -> None:
    image = Image.frombytes("LAB", (2, 1), bytes((0, 0, 0, 255, 0, 0)))
    assert np.allclose(row(save(image, "TIFF")), gray(0, 255), atol=2)


@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_picture_of_several(file_format: str) -> None:
    first, second = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = save(first, file_format, save_all=True, append_images=[second], **options)
    assert len(ImageSequence.all_frames(Image.open(io.BytesIO(data)))) == 2
    assert np.all(convert(data) == (255, 0, 0))


def test_resizing_averages_over_the_pixels_left_out() -> None:
    """A checkerboard of single pixels becomes gray; nearest neighbours would be black or white."""
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    data = save(Image.fromarray(board.astype(np.uint8)), "PNG")
    settings = ImageConfig(encoding="png", max_side=16)
    resized = pixels(check_image(data, name="", settings=settings).data)
    assert resized.shape == (16, 16)
    assert np.allclose(resized, 127, atol=12)


def test_jpeg_keeps_the_full_colour_resolution() -> None:
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[:, ::2], stripes[:, 1::2] = (255, 0, 0), (0, 0, 255)
    data = save(Image.fromarray(stripes), "BMP")
    stored = pixels(check_image(data, name="", settings=ImageConfig()).data)
    assert np.abs(stored.astype(int) - stripes).mean() < 10


def test_re_encoding_is_faithful() -> None:
    image = photograph(width=200, height=150)
    stored = check_image(save(image, "BMP"), name="", settings=ImageConfig())
    difference = pixels(stored.data).astype(int) - np.asarray(image)
    assert np.abs(difference).mean() < 2
