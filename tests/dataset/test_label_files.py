from __future__ import annotations

import unicodedata
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.dataset.label_files import label_map_pbtxt, labels_txt
from tests.support.example_builders import make_label_map

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
label_ids = st.dictionaries(names, st.integers(0, 2**31 - 1), max_size=5).filter(
    lambda ids: len(set(ids.values())) == len(ids)
)


def parse_pbtxt(text: str) -> list[tuple[str, int]]:
    """Parses with a `StringIntLabelMap` that is built here, field by field."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="string_int_label_map.proto", package="tfod")
    item = file.message_type.add(name="StringIntLabelMapItem")
    item.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    item.field.add(name="id", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    label_map = file.message_type.add(name="StringIntLabelMap")
    label_map.field.add(
        name="item",
        number=1,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=".tfod.StringIntLabelMapItem",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("tfod.StringIntLabelMap")
    message: Any = message_factory.GetMessageClass(descriptor)()
    text_format.Parse(text, message)
    return [(entry.name, entry.id) for entry in message.item]


def test_pbtxt() -> None:
    label_map = make_label_map({"traffic light": 10, 'say "hi"\\\t': 1, "Füchse": 2})
    assert label_map_pbtxt(label_map).decode() == (
        'item {\n  name: "say \\"hi\\"\\\\\\011"\n  id: 1\n}\n\n'
        'item {\n  name: "Füchse"\n  id: 2\n}\n\n'
        'item {\n  name: "traffic light"\n  id: 10\n}\n'
    )


@given(label_ids)
def test_pbtxt_comes_back(ids: dict[str, int]) -> None:
    parsed = parse_pbtxt(label_map_pbtxt(make_label_map(ids)).decode())
    assert parsed == sorted(ids.items(), key=lambda item: item[1])


def test_labels_txt() -> None:
    label_map = make_label_map({"b": 1, "traffic light": 30, "a\\n": 0, " é ": 2})
    assert labels_txt(label_map).decode() == "a\\n\nb\n é \ntraffic light\n"


@given(label_ids)
def test_labels_txt_has_a_line_for_each_name(ids: dict[str, int]) -> None:
    lines = labels_txt(make_label_map(ids)).decode().splitlines()
    for line, name in zip(lines, sorted(ids, key=ids.__getitem__), strict=True):
        if name.isprintable():
            assert line == name
        else:
            assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in line)


def test_control_characters_are_escaped() -> None:
    label_map = make_label_map({"a\nb\t": 0, "c\u2028d\0": 1, "e\x85f": 2})
    assert labels_txt(label_map) == b"a\\nb\\t\nc\\u2028d\\x00\ne\\x85f\n"
    lines = label_map_pbtxt(label_map).decode().splitlines()
    assert [line for line in lines if "name" in line] == [
        '  name: "a\\012b\\011"',
        '  name: "c\\342\\200\\250d\\000"',
        '  name: "e\\302\\205f"',
    ]
