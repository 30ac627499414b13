from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from pycocotools import mask as coco_mask

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from tests.support.example_builders import (
    make_image,
    make_label_map,
    read_picture,
    render,
)

# Without symmetries.
SIZE = (12, 8)
POLYGON = [1.0, 1.0, 7.0, 1.0, 7.0, 3.0, 3.0, 3.0, 3.0, 6.0, 1.0, 6.0]
BOX = (1.0, 1.0, 7.0, 6.0)
LABEL_MAP = make_label_map({"cat": 1})
KINDS = (Kind.DETECTION, Kind.INSTANCE_MASKS)


def annotate(
    *segmentations: object,
    box: tuple[float, float, float, float] = BOX,
    size: tuple[int, int] = SIZE,
    normalized: bool = False,
    labels: Sequence[str] = (),
) -> ImageAnnotations:
    return ImageAnnotations(
        image_id="1",
        width=size[0],
        height=size[1],
        normalized=normalized,
        objects=tuple(
            ObjectAnnotation(
                label=labels[index] if labels else "cat",
                bbox=box,
                segmentation=b"" if segmentation is None else json.dumps(segmentation).encode(),
            )
            for index, segmentation in enumerate(segmentations)
        ),
    )


def masks_of(
    annotations: ImageAnnotations, *, image: StoredImage | None = None
) -> tuple[list[npt.NDArray[np.uint8]], dict[str, int]]:
    """Returns the decoded masks, and what was corrected."""
    rendered = render(
        annotations, label_map=LABEL_MAP, kinds=KINDS, image=image or make_image(size=SIZE)
    )
    masks = rendered.pictures("image/object/mask")
    assert len(masks) == len(rendered.values["image/object/class/label"])
    return masks, rendered.corrections


def drawn(polygon: Sequence[float] = POLYGON) -> npt.NDArray[np.uint8]:
    rle = coco_mask.frPyObjects([list(polygon)], SIZE[1], SIZE[0])
    return coco_mask.decode(rle)[..., 0]


def test_each_object_has_a_mask_of_the_whole_image() -> None:
    square = [8.0, 2.0, 10.0, 2.0, 10.0, 5.0, 8.0, 5.0]

    (first, second), corrections = masks_of(annotate([POLYGON], [square]))

    np.testing.assert_array_equal(first, drawn())
    np.testing.assert_array_equal(second, drawn(square))
    assert corrections == {}


def test_a_crowd_given_as_polygons_and_an_object_given_as_runs() -> None:
    annotations = annotate([POLYGON], {"counts": [9, 5, 82], "size": [8, 12]})
    crowd, single = annotations.objects
    objects = (msgspec.structs.replace(crowd, is_crowd=True), single)

    (first, second), corrections = masks_of(msgspec.structs.replace(annotations, objects=objects))

    np.testing.assert_array_equal(first, drawn())
    assert second.sum() == 5
    assert corrections == {}


@pytest.mark.parametrize(
    ("segmentations", "corrections"),
    [
        (([], None), {Correction.MASK_EMPTY_NO_SEGMENTATION: 2}),
        (
            ([[1, 1, 5, 5]], {"counts": "?", "size": [1]}),
            {
                Correction.MASK_EMPTY_BAD_SEGMENTATION: 2,
                Correction.POLYGON_UNUSABLE_DROPPED: 1,
            },
        ),
    ],
)
def test_no_segmentation_or_a_broken_one_is_an_empty_mask(
    segmentations: tuple[object, object], corrections: dict[Correction, int]
) -> None:
    (first, second), counted = masks_of(annotate(*segmentations))

    assert not first.any()
    assert not second.any()
    assert first.shape == (8, 12)
    assert counted == corrections


def test_objects_that_are_left_out_have_no_mask() -> None:
    (only,), _ = masks_of(annotate([POLYGON], [POLYGON], labels=("dog", "cat")))

    np.testing.assert_array_equal(only, drawn())


def test_polygons_in_fractions() -> None:
    fractions = [value / SIZE[index % 2] for index, value in enumerate(POLYGON)]
    box = (BOX[0] / 12, BOX[1] / 8, BOX[2] / 12, BOX[3] / 8)

    (mask,), _ = masks_of(annotate([fractions], box=box, normalized=True))

    np.testing.assert_array_equal(mask, drawn())


@pytest.mark.parametrize("size", [(6, 4), (5, 3), (24, 16), (12, 8), (1, 1)])
def test_masks_are_resized_to_the_nearest_pixel(size: tuple[int, int]) -> None:
    image = make_image(size=size, file_size=SIZE)

    (mask,), _ = masks_of(annotate([POLYGON]), image=image)

    width, height = size
    whole = drawn()
    expected = [
        [
            whole[int((row + 0.5) * 8 / height), int((column + 0.5) * 12 / width)]
            for column in range(width)
        ]
        for row in range(height)
    ]
    np.testing.assert_array_equal(mask, expected)


def test_masks_of_single_objects() -> None:
    rendered = render(
        annotate([POLYGON], [[8.0, 2.0, 10.0, 2.0, 10.0, 5.0, 8.0, 5.0]]),
        label_map=LABEL_MAP,
        kinds=KINDS,
        image=make_image(size=SIZE),
        example_per="annotation",
    )

    first, second = (example["annotation/mask"] for example in rendered.examples)
    assert len(first) == len(second) == 1
    np.testing.assert_array_equal(read_picture(first[0]), drawn())


def test_masks_that_are_dropped_are_not_rendered() -> None:
    rendered = render(
        annotate([[1, 1]]),
        label_map=LABEL_MAP,
        kinds=KINDS,
        image=make_image(size=SIZE),
        drop=["image/object/mask"],
    )

    assert rendered.corrections == {}
