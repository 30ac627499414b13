from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.examples.geometry.boxes import Box, Size
from shardbeam.transforms.examples.geometry.mask_crops import MaskCrop
from shardbeam.transforms.examples.geometry.segmentation import (
    draw_segmentation,
    encode_crop,
    has_segmentation,
)

FRAME = (20, 10)
TRIANGLE = [2.0, 2.0, 9.0, 2.0, 2.0, 8.0]
SQUARE = [12.0, 3.0, 16.0, 3.0, 16.0, 7.0, 12.0, 7.0]
COORDINATES = st.one_of(
    st.integers(-30, 60), st.integers(-300, 600).map(lambda number: number / 10), st.floats(-9, 40)
)
POLYGONS = st.lists(
    st.lists(st.tuples(COORDINATES, COORDINATES), min_size=3, max_size=8).map(
        lambda points: [float(value) for point in points for value in point]
    ),
    min_size=1,
    max_size=4,
)


def draw(
    segmentation: object,
    *,
    frame: Size = FRAME,
    box: Box = (0, 0, 20, 10),
    extent: Size | None = None,
    expected: dict[Correction, int] | None = None,
) -> npt.NDArray[np.uint8]:
    corrections = Corrections()
    text = segmentation if isinstance(segmentation, bytes) else json.dumps(segmentation).encode()
    crop = draw_segmentation(
        text, frame=frame, extent=extent or frame, box=box, corrections=corrections
    )
    assert corrections == {key.value: count for key, count in (expected or {}).items()}
    if crop is None:
        return np.zeros(frame[::-1], np.uint8)
    return crop.whole(width=frame[0], height=frame[1])


def drawn_by_pycocotools(segmentation: Any, *, frame: Size = FRAME) -> npt.NDArray[np.uint8]:  # noqa: ANN401  # JSON.
    rle = coco_mask.frPyObjects(segmentation, frame[1], frame[0])
    return coco_mask.decode(coco_mask.merge(rle) if isinstance(rle, list) else rle)


def rectangle(box: tuple[int, int, int, int], *, frame: Size = FRAME) -> npt.NDArray[np.uint8]:
    mask = np.zeros(frame[::-1], np.uint8)
    mask[box[1] : box[3], box[0] : box[2]] = 1
    return mask


def runs(mask: npt.NDArray[np.uint8], *, compressed: bool) -> dict[str, Any]:
    rle = coco_mask.encode(np.asfortranarray(mask))
    text = rle["counts"].decode()
    if compressed:
        return {"counts": text, "size": list(mask.shape)}
    pixels = mask.ravel(order="F")
    starts = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    counts = np.diff(starts, prepend=0, append=pixels.size).tolist()
    return {"counts": [0, *counts] if pixels[0] else counts, "size": list(mask.shape)}


def _as_points(polygon: list[float]) -> list[list[float]]:
    return [[x, y] for x, y in zip(polygon[0::2], polygon[1::2], strict=True)]


@pytest.mark.parametrize(
    ("written", "polygons"),
    [
        (TRIANGLE, [TRIANGLE]),
        (_as_points(TRIANGLE), [TRIANGLE]),
        ([_as_points(TRIANGLE), _as_points(SQUARE)], [TRIANGLE, SQUARE]),
    ],
    ids=["flat", "points", "polygons of points"],
)
def test_polygons_in_other_lists(written: object, polygons: list[list[float]]) -> None:
    np.testing.assert_array_equal(draw(written), drawn_by_pycocotools(polygons))


@given(POLYGONS)
def test_polygons_are_drawn_as_pycocotools_draws_them(polygons: list[list[float]]) -> None:
    np.testing.assert_array_equal(draw(polygons), drawn_by_pycocotools(polygons))


def test_polygons_in_fractions() -> None:
    fractions = [value / (20, 10)[index % 2] for index, value in enumerate(SQUARE)]

    np.testing.assert_array_equal(draw([fractions], extent=(1, 1)), drawn_by_pycocotools([SQUARE]))


def test_a_polygon_without_a_list_around_it() -> None:
    np.testing.assert_array_equal(draw(TRIANGLE), drawn_by_pycocotools([TRIANGLE]))


@pytest.mark.parametrize(
    "unusable",
    [
        [],
        [1.0],
        [1.0, 1.0, 5.0, 5.0],  # Two points: pycocotools takes it for a box.
        [1.0, 1.0, 5.0, 5.0, 9.0],
        [1.0, 1.0, 5.0, 5.0, 9.0, 1.0, 7.0],
        [0.0, 0.0, 1e9, 0.0, 0.0, 5.0],
        [0.0, 0.0, 1e300, 0.0, 0.0, -1e300],
        [0.0, 0.0, 9e5, 0.0, 0.0, 9e5],
    ],
)
def test_what_cannot_be_drawn_is_left_out(unusable: list[float]) -> None:
    dropped = {Correction.POLYGON_UNUSABLE_DROPPED: 1}
    for polygons in ([unusable, TRIANGLE], [TRIANGLE, unusable]):
        np.testing.assert_array_equal(
            draw(polygons, expected=dropped), drawn_by_pycocotools([TRIANGLE])
        )

    corrections = Corrections()
    with pytest.raises(ValueError, match="no polygon"):
        draw_segmentation(
            json.dumps([unusable]).encode(),
            frame=FRAME,
            extent=FRAME,
            box=(0, 0, 20, 10),
            corrections=corrections,
        )
    assert corrections == {Correction.POLYGON_UNUSABLE_DROPPED.value: 1}


def test_fractions_beyond_all_bounds() -> None:
    with pytest.raises(ValueError, match="no polygon"):
        draw_segmentation(
            b"[[1e308, 1e308, 0, 0, 1, 1]]",
            frame=FRAME,
            extent=(1, 1),
            box=(0, 0, 20, 10),
            corrections=Corrections(),
        )


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("box", [(3, 2, 8, 9), (0, 0, 20, 10), (19, 9, 20, 10), (0, 0, 0, 0)])
def test_runs(box: tuple[int, int, int, int], *, compressed: bool) -> None:
    mask = rectangle(box)

    np.testing.assert_array_equal(draw(runs(mask, compressed=compressed)), mask)


@given(
    rows=st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=1, max_size=4
        )
    ),
    left=st.integers(-3, 21) | st.just(10**30),
    top=st.integers(-3, 11) | st.just(10**30),
)
def test_crops_become_runs(rows: list[list[int]], left: int, top: int) -> None:
    crop = MaskCrop(np.array(rows, np.uint8), left=left, top=top)
    expected = np.zeros((10, 20), np.uint8)
    for row, values in enumerate(rows, top):
        for column, value in enumerate(values, left):
            if 0 <= row < 10 and 0 <= column < 20:
                expected[row, column] = value

    np.testing.assert_array_equal(draw(json.loads(encode_crop(crop, frame=(20, 10)))), expected)


def test_runs_as_whole_floats_and_without_a_size() -> None:
    assert draw({"counts": [190.0, 3.0, 7.0], "size": [10.0, 20.0]}).sum() == 3
    assert draw({"counts": [190, 3, 7]}).sum() == 3


def test_runs_without_the_last_zeros_are_complete() -> None:
    corrected = {Correction.RLE_COUNTS_CORRECTED: 1}

    mask = draw({"counts": [5, 3], "size": [10, 20]}, expected=corrected)

    np.testing.assert_array_equal(mask, draw({"counts": [5, 3, 192], "size": [10, 20]}))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("drawn", "frame", "box"),
    [
        # A scaled image: the runs are scaled.
        ((2, 1, 5, 4), (10, 5), (4, 2, 10, 8)),
        # A cut image: they stay where the box is.
        *(((4, 2, 10, 8), size, (4, 2, 10, 8)) for size in ((24, 12), (18, 9), (20, 9))),
        # Beyond the image, they are cut.
        ((15, 5, 30, 15), (40, 20), (15, 5, 20, 10)),
    ],
)
def test_runs_of_an_image_of_another_size(
    drawn: tuple[int, int, int, int],
    frame: Size,
    box: tuple[int, int, int, int],
    compressed: bool,
) -> None:
    mask = draw(
        runs(rectangle(drawn, frame=frame), compressed=compressed),
        box=box,
        expected={Correction.RLE_SIZE_CORRECTED: 1},
    )

    np.testing.assert_array_equal(mask, rectangle(box))


# A mask of the letter L, which no turn and no mirror maps to itself, and its box.
LETTER = rectangle((3, 1, 5, 9)) | rectangle((3, 7, 9, 9))
LETTER_BOX = (3, 1, 9, 9)
EXCHANGED, BY_ROWS = Correction.RLE_SIDES_EXCHANGED, Correction.RLE_BY_ROWS


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("drawn", "size", "expected"),
    [
        (LETTER, (10, 20), {}),
        (LETTER, (20, 10), {EXCHANGED: 1}),
        # The runs of the transposed mask are those of the mask's rows.
        (LETTER.T, (10, 20), {BY_ROWS: 1}),
        (LETTER.T, (20, 10), {EXCHANGED: 1, BY_ROWS: 1}),
    ],
)
def test_the_box_shows_the_order_of_runs(
    drawn: npt.NDArray[np.uint8],
    size: tuple[int, int],
    expected: dict[Correction, int],
    compressed: bool,
) -> None:
    segmentation = {**runs(drawn, compressed=compressed), "size": size}

    mask = draw(segmentation, box=LETTER_BOX, expected=expected)

    np.testing.assert_array_equal(mask, LETTER)


def test_runs_of_a_scaled_image_by_rows() -> None:
    segmentation = {**runs(LETTER.T, compressed=True), "size": [10, 20]}

    mask = draw(
        segmentation, frame=(40, 20), extent=FRAME, box=(6, 2, 18, 18), expected={BY_ROWS: 1}
    )

    np.testing.assert_array_equal(mask, LETTER.repeat(2, axis=0).repeat(2, axis=1))


@pytest.mark.parametrize(
    ("box", "fits"),
    [
        # 10 of the 24 pixels, 12 of them, and none.
        ((4, 2, 4.5, 5), False),
        ((4, 2, 4.5, 6), True),
        ((12, 1, 18, 9), False),
        # A pixel that the box touches is in it.
        ((4.6, 2.6, 4.9, 5.4), True),
        # A box without area says nothing.
        ((12, 1, 12, 9), True),
        ((float("nan"), 1, 12, 9), True),
        ((-1e30, -1e30, 1e30, 1e30), True),
    ],
)
def test_runs_need_half_of_their_pixels_in_the_box(box: Box, fits: bool) -> None:
    segmentation = runs(LETTER, compressed=True)

    if fits:
        np.testing.assert_array_equal(draw(segmentation, box=box), LETTER)
    else:
        with pytest.raises(ValueError, match=r"outside of the object's box"):
            draw(segmentation, box=box)


def test_runs_by_rows_need_95_percent_of_their_pixels_in_the_box() -> None:
    # 20 rows of a square image: 40 pixels in the box, and 2 or 3 more.
    for more, fits in ((2, True), (3, False)):
        mask = rectangle((1, 0, 3, 20), frame=(30, 30))
        mask[0, 10 : 10 + more] = 1
        segmentation = runs(mask.T, compressed=False)
        if fits:
            expected = {BY_ROWS: 1}
            found = draw(segmentation, frame=(30, 30), box=(1, 0, 3, 20), expected=expected)
            np.testing.assert_array_equal(found, mask)
        else:
            with pytest.raises(ValueError, match=r"outside of the object's box"):
                draw(segmentation, frame=(30, 30), box=(1, 0, 3, 20))


@pytest.mark.parametrize("compressed", [False, True])
def test_runs_by_rows_of_an_object_that_fills_the_image(compressed: bool) -> None:
    # 61 % of the image are in the box, and so are most pixels in any order.
    frame = (60, 40)
    mask = rectangle((8, 5, 54, 37), frame=frame) ^ rectangle((8, 5, 20, 15), frame=frame)
    segmentation = {**runs(mask.T, compressed=compressed), "size": [40, 60]}

    found = draw(segmentation, frame=frame, box=(8, 5, 54, 37), expected={BY_ROWS: 1})

    np.testing.assert_array_equal(found, mask)


@pytest.mark.parametrize(
    ("outline", "box"),
    [
        # By rows, all of its pixels would be in the box, as any few pixels are in a large box.
        ((5, 10, 6, 30), (0, 0, 30, 20)),
        # The box is too short.
        ((5, 0, 25, 30), (5, 0, 25, 20)),
        # The box is too large, so that it holds the pixels in any order.
        ((3, 1, 23, 29), (1, 1, 27, 26)),
    ],
)
def test_runs_by_rows_must_fill_the_box_if_half_of_the_pixels_lie_in_it(
    outline: tuple[int, int, int, int], box: Box
) -> None:
    mask = rectangle(outline, frame=(30, 30))

    found = draw(runs(mask, compressed=False), frame=(30, 30), box=box)

    np.testing.assert_array_equal(found, mask)


def test_a_box_may_lack_the_last_column_and_row() -> None:
    # As datumaro writes it, from the numbers of the first and the last pixels.
    mask = draw({"counts": [0, 20, 30], "size": [10, 5]}, frame=(5, 10), box=(0, 0, 1, 9))

    assert mask.sum() == 20


def test_runs_that_were_made_from_pixels_need_no_box() -> None:
    crop = MaskCrop(LETTER, left=0, top=0)
    segmentation = json.loads(encode_crop(crop, frame=FRAME))

    np.testing.assert_array_equal(draw(segmentation, box=(15, 1, 18, 9)), LETTER)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"7",
        b'"text"',
        b"[[NaN, 1, 2, 3, 4, 5]]",
        b"[[1e999, 1, 2, 3, 4, 5]]",
        b"[[[1, 2, 3], [3, 4, 5], [5, 6, 7]]]",
        b"[" * 5000,
        b'{"size": [10, 20]}',
        b'{"counts": null, "size": [10, 20]}',
        b'{"counts": [201], "size": [10, 20]}',
        b'{"counts": [-1, 201], "size": [10, 20]}',
        b'{"counts": [4294967296, 200], "size": [10, 20]}',
        b'{"counts": [1.5], "size": [10, 20]}',
        b'{"counts": [200], "size": [10]}',
        b'{"counts": [200], "size": [10, 20.5]}',
        b'{"counts": [200], "size": [-10, -20]}',
        b'{"counts": [0], "size": [0, 20]}',
        b'{"counts": [1, 1], "size": [1000000, 1000000]}',
        b'{"counts": "PPPP", "size": [10, 20]}',
        b'{"counts": "\xc3\xbc", "size": [10, 20]}',
        b'{"counts": "oooooo0", "size": [10, 20]}',
    ],
)
def test_what_is_no_segmentation(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        draw(text)


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b" [ ] ", b"{}", b"{ }"])
def test_no_segmentation(text: bytes) -> None:
    assert not has_segmentation(text)


@pytest.mark.parametrize("text", [b"[[]]", b"[[1,2]]", b'{"counts": []}'])
def test_some_segmentation(text: bytes) -> None:
    assert has_segmentation(text)
