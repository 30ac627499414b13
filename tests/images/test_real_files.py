"""The outcome of real files; the table was checked by hand against the pictures."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.extras import import_heif
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.check import check_image
from tests.support.image_makers import pixels

PADLOCK = "dali/imgcodec/jpeg/orientation/padlock-406986_640_"
CAT = "dali/imgcodec/webp/orientation/cat-lossy-2184682_640_"

# The only HEIC file.
HOPPER = "pillow/avif/hopper.heif"

CORRECTIONS = {
    Correction.IMAGE_CONVERTED: "converted",
    Correction.ORIENTATION_APPLIED: "turned",
    Correction.FIRST_FRAME_KEPT: "first",
    Correction.WRONG_EXTENSION_KEPT: "misnamed",
}

# For each file, the reject's reason or the stored image.
EXPECTED = {
    # JPEG
    f"{PADLOCK}rotate_270.jpg": "jpeg 426x640 turned",
    "dali/single/case_sensitive/100/swAn-3584559_640.jPg": "untouched jpeg 640x408",
    "dali/single/jpeg_lossless/0/cat-3449999_640_grayscale_8bit.jpg": "jpeg 640x426 converted",
    "dali/single/jpeg_lossless/0/cat-3504008_640_grayscale_16bit.jpg": "zero_byte",
    "dali/single/mixed/0/411-non-multiple-4-width.jpg": "untouched jpeg 639x479",
    "libjpegturbo/monkey12.jpg": "unsupported_image",
    "libjpegturbo/testimgari.jpg": "jpeg 227x149 converted",
    "mmpretrain/dataset/3.jpeg": "zero_byte",
    "pillow/broken_exif_dpi.jpg": "untouched jpeg 100x100",
    "pillow/exif_typeerror.jpg": "untouched jpeg 800x531",
    "pillow/exif-ifd-offset.jpg": "untouched jpeg 200x200",
    "pillow/hopper_16bit_qtables.jpg": "untouched jpeg 128x128",
    # Its restart intervals do not fit: stripes of garbage.
    "pillow/hopper_bad_exif.jpg": "jpeg_damaged",
    "pillow/invalid-exif.jpg": "untouched jpeg 200x200",
    "pillow/jpeg_ff00_header.jpg": "untouched jpeg 300x225",
    "pillow/junk_jpeg_header.jpg": "untouched jpeg 1024x768",
    "pillow/multiple_exif.jpg": "untouched jpeg 1x1",
    "pillow/orientation_rectangle.jpg": "jpeg 1x2 turned",
    "pillow/truncated_app14.jpg": "untouched jpeg 100x100",
    "pillow/truncated_jpeg.jpg": "truncated",
    "pillow/ultrahdr.jpg": "truncated",
    # JPEGs in a row
    "pillow/sugarshack.mpo": "untouched jpeg 640x480",
    "pillow/sugarshack_bad_mpo_header.jpg": "untouched jpeg 640x480",
    # PNG
    "dali/single/multichannel/with_alpha_16bit/4ch16bpp.png": "jpeg 497x497 converted",
    "pillow/1_trns.png": "jpeg 64x64 converted",
    "pillow/apng/delay.png": "jpeg 128x64 converted first",
    "pillow/broken.png": "corrupt",
    "pillow/broken_data_stream.png": "corrupt",
    # The orientation of its text chunk is ImageMagick's own way; only eXIf is EXIF in PNG.
    "pillow/exif_imagemagick_orientation.png": "untouched png 512x512",
    "pillow/hopper_idat_after_image_end.png": "untouched png 128x128",
    "pillow/itxt_chunks.png": "untouched png 2400x2000",
    "pillow/padded_idat.png": "untouched png 256x10",
    "pillow/png_decompression_dos.png": "decompression_bomb",
    "pillow/tRNS_null_1x1.png": "jpeg 1x1 converted",
    "pillow/truncated_end_chunk.png": "truncated",
    "pillow/truncated_image.png": "truncated",
    # The chunk of its colour profile is broken.
    "pillow/unknown_compression_method.png": "unsupported_image",
    # WebP, AVIF, GIF
    f"{CAT}mirror_vertical.webp": "jpeg 640x398 converted turned",
    HOPPER: "jpeg 128x128 converted" if import_heif() else "unsupported_image",
    "pillow/avif/rot1mir0.avif": "jpeg 640x427 converted turned",
    "pillow/decompression_bomb.gif": "decompression_bomb",
    # Only its second frame is huge.
    "pillow/decompression_bomb_extents.gif": "jpeg 100x100 converted first",
    "pillow/no_palette_with_transparency.gif": "jpeg 2x2 converted first",
    "pillow/zero_width.gif": "corrupt",
    # TIFF
    "dali/imgcodec/tiff/bitdepths/rgb_12bit.tiff": "unsupported_image",
    "mmcv/uint16-5channel.tif": "unsupported_image",
    "pillow/10ct_32bit_128.tiff": "unsupported_image",
    "pillow/12bit.cropped.tif": "jpeg 100x100 converted",
    "pillow/16bit.MM.cropped.tif": "jpeg 64x64 converted",
    "pillow/crash-338516dbd2f0e83caddb8ce256c22db3bd6dc40f.tif": "corrupt",
    "pillow/g4_orientation_6.tif": "jpeg 590x88 converted turned",
    "pillow/hopper.Lab.tif": "jpeg 128x128 converted",
    "pillow/seek_too_large.tif": "corrupt",
    "pillow/tiff_16bit_RGBa.tiff": "jpeg 100x40 converted",
    # others
    "pillow/bmp/b/badbitcount.bmp": "unsupported_image",
    "pillow/bmp/b/badheadersize.bmp": "unsupported_image",
    "pillow/bmp/b/badwidth.bmp": "decompression_bomb",
    "pillow/bmp/b/shortfile.bmp": "truncated",
    "pillow/bmp/q/rgba32.bmp": "jpeg 127x64 converted",
    "pillow/decompression_bomb.ico": "decompression_bomb",
    # names that say something else
    "dali/single/missnamed/bmp/0/jpeg.bmp": "untouched jpeg 640x426 misnamed",
    "dali/single/missnamed/png/0/jpeg.png": "untouched jpeg 640x426 misnamed",
    "datumaro/lfw_dataset/test/images/name0/name0_0001.jpg": "untouched png 5x2 misnamed",
    # Its signature has lost the first byte.
    "pillow/pngtest_bad.png.bin": "not_an_image",
    "mmpretrain/LICENSE": "not_an_image",
}


def outcome(shared_data: Path, name: str) -> str:
    data = (shared_data / name).read_bytes()
    try:
        stored = check_image(data, name=name, settings=ImageConfig())
    except RejectedError as reject:
        return reject.reason.value
    words = ["untouched"] if stored.data is data else []
    words += [stored.format, f"{stored.width}x{stored.height}"]
    words += [CORRECTIONS[correction] for correction in stored.corrections]
    return " ".join(words)


# Pillow's warnings are off, but pytest turns them on again.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_file_ends_as_it_should(shared_data: Path, name: str) -> None:
    assert outcome(shared_data, name) == EXPECTED[name]


def test_every_file_ends_as_image_or_reject(shared_data: Path) -> None:
    with (shared_data / "MANIFEST.tsv").open(encoding="utf-8", newline="") as manifest:
        rows = list(csv.DictReader(manifest, delimiter="\t"))
    assert len(rows) > 800
    damaged = set()
    for row in rows:
        ending = outcome(shared_data, row["path"])
        if ending == Reason.JPEG_DAMAGED.value:
            damaged.add(row["path"])
        if row["pillow_status"] == "bomb":
            assert ending == Reason.DECOMPRESSION_BOMB.value, row["path"]
        elif (row["pillow_status"] or "").startswith("fail") and row["path"] != HOPPER:
            assert ending in {reason.value for reason in Reason}, row["path"]
    assert damaged == {"pillow/hopper_bad_exif.jpg"}


def upright(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    settings = ImageConfig(encoding="png")
    stored = check_image(path.read_bytes(), name=path.name, settings=settings)
    return pixels(stored.data).astype(np.int16)


@pytest.mark.parametrize(
    ("pattern", "reference"),
    [
        ("imaging-exif/orientation_[2-8].jpg", "imaging-exif/orientation_1.jpg"),
        ("pillow/g4_orientation_[2-8].tif", "pillow/g4_orientation_1.tif"),
    ],
)
def test_the_same_picture_in_eight_orientations(
    shared_data: Path, pattern: str, reference: str
) -> None:
    expected = upright(shared_data / reference)
    others = sorted(shared_data.glob(pattern))
    assert len(others) == 7
    for path in others:
        assert np.abs(upright(path) - expected).mean() < 4, path.name


def test_cmyk_and_rgb_of_the_same_picture(shared_data: Path) -> None:
    cmyk = upright(shared_data / "pillow/pil_sample_cmyk.jpg")
    rgb = upright(shared_data / "pillow/pil_sample_rgb.jpg")
    assert np.abs(cmyk - rgb).mean() < 25
