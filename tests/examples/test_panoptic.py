from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.schema import PanopticConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import Category, ImageAnnotations, MaskRole, Segment
from shardbeam.transforms.examples.encode.panoptic import stuff_classes
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import FeatureRole
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from tests.support.example_builders import make_image, render, write_png

Ids = npt.NDArray[np.uint32]

CATEGORIES = (
    Category("cat", 17),
    Category("dog", 18),
    Category("grass", 193, is_thing=False),
    Category("sky", 187, is_thing=False),
)
CAT, DOG, GRASS, SKY = 0x010203, 7, 70_000, 0xFFFFFF
IDS = np.array(
    [
        [SKY, SKY, SKY, SKY, SKY],
        [SKY, CAT, CAT, DOG, 0],
        [GRASS, CAT, CAT, DOG, 0],
        [GRASS, GRASS, GRASS, GRASS, 0],
    ],
    np.uint32,
)
SEGMENTS = (
    Segment(SKY, "sky"),
    Segment(CAT, "cat"),
    Segment(GRASS, "grass"),
    Segment(DOG, "dog", is_crowd=True),
)
# As `create_coco_tf_record.py` makes them: `category_id - 90` for stuff; `idx + 1` for things.
MODEL_GARDEN = {
    "image/segmentation/class/encoded": {0: 0, SKY: 97, CAT: 1, GRASS: 103, DOG: 1},
    "image/panoptic/category_mask": {0: 0, SKY: 187, CAT: 17, GRASS: 193, DOG: 18},
    "image/panoptic/instance_mask": {0: 0, SKY: 0, CAT: 2, GRASS: 0, DOG: 4},
}


class Maps(NamedTuple):
    maps: dict[str, npt.NDArray[np.generic]]
    segment_ids: list[int]
    corrections: dict[str, int]


def png(ids: Ids) -> bytes:
    channels = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)
    return write_png(channels)


def label_map(
    settings: LabelSettings | None = None, *, categories: tuple[Category, ...] = CATEGORIES
) -> LabelMap:
    return build_label_map(
        categories=categories, settings=settings or LabelSettings(), objects=True
    )


def maps_of(
    ids: Ids | None = IDS,
    *,
    segments: tuple[Segment, ...] = SEGMENTS,
    labels: LabelMap | None = None,
    image: StoredImage | None = None,
    stuff: Literal["zero", "index"] = "zero",
    bits: Literal[8, 16] = 8,
) -> Maps:
    height, width = IDS.shape if ids is None else ids.shape
    rendered = render(
        ImageAnnotations("1", width, height, segments=segments),
        label_map=labels or label_map(),
        kinds=(Kind.PANOPTIC,),
        annotated_as="stored",
        image=image or make_image(size=(width, height)),
        masks={} if ids is None else {MaskRole.PANOPTIC: png(ids)},
        panoptic=PanopticConfig(stuff=stuff, bits=bits),
    )
    return Maps(
        maps={key: rendered.pictures(key)[0] for key in MODEL_GARDEN},
        segment_ids=rendered.values["image/panoptic/segment_id"],
        corrections=rendered.corrections,
    )


def rebuild(rendered: Maps) -> Ids:
    table = np.array([0, *rendered.segment_ids], np.uint32)
    rebuilt: Ids = table[rendered.maps["image/panoptic/instance_mask"]]
    return rebuilt


def test_maps_are_the_model_garden_s() -> None:
    rendered = maps_of()

    for key, values in MODEL_GARDEN.items():
        np.testing.assert_array_equal(
            rendered.maps[key], np.vectorize(values.__getitem__)(IDS), err_msg=key
        )
        assert rendered.maps[key].dtype == np.uint8
    assert rendered.segment_ids == [SKY, CAT, GRASS, DOG]
    assert rendered.corrections == {}


@given(
    st.lists(st.integers(1, 2**24 - 1), min_size=1, max_size=12, unique=True),
    st.randoms(use_true_random=False),
)
def test_any_ids_can_be_rebuilt(numbers: list[int], rng: object) -> None:
    pixels = np.array([rng.choice([0, *numbers]) for _ in range(20)], np.uint32).reshape(4, 5)  # type: ignore[attr-defined]
    segments = tuple(Segment(number, CATEGORIES[number % 4].name) for number in numbers)

    rendered = maps_of(pixels, segments=segments, stuff="index")

    np.testing.assert_array_equal(rebuild(rendered), pixels)


def test_ids_are_those_that_are_written() -> None:
    rendered = maps_of(labels=label_map(LabelSettings(ids="contiguous")))

    written = {0: 0, CAT: 1, DOG: 2, SKY: 3, GRASS: 4}
    classes = {0: 0, CAT: 1, DOG: 1, SKY: 2, GRASS: 3}
    np.testing.assert_array_equal(
        rendered.maps["image/panoptic/category_mask"], np.vectorize(written.__getitem__)(IDS)
    )
    np.testing.assert_array_equal(
        rendered.maps["image/segmentation/class/encoded"], np.vectorize(classes.__getitem__)(IDS)
    )


def test_excluded_classes_are_void() -> None:
    rendered = maps_of(labels=label_map(LabelSettings(exclude=["cat", "sky"])))

    left_out = np.isin(IDS, (0, CAT, SKY))
    for pixels in rendered.maps.values():
        assert not pixels[left_out].any()
    assert rendered.segment_ids == [GRASS, DOG]
    assert set(rendered.maps["image/panoptic/instance_mask"].ravel().tolist()) == {0, 2}
    assert rendered.corrections == {Correction.REGION_OF_EXCLUDED_LABEL_VOID.value: 2}


def test_what_the_mask_and_the_segments_do_not_share_is_counted() -> None:
    segments = (
        *SEGMENTS[1:],
        Segment(99, "cat"),
        Segment(0, "cat"),
        Segment(-5, "cat"),
        Segment(2**40, "cat"),
        Segment(DOG, "cat"),
    )

    rendered = maps_of(segments=segments)

    assert not rendered.maps["image/panoptic/category_mask"][IDS == SKY].any()
    assert rendered.segment_ids == [CAT, GRASS, DOG, 99, 0, -5, 2**40]
    assert rendered.corrections == {
        Correction.REGION_OF_UNKNOWN_SEGMENT_VOID.value: 1,
        Correction.SEGMENT_WITHOUT_PIXELS.value: 4,
        Correction.DUPLICATE_SEGMENT_DROPPED.value: 1,
    }


def test_an_image_without_panoptic_annotations_is_void() -> None:
    rendered = maps_of(None, segments=())

    for pixels in rendered.maps.values():
        assert pixels.shape == (4, 5)
        assert not pixels.any()
    assert rendered.segment_ids == []
    assert rendered.corrections == {Correction.MAP_MISSING_LEFT_VOID.value: 1}


def test_segments_without_their_mask_are_refused() -> None:
    with pytest.raises(RejectedError, match="4 panoptic segments, and no PNG of them") as caught:
        maps_of(None)

    assert caught.value.reason is Reason.MASK_UNREADABLE


def many_segments(count: int, *, name: str) -> tuple[Ids, tuple[Segment, ...]]:
    ids = np.arange(1, count + 1, dtype=np.uint32).reshape(1, -1)
    return ids, tuple(Segment(number, name) for number in ids.ravel().tolist())


def test_255_segments_fit_into_8_bits_and_256_do_not() -> None:
    ids, segments = many_segments(255, name="cat")
    np.testing.assert_array_equal(rebuild(maps_of(ids, segments=segments)), ids)

    ids, segments = many_segments(256, name="cat")
    with pytest.raises(RejectedError, match=r"set panoptic.bits: 16") as caught:
        maps_of(ids, segments=segments)
    assert caught.value.reason is Reason.TOO_MANY_SEGMENTS

    rendered = maps_of(ids, segments=segments, bits=16)
    np.testing.assert_array_equal(rebuild(rendered), ids)
    assert rendered.maps["image/panoptic/instance_mask"].dtype == np.uint16


def test_stuff_takes_no_index_unless_it_is_asked_for() -> None:
    ids, segments = many_segments(300, name="sky")
    assert not maps_of(ids, segments=segments).maps["image/panoptic/instance_mask"].any()

    with pytest.raises(RejectedError, match="300 segments"):
        maps_of(ids, segments=segments, stuff="index")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((92, 183, 200), (2, 93, 110)),
        ((92, 345), (2, 255)),
        ((91, 200), (2, 3)),
        ((92, 346), (2, 3)),
        ((1, 2, 90), (2, 3, 4)),
    ],
)
def test_classes_of_stuff(ids: tuple[int, ...], expected: tuple[int, ...]) -> None:
    categories = tuple(Category(f"s{number}", number, is_thing=False) for number in ids)

    assert stuff_classes(label_map(categories=categories)) == dict(zip(ids, expected, strict=True))


def test_more_classes_of_stuff_than_bits_are_refused() -> None:
    categories = tuple(Category(f"s{number}", number, is_thing=False) for number in range(1, 300))
    ids = np.array([[254, 255]], np.uint32)

    fits = maps_of(
        ids[:, :1],
        segments=(Segment(254, "s254"),),
        labels=label_map(categories=categories),
        bits=16,
    )
    assert fits.maps["image/segmentation/class/encoded"].item() == 255
    with pytest.raises(RejectedError, match=r"labels.include"):
        maps_of(
            ids,
            segments=(Segment(254, "s254"), Segment(255, "s255")),
            labels=label_map(categories=categories),
            bits=16,
        )


@pytest.mark.parametrize(("bits", "role"), [(8, FeatureRole.MASK), (16, FeatureRole.MASK_16)])
def test_the_schema_tells_the_bits(bits: Literal[8, 16], role: FeatureRole) -> None:
    settings = EncoderSettings(kinds=frozenset({Kind.PANOPTIC}), panoptic=PanopticConfig(bits=bits))

    roles = {key: spec.role for key, spec in plan_features(settings).defaults.items()}

    assert roles["image/panoptic/category_mask"] is role
    assert roles["image/panoptic/instance_mask"] is role
    assert roles["image/segmentation/class/encoded"] is FeatureRole.MASK
