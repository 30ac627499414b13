"""Values come out of a shuffle unchanged, and are always encoded as the same bytes."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from apache_beam.coders.typecoders import registry
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from shardbeam.transforms.beam.stages import StructCoder
from shardbeam.transforms.commit.moves import CommitBatch
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedFile,
    ListedImage,
    Record,
    Reject,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.rejects import RejectsFile
from shardbeam.transforms.dataset.shard_plan import ShardPlan
from shardbeam.transforms.dataset.shard_result import ShardResult

STRUCTS: list[type[msgspec.Struct]] = [
    AnnotationEntry,
    Category,
    InputCounts,
    CommitBatch,
    ImageRef,
    LabelMap,
    ListedFile,
    ListedImage,
    Record,
    Reject,
    RejectsFile,
    ShardPlan,
    ShardResult,
]


def values_of(kind: type[Any] | inspect.Type) -> st.SearchStrategy[Any]:
    """Makes values of any type that a struct's field may have."""
    match kind if isinstance(kind, inspect.Type) else inspect.type_info(kind):
        case inspect.Metadata(type=inner):
            return values_of(inner)
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: values_of(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of(*map(values_of, types))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values_of(key), values_of(value), max_size=3)
        case inspect.TupleType(item_types=types):
            return st.tuples(*map(values_of, types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=3).map(tuple)
        case inspect.ListType(item_type=item):
            return st.lists(values_of(item), max_size=3)
        case inspect.SetType(item_type=item):
            return st.sets(values_of(item), max_size=3)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(cls)
        case inspect.StrType(pattern=str() as pattern):
            return st.from_regex(pattern)
        case inspect.StrType():
            return st.text(max_size=8)
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(2**63) if low is None else low, high or 2**63 - 1)
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8)
    raise TypeError(f"no values of {kind}")


# Made once: each has many strategies below it.
VALUES = {struct_type: values_of(struct_type) for struct_type in STRUCTS}


@pytest.mark.parametrize("struct_type", STRUCTS)
@settings(max_examples=20)
@given(data=st.data())
def test_decoding_gives_back_what_was_encoded(
    struct_type: type[msgspec.Struct], data: st.DataObject
) -> None:
    coder = registry.get_coder(struct_type)
    value = data.draw(VALUES[struct_type])
    encoded = coder.encode(value)
    assert isinstance(coder, StructCoder)
    assert coder.decode(encoded) == value
    assert coder.encode(coder.decode(encoded)) == encoded


@given(values_of(ImageAnnotations))
def test_annotations_survive_their_journey_as_bytes(annotations: ImageAnnotations) -> None:
    assert decode_annotations(encode_annotations(annotations)) == annotations


@given(values_of(dict[str, int]))
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
