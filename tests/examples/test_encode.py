from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.encode import ExampleEncoder
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.schema import FeatureSettings, plan_features
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from tests.support.example_builders import make_encoder, make_image, make_label_map, make_record

# Those whose values are in the annotations themselves.
KINDS = [Kind.CLASSIFICATION, Kind.LABEL_CONFIDENCE, Kind.DETECTION, Kind.KEYPOINTS, Kind.CAPTIONS]
LABELS = {"cat": 3, "dog": 1, "Füchse": 7}


class Encoded(NamedTuple):
    """The one Example of an image, and what was corrected."""

    data: bytes
    sha256: str
    objects: int
    corrections: Mapping[str, int]


def encode(
    encoder: ExampleEncoder,
    annotations: ImageAnnotations,
    *,
    image: StoredImage | None = None,
    key: str = "dogs/1.jpg",
) -> Encoded:
    encoded = encoder.encode(
        record=make_record(annotations, key=key),
        annotations=annotations,
        image=image or make_image(),
    )
    (example,) = encoded.examples
    return Encoded(example.data, example.sha256, example.objects, encoded.corrections)


def parse(data: bytes) -> dict[str, tuple[str | None, list[Any]]]:
    """Parses an Example into `{key: (kind, values)}`."""
    features = {}
    for key, feature in Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        features[key] = (kind, list(getattr(feature, kind).value) if kind else [])
    return features


def values(data: bytes) -> dict[str, list[Any]]:
    return {key: feature[1] for key, feature in parse(data).items()}


def float32(numbers: Sequence[float]) -> list[float]:
    return list(struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers)))


def annotate(
    *objects: ObjectAnnotation,
    image_id: str = "17",
    width: int = 0,
    height: int = 0,
    labels: tuple[str, ...] = (),
    corrections: Mapping[str, int] | None = None,
) -> ImageAnnotations:
    return ImageAnnotations(
        image_id=image_id,
        width=width,
        height=height,
        labels=labels,
        objects=objects,
        corrections=corrections or {},
    )


def test_detection() -> None:
    encoded = encode(
        make_encoder(label_map=make_label_map(LABELS)),
        annotate(
            ObjectAnnotation("dog", (10, 5, 60, 30), area=321.5),
            ObjectAnnotation("Füchse", (0, 0, 100, 50), area=7, is_crowd=True),
            width=100,
            height=50,
        ),
    )
    digest = hashlib.sha256(b"pixels").hexdigest()
    assert parse(encoded.data) == {
        "image/encoded": ("bytes_list", [b"pixels"]),
        "image/format": ("bytes_list", [b"jpeg"]),
        "image/height": ("int64_list", [50]),
        "image/width": ("int64_list", [100]),
        "image/filename": ("bytes_list", [b"dogs/1.jpg"]),
        "image/source_id": ("bytes_list", [b"17"]),
        "image/key/sha256": ("bytes_list", [digest.encode()]),
        "image/object/bbox/xmin": ("float_list", float32([0.1, 0])),
        "image/object/bbox/ymin": ("float_list", float32([0.1, 0])),
        "image/object/bbox/xmax": ("float_list", float32([0.6, 1])),
        "image/object/bbox/ymax": ("float_list", float32([0.6, 1])),
        "image/object/class/label": ("int64_list", [1, 7]),
        "image/object/class/text": ("bytes_list", [b"dog", "Füchse".encode()]),
        "image/object/is_crowd": ("int64_list", [0, 1]),
        "image/object/area": ("float_list", [321.5, 7]),
    }
    assert encoded.sha256 == digest
    assert encoded.objects == 2
    assert encoded.corrections == {}


def test_classification() -> None:
    encoder = make_encoder(kinds=[Kind.CLASSIFICATION], label_map=make_label_map(LABELS))
    encoded = encode(encoder, annotate(image_id="", labels=("cat",)))
    written = values(encoded.data)
    assert written["image/class/label"] == [3]
    assert written["image/class/text"] == [b"cat"]
    assert written["image/source_id"] == [b"dogs/1.jpg"]


def test_every_key_has_its_kind_where_there_is_nothing_to_write() -> None:
    encoder = make_encoder(kinds=KINDS, label_map=make_label_map(LABELS))
    written = parse(encode(encoder, annotate()).data)
    schema = plan_features(FeatureSettings(kinds=frozenset(KINDS))).schema()
    assert {key: kind for key, (kind, _) in written.items()} == {
        spec.key: f"{spec.kind.value}_list" for spec in schema
    }
    assert written["image/object/area"] == ("float_list", [])


def test_an_empty_list_is_on_the_wire() -> None:
    encoder = make_encoder(label_map=make_label_map(LABELS))
    data = encode(encoder, annotate()).data
    # The map's entry: key (field 1), then Feature (field 2) with an empty FloatList (field 2).
    assert b"\x0a\x11image/object/area\x12\x02\x12\x00" in data
    assert b"\x0a\x18image/object/class/label\x12\x02\x1a\x00" in data
    assert b"\x0a\x17image/object/class/text\x12\x02\x0a\x00" in data


def test_renamed_dropped_and_constant_keys() -> None:
    encoder = make_encoder(
        label_map=make_label_map(LABELS),
        kinds=[Kind.CLASSIFICATION],
        rename={"image/encoded": "train/image", "image/class/label": "train/label"},
        drop=["image/key/sha256", "image/class/text"],
        constants={"colorspace": "RGB", "channels": 3, "mean": [0.5, 0.25], "tags": ["a", "é"]},
    )
    written = parse(encode(encoder, annotate(labels=("dog",))).data)
    assert written["train/image"] == ("bytes_list", [b"pixels"])
    assert written["train/label"] == ("int64_list", [1])
    assert written["colorspace"] == ("bytes_list", [b"RGB"])
    assert written["channels"] == ("int64_list", [3])
    assert written["mean"] == ("float_list", [0.5, 0.25])
    assert written["tags"] == ("bytes_list", [b"a", "é".encode()])
    assert not written.keys() & {"image/encoded", "image/key/sha256", "image/class/text"}


def test_boxes_are_clipped_or_dropped_and_counted() -> None:
    encoded = encode(
        make_encoder(label_map=make_label_map(LABELS)),
        annotate(
            ObjectAnnotation("dog", (-10, 10, 50, 60)),
            ObjectAnnotation("dog", (20, 20, 20, 30)),
            ObjectAnnotation("dog", (30, 20, 20, 30)),
            ObjectAnnotation("dog", (100, 0, 120, 10)),
            ObjectAnnotation("dog", (math.nan, 0, 10, 10)),
            ObjectAnnotation("cat", (0, 0, 1, 1)),
        ),
    )
    written = values(encoded.data)
    assert written["image/object/class/text"] == [b"dog", b"cat"]
    assert written["image/object/bbox/xmin"] == [0, 0]
    assert written["image/object/bbox/ymax"] == float32([1, 0.02])
    assert encoded.objects == 2
    assert encoded.corrections == {
        Correction.BOX_CLIPPED.value: 1,
        Correction.BOX_WITHOUT_AREA_DROPPED.value: 4,
    }


@pytest.mark.parametrize("area", [-1.0, 1e39, math.nan, math.inf])
def test_an_area_that_is_not_given_is_that_of_the_clipped_box(area: float) -> None:
    encoder = make_encoder(label_map=make_label_map(LABELS))
    encoded = encode(encoder, annotate(ObjectAnnotation("dog", (-10, 10, 50, 60), area=area)))
    assert values(encoded.data)["image/object/area"] == [50 * 40]


def test_a_given_area_of_zero_is_kept() -> None:
    encoder = make_encoder(label_map=make_label_map(LABELS))
    encoded = encode(encoder, annotate(ObjectAnnotation("dog", (1, 1, 5, 6), area=0)))
    assert values(encoded.data)["image/object/area"] == [0]


def test_a_resize_scales_areas_and_nothing_else() -> None:
    encoder = make_encoder(label_map=make_label_map(LABELS))
    annotations = annotate(
        ObjectAnnotation("dog", (10, 5, 60, 30), area=100),
        ObjectAnnotation("dog", (0, 0, 50, 50)),
        width=100,
        height=50,
    )
    whole = values(encode(encoder, annotations).data)
    half = values(
        encode(encoder, annotations, image=make_image(size=(50, 25), file_size=(100, 50))).data
    )
    differing = {key for key in whole if whole[key] != half[key]}
    assert differing == {"image/width", "image/height", "image/object/area"}
    assert whole["image/object/area"] == [100, 2500]
    assert half["image/object/area"] == [25, 625]


def test_stored_boxes_are_turned_with_the_image() -> None:
    # Stored 100x50, to be turned a quarter clockwise: what lies at the left comes to the top.
    encoded = encode(
        make_encoder(label_map=make_label_map(LABELS)),
        annotate(ObjectAnnotation("dog", (0, 0, 10, 50)), width=100, height=50),
        image=make_image(
            size=(50, 100),
            file_size=(100, 50),
            orientation=6,
            corrections=(Correction.ORIENTATION_APPLIED,),
        ),
    )
    written = values(encoded.data)
    assert written["image/object/bbox/xmax"] == [1]
    assert written["image/object/bbox/ymax"] == float32([0.1])
    assert encoded.corrections == {Correction.ORIENTATION_APPLIED.value: 1}


def test_upright_boxes_are_turned_back_where_the_orientation_is_kept() -> None:
    encoded = encode(
        make_encoder(label_map=make_label_map(LABELS)),
        annotate(ObjectAnnotation("dog", (0, 0, 50, 10)), width=50, height=100),
        image=make_image(size=(100, 50), orientation=6, upright=False),
    )
    written = values(encoded.data)
    assert written["image/object/bbox/xmax"] == float32([0.1])
    assert written["image/object/bbox/ymax"] == [1]


def test_annotated_as_is_heeded() -> None:
    annotations = annotate(ObjectAnnotation("dog", (0, 0, 25, 50)))
    image = make_image(size=(100, 50), orientation=3)
    written = {
        annotated_as: values(
            encode(
                make_encoder(label_map=make_label_map(LABELS), annotated_as=annotated_as),
                annotations,
                image=image,
            ).data
        )["image/object/bbox/xmin"]
        for annotated_as in ("auto", "upright", "stored")
    }
    assert written == {"auto": [0], "upright": [0], "stored": [0.75]}


def test_a_wrong_size_is_corrected_or_rejected() -> None:
    encoder = make_encoder(label_map=make_label_map(LABELS))
    inside, outside = ObjectAnnotation("dog", (0, 0, 9, 9)), ObjectAnnotation("dog", (0, 0, 9, 99))
    encoded = encode(encoder, annotate(inside, width=200, height=100))
    assert encoded.corrections == {Correction.SIZE_CORRECTED.value: 1}
    with pytest.raises(RejectedError) as caught:
        encode(encoder, annotate(inside, outside, width=200, height=100))
    assert caught.value.reason is Reason.SIZE_MISMATCH


def test_labels_are_merged_and_excluded() -> None:
    settings = LabelSettings(merge={"pet": ["cat", "dog"]}, exclude=["Füchse"])
    encoder = make_encoder(kinds=KINDS, label_map=make_label_map(LABELS, settings=settings))
    box = (0.0, 0.0, 1.0, 1.0)
    encoded = encode(
        encoder,
        annotate(
            *(ObjectAnnotation(label, box) for label in ("cat", "Füchse", "dog")),
            labels=("Füchse", "dog", "cat"),
        ),
    )
    written = values(encoded.data)
    assert written["image/object/class/text"] == [b"pet", b"pet"]
    assert written["image/object/class/label"] == [1, 1]
    assert written["image/class/text"] == [b"pet"]
    assert written["image/class/label"] == [1]
    assert encoded.objects == 2
    assert encoded.corrections == {
        Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED.value: 1,
        Correction.EXCLUDED_LABEL_DROPPED.value: 1,
    }


def test_corrections_of_parsing_and_of_the_image_are_counted_in() -> None:
    dropped = Correction.DUPLICATE_ANNOTATION_DROPPED.value
    encoded = encode(
        make_encoder(label_map=make_label_map(LABELS)),
        annotate(corrections={dropped: 2}),
        image=make_image(corrections=(Correction.IMAGE_CONVERTED, Correction.IMAGE_RESIZED)),
    )
    assert encoded.corrections == {
        dropped: 2,
        Correction.IMAGE_CONVERTED.value: 1,
        Correction.IMAGE_RESIZED.value: 1,
    }


def test_a_digest_that_is_known_is_used() -> None:
    annotations = annotate()
    encoded = make_encoder(label_map=make_label_map(LABELS)).encode(
        record=make_record(annotations), annotations=annotations, image=make_image(), sha256="ab"
    )
    (example,) = encoded.examples
    assert example.sha256 == "ab"
    assert values(example.data)["image/key/sha256"] == [b"ab"]


def test_bytes_do_not_depend_on_the_order_of_settings() -> None:
    label_map = make_label_map(LABELS)
    constants = {f"constant/{number}": number for number in range(20)}
    forwards = make_encoder(label_map=label_map, constants=constants)
    backwards = make_encoder(label_map=label_map, constants=dict(reversed(constants.items())))
    assert encode(forwards, annotate()).data == encode(backwards, annotate()).data


objects = st.builds(
    ObjectAnnotation,
    label=st.sampled_from([*LABELS, "unicorn"]),
    bbox=st.tuples(*[st.floats(-50, 150)] * 4),
    area=st.floats(-1, 1e6),
    is_crowd=st.booleans(),
)


@given(
    st.lists(objects, max_size=8),
    st.binary(max_size=50),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_nothing_is_lost(annotated: list[ObjectAnnotation], pixels: bytes, key: str) -> None:
    encoded = encode(
        make_encoder(label_map=make_label_map(LABELS)),
        annotate(*annotated, image_id=""),
        image=make_image(data=pixels),
        key=key,
    )
    written = values(encoded.data)
    assert written["image/encoded"] == [pixels]
    assert written["image/filename"] == written["image/source_id"] == [key.encode()]
    lengths = {len(column) for name, column in written.items() if "/object/" in name}
    assert lengths == {encoded.objects}
    dropped = [
        Correction.BOX_WITHOUT_AREA_DROPPED,
        Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED,
    ]
    assert len(annotated) == encoded.objects + sum(
        encoded.corrections.get(correction.value, 0) for correction in dropped
    )
    for low, high in (("xmin", "xmax"), ("ymin", "ymax")):
        for start, end in zip(
            written[f"image/object/bbox/{low}"],
            written[f"image/object/bbox/{high}"],
            strict=True,
        ):
            assert 0 <= start < end <= 1


def test_tensorflow_reads_and_writes_the_same_bytes() -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    encoder = make_encoder(
        kinds=KINDS,
        label_map=make_label_map(LABELS),
        constants={"mean": [0.5, 1.5], "source": "é", "year": -(2**63)},
    )
    data = encode(encoder, annotate(ObjectAnnotation("dog", (1, 2, 30, 40)))).data

    example = tf.train.Example.FromString(data)
    assert example.SerializeToString(deterministic=True) == data

    parsed = tf.io.parse_single_example(
        data,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/object/bbox/xmin": tf.io.FixedLenSequenceFeature(
                [], tf.float32, allow_missing=True
            ),
            "image/class/label": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
            "year": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    assert parsed["image/encoded"].numpy() == b"pixels"
    assert parsed["image/object/bbox/xmin"].numpy().tolist() == float32([0.01])
    assert parsed["image/class/label"].numpy().tolist() == []
    assert parsed["year"].numpy() == -(2**63)
