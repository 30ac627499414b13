"""The bound for `verify: decode`: threads that read and decode files, and do nothing else.

`python -m benchmarks.decode_loop DECODER IMAGES THREADS` prints images a second as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import simplejpeg
from PIL import Image


def decode_with_simplejpeg(path: Path) -> None:
    """Decodes a JPEG strictly, to gray: damage is an error."""
    simplejpeg.decode_jpeg(path.read_bytes(), colorspace="GRAY", strict=True)


def decode_with_pillow(path: Path) -> None:
    """Decodes an image as everybody does."""
    with Image.open(path) as image:
        image.load()


DECODERS: dict[str, Callable[[Path], None]] = {
    "simplejpeg": decode_with_simplejpeg,
    "pillow": decode_with_pillow,
}


def main() -> None:
    decoder, images, threads = sys.argv[1:]
    paths = sorted(Path(images).iterdir())
    started_s = time.monotonic()
    with ThreadPoolExecutor(max_workers=int(threads)) as executor:
        for _ in executor.map(DECODERS[decoder], paths):
            pass
    print(json.dumps({"images_per_s": len(paths) / (time.monotonic() - started_s)}))


if __name__ == "__main__":
    main()
