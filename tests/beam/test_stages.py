"""What crosses a shuffle comes out as it went in, always as the same bytes."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from apache_beam.coders.typecoders import registry
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.beam.stages import StructCoder
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    Coding,
    ImageAnnotations,
    ImageRef,
    ListedFile,
    ListedImage,
    MaskRole,
    ObjectAnnotation,
    Record,
    Reject,
    Segment,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.dataset.census import Census, ListingSummary, SourceCensus
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.shard_result import ShardResult, StagedFile

TEXT = st.text(max_size=8)
BYTES = st.binary(max_size=8)
COUNT = st.integers(0, 2**63 - 1)
COUNTS = st.dictionaries(TEXT, COUNT, max_size=4)
PIXELS = st.floats(allow_nan=False)

IMAGES = st.builds(
    ImageRef,
    uri=TEXT,
    size_bytes=COUNT,
    version=TEXT,
    offset=COUNT,
    whole=st.booleans(),
    coding=st.sampled_from(Coding),
    decoded_bytes=COUNT,
    crc32=st.integers(-1, 2**32 - 1),
)
VALUES = st.integers(-(2**63), 2**63 - 1) | PIXELS | TEXT
OBJECTS = st.builds(
    ObjectAnnotation,
    label=TEXT,
    bbox=st.tuples(PIXELS, PIXELS, PIXELS, PIXELS),
    area=PIXELS,
    is_crowd=st.booleans(),
    annotation_id=st.integers(-(2**63), 2**63 - 1),
    segmentation=BYTES,
    keypoints=st.lists(PIXELS, max_size=3).map(tuple),
    attributes=st.dictionaries(TEXT, VALUES, max_size=3),
)
ANNOTATIONS = st.builds(
    ImageAnnotations,
    image_id=TEXT,
    width=COUNT,
    height=COUNT,
    labels=st.lists(TEXT, max_size=3).map(tuple),
    objects=st.lists(OBJECTS, max_size=3).map(tuple),
    corrections=COUNTS,
    normalized=st.booleans(),
    label_confidences=st.lists(PIXELS, max_size=3).map(tuple),
    captions=st.lists(TEXT, max_size=3).map(tuple),
    segments=st.lists(
        st.builds(Segment, segment_id=COUNT, label=TEXT, is_crowd=st.booleans()), max_size=3
    ).map(tuple),
    masks=st.dictionaries(st.sampled_from(MaskRole), IMAGES, max_size=2),
    values=st.dictionaries(TEXT, st.lists(VALUES, max_size=3).map(tuple), max_size=3),
)
REJECTS = st.builds(
    Reject,
    split=TEXT,
    source=TEXT,
    key=TEXT,
    stage=TEXT,
    reason=st.sampled_from(Reason),
    detail=TEXT,
    listed=st.booleans(),
)
CATEGORIES = st.builds(
    Category,
    name=TEXT,
    source_id=st.none() | COUNT,
    origin=TEXT,
    keypoints=st.lists(TEXT, max_size=3).map(tuple),
    is_thing=st.booleans(),
)
FILES = st.builds(StagedFile, staged=TEXT, destination=TEXT, size_bytes=COUNT, crc32c=TEXT)
STRUCTS: dict[type[msgspec.Struct], st.SearchStrategy[msgspec.Struct]] = {
    ImageRef: IMAGES,
    AnnotationEntry: st.builds(
        AnnotationEntry,
        key=TEXT,
        annotations=BYTES,
        file_index=COUNT,
        position=COUNT,
        image_id=TEXT,
        defect=st.none() | st.sampled_from(Reason),
        detail=TEXT,
        split=TEXT,
        exclusion=st.none() | st.sampled_from(Exclusion),
    ),
    Category: CATEGORIES,
    ListedImage: st.builds(ListedImage, key=TEXT, image=IMAGES),
    ListedFile: st.builds(
        ListedFile,
        source=TEXT,
        path=TEXT,
        root=COUNT,
        file=IMAGES,
        join=TEXT,
        is_container=st.booleans(),
    ),
    Record: st.builds(
        Record,
        source=TEXT,
        key=TEXT,
        image=st.none() | IMAGES,
        annotations=BYTES,
        split=TEXT,
        examples=COUNT,
    ),
    Reject: REJECTS,
    LabelMap: st.builds(LabelMap, ids=COUNTS, names=st.dictionaries(TEXT, TEXT, max_size=4)),
    Census: st.builds(
        Census,
        listing=st.builds(ListingSummary, files=COUNTS),
        splits=st.dictionaries(
            TEXT, st.builds(SplitOutcome, listed=COUNT, rejected=COUNTS), max_size=3
        ),
        sources=st.dictionaries(
            TEXT, st.builds(SourceCensus, referenced=COUNT, listed_key=TEXT), max_size=3
        ),
        categories=st.dictionaries(TEXT, CATEGORIES, max_size=3),
    ),
    ShardResult: st.builds(
        ShardResult,
        split=TEXT,
        shard_index=COUNT,
        num_shards=COUNT,
        data=FILES,
        index=FILES,
        examples=COUNT,
        fingerprint=TEXT,
        inputs=COUNT,
        corrections=COUNTS,
        rejects=st.lists(REJECTS, max_size=2).map(tuple),
        resumed=st.booleans(),
    ),
}


@pytest.mark.parametrize("struct_type", STRUCTS)
@given(data=st.data())
def test_decoding_gives_back_what_was_encoded(
    struct_type: type[msgspec.Struct], data: st.DataObject
) -> None:
    coder = registry.get_coder(struct_type)
    value = data.draw(STRUCTS[struct_type])
    encoded = coder.encode(value)
    assert isinstance(coder, StructCoder)
    assert coder.decode(encoded) == value
    assert coder.encode(coder.decode(encoded)) == encoded


@given(ANNOTATIONS)
def test_annotations_survive_their_journey_as_bytes(annotations: ImageAnnotations) -> None:
    assert decode_annotations(encode_annotations(annotations)) == annotations


@given(COUNTS)
def test_equal_values_are_equal_bytes_whatever_the_order_of_a_mapping(
    counts: dict[str, int],
) -> None:
    coder = StructCoder(LabelMap)
    backwards = dict(reversed(counts.items()))
    assert coder.is_deterministic()
    assert coder.encode(LabelMap(counts, {})) == coder.encode(LabelMap(backwards, {}))


def test_a_coder_travels_to_other_processes() -> None:
    coder = StructCoder(ImageRef)
    value = ImageRef(uri="/a", size_bytes=1, version="2")
    arrived = pickle.loads(pickle.dumps(coder))
    assert arrived == coder
    assert hash(arrived) == hash(coder)
    assert arrived != StructCoder(Record)
    assert arrived.decode(coder.encode(value)) == value
    assert arrived.to_type_hint() is ImageRef


@pytest.mark.parametrize("other", [int, dict, msgspec.defstruct("Own", [])])
def test_other_types_keep_beams_coder(other: type) -> None:
    assert not isinstance(registry.get_coder(other), StructCoder)
