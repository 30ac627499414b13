from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.schema import PanopticConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    ImageAnnotations,
    ObjectAnnotation,
    decode_annotations,
)
from shardbeam.transforms.examples.encode import encode as encode_module
from shardbeam.transforms.examples.encode import encode as wire
from shardbeam.transforms.examples.encode.encode import ExampleLayout, RecordEncoder, fetch
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.formats.base import Kind
from tests.support.example_builders import (
    Rendered,
    make_image,
    make_label_map,
    parse,
    parse_kinds,
    render,
)
from tests.support.image_makers import plain_jpeg
from tests.support.shards import ENCODER, make_record

# The kinds whose values are in the annotations themselves.
KINDS = [Kind.CLASSIFICATION, Kind.LABEL_CONFIDENCE, Kind.DETECTION, Kind.KEYPOINTS, Kind.CAPTIONS]
LABELS = {"cat": 3, "dog": 1, "Füchse": 7}
LABEL_MAP = make_label_map(LABELS)
DOG = ObjectAnnotation("dog", (10, 5, 60, 30), area=321.5)


def float32(numbers: Sequence[float]) -> list[float]:
    return list(struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers)))


def annotate(
    *objects: ObjectAnnotation,
    image_id: str = "17",
    size: tuple[int, int] = (0, 0),
    **more: Any,  # noqa: ANN401  # Those of ImageAnnotations.
) -> ImageAnnotations:
    return ImageAnnotations(image_id, width=size[0], height=size[1], objects=objects, **more)


def box_values(rendered: Rendered, side: str) -> list[float]:
    return rendered.values[f"image/object/bbox/{side}"]


def test_detection() -> None:
    fox = ObjectAnnotation("Füchse", (0, 0, 100, 50), area=7, is_crowd=True)
    rendered = render(annotate(DOG, fox, size=(100, 50)), label_map=LABEL_MAP)
    digest = hashlib.sha256(b"pixels").hexdigest()
    (example,) = rendered.encoded
    assert parse_kinds(example.data) == {
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
    assert (example.sha256, example.objects) == (digest, 2)
    assert rendered.corrections == {}


def test_an_example_an_annotation() -> None:
    fox = ObjectAnnotation("Füchse", (0, 0, 100, 50), area=7, is_crowd=True, annotation_id=8)
    rendered = render(annotate(DOG, fox), label_map=LABEL_MAP, example_per="annotation")
    first, second = rendered.examples
    assert {key: first[key] for key in first if key.startswith("annotation/")} == {
        "annotation/id": [0],
        "annotation/image_id": [17],
        "annotation/bbox": [10, 5, 50, 25],
        "annotation/area": [321.5],
        "annotation/is_crowd": [0],
        "annotation/class/label": [1],
        "annotation/class/text": [b"dog"],
    }
    assert (second["annotation/id"], second["annotation/bbox"]) == ([8], [0, 0, 100, 50])
    assert first["image/encoded"] == second["image/encoded"]
    assert [example.objects for example in rendered.encoded] == [1, 1]
    assert render(annotate(), label_map=LABEL_MAP, example_per="annotation").examples == []


def test_an_image_id_that_is_no_integer_is_refused_where_it_is_written() -> None:
    annotations = annotate(DOG, image_id="a17")
    with pytest.raises(RejectedError, match=r"'a17' is not an integer.*features.drop"):
        render(annotations, label_map=LABEL_MAP, example_per="annotation")
    (example,) = render(
        annotations,
        label_map=LABEL_MAP,
        example_per="annotation",
        drop=["annotation/image_id"],
    ).examples
    assert "annotation/image_id" not in example


def test_every_key_has_its_kind_where_there_is_nothing_to_write() -> None:
    (example,) = render(annotate(), kinds=KINDS, label_map=LABEL_MAP).encoded
    schema = plan_features(EncoderSettings(kinds=frozenset(KINDS))).schema()
    assert {key: kind for key, (kind, _) in parse_kinds(example.data).items()} == {
        spec.key: f"{spec.kind.value}_list" for spec in schema
    }
    # The map's entry: key (field 1), then Feature (field 2) with an empty FloatList (field 2).
    assert b"\x0a\x11image/object/area\x12\x02\x12\x00" in example.data
    assert b"\x0a\x18image/object/class/label\x12\x02\x1a\x00" in example.data
    assert b"\x0a\x17image/object/class/text\x12\x02\x0a\x00" in example.data


@pytest.mark.parametrize(
    "settings",
    [
        {"kinds": [Kind.INSTANCE_MASKS, *KINDS]},
        {"kinds": [Kind.DETECTION, Kind.INSTANCE_MASKS], "example_per": "annotation"},
        {"kinds": [Kind.SEMANTIC], "add": ["image/depth"]},
        {"kinds": [Kind.PANOPTIC], "panoptic": PanopticConfig(bits=16)},
    ],
)
def test_each_key_of_the_schema_has_values(settings: dict[str, Any]) -> None:
    """And no group of keys renders a key that it does not declare, or the other way round."""
    plan = plan_features(EncoderSettings(**{**settings, "kinds": frozenset(settings["kinds"])}))
    (example,) = render(annotate(DOG), label_map=LABEL_MAP, **settings).examples
    assert sorted(example) == [spec.key for spec in plan.schema()]
    assert {"image/encoded", *plan.defaults} == {
        spec.key
        for group in plan.groups
        for spec in (*group.specs, *group.optional)
        if spec.key in plan.defaults
    }


def test_boxes_are_clipped_or_dropped_and_counted() -> None:
    boxes = [(-10, 10, 50, 60), (20, 20, 20, 30), (30, 20, 30, 30), (100, 0, 120, 10)]
    rendered = render(
        annotate(
            *(ObjectAnnotation("dog", box) for box in boxes),
            ObjectAnnotation("dog", (math.nan, 0, 10, 10)),
            ObjectAnnotation("cat", (0, 0, 1, 1)),
        ),
        label_map=LABEL_MAP,
    )
    assert rendered.values["image/object/class/text"] == [b"dog", b"cat"]
    assert box_values(rendered, "xmin") == [0, 0]
    assert box_values(rendered, "ymax") == float32([1, 0.02])
    assert rendered.corrections == {
        Correction.BOX_CLIPPED.value: 1,
        Correction.BOX_WITHOUT_AREA_DROPPED.value: 4,
    }


@pytest.mark.parametrize(
    ("area", "written"),
    [
        (0, 2000),
        (1e-50, 2000),
        (0.5, 0.5),
        (-1.0, 2000),
        (1e39, 2000),
        (math.nan, 2000),
        (math.inf, 2000),
    ],
)
def test_an_area_that_is_not_given_is_that_of_the_clipped_box(area: float, written: float) -> None:
    dog = ObjectAnnotation("dog", (-10, 10, 50, 60), area=area)
    assert render(annotate(dog), label_map=LABEL_MAP).values["image/object/area"] == [written]


FAR = ObjectAnnotation("dog", (150, 20, 190, 60), segmentation=b"[[150,20,190,20,190,60]]")


@pytest.mark.parametrize(
    ("annotations", "corrections", "is_rejected"),
    [
        # Nothing is annotated in pixels.
        ({"labels": ("dog",)}, {}, False),
        ({"objects": (ObjectAnnotation("dog", (0, 0, 0.5, 0.5)),), "normalized": True}, {}, False),
        # Annotated as twice the image.
        ({"objects": (FAR,)}, {"annotated_size_scaled": 1}, False),
        ({"stuff": (FAR,)}, {"annotated_size_scaled": 1}, False),
        # A box, or a region, belongs to neither size.
        ({"objects": (FAR,), "size": (50, 25)}, {}, True),
        ({"stuff": (FAR,), "size": (50, 25)}, {}, True),
        ({"stuff": (FAR,), "size": (90, 90)}, {}, True),
    ],
)
def test_only_what_is_annotated_in_pixels_has_a_size(
    annotations: dict[str, Any], corrections: dict[str, int], is_rejected: bool
) -> None:
    annotations = {"size": (200, 100), **annotations}
    objects = annotations.pop("objects", ())
    said = annotate(*objects, **annotations)
    kind = Kind.SEMANTIC if "stuff" in annotations else Kind.DETECTION
    if is_rejected:
        with pytest.raises(RejectedError) as caught:
            render(said, label_map=LABEL_MAP, kinds=(kind,))
        assert caught.value.reason is Reason.SIZE_MISMATCH
        return
    assert render(said, label_map=LABEL_MAP, kinds=(kind,)).corrections == corrections


def test_labels_are_merged_and_excluded() -> None:
    settings = LabelSettings(merge={"pet": ["cat", "dog"]}, exclude=["Füchse"])
    rendered = render(
        annotate(
            *(ObjectAnnotation(label, (0, 0, 1, 1)) for label in ("cat", "Füchse", "dog")),
            labels=("Füchse", "dog", "cat"),
            label_confidences=(1.0, 0.25, 0.75),
        ),
        kinds=KINDS,
        label_map=make_label_map(LABELS, settings=settings),
    )
    values = rendered.values
    assert values["image/object/class/text"] == [b"pet", b"pet"]
    assert values["image/object/class/label"] == [1, 1]
    assert values["image/class/text"] == [b"pet"]
    assert values["image/class/label"] == [1]
    assert values["image/class/confidence"] == [0.75]
    assert rendered.corrections == {
        Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED.value: 1,
        Correction.EXCLUDED_LABEL_DROPPED.value: 1,
    }


def test_corrections_of_parsing_and_of_the_image_are_counted_in() -> None:
    dropped = Correction.DUPLICATE_ANNOTATION_DROPPED.value
    rendered = render(
        annotate(corrections={dropped: 2}, changes={dropped: [(7, None)]}),
        label_map=LABEL_MAP,
        image=make_image(
            corrections={
                Correction.IMAGE_CONVERTED: ("gif", "jpeg"),
                Correction.IMAGE_RESIZED: ((8, 6), (4, 3)),
            },
        ),
    )
    assert rendered.corrections == {
        dropped: 2,
        Correction.IMAGE_CONVERTED.value: 1,
        Correction.IMAGE_RESIZED.value: 1,
    }
    assert rendered.corrections.changes == {
        dropped: [(7, None)],
        Correction.IMAGE_CONVERTED.value: [("gif", "jpeg")],
        Correction.IMAGE_RESIZED.value: [([8, 6], [4, 3])],
    }


def test_a_digest_that_is_known_is_used() -> None:
    rendered = render(annotate(), label_map=LABEL_MAP, sha256="ab")
    assert rendered.encoded[0].sha256 == "ab"
    assert rendered.values["image/key/sha256"] == [b"ab"]


@pytest.mark.parametrize("ahead", [False, True])
def test_annotations_are_decoded_once(
    ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def decode(data: bytes) -> ImageAnnotations:
        decoded.append(data)
        return decode_annotations(data)

    monkeypatch.setattr(encode_module, "decode_annotations", decode)
    record = make_record(tmp_path / "a.jpg", data=plain_jpeg())
    encoder = RecordEncoder(ENCODER, label_map=LABEL_MAP)
    encoded = encoder.encode(fetch(record, settings=ENCODER.image) if ahead else record)
    assert len(encoded.examples) == 1
    assert decoded == [record.annotations]


def test_bytes_do_not_depend_on_the_order_of_settings() -> None:
    constants = {f"constant/{number}": number for number in range(20)}
    forwards = render(annotate(), label_map=LABEL_MAP, constants=constants)
    backwards = render(annotate(), label_map=LABEL_MAP, constants=dict(reversed(constants.items())))
    assert [each.data for each in forwards.encoded] == [each.data for each in backwards.encoded]


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
    rendered = render(
        annotate(*annotated, image_id=""),
        label_map=LABEL_MAP,
        image=make_image(data=pixels),
        key=key,
        objects_lost="keep",
    )
    values, written = rendered.values, rendered.encoded[0].objects
    assert values["image/encoded"] == [pixels]
    assert values["image/filename"] == values["image/source_id"] == [key.encode()]
    assert {len(column) for name, column in values.items() if "/object/" in name} == {written}
    dropped = (Correction.BOX_WITHOUT_AREA_DROPPED, Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED)
    counts: Mapping[str, int] = rendered.corrections
    assert len(annotated) == written + sum(counts.get(each.value, 0) for each in dropped)
    for low, high in (("xmin", "xmax"), ("ymin", "ymax")):
        starts, ends = box_values(rendered, low), box_values(rendered, high)
        for start, end in zip(starts, ends, strict=True):
            assert 0 <= start < end <= 1


def test_tensorflow_reads_and_writes_the_same_bytes() -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    (encoded,) = render(
        annotate(ObjectAnnotation("dog", (1, 2, 30, 40))),
        kinds=KINDS,
        label_map=LABEL_MAP,
        constants={"mean": [0.5, 1.5], "source": "é", "year": -(2**63)},
    ).encoded
    example = tf.train.Example.FromString(encoded.data)
    assert example.SerializeToString(deterministic=True) == encoded.data
    lists = tf.io.FixedLenSequenceFeature
    parsed = tf.io.parse_single_example(
        encoded.data,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/object/bbox/xmin": lists([], tf.float32, allow_missing=True),
            "image/class/label": lists([], tf.int64, allow_missing=True),
            "year": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    assert parsed["image/encoded"].numpy() == b"pixels"
    assert parsed["image/object/bbox/xmin"].numpy().tolist() == float32([0.01])
    assert parsed["image/class/label"].numpy().tolist() == []
    assert parsed["year"].numpy() == -(2**63)


# The bytes of an Example


PLAN = plan_features(
    EncoderSettings(
        kinds=frozenset({Kind.DETECTION, Kind.CLASSIFICATION}), constants={"mean": [0.5, 1.5]}
    )
)


def example_values(number: int) -> dict[str, list[object]]:
    """Returns `number` values of each key."""
    values: dict[str, object] = {"bytes": b"%d" % number, "int64": number, "float": number / 2}
    return {key: [values[spec.kind.value]] * number for key, spec in PLAN.defaults.items()}


def serialize(layout: ExampleLayout, number: int) -> bytes:
    return b"".join(layout.serialize(example_values(number), image=b"pixels"))


@pytest.mark.parametrize("message_bytes", [0, wire._MESSAGE_BYTES])
def test_an_example_holds_nothing_of_the_one_before(
    message_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_MESSAGE_BYTES", message_bytes)
    layout = ExampleLayout(PLAN)
    for number in (3, 1, 0, 200, 2, 0, 3):
        data = serialize(layout, number)
        assert data == serialize(ExampleLayout(PLAN), number)
        constant = {"image/encoded": [b"pixels"], "mean": [0.5, 1.5]}
        assert parse(data) == example_values(number) | constant


def test_a_value_that_does_not_fit_leaves_nothing_behind() -> None:
    layout = ExampleLayout(PLAN)
    with pytest.raises(ValueError, match="out of range"):
        layout.serialize(example_values(3) | {"image/object/is_crowd": [2**63]}, image=b"")
    assert serialize(layout, 1) == serialize(ExampleLayout(PLAN), 1)


def test_threads_share_a_layout() -> None:
    layout = ExampleLayout(PLAN)
    numbers = [number % 7 for number in range(500)]
    with ThreadPoolExecutor(4) as executor:
        written = list(executor.map(lambda number: serialize(layout, number), numbers))
    assert written == [serialize(ExampleLayout(PLAN), number) for number in numbers]


def test_the_bytes_of_examples_are_freed() -> None:
    layout = ExampleLayout(PLAN)
    values = example_values(1)
    before = _resident_bytes()
    for number in range(100):
        layout.serialize(values | {"image/class/text": [b"%d" % number * 500_000]}, image=b"")
    assert _resident_bytes() - before < 30_000_000


def _resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
