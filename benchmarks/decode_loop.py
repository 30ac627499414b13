"""Bounds: threads that read files, decode or digest them, and do nothing else.

`python -m benchmarks.decode_loop WORK IMAGES THREADS` prints images a second as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import simplejpeg
from PIL import Image


def decode_with_simplejpeg(path: Path) -> None:
    """Decodes a JPEG strictly, to gray and an eighth of its size: damage is an error."""
    _decode(path.read_bytes())


def decode_with_pillow(path: Path) -> None:
    """Decodes an image as everybody does."""
    with Image.open(path) as image:
        image.load()


def digest(path: Path) -> None:
    """Digests a file as a build does for its Example."""
    _digest(path.read_bytes())


def decode_and_digest(path: Path) -> None:
    """Does all that a build with `verify: decode` cannot leave out."""
    data = path.read_bytes()
    _decode(data)
    _digest(data)


def _decode(data: bytes) -> None:
    # With these minima, TurboJPEG scales as far down as it can.
    simplejpeg.decode_jpeg(data, colorspace="GRAY", min_width=1, min_height=1, strict=True)


def _digest(data: bytes) -> None:
    hashlib.sha256(data).hexdigest()


WORK: dict[str, Callable[[Path], None]] = {
    "simplejpeg": decode_with_simplejpeg,
    "pillow": decode_with_pillow,
    "digests": digest,
    "both": decode_and_digest,
}


def main() -> None:
    work, images, threads = sys.argv[1:]
    paths = sorted(Path(images).iterdir())
    started_s = time.monotonic()
    with ThreadPoolExecutor(max_workers=int(threads)) as executor:
        for _ in executor.map(WORK[work], paths):
            pass
    print(json.dumps({"images_per_s": len(paths) / (time.monotonic() - started_s)}))


if __name__ == "__main__":
    main()
