"""Most annotations take a short way through the reader; the outcome is that of the long way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.coco.annotations import AnnotationReader
from shardbeam.transforms.formats.coco.lvis import LvisFormat
from tests.support.coco_reading import (
    URI,
    ParsedCoco,
    annotation,
    document,
    image,
    read_coco,
    read_content,
)


def _outcome(data: bytes, *, tasks: list[str] | None, masks: bool) -> ParsedCoco | str:
    try:
        if tasks is None:
            source = LvisFormat(images="i", annotations=[URI], _masks=masks)
            return read_content(source, data)
        return read_coco(data, tasks=tasks, masks=masks)
    except InputError as error:
        return str(error)


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
def test_the_short_way_is_the_long_way(
    rows: list[str], is_bare: bool, tasks: list[str] | None, masks: bool
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

    found = _outcome(data, tasks=tasks, masks=masks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnnotationReader, "_add_plain", lambda *_: False)
        assert _outcome(data, tasks=tasks, masks=masks) == found
