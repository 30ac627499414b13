from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, MaskRole, ObjectAnnotation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.mask_file import voc_colour_map
from tests.support.example_builders import make_image, make_label_map, render
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
        image=make_image(size=SIZE),
        masks={MaskRole.VOC_OBJECT: save(image, "PNG")},
    )
    return rendered.pictures("image/object/mask"), rendered.corrections


COVERING, COVERED = (2, 2, 25, 18), (10, 8, 14, 12)
MATCHED, EMPTY = Correction.MASK_MATCHED_BY_BOX, Correction.MASK_EMPTY_NO_SEGMENTATION


@pytest.mark.parametrize(
    ("pixels", "boxes", "more", "expected", "corrections"),
    [
        # Number n is the nth object.
        (object_map({1: FIRST, 2: SECOND}), [FIRST, SECOND], {}, [1, 2], {}),
        (object_map({1: FIRST, 2: SECOND}, border=False), [FIRST, SECOND], {}, [1, 2], {}),
        (object_map({1: COVERING, 2: COVERED}, border=False), [COVERING, COVERED], {}, [1, 2], {}),
        # Objects that are left out are counted all the same.
        (
            object_map({1: FIRST, 2: SECOND}),
            [FIRST, SECOND],
            {"labels": ("dog", "cat")},
            [2],
            {Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED: 1},
        ),
        # Numbers that the source gives come first.
        (object_map({2: FIRST, 5: SECOND}), [FIRST, SECOND], {"numbers": (2, 5)}, [2, 5], {}),
        # Other numbers are matched by box.
        (
            object_map({1: SECOND, 2: FIRST, 9: THIRD}, border=False),
            [FIRST, SECOND, THIRD],
            {},
            [2, 1, 9],
            {MATCHED: 3},
        ),
        # 3 is in no map; and no mask is taken for two objects.
        (object_map({1: FIRST}), [FIRST, SECOND], {}, [1, 3], {EMPTY: 1}),
        (object_map({2: FIRST}, border=False), [FIRST, FIRST], {}, [3, 2], {EMPTY: 1}),
    ],
)
def test_numbers_become_the_masks_of_objects(
    pixels: npt.NDArray[np.uint8],
    boxes: list[Box],
    more: dict[str, Any],
    expected: list[int],
    corrections: dict[Correction, int],
) -> None:
    masks, counted = match(pixels, *boxes, **more)

    for mask, number in zip(masks, expected, strict=True):
        np.testing.assert_array_equal(mask, pixels == number)
    assert counted == corrections
