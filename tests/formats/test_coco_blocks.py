"""COCO's annotations are decoded in blocks; the outcome is that of decoding each by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.coco.coco_file import CocoAnnotation, CocoFile, CocoImage
from shardbeam.transforms.formats.coco.lvis import LvisFormat
from shardbeam.transforms.formats.parsing import json_array
from shardbeam.transforms.formats.parsing.json_array import JsonArray
from tests.support.coco_reading import (
    URI,
    ParsedCoco,
    annotation,
    document,
    image,
    read_coco,
    read_content,
)

_CAPTION = dict.fromkeys(["bbox", "category_id", "area", "iscrowd", "segmentation"], ...)


def _count_decoded(content: dict[str, Any], *, tasks: list[str], masks: bool = False) -> int:
    """Counts the annotations that are read again when their image is."""
    positions: set[int] = set()
    read_rows = CocoFile.read_rows

    def recording(
        self: CocoFile[CocoImage], rows: Sequence[int]
    ) -> Iterator[tuple[bytes, CocoAnnotation | None]]:
        positions.update(rows)
        return read_rows(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CocoFile, "read_rows", recording)
        read_coco(content, tasks=tasks, masks=masks)
    return len(positions)


@pytest.mark.parametrize(
    ("changes", "tasks", "masks", "decoded"),
    [
        ({}, ["detection"], False, 0),
        ({}, ["detection", "captions"], False, 0),
        ({"iscrowd": ..., "segmentation": ..., "num_keypoints": 3}, ["detection"], False, 0),
        ({"image_id": "7"}, ["detection"], False, 0),
        ({"note": [{"id": 3}]}, ["detection"], False, 0),
        ({"keypoints": [1, 2, 2]}, ["detection"], False, 0),
        ({"keypoints": [1, 2, 2]}, ["keypoints"], False, 1),
        ({"category_id": 99}, ["detection"], False, 1),
        ({"id": 2}, ["detection"], False, 1),
        ({"bbox": ...}, ["detection"], False, 1),
        ({"bbox": [1, 2, 3]}, ["detection"], False, 1),
        ({"area": ...}, ["detection"], False, 1),
        ({"caption": "A dog."}, ["detection"], False, 1),
        ({"area": "12"}, ["detection"], False, 3),
        ({}, ["detection"], True, 3),
        ({}, ["semantic"], False, 3),
    ],
)
def test_ordinary_objects_are_decoded_once(
    changes: dict[str, Any], tasks: list[str], masks: bool, decoded: int
) -> None:
    rows = [annotation(id=2), annotation(id=3), annotation(**{"id": 4, **changes})]

    assert _count_decoded(document(annotations=rows), tasks=tasks, masks=masks) == decoded


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ('"iscrowd": 0, "iscrowd": 0', "iscrowd"),
        ('"iscrowd": 0, "iscrowd": null', "iscrowd"),
        ('"segmentation": [], "segmentation": {"size": [], "counts": []}', "segmentation"),
        ('"caption": "a", "caption": "a\\"b\\"c"', "caption"),
        (r'"caption": "\u0022\u0022", "iscrowd": 0, "iscrowd": 0', "iscrowd"),
        ('"note": 1, "note": {"note": "note"}', "note"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_key_is_repeated_in_one_entry_and_missing_in_another(
    written: str, key: str, is_first: bool
) -> None:
    """So that the entries together have the key only as often as there are entries."""
    bare = '{"id": 1, "image_id": 7, "category_id": 18, "bbox": [1, 2, 3, 4], "area": 12'
    rows = [f"{bare}, {written}}}", f"{bare}}}", f"{bare}}}"]
    rows = rows if is_first else rows[::-1]
    content = document(annotations=[{"rows": 1}])
    data = json.dumps(content).replace('{"rows": 1}', ", ".join(rows)).encode()

    with pytest.raises(InputError) as raised:
        read_coco(data, tasks=["detection", "captions"])

    assert raised.value.place == f"$.annotations[{0 if is_first else 2}]"
    assert raised.value.problem == f"the key {key!r} is given twice"


def _outcome(data: bytes, *, tasks: list[str] | None, masks: bool) -> ParsedCoco | str:
    try:
        if tasks is None:
            source = LvisFormat(images="i", annotations=[URI], _masks=masks)
            return read_content(source, data)
        return read_coco(data, tasks=tasks, masks=masks)
    except InputError as error:
        return str(error)


def _each_by_itself(array: JsonArray) -> Iterator[tuple[range, bytes]]:
    yield range(len(array)), b""


_POLYGONS: list[object] = [[[1, 2, 5, 2, 5, 9]], [], None, {"counts": [1], "size": [1, 1]}]
_TEXTS: list[object] = ["A dog.", "", '"image_id": 7', "}, {", "\\", "é", "\ud800", None]
_VALUES: dict[str, list[object]] = {
    "id": [1, 2, -1, 2**63 - 1, None],
    "image_id": [7, 8, 9, "7", "x", "\ud800"],
    "category_id": [18, 19, 99, None],
    "bbox": [[1, 2, 3, 4], [1, 2, 1e300, 2**53 + 1], [-0.0, 0.5, 0, 0], [1, 2, 3], [], None],
    "area": [0, 2.5, 1e300, -1, None],
    "iscrowd": [0, 1, True, 10**30, None],
    "caption": _TEXTS,
    "segmentation": _POLYGONS,
    "keypoints": [[1, 2, 2], [1, 2], [], None],
    "num_keypoints": [1, None],
    "segments_info": [[{"id": 1, "category_id": 18}], None],
    "file_name": _TEXTS,
    "note": [*_TEXTS, *_POLYGONS],
    "not\u00e9": [1],
}
_ODD: list[object] = [True, "1", 1.5, 10**400, 2**63, [["a"]], {"image_id": 7}, [1, "2", 3, 4]]


@st.composite
def _entries(draw: st.DrawFn) -> str:
    """The text of an entry; most are ordinary or nearly so, few have a key twice or are invalid."""

    def one_in(number: int) -> bool:
        return draw(st.integers(1, number)) == number

    pairs = [*annotation(id=draw(st.integers(1, 5))).items()]
    for key in draw(st.lists(st.sampled_from(sorted(_VALUES)), max_size=2)):
        pairs.append((key, draw(st.sampled_from(_ODD if one_in(12) else _VALUES[key]))))
    if not one_in(12):
        pairs = [*dict(pairs).items()]
    if one_in(3):
        # The image id is the second.
        del pairs[draw(st.integers(1 if one_in(12) else 2, len(pairs) - 1))]
    is_ascii = draw(st.booleans())
    members = ", ".join(f"{_text(key, is_ascii)}: {_text(each, is_ascii)}" for key, each in pairs)
    return draw(st.sampled_from(["3", members])) if one_in(40) else f"{{{members}}}"


def _text(value: object, is_ascii: bool) -> str:
    text = json.dumps(value, ensure_ascii=is_ascii)
    return text if is_ascii or text.isprintable() else json.dumps(value)


@settings(max_examples=500)
@given(
    rows=st.lists(_entries(), max_size=4),
    is_bare=st.booleans(),
    block_bytes=st.integers(1, 2_000),
    tasks=st.sampled_from(
        [
            None,
            ["detection"],
            ["detection", "keypoints"],
            ["detection", "classification", "captions"],
            ["captions"],
            ["semantic"],
        ]
    ),
    masks=st.booleans(),
)
def test_annotations_are_read_in_blocks_as_each_is_by_itself(
    rows: list[str], is_bare: bool, block_bytes: int, tasks: list[str] | None, masks: bool
) -> None:
    """Entries, defects and corrections are the same, and so are errors and their places."""
    content = document(
        images=[image(), image(id=8, file_name="b.jpg"), image(id="7", file_name="c.jpg")],
        annotations=[] if is_bare else [annotation(id=9), {"rows": 1}],
        categories=[{"id": 18, "name": "dog"}, {"id": 19, "name": "cat"}],
    )
    placeholder = '"annotations": []' if is_bare else ', {"rows": 1}'
    joined = ", ".join(rows)
    written = f'"annotations": [{joined}]' if is_bare else f", {joined}" if rows else ""
    data = json.dumps(content).replace(placeholder, written).encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_BYTES", block_bytes)
        found = _outcome(data, tasks=tasks, masks=masks)
        patch.setattr(JsonArray, "blocks", _each_by_itself)
        assert _outcome(data, tasks=tasks, masks=masks) == found
