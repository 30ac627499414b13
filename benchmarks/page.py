"""Measures the memory and the time of `shardbeam report` for photographs of 24 megapixels.

    python -m benchmarks.page [FOLDER]

It writes 40 photographs of 6,000 x 4,000 pixels and a dataset of them (700 MB) to the folder, or to
a temporary one, and makes a page of the dataset.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.measure import SHARDBEAM, measure

_PICTURES, _SIZE = 40, (6000, 4000)


def run_page(folder: Path) -> str:
    """Measures the page of large photographs.

    Args:
        folder: Where the photographs, the dataset and the page are written.

    Returns:
        The measured values in a line of text.
    """
    images, dataset = folder / "images" / "photograph", folder / "dataset"
    if not dataset.exists():
        images.mkdir(parents=True, exist_ok=True)
        for number in range(_PICTURES):
            _photograph(number).save(images / f"{number}.jpg", quality=90)
        build = ("build", "image-folder", "--images", str(images.parent), "--output", str(dataset))
        measure((SHARDBEAM, *build))
    page = ("report", str(dataset), "--output", str(folder / "page.html"))
    measured = measure((SHARDBEAM, *page))
    megabytes = measured.peak_bytes() / 1e6
    return (
        f"{_PICTURES} photographs of 24 megapixels: at most {megabytes:.0f} MB, "
        f"{measured.wall_time_s:.1f} s"
    )


def _photograph(seed: int) -> Image.Image:
    """Draws large shapes with fine noise, so that its file is as long as that of a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    noise = rng.integers(-12, 12, (_SIZE[1], _SIZE[0], 1), dtype=np.int16)
    pixels = np.asarray(coarse.resize(_SIZE, Image.Resampling.BICUBIC), np.int16) + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(run_page(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
