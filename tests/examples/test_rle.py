from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pycocotools import mask as coco_mask

from shardbeam.transforms.examples.geometry.mask_crops import (
    crop_runs,
    parse_counts,
    read_counts,
)

MASKS = arrays.arrays(
    np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=40), elements=st.integers(0, 1)
)


def run_lengths(mask: npt.NDArray[np.uint8]) -> list[int]:
    """Counts pixel by pixel, as the format says."""
    runs, value = [0], 0
    for pixel in mask.ravel(order="F").tolist():
        if pixel != value:
            runs.append(0)
            value = pixel
        runs[-1] += 1
    return runs


@given(MASKS)
def test_the_text_of_runs(mask: npt.NDArray[np.uint8]) -> None:
    text = coco_mask.encode(np.asfortranarray(mask))["counts"]

    assert parse_counts(text).tolist() == run_lengths(mask)


def test_the_text_of_long_runs() -> None:
    mask = np.zeros((6000, 5000), np.uint8)
    mask[100:200, 1000:1003] = 1
    mask[5999, 4999] = 1

    text = coco_mask.encode(np.asfortranarray(mask))["counts"]

    assert parse_counts(text).sum() == mask.size
    assert parse_counts(text)[1::2].tolist() == [100, 100, 100, 1]


@given(MASKS)
def test_runs_are_drawn(mask: npt.NDArray[np.uint8]) -> None:
    height, width = mask.shape

    crop = crop_runs(np.array(run_lengths(mask)), height=height)

    if crop is None:
        assert not mask.any()
        return
    np.testing.assert_array_equal(crop.whole(width=width, height=height), mask)
    assert crop.pixels[:, 0].any()
    assert crop.pixels[:, -1].any()
    assert crop.pixels[0].any()


@pytest.mark.parametrize(
    ("counts", "pixels"),
    [
        ([], []),
        ([12], []),
        ([0, 12], list(range(12))),
        ([2, 0, 1, 2], [3, 4]),
        ([0, 1, 0, 1, 0, 0, 0], [0, 1]),
        ([3, 4, 5, 0], [3, 4, 5, 6]),
    ],
)
def test_runs_of_no_length(counts: list[int], pixels: list[int]) -> None:
    """Runs of a mask with 3 columns and 4 rows."""
    crop = crop_runs(read_counts(counts), height=4)

    mask = np.zeros((4, 3)) if crop is None else crop.whole(width=3, height=4)
    assert np.flatnonzero(mask.ravel(order="F")).tolist() == pixels


@pytest.mark.parametrize(
    "counts", [[-1, 13], [1.5, 10.5], [float("nan")], [float("inf")], [1e300], [2.0**40]]
)
def test_numbers_that_are_no_runs(counts: list[float]) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        read_counts(counts)


@pytest.mark.parametrize(
    "text",
    [
        b"\0",
        b"/",
        b"p",
        b"\xff\xff",
        "ü".encode(),
        b"P",  # More is to come.
        b"00`",
        b"O",  # -1.
        b"0000O",  # 0 - 1, by difference.
        b"ooooooooo0",  # 50 bits.
        b" 123",
    ],
)
def test_texts_that_are_no_runs(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"run"):
        parse_counts(text)


def test_any_bytes_are_runs_or_an_error() -> None:
    rng = random.Random(0)
    outcomes = set()
    for _ in range(20_000):
        alphabet = (1, 256) if rng.random() < 0.2 else (48, 112)
        text = bytes(rng.randrange(*alphabet) for _ in range(rng.randrange(1, 12)))
        try:
            counts = parse_counts(text)
        except ValueError:
            outcomes.add("error")
        else:
            assert counts.min() >= 0
            outcomes.add("runs")
    assert outcomes == {"error", "runs"}
