from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import Category, ImageAnnotations, MaskRole, ObjectAnnotation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from shardbeam.transforms.images.mask_file import voc_colour_map
from tests.support.example_builders import make_image, render, size_of, upright, write_png

SIZE = (6, 4)
VALUES = np.array(
    [
        [0, 0, 3, 3, 3, 255],
        [0, 1, 3, 3, 7, 255],
        [1, 1, 1, 7, 7, 255],
        [1, 1, 1, 7, 7, 0],
    ],
    np.uint8,
)
PNG = write_png(VALUES)
CATEGORIES = (Category("cat", 3), Category("dog", 1), Category("grass", 7, is_thing=False))
LEFT = {"counts": [0, 12, 12], "size": [4, 6]}
TOP = [[0.0, 0.0, 6.0, 0.0, 6.0, 2.0, 0.0, 2.0]]


def label_map(
    settings: LabelSettings | None = None, *, categories: tuple[Category, ...] = CATEGORIES
) -> LabelMap:
    return build_label_map(
        categories=categories, settings=settings or LabelSettings(), objects=True
    )


def voc_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    return write_png(voc_colour_map()[pixels])


def map_of(
    *,
    masks: Mapping[MaskRole, bytes] | None = None,
    stuff: tuple[ObjectAnnotation, ...] = (),
    labels: LabelMap | None = None,
    image: StoredImage | None = None,
    normalized: bool = False,
) -> tuple[npt.NDArray[np.uint8], dict[str, int]]:
    rendered = render(
        ImageAnnotations("1", SIZE[0], SIZE[1], stuff=stuff, normalized=normalized),
        label_map=labels or label_map(),
        kinds=(Kind.SEMANTIC,),
        annotated_as="stored",
        image=image or make_image(size=SIZE),
        masks=masks,
    )
    assert rendered.values["image/segmentation/class/format"] == [b"png"]
    (data,) = rendered.values["image/segmentation/class/encoded"]
    decoded = Image.open(io.BytesIO(data))
    assert (decoded.format, decoded.mode) == ("PNG", "L")
    return np.asarray(decoded), rendered.corrections


def region(label: str, segmentation: object) -> ObjectAnnotation:
    return ObjectAnnotation(
        label=label, bbox=(0, 0, 6, 4), segmentation=json.dumps(segmentation).encode()
    )


@pytest.mark.parametrize(
    ("role", "data"),
    [
        (MaskRole.SEMANTIC, write_png(VALUES)),
        (MaskRole.SEMANTIC, write_png(VALUES.astype(np.uint16))),
        (MaskRole.VOC_CLASS, voc_png(VALUES)),
    ],
)
def test_a_mask_keeps_the_source_s_ids(role: MaskRole, data: bytes) -> None:
    pixels, corrections = map_of(masks={role: data})

    np.testing.assert_array_equal(pixels, VALUES)
    assert corrections == {}


def test_ids_are_those_that_are_written() -> None:
    pixels, corrections = map_of(
        masks={MaskRole.SEMANTIC: PNG},
        labels=label_map(LabelSettings(ids="contiguous")),
    )

    written = {0: 0, 1: 1, 3: 2, 7: 3, 255: 255}
    np.testing.assert_array_equal(pixels, np.vectorize(written.__getitem__)(VALUES))
    assert corrections == {}


def test_merged_and_excluded_classes() -> None:
    settings = LabelSettings(merge={"pet": ["cat", "dog"]}, exclude=["grass"])

    pixels, corrections = map_of(masks={MaskRole.SEMANTIC: PNG}, labels=label_map(settings))

    written = {0: 0, 1: 1, 3: 1, 7: 255, 255: 255}
    np.testing.assert_array_equal(pixels, np.vectorize(written.__getitem__)(VALUES))
    assert corrections == {Correction.REGION_OF_EXCLUDED_LABEL_VOID.value: 1}


def test_a_value_of_no_class_is_ignored() -> None:
    values = VALUES.astype(np.uint16)
    values[0, 0], values[0, 1] = 9, 3000

    pixels, corrections = map_of(masks={MaskRole.SEMANTIC: write_png(values)})

    assert pixels[0, :3].tolist() == [255, 255, 3]
    assert corrections == {Correction.REGION_OF_UNKNOWN_CLASS_VOID.value: 2}


def test_a_background_whose_id_is_a_class_s_is_ignored() -> None:
    labels = label_map(LabelSettings(ids="contiguous", first_id=0))

    pixels, corrections = map_of(masks={MaskRole.SEMANTIC: PNG}, labels=labels)

    written = {0: 255, 1: 0, 3: 1, 7: 2, 255: 255}
    np.testing.assert_array_equal(pixels, np.vectorize(written.__getitem__)(VALUES))
    assert corrections == {Correction.REGION_OF_UNKNOWN_CLASS_VOID.value: 1}


@pytest.mark.parametrize("categories", [(), (Category("cat"), Category("dog"))])
def test_without_ids_in_the_source_values_stay(categories: tuple[Category, ...]) -> None:
    pixels, corrections = map_of(
        masks={MaskRole.SEMANTIC: PNG}, labels=label_map(categories=categories)
    )

    np.testing.assert_array_equal(pixels, VALUES)
    assert corrections == {}


def test_an_id_of_two_classes_is_refused() -> None:
    categories = (*CATEGORIES, Category("fox", 3))
    labels = label_map(LabelSettings(ids="contiguous"), categories=categories)

    with pytest.raises(RejectedError, match="'cat' and 'fox' in different sources") as caught:
        map_of(masks={MaskRole.SEMANTIC: PNG}, labels=labels)

    assert caught.value.reason is Reason.MASK_MISMATCH


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        (LabelSettings(map_ids=(0, 254)), "set labels.ids: contiguous"),
        (LabelSettings(map_ids=(0, 1), ids="contiguous"), "labels.include"),
        (LabelSettings(map_ids=(2, 400), map_ids_hint="; or else"), "contiguous; or else"),
    ],
)
def test_ids_that_pixels_cannot_hold_are_an_error(settings: LabelSettings, fix: str) -> None:
    categories = (Category("cat", 300), Category("dog", 1))

    with pytest.raises(InputError, match=r"labels.ids: class .\w+. has id \d+") as error:
        label_map(settings, categories=categories)

    assert fix in str(error.value)


def test_regions_are_drawn_later_ones_over_earlier_ones() -> None:
    pixels, corrections = map_of(stuff=(region("grass", LEFT), region("cat", TOP)))

    expected = np.full((4, 6), 255)
    expected[:, :3] = 7
    expected[:2] = 3
    np.testing.assert_array_equal(pixels, expected)
    assert corrections == {}


def test_regions_in_fractions() -> None:
    half = [[0.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.0, 0.5]]

    pixels, _ = map_of(stuff=(region("cat", half),), normalized=True)

    assert (pixels[:2] == 3).all()
    assert (pixels[2:] == 255).all()


def test_regions_that_cannot_be_drawn_or_are_left_out() -> None:
    labels = label_map(LabelSettings(exclude=["dog"]))

    pixels, corrections = map_of(
        stuff=(region("cat", "nonsense"), region("dog", TOP), region("grass", LEFT)),
        labels=labels,
    )

    assert set(pixels.ravel().tolist()) == {7, 255}
    assert corrections == {
        Correction.REGION_UNUSABLE_DROPPED.value: 1,
        Correction.REGION_OF_EXCLUDED_LABEL_VOID.value: 1,
    }


def test_a_mask_comes_before_regions() -> None:
    pixels, _ = map_of(masks={MaskRole.SEMANTIC: PNG}, stuff=(region("cat", TOP),))

    np.testing.assert_array_equal(pixels, VALUES)


def test_an_image_without_a_map_is_ignored_all_over() -> None:
    pixels, corrections = map_of()

    assert pixels.shape == (4, 6)
    assert (pixels == 255).all()
    assert corrections == {Correction.MAP_MISSING_LEFT_VOID.value: 1}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_maps_are_turned_with_the_image(orientation: int) -> None:
    expected = upright(VALUES, orientation)
    image = make_image(size=size_of(expected), file_size=SIZE, orientation=orientation)

    from_mask, _ = map_of(masks={MaskRole.SEMANTIC: PNG}, image=image)
    from_regions, _ = map_of(stuff=(region("cat", TOP), region("grass", LEFT)), image=image)

    np.testing.assert_array_equal(from_mask, expected)
    drawn = np.full((4, 6), 255, np.uint8)
    drawn[:2] = 3
    drawn[:, :3] = 7
    np.testing.assert_array_equal(from_regions, upright(drawn, orientation))


@pytest.mark.parametrize("orientation", range(5, 9))
def test_a_mask_of_the_upright_picture_is_known_by_its_size(orientation: int) -> None:
    image = make_image(size=(4, 6), file_size=SIZE, orientation=orientation)

    pixels, _ = map_of(masks={MaskRole.SEMANTIC: write_png(VALUES.T.copy())}, image=image)

    np.testing.assert_array_equal(pixels, VALUES.T)


def test_maps_are_resized_to_the_nearest_pixel() -> None:
    image = make_image(size=(3, 2), file_size=SIZE)

    pixels, _ = map_of(masks={MaskRole.SEMANTIC: PNG}, image=image)

    np.testing.assert_array_equal(pixels, VALUES[1::2, 1::2])


@pytest.mark.parametrize("size", [(4, 6), (6, 5)])
def test_a_mask_of_another_size_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(RejectedError, match=f"the mask is {size[0]}x{size[1]}") as caught:
        map_of(masks={MaskRole.SEMANTIC: write_png(np.zeros(size[::-1], np.uint8))})

    assert caught.value.reason is Reason.MASK_MISMATCH
