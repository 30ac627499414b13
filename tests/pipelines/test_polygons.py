"""Tests of `shardbeam.pipelines.polygons`, against other ways to compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.pipelines.polygons import (
    Patch,
    Points,
    clip_polygon,
    cover_polygon,
    join_patches,
    polygon_area,
    polygon_box,
    snap,
)


@st.composite
def polygons(draw: st.DrawFn, *, centre: float = 60) -> Points:
    """Polygons without crossings, convex or not, about a centre, of at most 50 pixels."""
    number = draw(st.integers(3, 12))
    radii = draw(st.lists(st.floats(10, 50), min_size=number, max_size=number))
    angles = np.linspace(0, 2 * np.pi, number, endpoint=False) + draw(st.floats(0, 1))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return snap(centre + np.array(radii)[:, np.newaxis] * directions)


def whole_picture(patch: Patch, *, width: int, height: int) -> Points:
    coverage = np.zeros((height, width))
    coverage[patch.window] = patch.coverage
    return coverage


@given(polygon=polygons())
def test_coverage_adds_up_to_the_area(polygon: Points) -> None:
    coverage = cover_polygon(polygon).coverage
    assert coverage.sum(dtype=np.float64) == pytest.approx(polygon_area(polygon), rel=1e-5)
    assert coverage.min() >= 0
    assert coverage.max() <= 1 + 1e-6


@given(polygon=polygons())
def test_patch_is_the_smallest_that_holds_the_polygon(polygon: Points) -> None:
    patch = cover_polygon(polygon)
    xmin, ymin, xmax, ymax = polygon_box(polygon)
    rows, columns = patch.window
    assert (columns.start, rows.start) == (np.floor(xmin), np.floor(ymin))
    assert (columns.stop, rows.stop) == (np.ceil(xmax), np.ceil(ymax))


@given(polygon=polygons())
def test_direction_does_not_matter(polygon: Points) -> None:
    there, back = cover_polygon(polygon), cover_polygon(polygon[::-1])
    np.testing.assert_allclose(there.coverage, back.coverage, atol=1e-6)


def test_coverage_of_a_rectangle() -> None:
    patch = cover_polygon(np.array([[1.5, 2.25], [4, 2.25], [4, 4], [1.5, 4]]))
    assert (patch.x, patch.y) == (1, 2)
    np.testing.assert_array_equal(patch.coverage, [[0.375, 0.75, 0.75], [0.5, 1, 1]])
    np.testing.assert_array_equal(patch.mask, [[False, True, True], [True, True, True]])


@given(polygon=polygons(centre=55), width=st.integers(20, 120), height=st.integers(20, 120))
def test_clipping_keeps_what_is_inside(polygon: Points, width: int, height: int) -> None:
    clipped = clip_polygon(polygon, width=width, height=height)
    everything = whole_picture(cover_polygon(polygon), width=120, height=120)
    inside = everything[:height, :width]
    if len(clipped) == 0:
        assert inside.sum() < 1
        return
    assert clipped.min() >= 0
    assert (clipped <= (width, height)).all()
    kept = whole_picture(cover_polygon(clipped), width=width, height=height)
    # Where it meets the border it was rounded by up to 1/16 pixel, all along the edge.
    edges = np.linalg.norm(polygon - np.roll(polygon, 1, axis=0), axis=1).sum()
    assert np.abs(kept - inside).sum() <= edges / 16 + 1


@given(polygon=polygons(centre=0))
def test_clipping_at_the_origin(polygon: Points) -> None:
    clipped = clip_polygon(polygon, width=100, height=100)
    moved = whole_picture(cover_polygon(polygon + 60), width=120, height=120)
    assert clipped.min() >= 0
    assert polygon_area(clipped) == pytest.approx(moved[60:, 60:].sum(), abs=30)


def test_clipping_leaves_what_is_inside_as_it_is() -> None:
    polygon = np.array([[0, 0], [10, 0.125], [4, 8]])
    np.testing.assert_array_equal(clip_polygon(polygon, width=10, height=8), polygon)


def test_clipping_what_lies_outside_leaves_nothing() -> None:
    polygon = np.array([[20.0, 1], [30, 1], [25, 8]])
    assert clip_polygon(polygon, width=10, height=10).shape == (0, 2)


def test_pieces_of_a_clipped_polygon_are_both_covered() -> None:
    # A W, whose middle tip lies outside.
    polygon = np.array([[0.0, 0], [2, 0], [4, 8], [6, 0], [8, 0], [5, 12], [3, 12]]) - (0, 6)
    clipped = clip_polygon(polygon, width=8, height=6)
    assert polygon_area(clipped) == cover_polygon(clipped).coverage.sum()
    assert polygon_box(clipped) == (1.5, 0, 6.5, 6)


def test_snapped_coordinates_are_eighths() -> None:
    np.testing.assert_array_equal(
        snap(np.array([[0.06, 0.07], [3.99, 1.19]])), [[0, 0.125], [4, 1.25]]
    )


def test_joined_patches_keep_the_greatest_coverage() -> None:
    one = Patch(x=3, y=5, coverage=np.array([[0.5, 1], [0.25, 0]], np.float32))
    other = Patch(x=4, y=6, coverage=np.array([[0.75, 0.5, 1]], np.float32))
    joined = join_patches([one, other])
    assert (joined.x, joined.y) == (3, 5)
    np.testing.assert_array_equal(joined.coverage, [[0.5, 1, 0, 0], [0.25, 0.75, 0.5, 1]])
