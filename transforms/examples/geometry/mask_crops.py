"""Masks as the part of them that is not empty, and as run lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.examples.geometry.boxes import Box, Size

_Pixel = TypeVar("_Pixel", bound=np.generic)
# The most groups of a run; with more, the run would be longer than any mask.
_MAX_GROUPS = 8
_FIRST_CHARACTER = 48
_VALUE_BITS, _SIGN_BIT, _MORE_BIT = 0x1F, 0x10, 0x20


class MaskCrop(NamedTuple):
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

    def transposed(self) -> MaskCrop:
        """Returns the part with rows and columns exchanged."""
        return MaskCrop(self.pixels.T, left=self.top, top=self.left)

    def whole(self, *, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Returns the mask, as far as it lies inside `width` x `height` pixels."""
        mask = np.zeros((height, width), np.uint8)
        window = mask[self.top :, self.left :]
        rows, columns = window.shape
        part = self.pixels[:rows, :columns]
        window[: part.shape[0], : part.shape[1]] = part
        return mask


def crop_mask(mask: npt.NDArray[np.uint8]) -> MaskCrop | None:
    """Finds the part of a mask of 0 and 1, (height, width), that is not 0; None if all is 0."""
    (rows,) = np.nonzero(mask.any(axis=1))
    if not rows.size:
        return None
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    (columns,) = np.nonzero(mask[top:bottom].any(axis=0))
    left, right = int(columns[0]), int(columns[-1]) + 1
    return MaskCrop(mask[top:bottom, left:right], left=left, top=top)


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


def read_counts(values: Sequence[float]) -> npt.NDArray[np.int64]:
    """Checks runs that are given as numbers.

    Raises:
        ValueError: A run is negative, too long or not a whole number.
    """
    numbers = np.asarray(values, np.float64)
    # This also refuses NaN, which fails every comparison.
    if not np.all((numbers >= 0) & (numbers < 2**40)) or np.any(numbers % 1):
        raise ValueError("expected whole numbers from 0 up")
    return numbers.astype(np.int64)


def parse_counts(text: bytes) -> npt.NDArray[np.int64]:
    """Decodes runs that are given as pycocotools' text.

    Raises:
        ValueError: The text cannot be decoded.
    """
    groups = np.frombuffer(text, np.uint8).astype(np.int64) - _FIRST_CHARACTER
    if not groups.size:
        return groups
    if groups.min() < 0 or groups.max() >= 2 * _MORE_BIT or groups[-1] & _MORE_BIT:
        raise ValueError("not the characters of runs")
    (ends,) = np.nonzero((groups & _MORE_BIT) == 0)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if lengths.max() > _MAX_GROUPS:
        raise ValueError("a run is longer than any mask")
    shifts = 5 * (np.arange(groups.size) - np.repeat(starts, lengths))
    counts: npt.NDArray[np.int64] = np.add.reduceat((groups & _VALUE_BITS) << shifts, starts)
    counts -= np.where(groups[ends] & _SIGN_BIT, np.int64(1) << (5 * lengths), 0)
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    if counts.min() < 0:
        raise ValueError("a run has a negative length")
    return counts


def crop_runs(counts: npt.NDArray[np.int64], *, height: int) -> MaskCrop | None:
    """Draws the part of a mask that is not empty; None if all of it is.

    Args:
        counts: The runs; none is negative.
        height: The mask's height in pixels.
    """
    first, last = find_ends(counts)
    if not first.size:
        return None
    left, top, right, bottom = find_bounds(first, last, height=height)
    # The runs within the columns from `left` to `right`.
    runs = np.empty(2 * first.size + 1, np.int64)
    runs[0] = first[0] - left * height
    runs[1::2] = last - first + 1
    runs[2:-1:2] = first[1:] - last[:-1] - 1
    runs[-1] = right * height - 1 - last[-1]
    values = np.zeros(runs.size, np.uint8)
    values[1::2] = 1
    columns = np.repeat(values, runs).reshape(-1, height)
    return MaskCrop(columns[:, top:bottom].T, left=left, top=top)


def find_ends(
    counts: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the first and the last pixel of each run of 1."""
    ends = np.cumsum(counts)
    first, last = ends[0::2][: counts.size // 2], ends[1::2] - 1
    drawn = last >= first
    return first[drawn], last[drawn]


def find_bounds(
    first: npt.NDArray[np.int64], last: npt.NDArray[np.int64], *, height: int
) -> tuple[int, int, int, int]:
    """Returns `(left, top, right, bottom)` of the pixels from `first` to `last`, at least one."""
    left, right = int(first[0]) // height, int(last[-1]) // height + 1
    if np.any(first // height != last // height):
        return left, 0, right, height
    return left, int((first % height).min()), right, int((last % height).max()) + 1
