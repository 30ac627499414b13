"""Masks as the part of them that is not empty, since most of a mask is empty."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.examples.geometry.boxes import Box, Size

_Pixel = TypeVar("_Pixel", bound=np.generic)


class Patch(NamedTuple):
    """The part of a mask that is not empty.

    Attributes:
        pixels: 0 and 1, (height, width), uint8.
        left: Its first column in the whole mask.
        top: Its first row in the whole mask.
    """

    pixels: npt.NDArray[np.uint8]
    left: int
    top: int

    @property
    def box(self) -> Box:
        """`(xmin, ymin, xmax, ymax)` of the part in pixels of the whole mask."""
        height, width = self.pixels.shape
        return self.left, self.top, self.left + width, self.top + height

    def transposed(self) -> Patch:
        """Returns the part with rows and columns exchanged."""
        return Patch(self.pixels.T, left=self.top, top=self.left)

    def whole(self, *, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Returns the mask, as far as it lies inside `width` x `height` pixels."""
        mask = np.zeros((height, width), np.uint8)
        window = mask[self.top :, self.left :]
        rows, columns = window.shape
        part = self.pixels[:rows, :columns]
        window[: part.shape[0], : part.shape[1]] = part
        return mask


def find_patch(mask: npt.NDArray[np.uint8]) -> Patch | None:
    """Finds the part of a mask of 0 and 1, (height, width), that is not 0; None if all is 0."""
    (rows,) = np.nonzero(mask.any(axis=1))
    if not rows.size:
        return None
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    (columns,) = np.nonzero(mask[top:bottom].any(axis=0))
    left, right = int(columns[0]), int(columns[-1]) + 1
    return Patch(mask[top:bottom, left:right], left=left, top=top)


def resize_nearest(pixels: npt.NDArray[_Pixel], *, size: Size) -> npt.NDArray[_Pixel]:
    """Resizes to `size`, (width, height): each new pixel is the old one at its centre."""
    height, width = pixels.shape
    new_width, new_height = size
    if (width, height) == size:
        return pixels
    rows = (2 * np.arange(new_height) + 1) * height // (2 * new_height)
    columns = (2 * np.arange(new_width) + 1) * width // (2 * new_width)
    return pixels[rows[:, np.newaxis], columns]


def overlap_area(box: Box, other: Box) -> float:
    """Returns the area that two boxes share."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


def box_iou(box: Box, other: Box) -> float:
    """Returns the intersection over union of two boxes; 0 if neither has an area."""
    shared = overlap_area(box, other)
    union = _area(box) + _area(other) - shared
    return shared / union if union > 0 else 0.0


def _area(box: Box) -> float:
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)
