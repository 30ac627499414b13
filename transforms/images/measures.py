"""What is computed from an image's pixels, on the threads that check and encode it.

A measure is a row in `MEASURES`. Its values travel with the stored image, and a shard's index keeps
them: in a column of their own, or among the findings. A new row needs nothing else: `measures`
(`MeasuresCollector`) counts the shards of older versions again.

The difference hash is nearly the same for images that look nearly the same.
It is the difference hash of N. Krawetz, "Kind of Like That" (2013),
https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html: the gray image
is averaged to 9 x 8 cells, and each bit is 1 if a cell is brighter than the one to its left. Size,
compression and brightness change few of the 64 bits; crops, turns and mirror images change most.
Hashes of parts of an image (`image.crop_hashes`) are nearly the same as those of its crops.

Two things differ from the original. A cell must be brighter by at least a third of the mean
difference between neighbours: smaller differences would depend on the noise of JPEG. And not every
pixel of a large image is computed: a JPEG file holds the mean of each block of 8 x 8 pixels, and
of other files only some pixels are used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.images.convert import apply_orientation

DARK_PICTURE = "dark_picture"
BRIGHT_PICTURE = "bright_picture"
LOW_CONTRAST = "low_contrast"

# The cells of the difference hash.
_ROWS, _COLUMNS = 8, 9
_BITS = _ROWS * (_COLUMNS - 1)
# A difference counts if it is at least the mean difference divided by this.
_PARTS_OF_MEAN = 3
# A image is flat if the mean difference of neighbours (in gray levels of 0 to 255) is below the
# first number, or if fewer neighbours than the second differ. Flat images have no hash: all of
# their hashes would be alike.
_LEAST_MEAN = 1
_FEWEST_DIFFERENCES = 16
# The crops whose hashes are kept leave out 1 to 5 of 40 parts at each of the four sides, and the
# image as a whole none.
_CROPS, _WHOLE, _PARTS_OF_SIDE = (1, 2, 3, 4, 5), (0,), 40
# JPEG images are reduced to their blocks if their shorter side has at least this many pixels.
_BLOCK_PX, _SMALLEST_REDUCED_PX = 8, 256
# From this EXIF orientation on, rows and columns are exchanged.
_FIRST_TURNED = 5

# Gray levels of 0 to 255: the first and the 99th of a hundred pixels, from dark to bright.
_DARK_BELOW, _BRIGHT_ABOVE, _CONTRAST_BELOW = 64, 200, 32
# About this many pixels are used for the levels of gray; more do not change them.
_LEVEL_SAMPLES = 4096
# At least this many rows and columns of a cell of the hash are used; more take time without
# changing it.
_CELL_SAMPLES = 16

# Settings that turn no further measure on.
_ALWAYS = ImageConfig()


class GrayImage(msgspec.Struct, frozen=True, dict=True):
    """An image in gray, perhaps reduced, as it is measured.

    Attributes:
        pixels: The pixels, (height, width), reduced by `scale`; at least one.
        size: Width and height of the image before it was reduced.
        scale: Each of `pixels` is the mean of a square of this many pixels a side. The last one of
            a row or column may reach beyond the image's border.
        orientation: The EXIF orientation that turns it upright.
    """

    pixels: npt.NDArray[np.uint8]
    size: tuple[int, int]
    scale: int = 1
    orientation: int = 1

    @functools.cached_property
    def levels(self) -> tuple[int, int]:
        """The gray levels of the 1st and the 99th of a hundred pixels, from dark to bright.

        Of many pixels only some in regular distances are used.
        """
        step = max(1, math.isqrt(self.pixels.size // _LEVEL_SAMPLES))
        # The stable sort of 8-bit numbers is a radix sort, which takes the least time.
        ordered = np.sort(self.pixels[::step, ::step], axis=None, kind="stable")
        return int(ordered[(ordered.size - 1) // 100]), int(ordered[(99 * ordered.size - 1) // 100])


class Measure(NamedTuple):
    """Something that is computed from the pixels of each decoded image.

    Attributes:
        name: Its stable name, also of its column in the index.
        version: Increased whenever it gives other values, so that reused shards are measured again.
        measure: Measures an image; None if it has no value.
        column: The pyarrow type of its column in the index; empty for a kind of finding, whose
            value is the finding's strength.
        setting: The key of `image` that turns it on; empty if it is always measured.
    """

    name: str
    version: int
    measure: Callable[[GrayImage], int | list[int] | None]
    column: str = ""
    setting: str = ""


def jpeg_scale(width: int, height: int) -> int:
    """Returns the factor by which a JPEG image of this size is reduced to be hashed: 8, or 1."""
    return _BLOCK_PX if min(width, height) >= _SMALLEST_REDUCED_PX else 1


def difference_hash(image: GrayImage) -> int | None:
    """Hashes an image to 64 bits, row by row; the highest bit is the upper left corner's.

    Only integers are used, so that the hash is the same on every machine.

    Returns:
        The hash of the image after it is turned upright; None for a flat image, or one of a few
        pixels.
    """
    (found,) = _hash_parts(image, _WHOLE, cell_px=1)
    return found


def hash_crops(image: GrayImage) -> list[int] | None:
    """Hashes five crops from the centre of an image, with 95 to 75 % of each side.

    Returns:
        The difference hash of each crop, from the largest to the smallest, without those of flat
        crops; None if there are none.
    """
    return [each for each in _hash_parts(image, _CROPS, cell_px=2) if each is not None] or None


def _hash_parts(image: GrayImage, crops: tuple[int, ...], *, cell_px: int) -> list[int | None]:
    """Hashes crops from the centre of an image.

    Args:
        image: The image.
        crops: How many of 40 parts each crop leaves out at each side.
        cell_px: The least side of a cell of the whole image, in pixels; smaller images have no
            hashes.
    """
    (width, height), is_turned = image.size, image.orientation >= _FIRST_TURNED
    columns, rows = (_ROWS, _COLUMNS) if is_turned else (_COLUMNS, _ROWS)
    if width < cell_px * columns or height < cell_px * rows:
        return [None] * len(crops)
    strips = np.diff(_sum_up_to(image.pixels, _find_edges(crops, columns, width, image.scale)))
    edges = _find_edges(crops, rows, height, image.scale)
    # For each row of cells a sum up to its edge, of each strip of each crop.
    sums = _sum_up_to(strips.reshape(len(strips), -1).T, edges)
    sums = sums.reshape(len(crops), columns, len(crops), rows + 1)
    hashes = []
    for number, parts in enumerate(crops):
        cells = np.diff(sums[number, :, number]).T
        # The sums are multiplied by the units of both edges: a mean of 1 gives this much.
        area = width * height * (_PARTS_OF_SIDE - 2 * parts) ** 2
        hashes.append(_hash_cells(cells, area=area, orientation=image.orientation))
    return hashes


def _hash_cells(cells: npt.NDArray[np.int64], *, area: int, orientation: int) -> int | None:
    """Hashes the sums of cells; None if they differ little.

    Args:
        cells: A sum for each cell, of the stored image.
        area: What the sum of a cell would be if its mean was one gray level.
        orientation: The EXIF orientation that turns the image upright.
    """
    if orientation != 1:
        places = np.arange(cells.size, dtype=np.uint8).reshape(cells.shape)
        turned = apply_orientation(Image.fromarray(places), orientation)
        cells = cells.ravel()[np.asarray(turned)]
    differences = np.diff(cells)
    total = np.abs(differences).sum()
    brighter = _PARTS_OF_MEAN * _BITS * differences >= total
    differs = _PARTS_OF_MEAN * _BITS * np.abs(differences) >= total
    if total < _LEAST_MEAN * _BITS * area or differs.sum() < _FEWEST_DIFFERENCES:
        return None
    return int.from_bytes(np.packbits(brighter).tobytes(), "big")


class _Edges(NamedTuple):
    """Places within rows of squares, in small units.

    Attributes:
        side: The side of a square in these units.
        first: The number of the square in which each edge is, (crops, edges).
        part: How far each edge is within its square.
        places: The numbers in `first`, each once and in order.
        inverse: Where those of `first` are in `places`.
    """

    side: int
    first: npt.NDArray[np.int64]
    part: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    inverse: npt.NDArray[np.intp]


@functools.lru_cache(maxsize=1024)
def _find_edges(crops: tuple[int, ...], number: int, length: int, scale: int) -> _Edges:
    """Returns the edges of the cells of each crop, in units of 1 / (40 number) of a pixel.

    Args:
        crops: How many of 40 parts each crop leaves out at each side.
        number: The number of cells of a crop.
        length: The length of a row in pixels.
        scale: The side of a square in pixels.
    """
    left_out = np.array(crops)[:, np.newaxis]
    inner = np.arange(number + 1) * (_PARTS_OF_SIDE - 2 * left_out)
    side = scale * _PARTS_OF_SIDE * number
    edges = length * (number * left_out + inner)
    # The end of a row is in its last square.
    first = np.minimum(edges // side, (length - 1) // scale)
    places, inverse = np.unique(first, return_inverse=True)
    return _Edges(side, first, edges - first * side, places, inverse.reshape(first.shape))


def _sum_up_to(squares: npt.NDArray[np.integer], edges: _Edges) -> npt.NDArray[np.int64]:
    """Sums rows of squares from a common place up to each edge: (rows, crops, edges)."""
    dtype = np.promote_types(squares.dtype, np.uint32)
    sums = np.add.reduceat(squares, edges.places, axis=1, dtype=dtype).astype(np.int64)
    before = np.cumsum(sums, axis=1) - sums
    result: npt.NDArray[np.int64] = edges.side * before[:, edges.inverse]
    result += edges.part * squares[:, edges.first]
    return result


def _darkness(image: GrayImage) -> int | None:
    _, high = image.levels
    return 255 - high if high < _DARK_BELOW else None


def _brightness(image: GrayImage) -> int | None:
    low, _ = image.levels
    return low if low > _BRIGHT_ABOVE else None


def _flatness(image: GrayImage) -> int | None:
    low, high = image.levels
    return 255 - (high - low) if high - low < _CONTRAST_BELOW else None


# Columns follow the older ones of the index in this order.
MEASURES = (
    Measure("dhash", 2, difference_hash, column="uint64"),
    Measure(DARK_PICTURE, 1, _darkness),
    Measure(BRIGHT_PICTURE, 1, _brightness),
    Measure(LOW_CONTRAST, 1, _flatness),
    Measure("crop_hashes", 1, hash_crops, column="list", setting="crop_hashes"),
)
# The kinds of findings among them.
PICTURE_KINDS = tuple(each.name for each in MEASURES if not each.column)
# Differs whenever images have to be measured again.
MEASURES_VERSION = " ".join(f"{each.name} {each.version}" for each in MEASURES)


def measure_pixels(image: GrayImage, *, settings: ImageConfig = _ALWAYS) -> Mapping[str, Any]:
    """Returns `{measure: value}` of an image, without measures that have no value."""
    values = (
        (each.name, each.measure(image))
        for each in MEASURES
        if not each.setting or getattr(settings, each.setting)
    )
    return {name: value for name, value in values if value is not None}


def measure_image(
    image: Image.Image, *, settings: ImageConfig = _ALWAYS, orientation: int = 1
) -> Mapping[str, Any]:
    """Measures an image of any mode, of a large one only some pixels.

    Args:
        image: The image.
        settings: What is measured.
        orientation: The EXIF orientation that turns it upright.
    """
    width, height = image.size
    step = max(1, min(width // _COLUMNS, height // _ROWS) // _CELL_SAMPLES)
    # Pillow's other ways to pick pixels limit the size of the image.
    sampled = image.resize(
        (math.ceil(width / step), math.ceil(height / step)), Image.Resampling.NEAREST
    )
    pixels = np.asarray(sampled.convert("L"))
    gray = GrayImage(pixels, size=sampled.size, orientation=orientation)
    return measure_pixels(gray, settings=settings)
