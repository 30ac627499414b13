"""Polygons in pictures: clipping, area, and how much of each pixel they cover.

Coordinates are continuous, in pixels, origin at the top left corner: the pixel of column x and
row y reaches from (x, y) to (x + 1, y + 1).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Coverage = npt.NDArray[np.float32]

# Of coordinates, per pixel. Scan lines are as dense, and run halfway between.
_STEPS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patch:
    """Some pixels of a picture.

    Attributes:
        x: Its first column.
        y: Its first row.
        coverage: How much of each pixel is covered, 0 to 1, of shape (rows, columns).
    """

    x: int
    y: int
    coverage: Coverage

    @property
    def window(self) -> tuple[slice, slice]:
        """Where it is in the picture, as a NumPy index."""
        rows, columns = self.coverage.shape
        return slice(self.y, self.y + rows), slice(self.x, self.x + columns)

    @property
    def mask(self) -> Mask:
        """The pixels of which at least half is covered."""
        return self.coverage >= 0.5


def snap(points: Points) -> Points:
    """Rounds coordinates to multiples of 1/8 pixel.

    Binary floating point holds these exactly, and with them the boxes and areas that follow.
    """
    return np.round(points * _STEPS) / _STEPS


def clip_polygon(polygon: Points, *, width: int, height: int) -> Points:
    """Cuts off what lies outside a picture.

    Sutherland and Hodgman, "Reentrant polygon clipping", 1974: where it falls into pieces, they
    stay joined by edges along the border, which have no area.

    Args:
        polygon: Its vertices, of shape (vertices, 2), with `snap`ped coordinates.
        width: Of the picture.
        height: Of the picture.

    Returns:
        The vertices of what is left, `snap`ped; none where nothing is.
    """
    for axis, limit in enumerate((width, height)):
        polygon = _clip_below(polygon, axis=axis, limit=limit)
        # The other border, seen in a mirror.
        polygon = -_clip_below(-polygon, axis=axis, limit=0)
    return snap(polygon)


def _clip_below(polygon: Points, *, axis: int, limit: float) -> Points:
    is_inside = polygon[:, axis] <= limit
    if is_inside.all():
        return polygon
    kept = []
    for i, point in enumerate(polygon):
        if is_inside[i] != is_inside[i - 1]:
            before = polygon[i - 1]
            share = (limit - before[axis]) / (point[axis] - before[axis])
            crossing = before + share * (point - before)
            crossing[axis] = limit
            kept.append(crossing)
        if is_inside[i]:
            kept.append(point)
    return np.array(kept).reshape(-1, 2)


def polygon_area(polygon: Points) -> float:
    """The area in pixels², by the shoelace formula."""
    x, y = polygon.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def polygon_box(polygon: Points) -> tuple[float, float, float, float]:
    """The smallest box around a polygon: `(xmin, ymin, xmax, ymax)`."""
    (xmin, ymin), (xmax, ymax) = polygon.min(axis=0).tolist(), polygon.max(axis=0).tolist()
    return xmin, ymin, xmax, ymax


def cover_polygon(polygon: Points) -> Patch:
    """Finds how much of each pixel a polygon covers: exactly along each of 8 lines in a row.

    On a scan line, an edge that is crossed at x adds the part of each pixel to the right of x,
    with the sign of its direction; the sum over all edges is what lies between them.

    Args:
        polygon: Its vertices, of shape (vertices, 2), not negative, `snap`ped, at least one.
    """
    xmin, ymin, xmax, ymax = polygon_box(polygon)
    left, top = int(xmin), int(ymin)
    columns, rows = int(np.ceil(xmax)) - left, int(np.ceil(ymax)) - top
    x0, y0 = (polygon - (left, top)).T
    x1, y1 = np.roll(x0, -1), np.roll(y0, -1)
    # No vertex is on a line.
    lines = (np.arange(rows * _STEPS) + 0.5) / _STEPS
    edge, line = np.nonzero((y0[:, np.newaxis] < lines) != (y1[:, np.newaxis] < lines))
    share = (lines[line] - y0[edge]) / (y1 - y0)[edge]
    x = x0[edge] + share * (x1 - x0)[edge]
    column = x.astype(np.intp)
    to_the_right = column + 1 - x
    sign = np.where(y1 > y0, 1, -1)[edge]
    # An edge on the right border falls into a column more, and the rest of its pixel into another.
    changes = np.zeros((rows, columns + 2))
    np.add.at(changes, (line // _STEPS, column), sign * to_the_right)
    np.add.at(changes, (line // _STEPS, column + 1), sign * (1 - to_the_right))
    coverage = np.abs(changes.cumsum(axis=1)[:, :columns]) / _STEPS
    return Patch(x=left, y=top, coverage=coverage.astype(np.float32))


def join_patches(patches: list[Patch]) -> Patch:
    """Joins patches of one picture into one; where they overlap, the greatest coverage counts."""
    x = min(patch.x for patch in patches)
    y = min(patch.y for patch in patches)
    ends = [(patch.window[0].stop, patch.window[1].stop) for patch in patches]
    rows, columns = (max(end) for end in zip(*ends, strict=True))
    coverage = np.zeros((rows - y, columns - x), np.float32)
    for patch in patches:
        height, width = patch.coverage.shape
        part = coverage[patch.y - y :, patch.x - x :][:height, :width]
        np.maximum(part, patch.coverage, out=part)
    return Patch(x=x, y=y, coverage=coverage)
