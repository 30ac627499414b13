"""What is computed from an image's pixels, on the threads that check and encode it.

A measure is a row in `MEASURES`. Its values travel with the stored image, and a shard's index keeps
them: in a column of their own, or among the findings. A new row needs nothing else: `measures`
(`dataset.collectors.measures`) counts the shards of older versions again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.images.difference_hash import SAMPLED_CELLS, difference_hash

DARK_PICTURE = "dark_picture"
BRIGHT_PICTURE = "bright_picture"
LOW_CONTRAST = "low_contrast"

# Gray levels of 0 to 255: the first and the 99th of a hundred pixels, from dark to bright.
_DARK_BELOW, _BRIGHT_ABOVE, _CONTRAST_BELOW = 64, 200, 32
# About this many pixels are used for the levels of gray; more do not change them.
_LEVEL_SAMPLES = 4096
# At least this many rows and columns of a cell of the hash are used; more take time without
# changing it.
_CELL_SAMPLES = 16


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
    """

    name: str
    version: int
    measure: Callable[[GrayImage], int | None]
    column: str = ""


def _hash(image: GrayImage) -> int | None:
    return difference_hash(
        image.pixels, size=image.size, scale=image.scale, orientation=image.orientation
    )


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
    Measure("dhash", 2, _hash, column="uint64"),
    Measure(DARK_PICTURE, 1, _darkness),
    Measure(BRIGHT_PICTURE, 1, _brightness),
    Measure(LOW_CONTRAST, 1, _flatness),
)
# The kinds of findings among them.
PICTURE_KINDS = tuple(each.name for each in MEASURES if not each.column)
# Differs whenever images have to be measured again.
MEASURES_VERSION = " ".join(f"{each.name} {each.version}" for each in MEASURES)


def measure_pixels(image: GrayImage) -> Mapping[str, int]:
    """Returns `{measure: value}` of an image, without measures that have no value."""
    values = ((each.name, each.measure(image)) for each in MEASURES)
    return {name: value for name, value in values if value is not None}


def measure_image(image: Image.Image, *, orientation: int = 1) -> Mapping[str, int]:
    """Measures an image of any mode, of a large one only some pixels.

    Args:
        image: The image.
        orientation: The EXIF orientation that turns it upright.
    """
    columns, rows = SAMPLED_CELLS
    width, height = image.size
    step = max(1, min(width // columns, height // rows) // _CELL_SAMPLES)
    # Pillow's other ways to pick pixels limit the size of the image.
    sampled = image.resize(
        (math.ceil(width / step), math.ceil(height / step)), Image.Resampling.NEAREST
    )
    pixels = np.asarray(sampled.convert("L"))
    return measure_pixels(GrayImage(pixels, size=sampled.size, orientation=orientation))
