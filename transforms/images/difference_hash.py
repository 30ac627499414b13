"""A hash that is nearly the same for pictures that look nearly the same.

It is the difference hash of N. Krawetz, "Kind of Like That" (2013),
https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html: the gray picture
is averaged to 9 x 8 cells, and each bit is 1 if a cell is brighter than the one to its left. Size,
compression and brightness change few of the 64 bits; crops, turns and mirror images change most.

Two things differ from the original. A cell must be brighter by at least a third of the mean
difference between neighbours: smaller differences would depend on the noise of JPEG. And not every
pixel of a large picture is computed: a JPEG file holds the mean of each block of 8 x 8 pixels, and
of other files only some pixels are used.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.images.convert import apply_orientation

_ROWS, _COLUMNS = 8, 9
SAMPLED_CELLS = _COLUMNS, _ROWS
_BITS = _ROWS * (_COLUMNS - 1)
# A difference counts if it is at least the mean difference divided by this.
_PARTS_OF_MEAN = 3
# A picture is flat if the mean difference of neighbours (in gray levels of 0 to 255) is below the
# first number, or if fewer neighbours than the second differ. Flat pictures have no hash: all of
# their hashes would be alike.
_LEAST_MEAN = 1
_FEWEST_DIFFERENCES = 16
# JPEG pictures are reduced to their blocks if their shorter side has at least this many pixels.
_BLOCK_PX, _SMALLEST_REDUCED_PX = 8, 256
# From this EXIF orientation on, rows and columns are exchanged.
_FIRST_TURNED = 5


def jpeg_scale(width: int, height: int) -> int:
    """Returns the factor by which a JPEG picture of this size is reduced to be hashed: 8, or 1."""
    return _BLOCK_PX if min(width, height) >= _SMALLEST_REDUCED_PX else 1


def difference_hash(
    pixels: npt.NDArray[np.uint8],
    *,
    size: tuple[int, int],
    scale: int = 1,
    orientation: int = 1,
) -> int | None:
    """Hashes a picture to 64 bits, row by row; the highest bit is the upper left corner's.

    Only integers are used, so that the hash is the same on every machine.

    Args:
        pixels: The picture in gray, (height, width), reduced by `scale`.
        size: Width and height of the picture before it was reduced.
        scale: Each of `pixels` is the mean of a square of this many pixels a side. The last one of
            a row or column may reach beyond the picture's border.
        orientation: The EXIF orientation that turns it upright before it is hashed.

    Returns:
        The hash; None for a flat picture, or one of a few pixels.
    """
    width, height = size
    is_turned = orientation >= _FIRST_TURNED
    columns, rows = (_ROWS, _COLUMNS) if is_turned else (_COLUMNS, _ROWS)
    if width < columns or height < rows:
        return None
    cells = _sum_cells(pixels, columns, length=width, scale=scale)
    cells = _sum_cells(cells.T, rows, length=height, scale=scale).T
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


def _sum_cells(
    squares: npt.NDArray[np.integer], number: int, *, length: int, scale: int
) -> npt.NDArray[np.int64]:
    """Sums each row in `number` cells of equal width, which may begin inside a square.

    The sums are multiplied by `number`, so that they are integers.

    Args:
        squares: Rows of values, each the mean of a square.
        number: The number of cells.
        length: The length of a row in pixels.
        scale: The side of a square in pixels; the last one may reach beyond the row's end.
    """
    # In units of 1/number of a pixel, squares and cells have whole sides.
    side = scale * number
    first, part = np.divmod(np.arange(number) * length, side)
    # 32 bits are enough for 8-bit pixels, and several times as fast.
    sums = np.add.reduceat(squares, first, axis=1, dtype=np.promote_types(squares.dtype, np.uint32))
    cells = side * sums.astype(np.int64)
    before = part * squares[:, first]
    cells -= before
    cells[:, :-1] += before[:, 1:]
    beyond = side * squares.shape[1] - length * number
    cells[:, -1] -= beyond * squares[:, -1].astype(np.int64)
    return cells
