from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.mask_file import (
    has_voc_colours,
    read_any_colours,
    read_colours,
    read_indices,
    read_segment_ids,
    voc_colour_map,
)
from tests.support.hostile_images import png_with_header
from tests.support.image_makers import photograph, save
from tests.support.image_makers import png as make_png

SIZE = (7, 5)
INDICES = np.arange(35, dtype=np.uint8).reshape(5, 7)
# From the devkit's documentation: background, aeroplane, bicycle, bird, tvmonitor, border.
VOC_COLOURS = {
    0: (0, 0, 0),
    1: (128, 0, 0),
    2: (0, 128, 0),
    3: (128, 128, 0),
    20: (0, 64, 128),
    255: (224, 224, 192),
}


def palette(indices: npt.NDArray[np.uint8]) -> Image.Image:
    image = Image.new("P", indices.shape[::-1])
    image.putdata(indices.ravel().tolist())
    image.putpalette(voc_colour_map().ravel().tolist())
    return image


def reject(data: bytes, *, voc_colours: bool = False) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        read_indices(data, size=SIZE, voc_colours=voc_colours)
    return caught.value


def test_the_colour_map_of_pascal_voc() -> None:
    colours = voc_colour_map()

    assert {number: tuple(colours[number].tolist()) for number in VOC_COLOURS} == VOC_COLOURS
    assert len({tuple(colour) for colour in colours.tolist()}) == 256


def with_alpha(mode: str, *, gray: npt.NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(gray).convert(mode)
    image.putalpha(Image.fromarray((INDICES % 2 * 255).astype(np.uint8)))
    return save(image, "PNG")


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparency_does_not_count(mode: str) -> None:
    data = with_alpha(mode, gray=INDICES)
    np.testing.assert_array_equal(read_indices(data, size=SIZE), INDICES)
    assert "in the alpha channel" in reject(with_alpha(mode, gray=INDICES * 0 + 3)).detail
    plain = Image.fromarray(INDICES * 0 + 3).convert(mode)
    np.testing.assert_array_equal(read_indices(save(plain, "PNG"), size=SIZE), INDICES * 0 + 3)


def test_a_gif_is_read_by_its_colours() -> None:
    data = save(Image.fromarray(INDICES), "GIF")
    np.testing.assert_array_equal(read_indices(data, size=SIZE), INDICES)
    inverted = palette((INDICES % 2).astype(np.uint8))
    inverted.putpalette([255, 255, 255, 0, 0, 0])
    expected = 255 - INDICES % 2 * 255
    np.testing.assert_array_equal(read_indices(save(inverted, "GIF"), size=SIZE), expected)
    np.testing.assert_array_equal(
        read_indices(save(palette(INDICES), "GIF"), size=SIZE, voc_colours=True), INDICES
    )
    assert "not class ids" in reject(save(palette(INDICES), "GIF")).detail
    frames = [Image.fromarray(INDICES), Image.fromarray(INDICES * 2)]
    several = save(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert "a GIF of several frames is no mask" in reject(several).detail
    assert reject(data[:-9]).reason is Reason.MASK_UNREADABLE
    with pytest.raises(RejectedError, match="the mask is 7x5, the image 14x10: resize the mask by"):
        read_indices(data, size=(14, 10))


@pytest.mark.parametrize("voc_colours", [False, True])
def test_a_palette_gives_its_indices(*, voc_colours: bool) -> None:
    data = save(palette(INDICES), "PNG")

    np.testing.assert_array_equal(read_indices(data, size=SIZE, voc_colours=voc_colours), INDICES)


def with_palette(*colours: tuple[int, ...]) -> bytes:
    image = Image.fromarray(np.zeros((5, 7), np.uint8))
    image.putpalette([side for colour in colours for side in colour])
    return save(image, "PNG")


VOC = [tuple(colour) for colour in voc_colour_map().tolist()]


@pytest.mark.parametrize(
    ("data", "is_voc"),
    [
        (with_palette(*VOC), True),
        (with_palette(*VOC[:22]), True),
        # Writers fill a palette up with black.
        (with_palette(*VOC[:21], *[(0, 0, 0)] * 235), True),
        (with_palette(*VOC[:21], (1, 1, 1)), False),
        (with_palette((0, 0, 0), (255, 0, 0)), False),
        (with_palette(*[(0, 0, 0)] * 9), False),
        (with_palette(*[(level,) * 3 for level in range(256)]), False),
        (save(Image.new("L", SIZE), "PNG"), False),
        (save(Image.new("1", SIZE), "PNG"), False),
        (save(Image.new("RGB", SIZE), "PNG"), True),
    ],
)
def test_whether_a_palette_is_that_of_pascal_voc(data: bytes, is_voc: bool) -> None:
    assert has_voc_colours(data) == is_voc


@pytest.mark.parametrize("data", [b"", b"JPEG", save(Image.new("P", SIZE), "PNG")[:40]])
def test_a_map_that_is_no_png_has_no_palette(data: bytes) -> None:
    with pytest.raises(RejectedError):
        has_voc_colours(data)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_palettes_and_grays_of_few_bits(bits: int) -> None:
    few = INDICES % 2**bits

    data = save(palette(few), "PNG", bits=bits)

    assert data[24] == bits
    np.testing.assert_array_equal(read_indices(data, size=SIZE), few)
    # The same as gray: another colour type, no palette.
    packed = [np.packbits(np.unpackbits(row[:, None], axis=1)[:, -bits:]) for row in few]
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    gray = make_png(width=7, height=5, bit_depth=bits, color_type=0, rows=rows)
    np.testing.assert_array_equal(read_indices(gray, size=SIZE), few)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_gray_in_one_channel_and_in_all(mode: str) -> None:
    data = save(Image.fromarray(INDICES).convert(mode), "PNG")

    np.testing.assert_array_equal(read_indices(data, size=SIZE), INDICES)


def test_gray_of_16_bits() -> None:
    wide = INDICES.astype(np.uint16) * 1000

    np.testing.assert_array_equal(read_indices(save(Image.fromarray(wide), "PNG"), size=SIZE), wide)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_pascal_voc_colours(mode: str) -> None:
    everything = np.arange(256, dtype=np.uint8).reshape(16, 16)

    data = save(palette(everything).convert("RGB").convert(mode), "PNG")

    indices = read_indices(data, size=(16, 16), voc_colours=True)
    np.testing.assert_array_equal(indices, everything)


def test_colours_are_no_class_ids() -> None:
    error = reject(save(photograph(width=7, height=5), "PNG"))

    assert error.reason is Reason.MASK_UNREADABLE
    assert "expected one channel, or a palette" in error.detail


def test_a_colour_that_is_not_pascal_voc_s() -> None:
    image = Image.new("RGB", SIZE)
    image.putpixel((1, 1), (1, 2, 3))

    error = reject(save(image, "PNG"), voc_colours=True)

    assert error.reason is Reason.MASK_UNREADABLE
    assert "#010203 of 1 pixels" in error.detail


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "neither a PNG nor a GIF"),
        (b"\x89PNG\r\n\x1a\n", "truncated"),
        (save(Image.fromarray(INDICES), "JPEG"), "a JPEG, whose pixels are not exactly"),
        (save(Image.fromarray(INDICES), "BMP"), "neither a PNG nor a GIF"),
        (save(Image.fromarray(INDICES), "PNG")[:-20], "truncated"),
        (save(Image.fromarray(INDICES), "PNG").replace(b"IDAT", b"IDAU"), "corrupt"),
    ],
)
def test_what_cannot_be_read(data: bytes, words: str) -> None:
    error = reject(data)

    assert error.reason is Reason.MASK_UNREADABLE
    assert words in error.detail


def test_another_size_is_refused_before_it_is_decoded() -> None:
    bomb = png_with_header(30_000, 30_000, bit_depth=1, color_type=0)

    for data, size in ((save(Image.new("L", (8, 5)), "PNG"), "8x5"), (bomb, "30000x30000")):
        error = reject(data)
        assert error.reason is Reason.MASK_MISMATCH
        assert error.detail == (
            f"the mask is {size}, the image 7x5: resize the mask by nearest neighbour, which mixes "
            "no values"
        )


def test_sides_may_be_exchanged() -> None:
    turned = read_indices(save(Image.fromarray(INDICES.T.copy()), "PNG"), size=SIZE)

    np.testing.assert_array_equal(turned, INDICES.T)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_segment_ids(mode: str) -> None:
    ids = np.array([[0, 1, 255, 256], [65_535, 65_536, 0xABCDEF, 0xFFFFFF]], np.uint32)
    channels = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)

    data = save(Image.fromarray(channels).convert(mode), "PNG")

    found = read_segment_ids(data, size=(4, 2))
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, ids)


def test_segment_ids_need_colours() -> None:
    with pytest.raises(RejectedError, match="mode L are not segment ids"):
        read_segment_ids(save(Image.fromarray(INDICES), "PNG"), size=SIZE)


@pytest.mark.parametrize("palette_of", [0, 4])
def test_colours_of_classes(palette_of: int) -> None:
    picture = Image.fromarray(
        np.array([[[9, 8, 7], [0, 0, 0]], [[0, 0, 0], [255, 0, 1]]], np.uint8)
    )
    data = save(picture.quantize(palette_of) if palette_of else picture, "PNG")
    colours = [0, 0x090807, 0xFF0001]

    assert read_colours(data, size=(2, 2), colours=colours).tolist() == [[1, 0], [0, 2]]
    assert read_any_colours(data) == (frozenset(colours), not palette_of)
    with pytest.raises(RejectedError) as raised:
        read_colours(data, size=(2, 2), colours=colours[:2])
    assert raised.value.reason is Reason.MASK_VALUE_UNKNOWN
    assert "the colour #ff0001 of 1 pixels" in raised.value.detail


def test_a_photo_and_16_bits_are_no_colours_of_classes() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    wide = np.zeros((3, 3), np.uint16)
    for pixels, words in ((noise, "more than 65,536 colours"), (wide, "of 16 bits")):
        with pytest.raises(RejectedError, match=words):
            read_any_colours(save(Image.fromarray(pixels), "PNG"))
