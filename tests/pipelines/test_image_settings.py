"""Each setting of `image` has its effect on what is written."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.builds import Build, build_config
from tests.support.cifar_files import write_cifar10
from tests.support.image_makers import photograph, save, with_orientation
from tests.support.nasty_files import DAMAGED_JPEG, JPEG

PNG = save(photograph(width=96, height=64), "PNG")
WEBP = save(photograph(width=96, height=64), "WEBP", lossless=True)
BAD_PNG = bytearray(PNG)
BAD_PNG[-20] ^= 1
TALL = save(photograph(width=40, height=120), "PNG")
TURNED = with_orientation(JPEG, 6)
LARGE = photograph(width=2000, height=1500)
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8))

FILES = {
    "bad.png": bytes(BAD_PNG),
    "damaged.jpg": DAMAGED_JPEG,
    "good.jpg": JPEG,
    "good.png": PNG,
    "png.jpg": PNG,
    "tall.png": TALL,
    "truncated.jpg": JPEG[:-100],
    "turned.jpg": TURNED,
    "webp.webp": WEBP,
}
# The outcome of each: the reject's reason, or format and size; "as it is" for unchanged bytes.
DEFAULT = {
    "bad.png": "corrupt",
    "damaged.jpg": "jpeg_damaged",
    "good.jpg": "jpeg 96x64 as it is",
    "good.png": "png 96x64 as it is",
    "png.jpg": "png 96x64 as it is",
    "tall.png": "png 40x120 as it is",
    "truncated.jpg": "truncated",
    "turned.jpg": "jpeg 64x96",
    "webp.webp": "jpeg 96x64",
}
BOMBS = dict.fromkeys(
    ("bad.png", "damaged.jpg", "good.jpg", "good.png", "png.jpg", "turned.jpg", "webp.webp"),
    "decompression_bomb",
)
CONVERTED = {"image_converted": 1, "orientation_applied": 1, "wrong_extension_kept": 1}


def build_images(
    files: Mapping[str, bytes], *, folder: Path, image: Mapping[str, Any], name: str = "out"
) -> Build:
    """Builds a class folder of these files."""
    root = folder / "images"
    (root / "cat").mkdir(parents=True, exist_ok=True)
    for file_name, data in files.items():
        (root / "cat" / file_name).write_bytes(data)
    built = build_config(
        {
            "splits": {"train": {"format": "image-folder", "images": str(root)}},
            "image": dict(image),
            "rejects": {"max_ratio": 0.9},
        },
        folder=folder,
        name=name,
    )
    assert built.exit_code == 0
    return built


def outcomes(built: Build, files: Mapping[str, bytes]) -> dict[str, str]:
    found = {reject["key"].removeprefix("cat/"): reject["reason"] for reject in built.rejects()}
    for key, example in built.by_key().items():
        name = key.removeprefix("cat/")
        (stored_format,) = example.features["image/format"]
        assert example.picture.size == example.size
        assert example.picture.format == stored_format.decode().upper()
        found[name] = f"{stored_format.decode()} {example.size[0]}x{example.size[1]}"
        if example.encoded == files[name]:
            found[name] += " as it is"
    return found


@pytest.mark.parametrize(
    ("image", "changed", "corrections"),
    [
        ({}, {}, CONVERTED),
        (
            {"verify": "header"},
            {
                "bad.png": "png 96x64 as it is",
                "damaged.jpg": "jpeg 96x64 as it is",
            },
            CONVERTED,
        ),
        (
            {"verify": "none", "orientation": "keep"},
            {
                "bad.png": "png 96x64 as it is",
                "damaged.jpg": "jpeg 96x64 as it is",
                "truncated.jpg": "jpeg 96x64 as it is",
                "turned.jpg": "jpeg 96x64 as it is",
            },
            {"image_converted": 1},
        ),
        (
            {"damaged": "keep"},
            {"damaged.jpg": "jpeg 96x64 as it is"},
            {**CONVERTED, "jpeg_damage_kept": 1},
        ),
        (
            {"wrong_extension": "reject"},
            {"png.jpg": "wrong_extension"},
            {"image_converted": 1, "orientation_applied": 1},
        ),
        (
            {"encoding": "png"},
            {"turned.jpg": "png 64x96", "webp.webp": "png 96x64"},
            {**CONVERTED, "image_converted": 2},
        ),
        (
            {"orientation": "keep"},
            {"turned.jpg": "jpeg 96x64 as it is"},
            {"image_converted": 1, "wrong_extension_kept": 1},
        ),
        (
            {"max_side": 96, "encoding": "png"},
            {"tall.png": "png 32x96", "turned.jpg": "png 64x96", "webp.webp": "png 96x64"},
            {**CONVERTED, "image_converted": 2, "image_resized": 1},
        ),
        (
            {"resize": {"width": 96, "height": 64}, "encoding": "png"},
            {"tall.png": "png 96x64", "turned.jpg": "png 96x64", "webp.webp": "png 96x64"},
            {**CONVERTED, "image_converted": 2, "image_resized": 2},
        ),
        ({"max_pixels": 96 * 64}, {}, CONVERTED),
        ({"max_pixels": 96 * 64 - 1}, BOMBS, {}),
    ],
)
def test_settings(
    image: dict[str, Any],
    changed: dict[str, str],
    corrections: dict[str, int],
    tmp_path: Path,
) -> None:
    built = build_images(FILES, folder=tmp_path, image=image)
    assert outcomes(built, FILES) == {**DEFAULT, **changed}
    assert built.counts()["corrections"] == corrections


@pytest.mark.parametrize(
    ("image", "reasons"),
    [
        # 3,000,000 pixels: 1 byte each to check the JPEG, 12 to lay the PNG over the background.
        ({"max_decoded_mb": 36, "max_file_mb": 2}, {}),
        ({"max_decoded_mb": 35}, {"clear.png": "decode_bomb"}),
        (
            {"max_decoded_mb": 2, "max_file_mb": 1},
            {"large.jpg": "decode_bomb", "clear.png": "decode_bomb", "noise.png": "file_too_large"},
        ),
    ],
)
def test_what_is_too_large(image: dict[str, Any], reasons: dict[str, str], tmp_path: Path) -> None:
    files = {
        "good.jpg": JPEG,
        "large.jpg": save(LARGE, "JPEG"),
        "clear.png": save(LARGE.convert("RGBA"), "PNG"),
        "noise.png": save(NOISE, "PNG"),
    }
    (tmp_path / "images" / "cat").mkdir(parents=True)
    with (tmp_path / "images" / "cat" / "sparse.jpg").open("wb") as file:
        file.truncate(20_000_000_000)
    built = build_images(files, folder=tmp_path, image=image)
    assert {reject["key"].removeprefix("cat/"): reject["reason"] for reject in built.rejects()} == {
        **reasons,
        "sparse.jpg": "file_too_large",
    }


@pytest.mark.parametrize("pixels", ["png", "raw"])
def test_images_of_cifar_get_one_size_unless_they_are_raw(pixels: str, tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar")
    source = {"format": "cifar10", "root": str(tmp_path / "cifar"), "pixels": pixels}
    config = {"source": source, "image": {"resize": {"width": 48, "height": 40}}}
    built = build_config(config, folder=tmp_path)
    if pixels == "raw":
        assert built.exit_code == 2
        assert "image.resize: raw images keep their 32 x 32 pixels" in built.stderr
    else:
        assert built.exit_code == 0, built.stderr
        assert {example.picture.size for example in built.examples()} == {(48, 40)}


def test_encoding_quality_and_background(tmp_path: Path) -> None:
    clear = save(Image.new("RGBA", (8, 8), (10, 20, 30, 0)), "PNG")
    files = {"a.webp": WEBP, "clear.png": clear}
    image = {"encoding": "png", "background": "#102030"}
    exact = build_images(files, folder=tmp_path, image=image, name="png").by_key()
    source = np.asarray(Image.open(io.BytesIO(WEBP)).convert("RGB"))
    np.testing.assert_array_equal(np.asarray(exact["cat/a.webp"].picture), source)
    assert exact["cat/clear.png"].picture.getcolors() == [(64, (16, 32, 48))]

    lossy = build_images(files, folder=tmp_path, image={"quality": 20}, name="jpeg").by_key()
    reference = Image.open(io.BytesIO(save(photograph(), "JPEG", quality=20)))
    stored = lossy["cat/a.webp"].picture
    assert stored.quantization == reference.quantization  # type: ignore[attr-defined]
    # White, as far as that quality goes.
    assert np.asarray(lossy["cat/clear.png"].picture).min() > 250
