"""COCO's run-length encoding of masks.

Runs of 0 and 1 in turn, the first of 0, column by column from the top left corner: as numbers, or
as the text that pycocotools makes of them, in which each run but the first three is given by its
difference from the last but one, in groups of 5 bits, the least significant first, a character
each (`rleToString` in `maskApi.c`).

Runs are checked here before anything is made of them: pycocotools' own decoders write beyond
their memory, or take what is wrong for huge numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.examples.patches import Patch

# A run that takes more groups is longer than any mask.
_MAX_GROUPS = 8
_FIRST_CHARACTER = 48
_VALUE_BITS, _SIGN_BIT, _MORE_BIT = 0x1F, 0x10, 0x20


def read_counts(values: Sequence[float]) -> npt.NDArray[np.int64]:
    """Checks runs that are given as numbers.

    Raises:
        ValueError: One is negative, too large or no whole number.
    """
    numbers = np.asarray(values, np.float64)
    # NaN is neither.
    if not np.all((numbers >= 0) & (numbers < 2**40)) or np.any(numbers % 1):
        raise ValueError("expected whole numbers from 0 up")
    return numbers.astype(np.int64)


def parse_counts(text: bytes) -> npt.NDArray[np.int64]:
    """Decodes runs that are given as a text.

    Raises:
        ValueError: It is not such a text.
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
        raise ValueError("a run of more bits than a mask can have")
    shifts = 5 * (np.arange(groups.size) - np.repeat(starts, lengths))
    counts: npt.NDArray[np.int64] = np.add.reduceat((groups & _VALUE_BITS) << shifts, starts)
    counts -= np.where(groups[ends] & _SIGN_BIT, np.int64(1) << (5 * lengths), 0)
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    if counts.min() < 0:
        raise ValueError("a run of negative length")
    return counts


def find_patch_in_runs(counts: npt.NDArray[np.int64], *, height: int) -> Patch | None:
    """Draws the part of a mask that is not empty; None where all is.

    Args:
        counts: The runs, none negative.
        height: The mask's height in pixels.
    """
    ends = np.cumsum(counts)
    # Those of 1.
    first, last = ends[0::2][: counts.size // 2], ends[1::2] - 1
    drawn = last >= first
    first, last = first[drawn], last[drawn]
    if not first.size:
        return None
    left, right = int(first[0]) // height, int(last[-1]) // height
    if np.any(first // height != last // height):
        top, bottom = 0, height - 1
    else:
        top, bottom = int((first % height).min()), int((last % height).max())
    # Of the columns from left to right.
    runs = np.empty(2 * first.size + 1, np.int64)
    runs[0] = first[0] - left * height
    runs[1::2] = last - first + 1
    runs[2:-1:2] = first[1:] - last[:-1] - 1
    runs[-1] = (right + 1) * height - 1 - last[-1]
    values = np.zeros(runs.size, np.uint8)
    values[1::2] = 1
    columns = np.repeat(values, runs).reshape(-1, height)
    return Patch(columns[:, top : bottom + 1].T, left=left, top=top)
