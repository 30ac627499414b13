"""Boxes and points: turning them, and clipping boxes to their images.

Coordinates are continuous. The origin is the top left corner of the image, and the pixel in row `r`
and column `c` covers `[c, c + 1] x [r, r + 1]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

# (xmin, ymin, xmax, ymax), (x, y) and (width, height), all in pixels.
Box: TypeAlias = tuple[float, float, float, float]
Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[int, int]
# Smaller fractions of the image's side may vanish in float32, the type of numbers in Examples.
_MIN_RELATIVE_SIDE = 2.0**-23


def box_around(coordinates: Sequence[float]) -> Box:
    """Returns the smallest box around some points, `x, y, …`."""
    xs, ys = coordinates[0::2], coordinates[1::2]
    return min(xs), min(ys), max(xs), max(ys)


def turn_points(
    points: Iterable[tuple[float, float]], *, center: tuple[float, float], angle: float
) -> list[float]:
    """Turns points around a centre, clockwise as one sees the image; returns `x, y, …`.

    Args:
        points: The points.
        center: The centre.
        angle: The angle in radians.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    turned: list[float] = []
    for x, y in points:
        across, down = x - center[0], y - center[1]
        turned += (
            center[0] + across * cosine - down * sine,
            center[1] + across * sine + down * cosine,
        )
    return turned


def turn_box(box: Box, *, angle: float) -> list[float]:
    """Turns a box around its centre like `turn_points`; returns its corners, `x, y, …`.

    A box with a side of 0 stays as it is: the box around a turned line would have an area.
    """
    xmin, ymin, xmax, ymax = box
    if xmin == xmax or ymin == ymax:
        angle = 0.0
    corners = [(xmin, ymin), (xmax, ymin), (xmax, ymax), (xmin, ymax)]
    return turn_points(corners, center=((xmin + xmax) / 2, (ymin + ymax) / 2), angle=angle)


def clip_box(box: Box, *, width: int, height: int) -> Box | None:
    """Clips a box to the image.

    Args:
        box: The box, in the image's frame.
        width: Width of the image in pixels.
        height: Height of the image in pixels.

    Returns:
        The clipped box, which is `box` itself if that lies in the image; None if no area is left. A
        box also has no area if a coordinate is not finite, or if a side as a fraction of the image
        vanishes in float32.
    """
    xmin, ymin, xmax, ymax = box
    if not (xmin >= 0 and ymin >= 0 and xmax <= width and ymax <= height):
        if not all(map(math.isfinite, box)):
            return None
        box = max(xmin, 0.0), max(ymin, 0.0), min(xmax, width), min(ymax, height)
        xmin, ymin, xmax, ymax = box
    if xmax - xmin < width * _MIN_RELATIVE_SIDE or ymax - ymin < height * _MIN_RELATIVE_SIDE:
        return None
    return box


def overhang(box: Box, *, size: Size) -> float:
    """Returns by how many pixels a box leaves an image; negative if it lies inside."""
    xmin, ymin, xmax, ymax = box
    width, height = size
    return max(-xmin, -ymin, xmax - width, ymax - height)
