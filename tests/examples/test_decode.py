"""Annotations read back from Examples: they encode to the same Examples again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelSettings, build_label_map
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Category, ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.decode.annotations import annotations_of, class_of
from shardbeam.transforms.examples.decode.decode import make_picture
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    one_value,
    value_list,
)
from shardbeam.transforms.formats.base import Kind
from tests.support.example_builders import make_image, render, write_png
from tests.support.tfrecords import draw_image, make_example

WIDTH, HEIGHT = 37, 23
IMAGE = make_image(data=draw_image("JPEG", width=WIDTH, height=HEIGHT), size=(WIDTH, HEIGHT))
KEYPOINTS = ("nose", "tail")
LABEL_MAP = build_label_map(
    categories=[Category("cat", 3, keypoints=KEYPOINTS), Category("dog", 7, keypoints=KEYPOINTS)],
    settings=LabelSettings(),
    objects=True,
)
ALL_KINDS = (
    Kind.CLASSIFICATION,
    Kind.LABEL_CONFIDENCE,
    Kind.DETECTION,
    Kind.INSTANCE_MASKS,
    Kind.KEYPOINTS,
    Kind.CAPTIONS,
)
EXTRAS = (
    ExtraFeature(value_list("image/object/difficult", FeatureKind.INT64), per_object=True),
    ExtraFeature(value_list("image/object/view", FeatureKind.BYTES), per_object=True),
    ExtraFeature(one_value("camera", FeatureKind.BYTES)),
    ExtraFeature(value_list("image/neg", FeatureKind.INT64, FeatureRole.LABEL)),
)


def read(
    data: bytes, *, feature_map: FeatureMap | None = None, extras: tuple[ExtraFeature, ...] = ()
) -> ImageAnnotations:
    feature_map = feature_map or FeatureMap()
    picture = make_picture(Example.FromString(data), feature_map=feature_map)
    return annotations_of(picture, feature_map=feature_map, extras=extras)


def read_features(features: Mapping[str, object]) -> ImageAnnotations:
    return read(make_example({"image/encoded": IMAGE.data, **features}))


@st.composite
def objects(draw: st.DrawFn) -> ObjectAnnotation:
    xs = sorted(draw(st.lists(st.floats(-9, WIDTH + 9), min_size=2, max_size=2)))
    ys = sorted(draw(st.lists(st.floats(-9, HEIGHT + 9), min_size=2, max_size=2)))
    pixels = draw(st.lists(st.integers(0, 1), min_size=HEIGHT * WIDTH, max_size=HEIGHT * WIDTH))
    counts = [len(list(run)) for run in _runs(pixels)]
    return ObjectAnnotation(
        label=draw(st.sampled_from(["cat", "dog"])),
        bbox=(xs[0], ys[0], xs[1], ys[1]),
        area=draw(st.sampled_from([-1.0, 0.0]) | st.floats(0, 1e6)),
        is_crowd=draw(st.booleans()),
        segmentation=f'{{"size": [{HEIGHT}, {WIDTH}], "counts": {counts}}}'.encode(),
        keypoints=tuple(
            value
            for _ in KEYPOINTS
            for value in (
                draw(st.floats(0, WIDTH)),
                draw(st.floats(0, HEIGHT)),
                draw(st.integers(0, 2)),
            )
        ),
        attributes={"image/object/difficult": draw(st.integers(0, 1)), "image/object/view": "é"},
    )


def _runs(pixels: list[int]) -> list[list[int]]:
    runs: list[list[int]] = [[]]
    value = 0
    for pixel in pixels:
        if pixel != value:
            runs.append([])
            value = pixel
        runs[-1].append(pixel)
    return runs


@settings(max_examples=30)
@given(
    found=st.lists(objects(), max_size=3),
    labels=st.lists(st.sampled_from(["cat", "dog"]), unique=True),
)
def test_what_is_read_back_encodes_to_the_same_bytes(
    found: list[ObjectAnnotation], labels: list[str]
) -> None:
    said = ImageAnnotations(
        image_id="17",
        width=WIDTH,
        height=HEIGHT,
        labels=tuple(labels),
        label_confidences=tuple(0.3 for _ in labels),
        objects=tuple(found),
        captions=("a cat\nsits", "é"),
        values={"camera": ("left",), "image/neg": ("dog",)},
    )
    settings: dict[str, Any] = {"kinds": ALL_KINDS, "extras": EXTRAS, "objects_lost": "keep"}
    first = render(said, image=IMAGE, label_map=LABEL_MAP, **settings)
    feature_map = FeatureMap(class_names={3: "cat", 7: "dog"})
    again = read(first.encoded[0].data, feature_map=feature_map, extras=EXTRAS)
    second = render(again, image=IMAGE, label_map=LABEL_MAP, **settings)
    assert second.encoded[0].data == first.encoded[0].data


def test_an_example_of_each_object_is_read_back() -> None:
    said = ImageAnnotations(
        image_id="17",
        objects=tuple(
            ObjectAnnotation(
                label="dog", bbox=(1.3, 2.7, 30.1, 20.9), annotation_id=number, is_crowd=True
            )
            for number in (5, 6)
        ),
    )
    first = render(said, image=IMAGE, label_map=LABEL_MAP, example_per="annotation")
    for example in first.encoded:
        again = read(example.data)
        (second,) = render(
            again, image=IMAGE, label_map=LABEL_MAP, example_per="annotation"
        ).encoded
        assert second.data == example.data


def test_classes_without_names_have_their_ids_as_names() -> None:
    box = {f"image/object/bbox/{side}": [0.25] for side in ("xmin", "ymin")}
    box |= {f"image/object/bbox/{side}": [0.75] for side in ("xmax", "ymax")}
    features = {**box, "image/object/class/label": [5], "image/class/label": [6, 5]}
    annotations = read_features(features)
    assert [item.label for item in annotations.objects] == ["5"]
    assert annotations.labels == ("6", "5")
    assert annotations.objects[0].area == -1
    picture = make_picture(Example.FromString(make_example(features)), feature_map=FeatureMap())
    assert class_of(picture.objects[0]) == ("5", 5)
    assert picture.label_ids == (6, 5)


def test_masks_may_hold_any_value_for_the_object() -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[2:5, 3:9] = 255
    box = {f"image/object/bbox/{side}": [0.0] for side in ("xmin", "ymin")}
    box |= {f"image/object/bbox/{side}": [1.0] for side in ("xmax", "ymax")}
    features = {
        **box,
        "image/object/class/text": [b"cat"],
        "image/object/mask": [write_png(mask)],
        "image/object/area": [float(WIDTH)],
    }
    (item,) = read_features(features).objects
    rendered = render(
        ImageAnnotations(image_id="", objects=(item,), normalized=True),
        image=IMAGE,
        label_map=LABEL_MAP,
        kinds=(Kind.DETECTION, Kind.INSTANCE_MASKS),
    )
    (drawn,) = rendered.pictures("image/object/mask")
    assert np.array_equal(drawn, mask // 255)
    assert item.area == pytest.approx(1 / HEIGHT)
    empty = {**features, "image/object/mask": [write_png(np.zeros((HEIGHT, WIDTH), np.uint8))]}
    assert read_features(empty).objects[0].segmentation == b""


BOXES: dict[str, object] = {
    "image/object/class/text": [b"cat"],
    **{f"image/object/bbox/{side}": [0.25] for side in ("xmin", "ymin", "xmax", "ymax")},
}


@pytest.mark.parametrize(
    ("features", "detail"),
    [
        ({**BOXES, "image/object/bbox/ymax": [0.5, 0.5]}, "has 2 values for 1 objects"),
        ({**BOXES, "image/object/bbox/ymax": [300.0]}, "are they in pixels?"),
        ({**BOXES, "image/object/class/text": []}, "neither a name nor an id"),
        ({**BOXES, "image/object/class/text": [b"\xff"]}, "class/text is not UTF-8 text"),
        ({**BOXES, "image/object/is_crowd": [1, 0]}, "has 2 values for 1 objects"),
        ({"image/caption": [b"\xff"]}, "image/caption is not UTF-8 text"),
        ({"image/class/text": [b"a"], "image/class/label": [1, 2]}, "1 names and 2 ids"),
        ({"image/class/text": [b"a"], "image/class/confidence": [0.5, 0.5]}, "1 labels and 2"),
        ({"image/class/text": [b""]}, "neither a name nor an id"),
        ({"image/source_id": 5}, "image/source_id holds no bytes"),
    ],
)
def test_contradictions_are_rejected(features: Mapping[str, object], detail: str) -> None:
    with pytest.raises(RejectedError) as caught:
        read_features(features)
    assert caught.value.reason is Reason.ANNOTATION_MALFORMED
    assert detail in caught.value.detail


@pytest.mark.parametrize(
    ("extra", "value", "detail"),
    [
        (ExtraFeature(one_value("n", FeatureKind.INT64)), [b"x"], "holds no int64 values"),
        (ExtraFeature(one_value("n", FeatureKind.INT64)), [1, 2], "2 values, and 1 in other"),
        (ExtraFeature(one_value("n", FeatureKind.BYTES)), [b"\xff"], "expected UTF-8 text"),
        (
            ExtraFeature(value_list("n", FeatureKind.INT64), per_object=True),
            [1, 2],
            "n has 2 values for 1 objects",
        ),
    ],
)
def test_other_keys_must_have_the_declared_kind(
    extra: ExtraFeature, value: list[object], detail: str
) -> None:
    data = make_example({"image/encoded": IMAGE.data, **BOXES, "n": value})
    with pytest.raises(RejectedError) as caught:
        read(data, extras=(extra,))
    assert detail in caught.value.detail


def test_objects_without_a_box_and_other_sizes_are_counted() -> None:
    nan = {**BOXES, "image/object/bbox/xmin": [float("nan")]}
    assert read_features(nan).corrections == {"object_without_box_dropped": 1}
    size = {"image/width": 10, "image/height": 20}
    annotations = read_features(size)
    assert annotations.corrections == {"size_corrected": 1}
    assert (annotations.width, annotations.height) == (10, 20)
    # The size of an image that is shown turned, as EXIF says, is no contradiction.
    assert read_features({"image/width": HEIGHT, "image/height": WIDTH}).corrections == {}
