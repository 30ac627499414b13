"""Images that take too much memory or time are rejected before they are decoded."""

from __future__ import annotations

import contextlib
import io
import math
import re
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardbeam.configs.decoding import convert_value
from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageAnnotations, MaskRole
from shardbeam.transforms.examples.encode import maps
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images import mask_file
from shardbeam.transforms.images.check import check_image
from shardbeam.transforms.images.jpeg import count_scans, scan_jpeg
from tests.conftest import PROJECT_ROOT
from tests.images.decoder_costs import KINDS, make_image, measure_check
from tests.support import example_builders
from tests.support.hostile_images import (
    avif_of_twelve_bits,
    gif_with_frames,
    icon,
    jpeg_with_hidden_scans,
    png_of_two_sizes,
    png_with_header,
    png_with_text,
    progressive_jpeg,
    tiled_tiff,
    webp_with_canvas,
)
from tests.support.image_makers import (
    chunk,
    gray_jpeg_with_sampling,
    photograph,
    pixels,
    save,
    with_orientation,
)

MEASURED = ["PNG RGBA", "JPEG progressive 4:4:4", "WebP", "AVIF", "JPEG 2000 RGB", "TIFF LZW"]
PHOTOGRAPH = save(photograph(), "JPEG", progressive=True)


def reject_of(data: bytes, **settings: Any) -> RejectedError:  # noqa: ANN401  # Those of ImageConfig.
    with pytest.raises(RejectedError) as caught:
        check_image(data, name="", settings=ImageConfig(**settings))
    return caught.value


def figure(data: bytes, *, megapixels: float, **settings: Any) -> float:  # noqa: ANN401  # Those of ImageConfig.
    """Bytes a pixel that `data` is taken to need; of 2 megapixels or more."""
    error = reject_of(data, max_decoded_mb=1, **settings)
    assert error.reason is Reason.DECODE_BOMB
    found = re.search(r"takes (\d+) MB, more than max_decoded_mb, 1$", error.detail)
    assert found, error.detail
    return int(found[1]) / megapixels


def documented() -> dict[str, float]:
    """`{kind of image: bytes a pixel}` of the table in docs/internals/scale.md."""
    text = (PROJECT_ROOT / "docs" / "internals" / "scale.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:[\w:, -])+) \| \d+\.\d \| (\d+) \|", text, re.MULTILINE)
    return {kind: float(number) for kind, number in rows}


@pytest.mark.parametrize("kind", KINDS)
def test_the_documented_figure_is_the_one_that_counts(kind: str) -> None:
    # Of one colour: nothing is decoded.
    pillow_format, mode, options = KINDS[kind]
    buffer = io.BytesIO()
    picture = Image.new("RGB", (2000, 1500)).convert("L" if mode == "I;16" else mode)
    picture.convert(mode).save(buffer, pillow_format, **options)
    assert figure(buffer.getvalue(), megapixels=3) == pytest.approx(documented()[kind], abs=0.4)


def test_every_kind_is_documented() -> None:
    assert documented().keys() == KINDS.keys()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "announced_bits"),
    [
        *((kind, None) for kind in MEASURED[:3]),
        *(pytest.param(kind, None, marks=pytest.mark.slow) for kind in MEASURED[3:]),
        *(pytest.param("AVIF", bits, marks=pytest.mark.slow) for bits in (8, 12)),
    ],
)
def test_decoding_takes_no_more_than_its_figure(kind: str, announced_bits: int | None) -> None:
    data = (
        make_image(kind, megapixels=6)
        if announced_bits is None
        else avif_of_twelve_bits(announced=announced_bits)
    )
    image = Image.open(io.BytesIO(data))
    peak_bytes, _ = measure_check(data, small=make_image(kind, megapixels=0.01))
    assert 1 < peak_bytes / (image.width * image.height) <= documented()[kind] * 1.1 + 0.5


@pytest.mark.parametrize(
    ("kind", "orientation", "settings", "expected"),
    [
        ("JPEG RGB", 1, {"verify": "header", "max_side": 100}, 16),
        ("JPEG RGB", 6, {"verify": "header"}, 12),
        ("JPEG gray", 1, {"verify": "header", "max_side": 100}, 4),
        ("PNG RGB", 1, {"max_side": 100}, 16),
    ],
)
def test_conversion_is_counted(
    kind: str, orientation: int, settings: dict[str, Any], expected: float
) -> None:
    data = make_image(kind, megapixels=3)
    if orientation != 1:
        data = with_orientation(data, orientation)
    assert figure(data, megapixels=3, **settings) == pytest.approx(expected, abs=0.2)


def test_only_what_is_decoded_is_refused() -> None:
    data = make_image("JPEG progressive 4:4:4", megapixels=1)
    assert reject_of(data, max_decoded_mb=1).reason is Reason.DECODE_BOMB
    for verify in ("header", "none"):
        settings = convert_value({"verify": verify, "max_decoded_mb": 1}, ImageConfig)
        assert check_image(data, name="", settings=settings).data is data
    assert check_image(data, name="", settings=ImageConfig(max_decoded_mb=8)).data is data


# Each of less than 200 KB; the words that name what is too much.
HOSTILE: dict[str, tuple[bytes, Reason, str]] = {
    "scans of a progressive JPEG": (
        progressive_jpeg(16_000, 4_000, scans=40),
        Reason.DECODE_BOMB,
        "40 scans of 16000 x 4000 pixels; at this size at most 31 are decoded",
    ),
    "scans behind a comment that holds an end": (
        progressive_jpeg(16_000, 4_000, scans=40, comment=b"\xff\xd9"),
        Reason.DECODE_BOMB,
        "40 scans",
    ),
    "scans of a JPEG that is turned": (
        with_orientation(progressive_jpeg(16_000, 4_000, scans=40), 6),
        Reason.DECODE_BOMB,
        "40 scans",
    ),
    "scans behind a marker without a length": (
        jpeg_with_hidden_scans(6000, 6000, scans=1500),
        Reason.DECODE_BOMB,
        "1500 scans of 6000 x 6000 pixels",
    ),
    "size of a PNG": (
        png_with_header(0x7FFFFFFF, 0x7FFFFFFF, bit_depth=16, color_type=6),
        Reason.DECOMPRESSION_BOMB,
        "max_pixels",
    ),
    "text of a PNG": (png_with_text(bytes(1 << 24)), Reason.DECOMPRESSION_BOMB, "too large"),
    "tile of a TIFF": (
        tiled_tiff((16, 16), (60_000, 60_000)),
        Reason.DECOMPRESSION_BOMB,
        "60000 x 60000",
    ),
    "tiles beyond a TIFF": (
        tiled_tiff((1, 100_000), (30_000, 16)),
        Reason.DECOMPRESSION_BOMB,
        "30000 x 100000",
    ),
    "tile of a TIFF, given twice": (
        tiled_tiff((16, 16), (20_000, 20_000), repeated=[(322, 4, 16), (323, 4, 16)]),
        Reason.CORRUPT,
        "TileWidth is repeated",
    ),
    "tile of a BigTIFF, given twice": (
        tiled_tiff((16, 16), (16, 20_000), repeated=[(323, 4, 16)], big=True),
        Reason.CORRUPT,
        "TileLength is repeated",
    ),
    # Pillow reads a directory at 0x80000, libtiff one at 16.
    "BigTIFF that Pillow takes for a classic one": (
        b"MM\0+\0\x08\0\0" + (16).to_bytes(8, "big") + bytes(100),
        Reason.UNSUPPORTED_IMAGE,
        "big-endian BigTIFF",
    ),
    "canvas of a GIF": (
        gif_with_frames((65_535, 65_535), [(1, 1)]),
        Reason.DECOMPRESSION_BOMB,
        "65535 x 65535",
    ),
    "frame of a GIF": (
        gif_with_frames((1, 1), [(20_000, 15_000)]),
        Reason.DECOMPRESSION_BOMB,
        "300000000 pixels",
    ),
    "canvas of a WebP": (
        webp_with_canvas(16_000, 16_000),
        Reason.DECOMPRESSION_BOMB,
        "16000 x 16000",
    ),
    "memory for a WebP": (webp_with_canvas(12_000, 12_000), Reason.DECODE_BOMB, "2304 MB"),
    "PNG in an icon": (
        icon(png_with_header(20_000, 20_000, bit_depth=8, color_type=6)),
        Reason.DECOMPRESSION_BOMB,
        "20000 x 20000",
    ),
    "PNG in an icon, with a second header": (
        icon(png_of_two_sizes((12_000, 12_000))),
        Reason.CORRUPT,
        "IHDR",
    ),
    "PNG in an icon, with a second header behind a strange chunk": (
        icon(png_of_two_sizes((12_000, 12_000), between=chunk(b"ab_1", b""))),
        Reason.CORRUPT,
        "IHDR",
    ),
    "PNG in an icon, with a chunk that looks like its header": (
        icon(
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"tEXt", b"\0\0\0\1\0\0\0\1")
            + png_with_header(12_000, 12_000, bit_depth=8, color_type=6)[8:]
        ),
        Reason.CORRUPT,
        "IHDR",
    ),
    "old bitmap in an icon": (
        icon(b"\x0c\0\0\0" + struct.pack("<HHHH", 13_000, 60_000, 1, 24)),
        Reason.DECOMPRESSION_BOMB,
        "13000 x 30000",
    ),
    "bitmap in an icon": (
        icon(b"\x28\0\0\0" + (30_000).to_bytes(4, "little") * 2 + bytes(40)),
        Reason.DECOMPRESSION_BOMB,
        "30000 x 15000",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused(name: str) -> None:
    data, reason, words = HOSTILE[name]
    assert len(data) < 200_000
    error = reject_of(data)
    assert error.reason is reason
    assert words in error.detail


def test_sound_tags_and_old_icons_are_taken() -> None:
    old = b"\x0c\0\0\0" + struct.pack("<HHHH", 4, 8, 1, 24) + b"\1\2\3" * 16 + bytes(16)
    assert check_image(icon(old, side=4), name="", settings=ImageConfig()).width == 4
    for big in (False, True):
        error = reject_of(tiled_tiff((16, 16), (16, 16), big=big))
        assert "repeated" not in error.detail


def test_only_the_first_frame_counts() -> None:
    data = gif_with_frames((8, 8), [(8, 8), (20_000, 15_000)])
    # Its pixels end early, which is another matter.
    assert reject_of(data).reason is Reason.TRUNCATED


class RecordedBudget(MemoryBudget):
    """Notes what is taken, and that nothing is taken inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[float] = []
        self.inside = False

    @contextlib.contextmanager
    def take(self, size_bytes: float) -> Iterator[None]:
        assert not self.inside
        self.taken.append(size_bytes)
        self.inside = True
        yield
        self.inside = False


@pytest.mark.parametrize(
    ("data", "settings", "expected"),
    [
        (save(photograph(), "JPEG"), {}, [1]),
        (save(photograph(), "JPEG"), {"verify": "header"}, []),
        (save(photograph(), "JPEG"), {"max_side": 20}, [1, 16]),
        (gray_jpeg_with_sampling((0x31, 0x11, 0x11)), {}, [1, 4]),
        (save(photograph(), "PNG"), {}, [4]),
        (save(photograph(), "WEBP"), {}, [16]),
    ],
)
def test_decoding_takes_its_figure_of_the_budget(
    data: bytes, settings: dict[str, Any], expected: list[int]
) -> None:
    budget = RecordedBudget()
    stored = check_image(data, name="", settings=ImageConfig(**settings), memory=budget)
    pixels = stored.file_width * stored.file_height
    assert budget.taken == [len(data) + pixels * each for each in expected]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 480), 80 * 60),
        ((641, 473), 81 * 60),
        ((256, 256), 32 * 32),
        ((255, 640), 255 * 640),
    ],
)
def test_checking_a_large_jpeg_takes_an_eighth_of_each_side(
    size: tuple[int, int], expected: int
) -> None:
    picture = photograph(width=size[0], height=size[1])
    for data, coefficient_bytes in (
        (save(picture, "JPEG"), 0),
        (save(picture.convert("L"), "JPEG"), 0),
        (save(picture.convert("L"), "JPEG", progressive=True), 2),
    ):
        budget = RecordedBudget()
        check_image(data, name="", settings=ImageConfig(), memory=budget)
        blocks = math.ceil(size[0] / 8) * math.ceil(size[1] / 8)
        assert budget.taken == [len(data) + expected + coefficient_bytes * 64 * blocks]


def test_opening_an_icon_takes_its_pixels_of_the_budget() -> None:
    data = save(photograph().resize((32, 32)), "ICO", sizes=[(16, 16), (32, 32)])
    budget = RecordedBudget()
    check_image(data, name="", settings=ImageConfig(), memory=budget)
    assert budget.taken[0] == len(data) + 4 * 32 * 32
    assert len(budget.taken) == 2


def test_masks_are_decoded_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = RecordedBudget()
    decode = mask_file.read_indices

    def read_indices(data: bytes, **settings: Any) -> mask_file.IndexMap:  # noqa: ANN401  # As it is.
        assert budget.inside
        return decode(data, **settings)

    monkeypatch.setattr(maps, "read_indices", read_indices)
    mask = example_builders.write_png(np.zeros((4, 6), np.uint8))
    example_builders.render(
        ImageAnnotations("1", 6, 4),
        image=example_builders.make_image(size=(3, 2), file_size=(6, 4)),
        masks={MaskRole.SEMANTIC: mask},
        label_map=example_builders.make_label_map({}),
        kinds=(Kind.SEMANTIC,),
        memory=budget,
    )
    assert budget.taken == [len(mask) + 28 * 6 * 4]


def test_scans_are_counted_as_libjpeg_finds_them() -> None:
    assert count_scans(save(photograph(), "JPEG")) == 1
    assert count_scans(PHOTOGRAPH) == 10
    # Data behind the end is not decoded.
    assert count_scans(PHOTOGRAPH + PHOTOGRAPH) == 10
    for scans in (1, 2, 17, 100):
        data = progressive_jpeg(40, 30, scans=scans, comment=b"\xff\xda\xff\xd9")
        assert count_scans(data) == scans
        assert set(pixels(data).ravel().tolist()) == {128}


def test_small_images_may_have_many_scans_and_large_ones_some() -> None:
    many = progressive_jpeg(64, 48, scans=883)
    assert check_image(many, name="", settings=ImageConfig()).data is many
    large = progressive_jpeg(16_000, 8_000, scans=12)
    assert scan_jpeg(large, complete=True).coefficient_bytes == 2 * 16_000 * 8_000
    assert check_image(large, name="", settings=ImageConfig(verify="header")).data is large
