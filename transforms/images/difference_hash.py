"""A hash that is nearly the same for pictures that look nearly the same.

It is the difference hash of N. Krawetz, "Kind of Like That" (2013),
https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html: the gray picture
is averaged to 9 x 8 cells, and each bit is 1 if a cell is brighter than the one to its left. Size,
compression and brightness change few of the 64 bits; crops, turns and mirror images change most.

Two things differ from the original. A cell must be brighter by at least a third of the mean
difference between neighbours: smaller differences would depend on the noise of JPEG. And only some
pixels of a large picture are used.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.images.convert import apply_orientation

_ROWS, _COLUMNS = 8, 9
_BITS = _ROWS * (_COLUMNS - 1)
# A difference counts if it is at least the mean difference divided by this.
_PARTS_OF_MEAN = 3
# A picture is flat if the mean difference of neighbours (in gray levels of 0 to 255) is below the
# first number, or if fewer neighbours than the second differ. Flat pictures have no hash: all of
# their hashes would be alike.
_LEAST_MEAN = 1
_FEWEST_DIFFERENCES = 16
# At least this many rows and columns of a cell are used; more take time without changing the hash.
_CELL_SAMPLES = 16
# From this EXIF orientation on, rows and columns are exchanged.
_FIRST_TURNED = 5


def difference_hash(pixels: npt.NDArray[np.uint8], *, orientation: int = 1) -> int | None:
    """Hashes a picture to 64 bits, row by row; the highest bit is the upper left corner's.

    Only integers are used, so that the hash is the same on every machine.

    Args:
        pixels: The picture in gray, (height, width).
        orientation: The EXIF orientation that turns it upright before it is hashed.

    Returns:
        The hash; None for a flat picture, or one of a few pixels.
    """
    step = _step(*pixels.shape[::-1])
    return _hash(pixels[::step, ::step], orientation=orientation)


def hash_image(image: Image.Image, *, orientation: int = 1) -> int | None:
    """Hashes an image of any mode with `difference_hash`."""
    step = _step(*image.size)
    size = [math.ceil(side / step) for side in image.size]
    # Pillow's other ways to pick pixels limit the size of the image.
    sampled = image.resize((size[0], size[1]), Image.Resampling.NEAREST)
    return _hash(np.asarray(sampled.convert("L")), orientation=orientation)


def _step(width: int, height: int) -> int:
    """Returns the step between the pixels that are used, in each direction."""
    return max(1, min(width // _COLUMNS, height // _ROWS) // _CELL_SAMPLES)


def _hash(pixels: npt.NDArray[np.uint8], *, orientation: int) -> int | None:
    is_turned = orientation >= _FIRST_TURNED
    columns, rows = (_ROWS, _COLUMNS) if is_turned else (_COLUMNS, _ROWS)
    height, width = pixels.shape
    if width < columns or height < rows:
        return None
    cells = _sum_cells(_sum_cells(pixels, columns).T, rows).T
    if orientation != 1:
        places = np.arange(cells.size, dtype=np.uint8).reshape(cells.shape)
        turned = apply_orientation(Image.fromarray(places), orientation)
        cells = cells.ravel()[np.asarray(turned)]
    differences = np.diff(cells)
    total = np.abs(differences).sum()
    brighter = _PARTS_OF_MEAN * _BITS * differences >= total
    differs = _PARTS_OF_MEAN * _BITS * np.abs(differences) >= total
    if total < _LEAST_MEAN * _BITS * height * width or differs.sum() < _FEWEST_DIFFERENCES:
        return None
    return int.from_bytes(np.packbits(brighter).tobytes(), "big")


def _sum_cells(pixels: npt.NDArray[np.integer], number: int) -> npt.NDArray[np.int64]:
    """Sums each row in `number` cells of equal width, which may begin inside a pixel.

    The sums are multiplied by `number`, so that they are integers.
    """
    starts = np.arange(number) * pixels.shape[1]
    first, part = starts // number, starts % number
    # 32 bits are enough for 8-bit pixels, and several times as fast.
    sums = np.add.reduceat(pixels, first, axis=1, dtype=np.promote_types(pixels.dtype, np.uint32))
    cells = number * sums.astype(np.int64)
    before = part * pixels[:, first]
    cells -= before
    cells[:, :-1] += before[:, 1:]
    return cells
