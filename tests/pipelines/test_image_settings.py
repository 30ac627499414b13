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
from tests.support.image_makers import photograph, save, with_orientation
from tests.support.nasty_files import DAMAGED_JPEG, JPEG

PNG = save(photograph(width=96, height=64), "PNG")
WEBP = save(photograph(width=96, height=64), "WEBP", lossless=True)


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


def rejected(built: Build) -> dict[str, str]:
    return {reject["key"].removeprefix("cat/"): reject["reason"] for reject in built.rejects()}


@pytest.mark.parametrize(
    ("verify", "rejects"),
    [
        (
            "decode",
            {
                "damaged.jpg": "jpeg_damaged",
                "checksum.png": "corrupt",
                "png.jpg": "wrong_extension",
                "truncated.jpg": "truncated",
            },
        ),
        ("header", {"png.jpg": "wrong_extension", "truncated.jpg": "truncated"}),
        ("none", {}),
    ],
)
def test_verify(verify: str, rejects: dict[str, str], tmp_path: Path) -> None:
    checksum = bytearray(PNG)
    checksum[-20] ^= 1
    files = {
        "good.jpg": JPEG,
        "damaged.jpg": DAMAGED_JPEG,
        "checksum.png": bytes(checksum),
        "png.jpg": PNG,
        "truncated.jpg": JPEG[:-100],
    }
    built = build_images(files, folder=tmp_path, image={"verify": verify})
    assert rejected(built) == rejects
    written = {key.removeprefix("cat/"): one.encoded for key, one in built.by_key().items()}
    assert written == {name: data for name, data in files.items() if name not in rejects}


def test_damaged(tmp_path: Path) -> None:
    files = {"good.jpg": JPEG, "damaged.jpg": DAMAGED_JPEG}
    strict = build_images(files, folder=tmp_path, image={"damaged": "reject"}, name="strict")
    assert rejected(strict) == {"damaged.jpg": "jpeg_damaged"}
    assert strict.counts()["corrections"] == {}
    lenient = build_images(files, folder=tmp_path, image={"damaged": "keep"}, name="lenient")
    assert rejected(lenient) == {}
    assert lenient.by_key()["cat/damaged.jpg"].encoded == DAMAGED_JPEG
    assert lenient.counts()["corrections"] == {"jpeg_damage_kept": 1}


def test_wrong_extension(tmp_path: Path) -> None:
    files = {"good.jpg": JPEG, "png.jpg": PNG, "webp.png": WEBP}
    strict = build_images(
        files, folder=tmp_path, image={"wrong_extension": "reject"}, name="strict"
    )
    assert rejected(strict) == {"png.jpg": "wrong_extension", "webp.png": "wrong_extension"}
    lenient = build_images(
        files, folder=tmp_path, image={"wrong_extension": "keep"}, name="lenient"
    )
    assert rejected(lenient) == {}
    examples = lenient.by_key()
    assert examples["cat/png.jpg"].encoded == PNG
    formats = {key: one.features["image/format"] for key, one in examples.items()}
    assert formats == {
        "cat/good.jpg": [b"jpeg"],
        "cat/png.jpg": [b"png"],
        "cat/webp.png": [b"jpeg"],
    }
    assert lenient.counts()["corrections"] == {"image_converted": 1, "wrong_extension_kept": 2}


def test_encoding(tmp_path: Path) -> None:
    files = {"good.jpg": JPEG, "good.png": PNG, "picture.webp": WEBP}
    for encoding in ("jpeg", "png"):
        built = build_images(files, folder=tmp_path, image={"encoding": encoding}, name=encoding)
        examples = built.by_key()
        # What need not be converted stays as it is.
        assert examples["cat/good.jpg"].encoded == JPEG
        assert examples["cat/good.png"].encoded == PNG
        converted = examples["cat/picture.webp"]
        assert converted.features["image/format"] == [encoding.encode()]
        assert converted.picture.format == encoding.upper()
        difference = np.abs(
            np.asarray(converted.picture).astype(int)
            - np.asarray(Image.open(io.BytesIO(WEBP)).convert("RGB"))
        )
        assert difference.max() == 0 if encoding == "png" else 0 < difference.mean() < 3
        assert built.counts()["corrections"] == {"image_converted": 1}


def test_quality(tmp_path: Path) -> None:
    tables = {}
    for quality in (95, 20):
        built = build_images(
            {"picture.webp": WEBP}, folder=tmp_path, image={"quality": quality}, name=f"q{quality}"
        )
        (example,) = built.examples()
        reference = Image.open(io.BytesIO(save(photograph(), "JPEG", quality=quality)))
        tables[quality] = example.picture.quantization  # type: ignore[attr-defined]
        assert tables[quality] == reference.quantization  # type: ignore[attr-defined]
    assert tables[95] != tables[20]


def test_max_side(tmp_path: Path) -> None:
    tall = save(photograph(width=40, height=120), "PNG")
    small = save(photograph(width=48, height=48), "PNG")
    built = build_images(
        {"wide.jpg": JPEG, "tall.png": tall, "small.png": small},
        folder=tmp_path,
        image={"max_side": 48, "encoding": "png"},
    )
    examples = built.by_key()
    assert {key: one.size for key, one in examples.items()} == {
        "cat/wide.jpg": (48, 32),
        "cat/tall.png": (16, 48),
        "cat/small.png": (48, 48),
    }
    assert all(one.picture.size == one.size for one in examples.values())
    assert examples["cat/small.png"].encoded == small
    expected = np.asarray(photograph(width=40, height=120).resize((16, 48), Image.Resampling.BOX))
    actual = np.asarray(examples["cat/tall.png"].picture)
    assert np.abs(actual.astype(int) - expected).mean() < 4
    # Only the JPEG came out in another format.
    assert built.counts()["corrections"] == {"image_converted": 1, "image_resized": 2}


def test_orientation(tmp_path: Path) -> None:
    turned = with_orientation(JPEG, 6)
    for orientation, size in (("apply", (64, 96)), ("keep", (96, 64))):
        built = build_images(
            {"turned.jpg": turned},
            folder=tmp_path,
            image={"orientation": orientation},
            name=orientation,
        )
        (example,) = built.examples()
        assert example.size == example.picture.size == size
        assert (example.encoded == turned) == (orientation == "keep")
        assert built.counts()["corrections"] == (
            {"orientation_applied": 1} if orientation == "apply" else {}
        )


def test_background(tmp_path: Path) -> None:
    clear = save(Image.new("RGBA", (8, 8), (10, 20, 30, 0)), "PNG")
    for background, colour in (("#ffffff", (255, 255, 255)), ("#102030", (16, 32, 48))):
        built = build_images(
            {"clear.png": clear},
            folder=tmp_path,
            image={"background": background, "encoding": "png"},
            name=background.removeprefix("#"),
        )
        (example,) = built.examples()
        assert example.picture.getcolors() == [(64, colour)]


def test_max_pixels(tmp_path: Path) -> None:
    for max_pixels, rejects in (
        (96 * 64, {}),
        (96 * 64 - 1, dict.fromkeys(("a.jpg", "b.png", "c.webp"), "decompression_bomb")),
    ):
        built = build_images(
            {"a.jpg": JPEG, "b.png": PNG, "c.webp": WEBP, "small.png": save(photograph(), "PNG")},
            folder=tmp_path,
            image={"max_pixels": max_pixels},
            name=str(max_pixels),
        )
        assert rejected(built) == rejects


def test_max_decoded_mb(tmp_path: Path) -> None:
    # 3,000,000 pixels: 1 byte each to check the JPEG, 12 to lay the PNG over the background.
    large = photograph(width=2000, height=1500)
    files = {
        "small.jpg": JPEG,
        "a.jpg": save(large, "JPEG"),
        "b.png": save(large.convert("RGBA"), "PNG"),
    }
    for max_decoded_mb, rejects in ((2, ["a.jpg", "b.png"]), (35, ["b.png"]), (36, [])):
        built = build_images(
            files,
            folder=tmp_path,
            image={"max_decoded_mb": max_decoded_mb},
            name=str(max_decoded_mb),
        )
        assert rejected(built) == dict.fromkeys(rejects, "decode_bomb")


def test_max_file_mb(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    files = {"small.jpg": JPEG, "large.png": save(Image.fromarray(noise), "PNG")}
    for max_file_mb, rejects in ((1, {"large.png": "file_too_large"}), (2, {})):
        built = build_images(
            files, folder=tmp_path, image={"max_file_mb": max_file_mb}, name=str(max_file_mb)
        )
        assert rejected(built) == rejects


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    with (tmp_path / "images" / "cat" / "sparse.jpg").open("wb") as file:
        file.truncate(20_000_000_000)
    built = build_images({"good.jpg": JPEG}, folder=tmp_path, image={})
    assert rejected(built) == {"sparse.jpg": "file_too_large"}
    assert "20000000000 bytes are more than max_file_mb, 512" in built.rejects()[0]["detail"]
