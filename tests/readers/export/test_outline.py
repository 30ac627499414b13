"""Outlines of masks: drawn again, they give the same pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pycocotools import mask as coco_mask

from shardbeam.readers.export import yolo
from shardbeam.readers.export.yolo import trace_outline
from shardbeam.transforms.examples.geometry.mask_crops import crop_mask

Mask = npt.NDArray[np.uint8]
MASKS = arrays.arrays(
    np.uint8,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.integers(0, 1),
)


def draw(points: npt.NDArray[np.floating | np.integer], shape: tuple[int, ...]) -> Mask:
    """Draws a polygon with COCO's own code."""
    height, width = shape
    runs = coco_mask.frPyObjects([points.astype(float).ravel().tolist()], height, width)
    drawn: Mask = coco_mask.decode(coco_mask.merge(runs))
    return drawn


def text(*rows: str) -> Mask:
    return np.array([[character == "#" for character in row] for row in rows], np.uint8)


@given(MASKS)
def test_an_outline_gives_its_pixels_back(mask: Mask) -> None:
    crop = crop_mask(mask)
    if crop is None:
        return
    points, left_out = trace_outline(crop)
    assert left_out == 0
    assert (draw(points, mask.shape) == mask).all()
    # Six digits of a fraction are enough.
    size = np.array(mask.shape[::-1])
    assert (draw(np.round(points / size, 6) * size, mask.shape) == mask).all()


@pytest.mark.parametrize(
    ("mask", "points"),
    [
        (text("...", ".#.", "..."), 4),
        (text("##", "#."), 6),
        # Pixels that touch at a corner are one part.
        (text("#.", ".#"), 8),
        (text(".#", "#."), 8),
        # Two parts, and a part with a hole: two lines join them, and two points occur twice.
        (text("#.#"), 10),
        (text("###", "#.#", "###"), 10),
        # A part in the hole of another.
        (text("#####", "#...#", "#.#.#", "#...#", "#####"), 16),
    ],
)
def test_few_points(mask: Mask, points: int) -> None:
    crop = crop_mask(mask)
    assert crop is not None
    found, left_out = trace_outline(crop)
    assert (len(found), left_out) == (points, 0)
    assert (draw(found, mask.shape) == mask).all()


def test_the_smallest_parts_of_noise_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yolo, "MAX_JOINED_POINTS", 16)
    mask = text("#.#.#.#", ".......", "###....", "###....")
    crop = crop_mask(mask)
    assert crop is not None
    points, left_out = trace_outline(crop)
    assert left_out == 2
    drawn = draw(points, mask.shape)
    assert drawn[2:].tolist() == mask[2:].tolist()
    assert (drawn[0] <= mask[0]).all()
    assert drawn[0].sum() == 2
