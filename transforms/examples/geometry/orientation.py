"""Applies EXIF orientations to sizes, boxes, points and pixels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.examples.geometry.boxes import Box, Point, Size

_Pixel = TypeVar("_Pixel", bound=np.generic)


class _Turn(NamedTuple):
    """A turn: first exchanges the axes if `transpose`, then mirrors along the new ones."""

    transpose: bool
    mirror_x: bool
    mirror_y: bool


# {EXIF orientation: the turn from stored pixels to the upright image} (EXIF 2.32, tag 0x0112).
_TURNS = {
    1: _Turn(False, False, False),
    2: _Turn(False, True, False),
    3: _Turn(False, True, True),
    4: _Turn(False, False, True),
    5: _Turn(True, False, False),
    6: _Turn(True, True, False),
    7: _Turn(True, True, True),
    8: _Turn(True, False, True),
}
# {orientation: the orientation that undoes it}; all but the two quarter turns undo themselves.
INVERSE_ORIENTATION = {orientation: orientation for orientation in _TURNS} | {6: 8, 8: 6}


def orient_size(size: Size, *, orientation: int) -> Size:
    """Returns the size that an image has after its EXIF orientation is applied."""
    width, height = size
    return (height, width) if _TURNS[orientation].transpose else size


def orient_box(box: Box, *, width: int, height: int, orientation: int) -> Box:
    """Converts a box of the stored image to the upright image.

    Args:
        box: The box; negative sides stay negative.
        width: Width of the stored image in pixels.
        height: Height of the stored image in pixels.
        orientation: The EXIF orientation, 1 to 8.
    """
    turn = _TURNS[orientation]
    xmin, ymin, xmax, ymax = box
    if turn.transpose:
        xmin, ymin, xmax, ymax = ymin, xmin, ymax, xmax
        width, height = height, width
    if turn.mirror_x:
        xmin, xmax = width - xmax, width - xmin
    if turn.mirror_y:
        ymin, ymax = height - ymax, height - ymin
    return xmin, ymin, xmax, ymax


def orient_points(
    points: Iterable[Point], *, width: int, height: int, orientation: int
) -> list[Point]:
    """Converts points of the stored image to the upright image, like `orient_box`."""
    corners = (
        orient_box((x, y, x, y), width=width, height=height, orientation=orientation)
        for x, y in points
    )
    return [(x, y) for x, y, _, _ in corners]


def orient_pixels(pixels: npt.NDArray[_Pixel], *, orientation: int) -> npt.NDArray[_Pixel]:
    """Returns a view of the stored image's pixels, (height, width), as the upright image."""
    turn = _TURNS[orientation]
    if turn.transpose:
        pixels = pixels.T
    if turn.mirror_x:
        pixels = pixels[:, ::-1]
    if turn.mirror_y:
        pixels = pixels[::-1]
    return pixels
