from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import Category, ImageAnnotations, MaskRole, ObjectAnnotation
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, value_list
from shardbeam.transforms.examples.maps import PIXELS
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from shardbeam.transforms.images.mask_file import voc_colour_map
from tests.support.example_builders import make_image, render, size_of, upright, write_png

Pixels = npt.NDArray[np.uint8]

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
AS_THEY_ARE = {0: 0, 1: 1, 3: 3, 7: 7, 255: 255}


def label_map(*categories: Category, **settings: Any) -> LabelMap:  # noqa: ANN401  # Those of LabelSettings.
    return build_label_map(categories=categories, settings=LabelSettings(**settings), objects=True)


def region(label: str, segmentation: object) -> ObjectAnnotation:
    return ObjectAnnotation(label, (0, 0, 6, 4), segmentation=json.dumps(segmentation).encode())


LEFT_GRASS = region("grass", {"counts": [0, 12, 12], "size": [4, 6]})
TOP = [[0.0, 0.0, 6.0, 0.0, 6.0, 2.0, 0.0, 2.0]]


def map_of(
    data: bytes | None = None,
    *regions: ObjectAnnotation,
    role: MaskRole = MaskRole.SEMANTIC,
    labels: LabelMap | None = None,
    image: StoredImage | None = None,
    normalized: bool = False,
) -> tuple[Pixels, dict[str, int]]:
    rendered = render(
        ImageAnnotations("1", SIZE[0], SIZE[1], stuff=regions, normalized=normalized),
        label_map=labels or label_map(*CATEGORIES),
        kinds=(Kind.SEMANTIC,),
        annotated_as="stored",
        image=image or make_image(size=SIZE),
        masks={} if data is None else {role: data},
    )
    assert rendered.values["image/segmentation/class/format"] == [b"png"]
    (encoded,) = rendered.values["image/segmentation/class/encoded"]
    decoded = Image.open(io.BytesIO(encoded))
    assert (decoded.format, decoded.mode) == ("PNG", "L")
    return np.asarray(decoded), rendered.corrections


@pytest.mark.parametrize(
    ("labels", "written", "corrections"),
    [
        (label_map(*CATEGORIES), AS_THEY_ARE, {}),
        (label_map(*CATEGORIES, ids="contiguous"), {0: 0, 1: 1, 3: 2, 7: 3, 255: 255}, {}),
        (
            label_map(*CATEGORIES, merge={"pet": ["cat", "dog"]}, exclude=["grass"]),
            {0: 0, 1: 1, 3: 1, 7: 255, 255: 255},
            {Correction.REGION_OF_EXCLUDED_LABEL_VOID: 1},
        ),
        # The background's id is that of a class.
        (
            label_map(*CATEGORIES, ids="contiguous", first_id=0),
            {0: 255, 1: 0, 3: 1, 7: 2, 255: 255},
            {Correction.REGION_OF_UNKNOWN_CLASS_VOID: 1},
        ),
        # A value of no class.
        (
            label_map(*CATEGORIES[:2]),
            {**AS_THEY_ARE, 7: 255},
            {Correction.REGION_OF_UNKNOWN_CLASS_VOID: 1},
        ),
        # No ids in the source.
        (label_map(), AS_THEY_ARE, {}),
        (label_map(Category("cat"), Category("dog")), AS_THEY_ARE, {}),
    ],
)
def test_ids_are_those_that_are_written(
    labels: LabelMap, written: dict[int, int], corrections: dict[Correction, int]
) -> None:
    for role, data in (
        (MaskRole.SEMANTIC, PNG),
        (MaskRole.SEMANTIC, write_png(VALUES.astype(np.uint16))),
        (MaskRole.VOC_CLASS, write_png(voc_colour_map()[VALUES])),
    ):
        pixels, counted = map_of(data, role=role, labels=labels)
        np.testing.assert_array_equal(pixels, np.vectorize(written.__getitem__)(VALUES))
        assert counted == corrections


@pytest.mark.parametrize(
    ("masks", "labels", "expected"),
    [
        ({MaskRole.SEMANTIC: PNG}, label_map(*CATEGORIES), (1, 3, 7)),
        ({MaskRole.SEMANTIC: PNG}, label_map(*CATEGORIES, exclude=["grass"]), (1, 3)),
        # 0 is a class, and not the background.
        (
            {MaskRole.SEMANTIC: PNG},
            label_map(*CATEGORIES, ids="contiguous", first_id=0),
            (0, 1, 2),
        ),
        ({}, label_map(*CATEGORIES), ()),
        # No ids in the source.
        ({MaskRole.SEMANTIC: PNG}, label_map(Category("cat"), Category("dog")), None),
    ],
)
def test_classes_of_a_map(
    masks: dict[MaskRole, bytes], labels: LabelMap, expected: tuple[int, ...] | None
) -> None:
    rendered = render(
        ImageAnnotations("1", *SIZE),
        label_map=labels,
        kinds=(Kind.SEMANTIC,),
        image=make_image(size=SIZE),
        masks=masks,
    )
    assert [example.map_classes for example in rendered.encoded] == [expected]


def test_a_feature_of_the_source_does_not_count_as_a_map() -> None:
    feature = ExtraFeature(value_list(PIXELS, FeatureKind.INT64))
    rendered = render(
        ImageAnnotations("1", *SIZE, values={PIXELS: (5, 6)}),
        label_map=label_map(*CATEGORIES),
        image=make_image(size=SIZE),
        extras=(feature,),
    )
    assert rendered.values[PIXELS] == [5, 6]
    assert [example.map_classes for example in rendered.encoded] == [None]


def test_values_beyond_8_bits_are_of_no_class() -> None:
    values = VALUES.astype(np.uint16)
    values[0, :2] = 9, 3000

    pixels, corrections = map_of(write_png(values))

    assert pixels[0, :3].tolist() == [255, 255, 3]
    assert corrections == {Correction.REGION_OF_UNKNOWN_CLASS_VOID.value: 2}


def test_an_id_of_two_classes_is_refused() -> None:
    labels = label_map(*CATEGORIES, Category("fox", 3), ids="contiguous")

    with pytest.raises(RejectedError, match="'cat' and 'fox' in different sources") as caught:
        map_of(PNG, labels=labels)

    assert caught.value.reason is Reason.MASK_MISMATCH


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"map_ids": (0, 254)}, "set labels.ids: contiguous"),
        ({"map_ids": (0, 1), "ids": "contiguous"}, "labels.include"),
        ({"map_ids": (1, 255), "map_ids_hint": "; or else"}, "contiguous; or else"),
        # More bits do not help an id that is too small.
        (
            {"map_ids": (2, 400), "first_id": 1, "map_ids_hint": "; or"},
            "first_id: 2, or remove that setting",
        ),
    ],
)
def test_ids_that_pixels_cannot_hold_are_an_error(settings: dict[str, Any], fix: str) -> None:
    with pytest.raises(InputError, match=r"labels.ids: class .\w+. has id \d+") as error:
        label_map(Category("cat", 300), Category("dog", 1), **settings)

    assert fix in str(error.value)


def drawn(*parts: tuple[tuple[slice, slice], int]) -> Pixels:
    pixels = np.full((4, 6), 255, np.uint8)
    for place, value in parts:
        pixels[place] = value
    return pixels


UPPER, LEFT = np.s_[:2, :], np.s_[:, :3]


@pytest.mark.parametrize(
    ("regions", "expected", "corrections"),
    [
        # Later ones over earlier ones.
        ([LEFT_GRASS, region("cat", TOP)], drawn((LEFT, 7), (UPPER, 3)), {}),
        ([region("cat", TOP), LEFT_GRASS], drawn((UPPER, 3), (LEFT, 7)), {}),
        (
            [region("cat", "nonsense"), region("dog", TOP), LEFT_GRASS],
            drawn((LEFT, 7)),
            {
                Correction.REGION_UNUSABLE_DROPPED: 1,
                Correction.REGION_OF_EXCLUDED_LABEL_VOID: 1,
            },
        ),
        ([], drawn(), {Correction.MAP_MISSING_LEFT_VOID: 1}),
    ],
)
def test_regions_are_drawn(
    regions: list[ObjectAnnotation], expected: Pixels, corrections: dict[Correction, int]
) -> None:
    pixels, counted = map_of(None, *regions, labels=label_map(*CATEGORIES, exclude=["dog"]))

    np.testing.assert_array_equal(pixels, expected)
    assert counted == corrections


def test_regions_in_fractions() -> None:
    half = [[0.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.0, 0.5]]

    pixels, _ = map_of(None, region("cat", half), normalized=True)

    np.testing.assert_array_equal(pixels, drawn((UPPER, 3)))


def test_a_mask_comes_before_regions() -> None:
    np.testing.assert_array_equal(map_of(PNG, region("cat", TOP))[0], VALUES)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_maps_are_turned_with_the_image(orientation: int) -> None:
    expected = upright(VALUES, orientation)
    image = make_image(size=size_of(expected), file_size=SIZE, orientation=orientation)

    np.testing.assert_array_equal(map_of(PNG, image=image)[0], expected)
    np.testing.assert_array_equal(
        map_of(None, region("cat", TOP), LEFT_GRASS, image=image)[0],
        upright(drawn((UPPER, 3), (LEFT, 7)), orientation),
    )
    if orientation >= 5:
        # A mask of the upright picture is known by its size.
        pixels, _ = map_of(write_png(VALUES.T.copy()), image=image)
        np.testing.assert_array_equal(pixels, VALUES.T)


def test_maps_are_resized_to_the_nearest_pixel() -> None:
    pixels, _ = map_of(PNG, image=make_image(size=(3, 2), file_size=SIZE))

    np.testing.assert_array_equal(pixels, VALUES[1::2, 1::2])


@pytest.mark.parametrize("size", [(4, 6), (6, 5)])
def test_a_mask_of_another_size_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(RejectedError, match=f"the mask is {size[0]}x{size[1]}") as caught:
        map_of(write_png(np.zeros(size[::-1], np.uint8)))

    assert caught.value.reason is Reason.MASK_MISMATCH


def test_a_region_s_box_is_scaled_with_it() -> None:
    # Runs of 24 x 16 pixels: by the box, which is in pixels of 12 x 8, they are to be scaled.
    runs = {"counts": [0, *[4, 12] * 6], "size": [16, 24]}
    grass = ObjectAnnotation("grass", (0, 0, 3, 2), segmentation=json.dumps(runs).encode())
    rendered = render(
        ImageAnnotations("1", 12, 8, stuff=(grass,)),
        label_map=label_map(*CATEGORIES),
        kinds=(Kind.SEMANTIC,),
        image=make_image(size=SIZE),
    )
    (pixels,) = rendered.pictures("image/segmentation/class/encoded")
    assert np.argwhere(pixels == 7).tolist() == [[0, 0]]
