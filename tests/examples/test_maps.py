from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    Category,
    ImageAnnotations,
    ImageRef,
    MaskRole,
    MaskValues,
    ObjectAnnotation,
    Segment,
)
from shardbeam.transforms.dataset.collectors.base import NO_ITEM, ShardFacts
from shardbeam.transforms.dataset.collectors.collect import LabelsCollector
from shardbeam.transforms.examples.encode.maps import PIXELS, find_classes
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, value_list
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from shardbeam.transforms.images.mask_file import voc_colour_map
from tests.support.example_builders import Rendered, make_image, render, write_png

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
    masks: dict[str, bytes], labels: LabelMap, expected: tuple[int, ...] | None
) -> None:
    rendered = render(
        ImageAnnotations("1", *SIZE),
        label_map=labels,
        kinds=(Kind.SEMANTIC,),
        image=make_image(size=SIZE),
        masks=masks,
    )
    assert map_classes(rendered, ShardFacts(map_names=labels.map_names())) == [expected]


def map_classes(rendered: Rendered, facts: ShardFacts) -> Sequence[Any]:
    collector = LabelsCollector(facts)
    for example in rendered.encoded:
        collector.add(NO_ITEM._replace(values=example.values, known={"labels": example.labels}))
    return collector.columns["map_classes"]


def test_a_feature_of_the_source_does_not_count_as_a_map() -> None:
    feature = ExtraFeature(value_list(PIXELS, FeatureKind.INT64))
    rendered = render(
        ImageAnnotations("1", *SIZE, values={PIXELS: (5, 6)}),
        label_map=label_map(*CATEGORIES),
        image=make_image(size=SIZE),
        extras=(feature,),
    )
    assert rendered.values[PIXELS] == [5, 6]
    names = label_map(*CATEGORIES).map_names()
    facts = ShardFacts(map_names=names, extras=(feature.spec,))
    assert map_classes(rendered, facts) == [None]


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


BLACK_WHITE = np.array([[0, 0, 255, 255, 255, 255]] * 4, np.uint8)
BINARY = MaskValues(((0, 0), (255, 3)))
BLURRED = MaskValues(((0, 0), (255, 3)), is_cut=True)
TRIMAP = MaskValues(((0, 0), (128, 3), (255, None)))


def render_black_white(pixels: Pixels, *, values: MaskValues, role: MaskRole) -> Pixels:
    rendered = render(
        ImageAnnotations("1", pixels.shape[1], pixels.shape[0], mask_values=values),
        label_map=label_map(*CATEGORIES),
        kinds=(Kind.SEMANTIC,),
        image=make_image(size=(pixels.shape[1], pixels.shape[0])),
        masks={role: write_png(pixels)},
    )
    assert rendered.corrections == {}
    (found,) = rendered.pictures("image/segmentation/class/encoded")
    return found


def with_pixels(*values: int, count: int = 1) -> Pixels:
    """A map of 40 x 40 pixels, half of them 255, and some of other values."""
    pixels = np.zeros((40, 40), np.uint8)
    pixels[:20] = 255
    for row, value in enumerate(values, 30):
        pixels[row, :count] = value
    return pixels


@pytest.mark.parametrize("role", [MaskRole.SEMANTIC, MaskRole.VOC_CLASS])
@pytest.mark.parametrize(
    ("pixels", "values", "expected"),
    [
        (BLACK_WHITE, BINARY, {0: 0, 255: 3}),
        (np.zeros_like(BLACK_WHITE), BINARY, {0: 0}),
        (BLACK_WHITE, MaskValues(((0, 0), (255, None))), {0: 0, 255: 255}),
        (with_pixels(128), TRIMAP, {0: 0, 128: 3, 255: 255}),
        (with_pixels(1, 127, 128, 254), BLURRED, {0: 0, 1: 0, 127: 0, 128: 3, 254: 3, 255: 3}),
        # 5 % are 80 pixels: more are a border as long as more pixels are 255.
        (with_pixels(*range(100, 110), count=40), BLURRED, {0: 0, 255: 3}),
    ],
)
def test_values_mean_what_the_source_says(
    pixels: Pixels, values: MaskValues, expected: dict[int, int], role: MaskRole
) -> None:
    found = render_black_white(pixels, values=values, role=role)
    for value in np.unique(pixels).tolist():
        assert set(found[pixels == value].tolist()) == {expected.get(value, 0)}
    if pixels.ndim == 2:
        colours = np.stack([pixels] * 3, axis=-1)
        in_colour = render_black_white(colours, values=values, role=role)
        np.testing.assert_array_equal(in_colour, found)


FADED = np.zeros((40, 40), np.uint8)
FADED[:3] = 100
SOFT = np.zeros((40, 40), np.uint8)
SOFT[:20] = 128


@pytest.mark.parametrize(
    ("pixels", "values", "unknown"),
    [
        (with_pixels(3), BINARY, "1 of its pixels have other values than 0, 255, such as 3"),
        (with_pixels(127, 3), TRIMAP, "2 of its pixels have other values than 0, 128, 255"),
        # Nothing is white, or the border is larger than the object: these are no blurred borders.
        (FADED, BLURRED, "120 of its pixels have other values than 0, 255, such as 100"),
        (SOFT, BLURRED, "800 of its pixels have other values"),
        (np.where(SOFT, np.uint16(300), np.uint16(0)), BLURRED, "such as 300"),
    ],
)
def test_a_value_of_unknown_meaning_is_a_reject(
    pixels: npt.NDArray[Any], values: MaskValues, unknown: str
) -> None:
    with pytest.raises(RejectedError, match=unknown) as caught:
        render_black_white(pixels, values=values, role=MaskRole.SEMANTIC)
    assert caught.value.reason is Reason.MASK_VALUE_UNKNOWN


MASK = ImageRef("mask.png", 1, "1")
COLOURS = MaskValues(((0x0000FF, 3), (0xFF0000, 1), (0xFFFFFF, None)), are_colours=True)
RED = write_png(np.full((4, 6, 3), (255, 0, 0), np.uint8))


@pytest.mark.parametrize(
    ("annotations", "mask", "expected"),
    [
        ({}, b"", set()),
        ({"labels": ("cat",), "objects": (LEFT_GRASS,)}, b"", {"cat", "grass"}),
        ({"stuff": (LEFT_GRASS,), "segments": (Segment(1, "dog"),)}, b"", {"grass", "dog"}),
        # A class without a name of its own, and one that the config leaves out.
        ({"lost": {"bird": {"point": 1}, "dog": {"line": 2}}}, b"", {"bird", "dog"}),
        ({"labels": ("unknown",), "lost": {"sky": {"point": 1}}}, b"", set()),
        # Maps of any size.
        ({"masks": {MaskRole.SEMANTIC: MASK}}, PNG, {"cat", "dog", "grass"}),
        (
            {"masks": {MaskRole.VOC_CLASS: MASK}},
            write_png(voc_colour_map()[VALUES]),
            {"cat", "dog", "grass"},
        ),
        ({"masks": {MaskRole.SEMANTIC: MASK}, "mask_values": COLOURS}, RED, {"dog"}),
        (
            {"masks": {MaskRole.SEMANTIC: MASK}, "mask_values": MaskValues(((0, 0), (255, 3)))},
            write_png(np.array([[0, 255]], np.uint8)),
            {"cat"},
        ),
        # Those that cannot be read, or are not class ids.
        ({"masks": {MaskRole.SEMANTIC: MASK}}, PNG[:40], set()),
        ({"masks": {MaskRole.SEMANTIC: MASK}, "mask_values": MaskValues(((0, 0),))}, PNG, set()),
        ({"masks": {MaskRole.PANOPTIC: MASK}}, PNG, set()),
    ],
)
def test_classes_of_an_image_whose_picture_cannot_be_used(
    annotations: dict[str, Any], mask: bytes, expected: set[str]
) -> None:
    classes = (*CATEGORIES, Category("sky", 9))
    labels = label_map(*classes, exclude=["sky"], merge={"pet": ["cat"]})
    labels = msgspec.structs.replace(labels, left_out=("sky",))
    found = find_classes(ImageAnnotations("1", **annotations), masks={MASK: mask}, label_map=labels)
    assert found == {"pet" if name == "cat" else name for name in expected}
