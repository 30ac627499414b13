"""Settings of `image` in whole builds; tests/images shows the effect of each."""

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
from tests.support.image_makers import photograph, save
from tests.support.nasty_files import JPEG

WEBP = save(photograph(width=96, height=64), "WEBP", lossless=True)
LARGE = photograph(width=2000, height=1500)
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8))


def build_images(
    files: Mapping[str, bytes], *, folder: Path, image: Mapping[str, Any], name: str = "out"
) -> Build:
    """Builds a class folder of these files."""
    root = folder / "images"
    (root / "cat").mkdir(parents=True, exist_ok=True)
    for file_name, data in files.items():
        (root / "cat" / file_name).write_bytes(data)
    return build_config(
        {
            "splits": {"train": {"format": "image-folder", "images": str(root)}},
            "image": dict(image),
            "rejects": {"max_ratio": 0.9},
        },
        folder=folder,
        name=name,
    )


def test_what_is_too_large(tmp_path: Path) -> None:
    files = {
        "good.jpg": JPEG,
        "large.jpg": save(LARGE, "JPEG"),
        "clear.png": save(LARGE.convert("RGBA"), "PNG"),
        "noise.png": save(NOISE, "PNG"),
    }
    (tmp_path / "images" / "cat").mkdir(parents=True)
    with (tmp_path / "images" / "cat" / "sparse.jpg").open("wb") as file:
        file.truncate(20_000_000_000)
    image = {"max_decoded_mb": 2, "max_file_mb": 1}
    built = build_images(files, folder=tmp_path, image=image)
    assert {reject["key"].removeprefix("cat/"): reject["reason"] for reject in built.rejects()} == {
        "large.jpg": "decode_bomb",
        "clear.png": "decode_bomb",
        "noise.png": "file_too_large",
        "sparse.jpg": "file_too_large",
    }


@pytest.mark.parametrize("pixels", ["png", "raw"])
def test_images_of_cifar_get_one_size_unless_they_are_raw(pixels: str, tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar")
    source = {"format": "cifar10", "root": str(tmp_path / "cifar"), "pixels": pixels}
    config = {"source": source, "image": {"resize": {"width": 48, "height": 40}}}
    built = build_config(config, folder=tmp_path, exit_code=2 if pixels == "raw" else 0)
    if pixels == "raw":
        assert "image.resize: raw images keep their 32 x 32 pixels" in built.stderr
    else:
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
