"""The frame that annotated coordinates refer to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.examples.geometry.boxes import Box
from shardbeam.transforms.examples.geometry.frame import AnnotatedFrame, annotated_frame, is_scaled
from shardbeam.transforms.examples.geometry.orientation import orient_box, orient_size
from tests.examples.test_boxes import ORIENTATIONS, Size, boxes_inside
from tests.support.example_builders import AnnotatedAs

SCALED, CORRECTED = Correction.ANNOTATED_SIZE_SCALED, Correction.SIZE_CORRECTED

# (annotated size, stored size, orientation, upright, annotated as) → frame, turn, correction.
FRAMES: list[tuple[Size, Size, int, bool, AnnotatedAs, Size, int, Correction | None]] = [
    # Nothing to turn.
    ((40, 30), (40, 30), 1, True, "auto", (40, 30), 1, None),
    ((0, 0), (40, 30), 1, True, "auto", (40, 30), 1, None),
    # The annotated size decides.
    ((30, 40), (40, 30), 6, True, "auto", (30, 40), 1, None),
    ((40, 30), (40, 30), 6, True, "auto", (40, 30), 6, None),
    ((40, 30), (40, 30), 5, True, "auto", (40, 30), 5, None),
    ((41, 40), (41, 40), 6, True, "auto", (41, 40), 6, None),
    ((40, 41), (41, 40), 6, True, "auto", (40, 41), 1, None),
    # It cannot decide: unknown, half known, the same either way, square.
    ((0, 0), (40, 30), 8, True, "auto", (30, 40), 1, None),
    ((40, 0), (40, 30), 8, True, "auto", (30, 40), 1, None),
    ((40, 30), (40, 30), 3, True, "auto", (40, 30), 1, None),
    ((30, 30), (30, 30), 6, True, "auto", (30, 30), 1, None),
    # The config decides.
    ((40, 30), (40, 30), 3, True, "stored", (40, 30), 3, None),
    ((30, 30), (30, 30), 6, True, "stored", (30, 30), 6, None),
    ((0, 0), (40, 30), 6, True, "stored", (40, 30), 6, None),
    ((40, 30), (40, 30), 6, True, "upright", (30, 40), 1, CORRECTED),
    ((30, 40), (40, 30), 6, True, "stored", (40, 30), 6, CORRECTED),
    # The written image is as stored: upright boxes are turned back.
    ((30, 40), (40, 30), 6, False, "auto", (30, 40), 8, None),
    ((30, 40), (40, 30), 8, False, "auto", (30, 40), 6, None),
    ((30, 40), (40, 30), 5, False, "auto", (30, 40), 5, None),
    ((40, 30), (40, 30), 3, False, "auto", (40, 30), 3, None),
    ((40, 30), (40, 30), 6, False, "auto", (40, 30), 1, None),
    ((40, 30), (40, 30), 3, False, "stored", (40, 30), 1, None),
    # Another size, whose aspect ratio decides the frame.
    ((41, 30), (40, 30), 1, True, "auto", (40, 30), 1, SCALED),
    ((20, 15), (40, 30), 1, True, "auto", (40, 30), 1, SCALED),
    ((20, 15), (40, 30), 6, True, "auto", (40, 30), 6, SCALED),
    ((60, 80), (40, 30), 6, True, "auto", (30, 40), 1, SCALED),
    ((80, 60), (40, 30), 6, False, "auto", (40, 30), 1, SCALED),
    ((15, 20), (40, 30), 6, False, "auto", (30, 40), 8, SCALED),
    # It does not decide: the same either way, square, or nearly.
    ((20, 15), (40, 30), 3, True, "auto", (40, 30), 1, SCALED),
    ((20, 15), (40, 30), 3, True, "stored", (40, 30), 3, SCALED),
    ((60, 60), (30, 30), 6, True, "auto", (30, 30), 1, SCALED),
    ((60, 60), (30, 30), 6, True, "stored", (30, 30), 6, SCALED),
    ((60, 60), (31, 30), 6, True, "auto", (30, 31), 1, SCALED),
    ((60, 60), (31, 30), 6, True, "stored", (31, 30), 6, SCALED),
    ((62, 60), (31, 30), 6, True, "auto", (31, 30), 6, SCALED),
    # The config takes precedence over the aspect ratio.
    ((80, 60), (40, 30), 6, True, "upright", (30, 40), 1, CORRECTED),
    # Another aspect ratio, which the boxes do not contradict.
    ((99, 99), (40, 30), 6, True, "auto", (30, 40), 1, CORRECTED),
    ((99, 99), (40, 30), 6, True, "stored", (40, 30), 6, CORRECTED),
]

PIXELS = AnnotatedFrame(40, 30, orientation=1, extent=(40, 30))
FRACTIONS = PIXELS._replace(extent=(1, 1))


@pytest.mark.parametrize(
    (
        "annotated",
        "stored",
        "orientation",
        "upright",
        "annotated_as",
        "size",
        "turn",
        "correction",
    ),
    FRAMES,
)
def test_frame(
    annotated: Size,
    stored: Size,
    orientation: int,
    upright: bool,
    annotated_as: AnnotatedAs,
    size: Size,
    turn: int,
    correction: Correction | None,
) -> None:
    def frame_of(boxes: list[Box] | None, *, normalized: bool = False) -> AnnotatedFrame:
        return annotated_frame(
            annotated=annotated,
            stored=stored,
            orientation=orientation,
            upright=upright,
            settings=ImageConfig(annotated_as=annotated_as),
            boxes=boxes,
            normalized=normalized,
        )

    frame = frame_of([(-1, -1, size[0] + 1, size[1] + 1)])
    assert frame == (*size, turn, annotated if correction is SCALED else size, correction)
    assert frame.written_size == (
        orient_size(stored, orientation=orientation) if upright else stored
    )
    # Nothing has to be scaled where nothing is in pixels.
    assert frame_of(None) == (*size, turn, size, None)
    assert frame_of(None, normalized=True) == (*size, turn, (1, 1), None)


# (annotated size, orientation of an image stored as 40 x 30) → frame and turn.
@pytest.mark.parametrize(
    ("annotated", "orientation", "size", "turn"),
    [((80, 60), 1, (40, 30), 1), ((80, 60), 6, (30, 40), 1), ((9, 9), 6, (30, 40), 1)],
)
def test_another_size_can_be_ignored(
    annotated: Size, orientation: int, size: Size, turn: int
) -> None:
    def frame_of(box: Box) -> AnnotatedFrame:
        return annotated_frame(
            annotated=annotated,
            stored=(40, 30),
            orientation=orientation,
            upright=True,
            settings=ImageConfig(annotated_size="ignore"),
            boxes=[box],
        )

    assert frame_of((0, 0, 9, 30)) == (*size, turn, size, CORRECTED)
    with pytest.raises(RejectedError, match="over its border"):
        frame_of((0, 0, 9, 60))


# (annotated size, boxes) of an image stored as 40 x 30 and turned → whether it stays
@pytest.mark.parametrize(
    ("annotated", "boxes", "stays"),
    [
        ((40, 30), [(0, 0, 1, 1)], True),
        ((30, 40), [(0, 0, 1, 1)], True),
        ((0, 0), [(0, 0, 1, 1)], True),
        ((80, 0), [(0, 0, 1, 1)], True),
        ((80, 60), None, True),
        ((80, 60), [(0, 0, 1, 1)], False),
        ((60, 80), [], False),
        ((9, 9), [(0, 0, 1, 1)], False),
        ((41, 30), [(0, 0, 1, 1)], False),
        # A side of 0 is unknown; one of a pixel is not.
        ((1, 30), [(0, 0, 1, 1)], False),
    ],
)
def test_any_other_size_can_be_rejected(
    annotated: Size, boxes: list[Box] | None, stays: bool
) -> None:
    settings: dict[str, Any] = {"annotated": annotated, "stored": (40, 30), "boxes": boxes}
    settings |= {"orientation": 6, "upright": True}
    if stays:
        expected = annotated_frame(**settings, settings=ImageConfig())
        found = annotated_frame(**settings, settings=ImageConfig(annotated_size="reject"))
        assert found == expected
        return
    with pytest.raises(RejectedError, match=r"annotated_size is reject") as caught:
        annotated_frame(**settings, settings=ImageConfig(annotated_size="reject"))
    assert caught.value.reason is Reason.SIZE_MISMATCH


@pytest.mark.parametrize(
    ("box", "stays"),
    [
        # Boxes that reach over the border are clipped later.
        ((-9, -9, 29, 24), True),
        ((-9, -9, 9, 9), True),
        ((10, 10, 30, 20), True),
        ((20, 15, 20, 15), True),
        ((10, 10, 31, 20), False),
        ((10, 10, 20, 21), False),
        ((-9, 2, 8, 9), False),
        ((2, -9, 9, 8), False),
        ((25, 2, 25, 9), False),
        # Left out, and counted, in any frame.
        ((math.nan, 2, 8, 9), True),
        ((2, 2, math.inf, 9), True),
        ((-1e308, 2, -1e308, 9), False),
    ],
)
def test_a_box_whose_centre_is_outside_of_the_annotated_size(box: Box, stays: bool) -> None:
    def frame_of(boxes: list[Box]) -> AnnotatedFrame:
        return annotated_frame(
            annotated=(20, 15),
            stored=(40, 30),
            orientation=1,
            upright=True,
            settings=ImageConfig(),
            boxes=boxes,
        )

    if stays:
        assert frame_of([box]).correction is SCALED
        return
    with pytest.raises(RejectedError, match="centre of the box") as caught:
        frame_of([(0, 0, 1, 1), box])
    assert caught.value.reason is Reason.SIZE_MISMATCH
    assert "image.annotated_size: ignore" in caught.value.detail


def is_rounded(size: Size, other: tuple[int, int]) -> bool:
    """Returns whether some factor scales `other` to `size`, by trying all relevant factors."""
    turns = {
        Fraction(pixels, side)
        for side, new in zip(other, size, strict=True)
        for pixels in range(new - 1, new + 2)
    }
    ordered = sorted(turns)
    # Between two neighbours, rounding changes nothing.
    tried = [*ordered, *((low + high) / 2 for low, high in itertools.pairwise(ordered))]
    return any(
        all(
            new in (math.floor(side * factor), math.ceil(side * factor))
            for side, new in zip(other, size, strict=True)
        )
        for factor in tried
        if factor > 0
    )


def test_the_same_aspect_ratio_is_what_rounding_explains() -> None:
    sizes = list(itertools.product(range(1, 12), range(1, 12)))
    for size, other in itertools.product(sizes, repeat=2):
        is_wide, was_wide = (np.sign(each[0] - each[1]) for each in (size, other))
        expected = is_wide * was_wide >= 0 and (is_rounded(size, other) or is_rounded(other, size))
        assert is_scaled(size, other) == expected, (size, other)


@given(
    st.tuples(*[st.integers(1, 5000)] * 2),
    st.integers(1, 5000),
    st.sampled_from([round, math.floor, math.ceil]),
)
def test_a_resized_image_has_the_same_aspect_ratio(
    size: Size, width: int, rounded: Callable[[Fraction], int]
) -> None:
    resized = (width, max(1, rounded(Fraction(size[1] * width, size[0]))))
    assert is_scaled(resized, size)
    assert is_scaled(size, resized)


@given(boxes_inside(), st.sampled_from(ORIENTATIONS))
def test_boxes_end_in_the_stored_frame_where_the_orientation_is_kept(
    case: tuple[Size, tuple[int, int, int, int]], orientation: int
) -> None:
    (width, height), box = case
    frame = annotated_frame(
        annotated=orient_size((width, height), orientation=orientation),
        stored=(width, height),
        orientation=orientation,
        upright=False,
        settings=ImageConfig(annotated_as="upright"),
        boxes=[],
    )
    upright_box = orient_box(box, width=width, height=height, orientation=orientation)
    assert frame.place(upright_box) == box


def test_a_wrong_size_is_rejected_where_a_box_contradicts_it() -> None:
    with pytest.raises(RejectedError) as caught:
        annotated_frame(
            annotated=(640, 400),
            stored=(40, 30),
            orientation=6,
            upright=True,
            settings=ImageConfig(),
            boxes=[(0, 0, 30, 41), (1, 2.5, 40, 39), (-9, 0, 1, 1)],
        )
    assert caught.value.reason is Reason.SIZE_MISMATCH
    assert caught.value.detail == (
        "annotated as 640x400, but the image is 30x40, and the box (1, 2.5, 40, 39) reaches "
        "10 px over its border"
    )


@pytest.mark.parametrize(("over", "stays"), [(1.0, True), (1.5, False)])
def test_a_box_may_reach_a_pixel_over_the_border_of_a_corrected_size(
    over: float, stays: bool
) -> None:
    def correction_of(box: Box) -> Correction | None:
        return annotated_frame(
            annotated=(99, 9),
            stored=(40, 30),
            orientation=1,
            upright=True,
            settings=ImageConfig(),
            boxes=[box],
        ).correction

    boxes: list[Box] = [(-over, 0, 9, 9), (0, -over, 9, 9), (0, 0, 40 + over, 9)]
    for box in [*boxes, (0.0, 0.0, 9.0, 30 + over)]:
        if stays:
            assert correction_of(box) is CORRECTED
            continue
        with pytest.raises(RejectedError, match=r"reaches 1\.5 px over its border"):
            correction_of(box)


@pytest.mark.parametrize(
    ("frame", "box", "expected"),
    [
        (PIXELS, (30, 5, 10, 20), (10, 5, 30, 20)),
        (PIXELS, (10, 20, 30, 5), (10, 5, 30, 20)),
        (PIXELS, (30, 20, 10, 5), (10, 5, 30, 20)),
        (FRACTIONS, (0.75, 0.5, 0.25, 0.25), (0.25, 0.25, 0.75, 0.5)),
        # In order already.
        (PIXELS, (10, 5, 30, 20), None),
        # No area.
        (PIXELS, (30, 5, 10, 5), None),
        # Missing values: -1 as corners, and -1 as both sides.
        (PIXELS, (10, 12, -1, -1), None),
        (PIXELS, (10, 12, 9, 11), None),
        (FRACTIONS, (0.5, 0.5, 0.5 - 1 / 40, 0.5 - 1 / 30), None),
        # Two pixels on one side are enough.
        (PIXELS, (10, 12, 8, 11), (8, 11, 10, 12)),
        # Outside of the frame by a pixel.
        (PIXELS, (41, 12, 8, 3), None),
    ],
)
def test_exchanged_corners_are_put_into_order_unless_they_stand_for_missing_values(
    frame: AnnotatedFrame, box: Box, expected: Box | None
) -> None:
    assert frame.exchange_corners(box) == expected
