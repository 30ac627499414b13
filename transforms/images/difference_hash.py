"""A hash that is nearly the same for pictures that look nearly the same.

It is the difference hash of N. Krawetz, "Kind of Like That" (2013),
https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html: the picture in
gray is averaged to 9 x 8 cells, and each bit says whether a cell is brighter than the one to its
left. Size, compression and brightness change few of the 64 bits; crops, turns and mirror images
change most. Other than there, a cell must be brighter by a part of what neighbours differ by on
the average: what differs by less, noise of JPEG would decide.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.images.convert import apply_orientation

_ROWS, _COLUMNS = 8, 9
_BITS = _ROWS * (_COLUMNS - 1)
# A difference counts if it is at least the mean difference over this.
_PARTS_OF_MEAN = 3
# A picture is flat where neighbours differ by less on the average, in gray levels of 0 to 255, or
# where fewer of them differ: others without much in them have nearly the same hash.
_LEAST_MEAN = 1
_FEWEST_DIFFERENCES = 16
# Of an image in colour, so many rows are gray at a time: a whole copy would take memory.
_STRIP_ROWS = 64
# The first EXIF orientation whose rows are columns.
_FIRST_TURNED = 5


def difference_hash(pixels: npt.NDArray[np.uint8], *, orientation: int = 1) -> int | None:
    """Hashes a picture: 64 bits, row by row; the highest is that of the upper left corner.

    It is made of integers alone, so that it is the same on every machine.

    Args:
        pixels: The picture in gray, (height, width).
        orientation: The EXIF orientation that turns it upright: the hash is that of the upright
            picture.

    Returns:
        None where the hash says nothing: of a flat picture, or one of a few pixels.
    """
    return _hash([pixels], size=pixels.shape[::-1], orientation=orientation)


def hash_image(image: Image.Image, *, orientation: int = 1) -> int | None:
    """Hashes an image of any mode; see `difference_hash`."""
    width, height = image.size

    def cut(top: int) -> Image.Image:
        bottom = min(top + _STRIP_ROWS, height)
        # `crop` would refuse large images, by a limit of Pillow's.
        return image.resize(
            (width, bottom - top), Image.Resampling.NEAREST, box=(0, top, width, bottom)
        )

    strips = (cut(top).convert("L") for top in range(0, height, _STRIP_ROWS))
    return _hash(map(np.asarray, strips), size=image.size, orientation=orientation)


def _hash(
    strips: Iterable[npt.NDArray[np.uint8]], *, size: tuple[int, ...], orientation: int
) -> int | None:
    """Hashes a picture that comes in strips of whole rows."""
    width, height = size
    is_turned = orientation >= _FIRST_TURNED
    columns, rows = (_ROWS, _COLUMNS) if is_turned else (_COLUMNS, _ROWS)
    if width < columns or height < rows:
        return None
    across = np.concatenate([_sum_cells(strip, columns) for strip in strips])
    cells = _sum_cells(across.T, rows).T
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
    """Sums each row up by cells of equal width, `number` times: cells may begin inside a pixel."""
    starts = np.arange(number) * pixels.shape[1]
    first, part = starts // number, starts % number
    # In 32 bits where the pixels have 8: several times as fast, and it fits.
    sums = np.add.reduceat(pixels, first, axis=1, dtype=np.promote_types(pixels.dtype, np.uint32))
    cells = number * sums.astype(np.int64)
    before = part * pixels[:, first]
    cells -= before
    cells[:, :-1] += before[:, 1:]
    return cells
