"""Builds of the real samples: every file becomes an Example, or the reject in a table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardbeam.transforms.core.reasons import Reason
from tests.support.builds import build

# Pillow's warnings are off, but pytest turns them on again.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

# Names that end otherwise are excluded.
IMAGE_EXTENSIONS = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".avif", ".heif", ".jp2"),
)

# All of the samples' files that are named like images and cannot be used, by reason.
REJECTS: dict[Reason, tuple[str, ...]] = {
    Reason.CORRUPT: (
        "pillow/broken.png",
        "pillow/broken_data_stream.png",
        "pillow/crash-0da013a13571cc8eb457a39fee8db18f8a3c7127.tif",
        "pillow/crash-338516dbd2f0e83caddb8ce256c22db3bd6dc40f.tif",
        "pillow/crash-86214e58da443d2b80820cff9677a38a33dcbbca.tif",
        "pillow/libtiff_segfault.tif",
        "pillow/oom-225817ca0f8c663be7ab4b9e717b02c661e66834.tif",
        "pillow/seek_too_large.tif",
        "pillow/zero_width.gif",
    ),
    Reason.DECOMPRESSION_BOMB: (
        "pillow/bmp/b/badwidth.bmp",
        "pillow/bmp/b/reallybig.bmp",
        "pillow/decompression_bomb.gif",
        "pillow/png_decompression_dos.png",
    ),
    Reason.JPEG_DAMAGED: ("pillow/hopper_bad_exif.jpg",),
    Reason.TRUNCATED: (
        "pillow/bmp/b/shortfile.bmp",
        "pillow/truncated_end_chunk.png",
        "pillow/truncated_image.png",
        "pillow/truncated_jpeg.jpg",
        "pillow/ultrahdr.jpg",
    ),
    Reason.UNSUPPORTED_IMAGE: (
        "dali/imgcodec/tiff/bitdepths/rgb_12bit.tiff",
        "dali/imgcodec/tiff/bitdepths/rgb_1bit.tiff",
        "libjpegturbo/monkey12.jpg",
        "mmcv/uint16-5channel.tif",
        "pillow/10ct_32bit_128.tiff",
        "pillow/bmp/b/badbitcount.bmp",
        "pillow/bmp/b/badheadersize.bmp",
        "pillow/bmp/b/badpalettesize.bmp",
        "pillow/bmp/q/rgba16-4444.bmp",
        "pillow/unknown_compression_method.png",
    ),
    Reason.ZERO_BYTE: (
        "dali/single/jpeg_lossless/0/cat-3504008_640_grayscale_16bit.jpg",
        "mmpretrain/dataset/3.jpeg",
    ),
}


def test_every_sample_ends_as_an_example_or_as_the_table_says(
    shared_data: Path, tmp_path: Path
) -> None:
    # For pillow/avif/hopper.heif, a HEIC file.
    pytest.importorskip("pillow_heif")
    built = build(
        "image-folder",
        *("--images", shared_data),
        *("--set", "rejects.max_ratio=0.1"),
        output=tmp_path / "out",
    )
    files = [
        os.path.relpath(os.path.join(folder, name), shared_data)
        for folder, _, names in os.walk(shared_data)
        for name in names
    ]
    images = {name for name in files if name.lower().endswith(IMAGE_EXTENSIONS)}
    rejected = {name: reason.value for reason, names in REJECTS.items() for name in names}
    assert {reject["key"]: reject["reason"] for reject in built.rejects()} == rejected
    assert set(built.by_key()) == images - set(rejected)
    counts = built.counts()
    assert {name: counts[name] for name in ("listed", "examples", "unlisted", "excluded")} == {
        "listed": len(files),
        "examples": len(images) - len(rejected),
        "unlisted": 0,
        "excluded": {"hidden_file": 1, "not_an_image_name": len(files) - len(images) - 1},
    }
    assert counts["corrections"] == {
        "first_frame_kept": 16,
        "image_converted": 130,
        "orientation_applied": 32,
        "wrong_extension_kept": 13,
    }
    assert counts["rejected"] == {
        reason.value: len(names) for reason, names in sorted(REJECTS.items())
    }
    assert (counts["listed"], counts["examples"]) == (len(files), len(images) - len(rejected))
    for example in built.examples():
        picture = example.picture
        picture.load()
        assert picture.size == example.size
        assert example.image_labels[0][0] == example.key.split("/")[0]
