"""Traces the outline of a mask as one polygon, from which the same pixels can be drawn.

The corners of the polygon are those of pixels, so that no pixel is lost by rounding. Pixels that
touch at a corner belong to one part, because that leaves the fewest parts. YOLO has one polygon for
an object: further parts, and holes, are joined to it by pairs of equal lines, which enclose no
pixel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.examples.geometry.mask_crops import MaskCrop

# The most points of an outline that parts and holes are joined to.
MAX_JOINED_POINTS = 20_000

# (points, 2): x and y.
Ring: TypeAlias = npt.NDArray[np.int64]


def trace_outline(crop: MaskCrop) -> tuple[Ring, int]:
    """Returns the outline of a mask, and how many of its parts and holes are not in it.

    Args:
        crop: The mask, with a pixel that is not 0 in each column and row at its border.
    """
    outline, *others = sorted(_trace_rings(crop.pixels), key=_area, reverse=True)
    left_out = 0
    for ring in others:
        if len(outline) + len(ring) > MAX_JOINED_POINTS:
            left_out += 1
            continue
        near = 0
        for _ in range(2):
            joint = _nearest(outline, ring[near])
            near = _nearest(ring, outline[joint])
        parts = outline[: joint + 1], ring[near:], ring[: near + 1], outline[joint:]
        outline = np.concatenate(parts)
    return outline + np.array((crop.left, crop.top)), left_out


def _nearest(ring: Ring, point: Ring) -> int:
    return int(((ring - point) ** 2).sum(axis=1).argmin())


def _area(ring: Ring) -> int:
    """Returns the area inside of a ring whose lines are horizontal and vertical in turn."""
    xs, ys = ring[::2].T
    return abs(int((xs * (ys - np.roll(ys, 1))).sum()))


def _trace_rings(pixels: npt.NDArray[np.uint8]) -> Iterator[Ring]:
    """Yields the corners of each part and each hole, in order around it.

    A corner of a ring lies where one or three of four pixels are set. Where two are that touch at a
    corner, two corners lie at one place. The corners in a row are the ends of horizontal lines, two
    and two, and those in a column the ends of vertical ones.
    """
    padded = np.pad(pixels != 0, 1)
    above, below = padded[:-1], padded[1:]
    falling = above[:, :-1] & below[:, 1:] & ~(above[:, 1:] | below[:, :-1])
    rising = above[:, 1:] & below[:, :-1] & ~(above[:, :-1] | below[:, 1:])
    is_odd = above[:, :-1] ^ above[:, 1:] ^ below[:, :-1] ^ below[:, 1:]
    ys, xs = np.nonzero(is_odd | falling | rising)
    copies = np.where(is_odd[ys, xs], 1, 2)
    is_falling = np.repeat(falling[ys, xs], copies)
    ys, xs = np.repeat(ys, copies), np.repeat(xs, copies)
    # Of two corners at one place, the first ends the line from the left. Of its column's lines, it
    # ends the one from above if the pixels rise, so that the two pixels are in one ring.
    order = np.lexsort((np.arange(len(xs)) * np.where(is_falling, -1, 1), ys, xs))
    beside = np.arange(len(xs)) ^ 1
    across = np.empty_like(order)
    across[order] = order[beside]
    points = np.stack([xs, ys], axis=1)
    to_side, up_or_down = beside.tolist(), across.tolist()
    is_done = bytearray(len(xs))
    for start in range(len(xs)):
        if is_done[start]:
            continue
        ring = []
        corner = start
        while not is_done[corner]:
            for other in (corner, to_side[corner]):
                is_done[other] = True
                ring.append(other)
            corner = up_or_down[other]
        yield points[ring]
