from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardbeam.transforms.examples.geometry.boxes import (
    Box,
    box_around,
    clip_box,
    turn_box,
    turn_points,
)
from shardbeam.transforms.examples.geometry.orientation import (
    orient_box,
    orient_points,
    orient_size,
)

Size = tuple[int, int]

ORIENTATIONS = range(1, 9)
sides = st.integers(1, 12)


def painted(size: Size, box: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """Paints the part of a box that lies in the image: the brute force behind the oracles."""
    pixels = np.zeros((size[1], size[0]), np.uint8)
    for row in range(size[1]):
        for column in range(size[0]):
            pixels[row, column] = box[0] <= column < box[2] and box[1] <= row < box[3]
    return pixels


def bounds(pixels: NDArray[np.uint8]) -> Box | None:
    rows, columns = np.nonzero(pixels)
    if not rows.size:
        return None
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def turned_by_pillow(pixels: NDArray[np.uint8], *, orientation: int) -> NDArray[np.uint8]:
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


@st.composite
def boxes_inside(draw: st.DrawFn) -> tuple[Size, tuple[int, int, int, int]]:
    width, height = draw(sides), draw(sides)
    xmin, ymin = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    xmax, ymax = draw(st.integers(xmin + 1, width)), draw(st.integers(ymin + 1, height))
    return (width, height), (xmin, ymin, xmax, ymax)


@given(boxes_inside(), st.sampled_from(ORIENTATIONS))
def test_box_follows_the_pixels(
    case: tuple[Size, tuple[int, int, int, int]], orientation: int
) -> None:
    (width, height), box = case
    upright = turned_by_pillow(painted((width, height), box), orientation=orientation)
    assert orient_size((width, height), orientation=orientation) == upright.shape[::-1]
    assert orient_box(box, width=width, height=height, orientation=orientation) == bounds(upright)


@given(sides, sides, st.data(), st.sampled_from(ORIENTATIONS))
def test_points_follow_the_pixels(
    width: int, height: int, data: st.DataObject, orientation: int
) -> None:
    column, row = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    pixels = painted((width, height), (column, row, column + 1, row + 1))
    upright = turned_by_pillow(pixels, orientation=orientation)
    [[upright_row, upright_column]] = np.argwhere(upright)
    [point] = orient_points(
        [(column + 0.5, row + 0.5)], width=width, height=height, orientation=orientation
    )
    assert point == (upright_column + 0.5, upright_row + 0.5)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_negative_sides_stay_negative(orientation: int) -> None:
    xmin, ymin, xmax, ymax = orient_box((5, 6, 3, 2), width=10, height=20, orientation=orientation)
    assert sorted([xmax - xmin, ymax - ymin]) == [-4, -2]


@given(sides, sides, st.tuples(*[st.integers(-15, 25)] * 4))
def test_clipping_matches_painting(width: int, height: int, box: tuple[int, int, int, int]) -> None:
    clipped = clip_box(box, width=width, height=height)
    expected = bounds(painted((width, height), box))
    assert clipped == expected
    assert (clipped is box) == (expected == box)


@given(sides, sides, st.tuples(*[st.floats(-20, 20)] * 4))
def test_clipped_boxes_have_an_area_in_float32(
    width: int, height: int, box: tuple[float, float, float, float]
) -> None:
    clipped = clip_box(box, width=width, height=height)
    if clipped is not None:
        xmin, ymin, xmax, ymax = clipped
        fractions = (xmin / width, ymin / height, xmax / width, ymax / height)
        xmin, ymin, xmax, ymax = struct.unpack("4f", struct.pack("4f", *fractions))
        assert 0 <= xmin < xmax <= 1
        assert 0 <= ymin < ymax <= 1


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_box_that_is_not_finite_has_no_area(position: int, value: float) -> None:
    corners = [1.0, 2.0, 3.0, 4.0]
    corners[position] = value
    assert clip_box((corners[0], corners[1], corners[2], corners[3]), width=9, height=9) is None


def test_a_box_thinner_than_float32_tells_apart_has_no_area() -> None:
    assert clip_box((9.0, 0.0, 9.0 + 1e-9, 5.0), width=10, height=10) is None


def test_the_box_around_points_ends_at_the_outermost_of_them() -> None:
    assert box_around((5, 20, 3, 30, 9, 25)) == (3, 20, 9, 30)


def test_a_positive_angle_turns_clockwise_as_one_sees_the_image() -> None:
    # From the right of the centre over below it to its left.
    turns = [turn_points([(12, 20)], center=(10, 20), angle=math.pi / 2 * n) for n in range(4)]
    assert turns == [pytest.approx(point) for point in ([12, 20], [10, 22], [8, 20], [10, 18])]


@given(st.tuples(*[st.integers(-20, 20)] * 4), st.floats(-7, 7))
def test_turning_keeps_all_distances(box: tuple[int, int, int, int], angle: float) -> None:
    points = [(float(box[0]), float(box[1])), (float(box[2]), float(box[3]))]
    turned = turn_points(points, center=(3.5, -2.5), angle=angle)
    first, second = turned[:2], turned[2:]
    assert math.dist(first, second) == pytest.approx(math.dist(*points), abs=1e-9)
    assert math.dist(first, (3.5, -2.5)) == pytest.approx(math.dist(points[0], (3.5, -2.5)))


def test_a_box_is_turned_around_its_centre() -> None:
    quarter = turn_box((10, 20, 16, 22), angle=math.pi / 2)
    assert quarter == pytest.approx([14, 18, 14, 24, 12, 24, 12, 18])


@pytest.mark.parametrize("line", [(10, 20, 10, 26), (10, 20, 18, 20)])
def test_a_box_without_area_gets_none_by_a_turn(line: Box) -> None:
    assert box_around(turn_box(line, angle=0.5)) == line
