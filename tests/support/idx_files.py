"""Writes MNIST's idx files with NumPy."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt


def idx_bytes(values: npt.NDArray[np.uint8]) -> bytes:
    """Returns a file of bytes in one or three dimensions."""
    header = struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape)
    return header + values.tobytes()


def write_idx(folder: Path, *, of_set: str = "", packed: bool = False) -> dict[str, bytes]:
    """Writes a set of noise, 30 images of train and 12 of test with 5 rows of 7 pixels.

    Image i has the label i modulo 10.

    Returns:
        `{name of a file: its content, which is not compressed}`
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, count in (("train", 30), ("t10k", 12)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 5, 7), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            file = f"{of_set}{name}-{kind}-ubyte"
            written[file] = idx_bytes(values)
            data = gzip.compress(written[file]) if packed else written[file]
            (folder / (f"{file}.gz" if packed else file)).write_bytes(data)
    return written
