from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, MaskRole, ObjectAnnotation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.mask_file import voc_colour_map
from tests.support.example_builders import make_image, make_label_map, render, upright
from tests.support.image_makers import save

Box = tuple[int, int, int, int]

SIZE = (30, 20)
FIRST, SECOND, THIRD = (2, 2, 10, 9), (12, 3, 22, 15), (20, 12, 30, 20)


def object_map(numbers: dict[int, Box], *, border: bool = True) -> npt.NDArray[np.uint8]:
    """Draws each number, within its box but for the border."""
    pixels = np.zeros(SIZE[::-1], np.uint8)
    for number, (xmin, ymin, xmax, ymax) in numbers.items():
        pixels[ymin:ymax, xmin:xmax] = 255 if border else number
        pixels[ymin + border : ymax - border, xmin + border : xmax - border] = number
    return pixels


def match(
    pixels: npt.NDArray[np.uint8],
    *boxes: Box,
    numbers: tuple[int, ...] = (),
    labels: tuple[str, ...] = (),
    orientation: int = 1,
) -> tuple[list[npt.NDArray[np.uint8]], dict[str, int]]:
    image = Image.new("P", pixels.shape[::-1])
    image.putdata(pixels.ravel().tolist())
    image.putpalette(voc_colour_map().ravel().tolist())
    annotations = ImageAnnotations(
        image_id="1",
        width=SIZE[0],
        height=SIZE[1],
        objects=tuple(
            ObjectAnnotation(
                label=labels[index] if labels else "cat",
                bbox=box,
                annotation_id=numbers[index] if numbers else 0,
            )
            for index, box in enumerate(boxes)
        ),
    )
    rendered = render(
        annotations,
        label_map=make_label_map({"cat": 1}),
        kinds=(Kind.DETECTION, Kind.INSTANCE_MASKS),
        annotated_as="stored",
        image=make_image(
            size=SIZE[::-1] if orientation >= 5 else SIZE,
            file_size=SIZE,
            orientation=orientation,
        ),
        masks={MaskRole.VOC_OBJECT: save(image, "PNG")},
    )
    return rendered.pictures("image/object/mask"), rendered.corrections


@pytest.mark.parametrize("border", [False, True])
def test_number_n_is_the_nth_object(*, border: bool) -> None:
    pixels = object_map({1: FIRST, 2: SECOND}, border=border)

    masks, corrections = match(pixels, FIRST, SECOND)

    for number, mask in enumerate(masks, start=1):
        np.testing.assert_array_equal(mask, pixels == number)
    assert corrections == {}


def test_objects_that_are_left_out_are_counted_all_the_same() -> None:
    pixels = object_map({1: FIRST, 2: SECOND})

    (mask,), _ = match(pixels, FIRST, SECOND, labels=("dog", "cat"))

    np.testing.assert_array_equal(mask, pixels == 2)


def test_numbers_that_the_source_gives_come_first() -> None:
    pixels = object_map({2: FIRST, 5: SECOND})

    masks, corrections = match(pixels, FIRST, SECOND, numbers=(2, 5))

    np.testing.assert_array_equal(masks[0], pixels == 2)
    np.testing.assert_array_equal(masks[1], pixels == 5)
    assert corrections == {}


def test_two_objects_of_which_one_covers_the_other() -> None:
    pixels = object_map({1: (2, 2, 25, 18), 2: (10, 8, 14, 12)}, border=False)

    masks, corrections = match(pixels, (2, 2, 25, 18), (10, 8, 14, 12))

    np.testing.assert_array_equal(masks[0], pixels == 1)
    np.testing.assert_array_equal(masks[1], pixels == 2)
    assert corrections == {}


def test_other_numbers_are_matched_by_box() -> None:
    pixels = object_map({1: SECOND, 2: FIRST, 9: THIRD}, border=False)

    masks, corrections = match(pixels, FIRST, SECOND, THIRD)

    for mask, number in zip(masks, (2, 1, 9), strict=True):
        np.testing.assert_array_equal(mask, pixels == number)
    assert corrections == {Correction.MASK_MATCHED_BY_BOX.value: 3}


def test_an_object_that_is_not_in_the_map_has_an_empty_mask() -> None:
    masks, corrections = match(object_map({1: FIRST}), FIRST, SECOND)

    assert [mask.any() for mask in masks] == [True, False]
    assert corrections == {Correction.MASK_EMPTY_NO_SEGMENTATION.value: 1}


def test_no_mask_is_taken_for_two_objects() -> None:
    masks, corrections = match(object_map({2: FIRST}, border=False), FIRST, FIRST)

    assert [mask.any() for mask in masks] == [False, True]
    assert corrections == {Correction.MASK_EMPTY_NO_SEGMENTATION.value: 1}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_map_is_turned_with_the_image(orientation: int) -> None:
    pixels = object_map({1: FIRST, 2: SECOND})

    masks, corrections = match(pixels, FIRST, SECOND, orientation=orientation)

    for number, mask in enumerate(masks, start=1):
        expected = upright((pixels == number).astype(np.uint8), orientation)
        np.testing.assert_array_equal(mask, expected)
    turned = Correction.ORIENTATION_APPLIED.value
    assert Counter(corrections).keys() <= {turned}
