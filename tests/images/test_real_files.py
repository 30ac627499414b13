"""What becomes of real files; the table was checked by hand against the pictures."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.check import check_image
from tests.support.image_makers import pixels

PADLOCK = "dali/imgcodec/jpeg/orientation/padlock-406986_640_"
CAT = "dali/imgcodec/webp/orientation/cat-lossy-2184682_640_"

CORRECTIONS = {Correction.IMAGE_CONVERTED: "converted", Correction.ORIENTATION_APPLIED: "turned"}

# Of each file the reject's reason, or what is stored.
EXPECTED = {
    # JPEG
    "clipscore-captions/images/image1.jpg": "untouched jpeg 750x751",
    f"{PADLOCK}no_exif.jpg": "untouched jpeg 640x426",
    f"{PADLOCK}no_orientation.jpg": "untouched jpeg 640x426",
    f"{PADLOCK}horizontal.jpg": "untouched jpeg 640x426",
    f"{PADLOCK}mirror_horizontal.jpg": "jpeg 640x426 turned",
    f"{PADLOCK}rotate_180.jpg": "jpeg 640x426 turned",
    f"{PADLOCK}mirror_vertical.jpg": "jpeg 640x426 turned",
    f"{PADLOCK}mirror_horizontal_rotate_270.jpg": "jpeg 426x640 turned",
    f"{PADLOCK}rotate_90.jpg": "jpeg 426x640 turned",
    f"{PADLOCK}mirror_horizontal_rotate_90.jpg": "jpeg 426x640 turned",
    f"{PADLOCK}rotate_270.jpg": "jpeg 426x640 turned",
    "dali/single/case_sensitive/100/swAn-3584559_640.jPg": "untouched jpeg 640x408",
    "dali/single/jpeg_lossless/0/cat-3449999_640_grayscale_8bit.jpg": "jpeg 640x426 converted",
    "dali/single/jpeg_lossless/0/cat-3504008_640_grayscale_16bit.jpg": "zero_byte",
    "dali/single/mixed/0/2x4.jpg": "untouched jpeg 640x426",
    "dali/single/mixed/0/410.jpg": "untouched jpeg 640x426",
    "dali/single/mixed/0/411-non-multiple-4-width.jpg": "untouched jpeg 639x479",
    "dali/single/mixed/0/440.jpg": "untouched jpeg 680x491",
    "imaging-exif/orientation_0.jpg": "untouched jpeg 50x70",
    "imaging-exif/orientation_1.jpg": "untouched jpeg 50x70",
    "imaging-exif/orientation_5.jpg": "jpeg 50x70 turned",
    "labelimg-unicode/臉書.jpg": "untouched jpeg 33x32",
    "libjpegturbo/monkey12.jpg": "unsupported_image",
    "libjpegturbo/testimgari.jpg": "jpeg 227x149 converted",
    "libjpegturbo/testimgint.jpg": "untouched jpeg 227x149",
    "mmcv/color_exif.jpg": "jpeg 300x400 turned",
    "mmcv/grayscale.jpg": "untouched jpeg 400x300",
    "mmpretrain/dataset/3.jpeg": "zero_byte",
    "mmpretrain/dataset/a/1.JPG": "untouched jpeg 400x300",
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
    "pillow/pil_sample_cmyk.jpg": "jpeg 100x100 converted",
    "pillow/truncated_app14.jpg": "untouched jpeg 100x100",
    "pillow/truncated_jpeg.jpg": "truncated",
    "pillow/ultrahdr.jpg": "truncated",
    # JPEGs in a row
    "pillow/frame_size.mpo": "untouched jpeg 56x70",
    "pillow/sugarshack.mpo": "untouched jpeg 640x480",
    "pillow/sugarshack_bad_mpo_header.jpg": "untouched jpeg 640x480",
    # PNG
    "dali/coco_pixelwise/pixelwise_masks/pizza-2000614_1280.png": "untouched png 1280x853",
    "dali/single/multichannel/with_alpha/cat-111793_640-alpha.png": "jpeg 640x426 converted",
    "dali/single/multichannel/with_alpha_16bit/4ch16bpp.png": "jpeg 497x497 converted",
    "libjpegturbo/monkey16.png": "jpeg 149x227 converted",
    "libjpegturbo/testorig.png": "untouched png 227x149",
    "mmcv/gray_alpha.png": "jpeg 500x400 converted",
    "pillow/1_trns.png": "jpeg 64x64 converted",
    "pillow/7x13.png": "untouched png 7x13",
    "pillow/apng/delay.png": "jpeg 128x64 converted",
    "pillow/apng/mode_16bit.png": "jpeg 128x64 converted",
    "pillow/apng/mode_palette_alpha.png": "jpeg 128x64 converted",
    "pillow/broken.png": "corrupt",
    "pillow/broken_data_stream.png": "corrupt",
    # The orientation of its text chunk is ImageMagick's own way; only eXIf is EXIF in PNG.
    "pillow/exif_imagemagick_orientation.png": "untouched png 512x512",
    "pillow/hopper_idat_after_image_end.png": "untouched png 128x128",
    "pillow/itxt_chunks.png": "untouched png 2400x2000",
    "pillow/l_trns.png": "jpeg 64x64 converted",
    "pillow/p_trns_single.png": "jpeg 64x64 converted",
    "pillow/padded_idat.png": "untouched png 256x10",
    "pillow/pil123p.png": "jpeg 162x150 converted",
    "pillow/png_decompression_dos.png": "decompression_bomb",
    "pillow/rgb_trns.png": "jpeg 64x64 converted",
    "pillow/tRNS_null_1x1.png": "jpeg 1x1 converted",
    "pillow/truncated_end_chunk.png": "truncated",
    "pillow/truncated_image.png": "truncated",
    # The chunk of its colour profile is broken.
    "pillow/unknown_compression_method.png": "corrupt",
    # WebP, AVIF, GIF
    f"{CAT}original.webp": "jpeg 640x398 converted",
    f"{CAT}mirror_vertical.webp": "jpeg 640x398 converted turned",
    f"{CAT}rotate_270_cw.webp": "jpeg 398x640 converted turned",
    "pillow/iss634.webp": "jpeg 245x245 converted",
    "pillow/transparent.webp": "jpeg 200x150 converted",
    "pillow/avif/hopper.avif": "jpeg 128x128 converted",
    "pillow/avif/hopper.heif": "unsupported_image",
    "pillow/avif/rot1mir0.avif": "jpeg 640x427 converted turned",
    "mmcv/palette.gif": "jpeg 400x300 converted",
    "pillow/decompression_bomb.gif": "decompression_bomb",
    # Only its second frame is huge.
    "pillow/decompression_bomb_extents.gif": "jpeg 100x100 converted",
    "pillow/iss634.gif": "jpeg 245x245 converted",
    "pillow/no_palette_with_transparency.gif": "jpeg 2x2 converted",
    "pillow/transparent.gif": "jpeg 200x150 converted",
    "pillow/zero_width.gif": "corrupt",
    # TIFF
    "dali/imgcodec/tiff/bitdepths/rgb_8bit.tiff": "jpeg 321x123 converted",
    "dali/imgcodec/tiff/bitdepths/rgb_12bit.tiff": "unsupported_image",
    "mmcv/uint16-5channel.tif": "unsupported_image",
    "pillow/10ct_32bit_128.tiff": "unsupported_image",
    "pillow/12bit.cropped.tif": "jpeg 100x100 converted",
    "pillow/16bit.MM.cropped.tif": "jpeg 64x64 converted",
    "pillow/crash-338516dbd2f0e83caddb8ce256c22db3bd6dc40f.tif": "corrupt",
    "pillow/g4_orientation_1.tif": "jpeg 590x88 converted",
    "pillow/g4_orientation_6.tif": "jpeg 590x88 converted turned",
    "pillow/hopper.Lab.tif": "jpeg 128x128 converted",
    "pillow/hopper_bigtiff.tif": "jpeg 128x128 converted",
    "pillow/multipage.tiff": "jpeg 10x10 converted",
    "pillow/rdf.tif": "jpeg 518x556 converted",
    "pillow/seek_too_large.tif": "corrupt",
    "pillow/tiff_16bit_RGBa.tiff": "jpeg 100x40 converted",
    "pillow/tiff_strip_cmyk_jpeg.tif": "jpeg 100x100 converted",
    # others
    "dali/single/bmp/0/cat-111793_640_palette_1bit.bmp": "jpeg 640x426 converted",
    "labelimg-unicode/test.512.512.bmp": "jpeg 512x512 converted",
    "pillow/bmp/b/badbitcount.bmp": "unsupported_image",
    "pillow/bmp/b/badheadersize.bmp": "unsupported_image",
    "pillow/bmp/b/badwidth.bmp": "decompression_bomb",
    "pillow/bmp/b/reallybig.bmp": "decompression_bomb",
    "pillow/bmp/b/shortfile.bmp": "truncated",
    "pillow/bmp/q/rgba32.bmp": "jpeg 127x64 converted",
    "pillow/16bit.cropped.jp2": "jpeg 64x64 converted",
    "pillow/hopper.ico": "jpeg 16x16 converted",
    "pillow/decompression_bomb.ico": "decompression_bomb",
    # names that say something else, and no images
    "dali/single/missnamed/bmp/0/jpeg.bmp": "wrong_extension",
    "dali/single/missnamed/jpeg/0/pbm.jpeg": "wrong_extension",
    "dali/single/missnamed/jpeg/0/png.jpeg": "wrong_extension",
    "dali/single/missnamed/png/0/jpeg.png": "wrong_extension",
    "dali/single/missnamed/png/0/pgm.png": "wrong_extension",
    "datumaro/lfw_dataset/test/images/name0/name0_0001.jpg": "wrong_extension",
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
        elif (row["pillow_status"] or "").startswith("fail"):
            assert ending in {reason.value for reason in Reason}, row["path"]
    assert damaged == {"pillow/hopper_bad_exif.jpg"}


def upright(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    settings = ImageConfig(encoding="png", wrong_extension="keep")
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
