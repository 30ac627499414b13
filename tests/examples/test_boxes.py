from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.boxes import (
    AnnotatedAs,
    Box,
    annotated_frame,
    clip_box,
    orient_box,
    orient_points,
    orient_size,
)

ORIENTATIONS = range(1, 9)
sides = st.integers(1, 12)


def painted(size: tuple[int, int], box: tuple[int, int, int, int]) -> NDArray[np.uint8]:
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
def boxes_inside(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    width, height = draw(sides), draw(sides)
    xmin, ymin = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    xmax, ymax = draw(st.integers(xmin + 1, width)), draw(st.integers(ymin + 1, height))
    return (width, height), (xmin, ymin, xmax, ymax)


@given(boxes_inside(), st.sampled_from(ORIENTATIONS))
def test_box_follows_the_pixels(
    case: tuple[tuple[int, int], tuple[int, int, int, int]], orientation: int
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
    if expected is None:
        assert clipped is None
    else:
        assert clipped == (expected, expected != box)


@given(sides, sides, st.tuples(*[st.floats(-20, 20)] * 4))
def test_clipped_boxes_have_an_area_in_float32(
    width: int, height: int, box: tuple[float, float, float, float]
) -> None:
    clipped = clip_box(box, width=width, height=height)
    if clipped is not None:
        (xmin, ymin, xmax, ymax), _ = clipped
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


# (annotated size, stored size, orientation, upright, annotated as) → frame, turn, corrected.
FRAMES: list[
    tuple[tuple[int, int], tuple[int, int], int, bool, AnnotatedAs, tuple[int, int], int, bool]
] = [
    # Nothing to turn.
    ((40, 30), (40, 30), 1, True, "auto", (40, 30), 1, False),
    ((0, 0), (40, 30), 1, True, "auto", (40, 30), 1, False),
    # The annotated size tells.
    ((30, 40), (40, 30), 6, True, "auto", (30, 40), 1, False),
    ((40, 30), (40, 30), 6, True, "auto", (40, 30), 6, False),
    ((40, 30), (40, 30), 5, True, "auto", (40, 30), 5, False),
    # It cannot: unknown, half known, the same either way, square.
    ((0, 0), (40, 30), 8, True, "auto", (30, 40), 1, False),
    ((40, 0), (40, 30), 8, True, "auto", (30, 40), 1, False),
    ((40, 30), (40, 30), 3, True, "auto", (40, 30), 1, False),
    ((30, 30), (30, 30), 6, True, "auto", (30, 30), 1, False),
    # The config tells.
    ((40, 30), (40, 30), 3, True, "stored", (40, 30), 3, False),
    ((30, 30), (30, 30), 6, True, "stored", (30, 30), 6, False),
    ((0, 0), (40, 30), 6, True, "stored", (40, 30), 6, False),
    ((40, 30), (40, 30), 6, True, "upright", (30, 40), 1, True),
    # The written image is as stored: upright boxes are turned back.
    ((30, 40), (40, 30), 6, False, "auto", (30, 40), 8, False),
    ((30, 40), (40, 30), 8, False, "auto", (30, 40), 6, False),
    ((30, 40), (40, 30), 5, False, "auto", (30, 40), 5, False),
    ((40, 30), (40, 30), 3, False, "auto", (40, 30), 3, False),
    ((40, 30), (40, 30), 6, False, "auto", (40, 30), 1, False),
    ((40, 30), (40, 30), 3, False, "stored", (40, 30), 1, False),
    # A wrong size, which the boxes do not contradict.
    ((41, 30), (40, 30), 1, True, "auto", (40, 30), 1, True),
    ((99, 99), (40, 30), 6, True, "auto", (30, 40), 1, True),
    ((99, 99), (40, 30), 6, True, "stored", (40, 30), 6, True),
]


@pytest.mark.parametrize(
    (
        "annotated",
        "stored",
        "orientation",
        "upright",
        "annotated_as",
        "size",
        "turn",
        "corrected",
    ),
    FRAMES,
)
def test_frame(
    annotated: tuple[int, int],
    stored: tuple[int, int],
    orientation: int,
    upright: bool,
    annotated_as: AnnotatedAs,
    size: tuple[int, int],
    turn: int,
    corrected: bool,
) -> None:
    frame = annotated_frame(
        annotated=annotated,
        stored=stored,
        orientation=orientation,
        upright=upright,
        annotated_as=annotated_as,
        boxes=[(-1, -1, size[0] + 1, size[1] + 1)],
    )
    assert frame == (*size, turn, corrected)
    assert frame.written_size == (
        orient_size(stored, orientation=orientation) if upright else stored
    )


@given(boxes_inside(), st.sampled_from(ORIENTATIONS))
def test_boxes_end_in_the_stored_frame_where_the_orientation_is_kept(
    case: tuple[tuple[int, int], tuple[int, int, int, int]], orientation: int
) -> None:
    (width, height), box = case
    frame = annotated_frame(
        annotated=orient_size((width, height), orientation=orientation),
        stored=(width, height),
        orientation=orientation,
        upright=False,
        annotated_as="upright",
        boxes=[],
    )
    upright_box = orient_box(box, width=width, height=height, orientation=orientation)
    assert frame.place(upright_box) == box


def test_a_wrong_size_is_rejected_where_a_box_contradicts_it() -> None:
    with pytest.raises(RejectedError) as caught:
        annotated_frame(
            annotated=(640, 480),
            stored=(40, 30),
            orientation=6,
            upright=True,
            annotated_as="auto",
            boxes=[(0, 0, 30, 41), (1, 2.5, 40, 39), (-9, 0, 1, 1)],
        )
    assert caught.value.reason is Reason.SIZE_MISMATCH
    assert caught.value.detail == (
        "annotated as 640x480, but the image is 30x40, and the box (1, 2.5, 40, 39) reaches "
        "10 px over its border"
    )
