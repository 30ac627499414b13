"""Writes CIFAR batches with NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.image_makers import Pixels

CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def write_batch(path: Path, *, labels: list[tuple[int, ...]], seed: int = 0) -> Pixels:
    """Writes a batch file of noise; returns its pixels, `[images, 32, 32, 3]`."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(labels), 3072)
    records = np.concatenate([np.array(labels, dtype=np.uint8), planes], axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(records.tobytes())
    return pixels


def write_cifar10(folder: Path) -> dict[str, Pixels]:
    """Writes a small CIFAR-10: image i of a file has label i modulo 10; `{file: pixels}`."""
    pixels = {
        name: write_batch(
            folder / name, labels=[(index % 10,) for index in range(images)], seed=images
        )
        for name, images in (
            ("data_batch_1.bin", 30),
            ("data_batch_2.bin", 20),
            ("test_batch.bin", 12),
        )
    }
    # The real file ends with an empty line.
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_NAMES) + "\n\n")
    (folder / "readme.html").write_text("<html>")
    return pixels


def write_cifar100(folder: Path) -> dict[str, Pixels]:
    """Writes a small CIFAR-100: image i has superclass i modulo 20 and class i modulo 100."""
    pixels = {
        name: write_batch(
            folder / name,
            labels=[(index % 20, index % 100) for index in range(images)],
            seed=images,
        )
        for name, images in (("train.bin", 120), ("test.bin", 15))
    }
    (folder / "coarse_label_names.txt").write_text("".join(f"super {i}\n" for i in range(20)))
    (folder / "fine_label_names.txt").write_text("".join(f"fine {i}\n" for i in range(100)))
    return pixels
