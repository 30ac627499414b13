"""Files that are no COCO instances: the error names the file, the place and what was expected."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.formats.coco_reading import URI, annotation, document, image, read_coco
from transforms.errors import InputError
from transforms.formats.coco import CocoFormat
from transforms.local_storage import LocalStorage

_GOOD = json.dumps(document()).encode()


@pytest.mark.parametrize(
    ("data", "place", "problem"),
    [
        (b"", "", "the file is empty"),
        (b" \n", "", "the file is empty"),
        (gzip.compress(_GOOD), "", "gzip"),
        (b"PK\x03\x04....", "", "zip archive"),
        (b"\n<!DOCTYPE html><html></html>", "", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "", "Git LFS pointer"),
        (_GOOD.decode().encode("utf-16"), "", "UTF-16"),
        (_GOOD.decode().encode("utf-16-le"), "", "UTF-16"),
        (_GOOD.decode().encode("utf-16-be"), "", "UTF-16"),
        (_GOOD[:-20], f"line 1, column {len(_GOOD) - 19}", "truncated"),
        (b'{\n "info": [1 2]}', "line 2, column 13", "expected ',' or ']'"),
        (b'{\n\n"images": [],}', "line 3, column 14", "trailing comma"),
        (_GOOD + b"x", r"line 1, column \d+", "trailing characters"),
        (_GOOD.replace(b"600.25", b"NaN"), r"line 1, column \d+", "invalid character"),
        (_GOOD.replace(b"600.25", b"-Infinity"), r"line 1, column \d+", "invalid"),
        (_GOOD.replace(b"600.25", b"1e999"), r"\$\.annotations\[0\]\.area", "out of range"),
        (b'{\n"images": [{"id": 1, "file_name": "\xe9.jpg"}]}', "line 2, column 36", "UTF-8"),
        (_GOOD.replace(b'"image_id": 7', b'"image_id": "\xe9"'), r"\$\.annotations\[0\]", "UTF-8"),
        (b'{"info": ' + b"[" * 100_000, "", "nested too deeply"),
        (b"[]", r"\$", "expected 'object', got 'array'"),
        (b"17", r"\$", "expected 'object', got 'int'"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_not_json(data: bytes, place: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        read_coco(data)

    assert raised.value.uri == URI
    assert re.fullmatch(place, raised.value.place)
    assert problem in raised.value.problem


@pytest.mark.parametrize("section", ["images", "annotations", "categories"])
def test_missing_section(section: str) -> None:
    content = document()
    del content[section]

    with pytest.raises(InputError, match=f"missing: {section}; found: .*info") as raised:
        read_coco(content)

    assert raised.value.place == "$"


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        ({"images": {}}, "$.images", "expected 'array | null', got 'object'"),
        ({"images": [3]}, "$.images[0]", "expected 'object', got 'int'"),
        ({"images": [{"id": 1}]}, "$.images[0]", "missing required field 'file_name'"),
        ({"images": [image(id=1.5)]}, "$.images[0].id", "expected 'int | str', got 'float'"),
        ({"images": [image(id=None)]}, "$.images[0].id", "got 'null'"),
        ({"images": [image(file_name=5)]}, "$.images[0].file_name", "expected 'str', got 'int'"),
        ({"images": [image(width="640")]}, "$.images[0].width", "got 'str'"),
        ({"images": [image(width=640.5)]}, "$.images[0].width", "multiple of 1"),
        ({"images": [image(height=-1)]}, "$.images[0].height", ">= 0"),
        ({"images": [image(height=2**40)]}, "$.images[0].height", "<= 2147483647"),
        ({"annotations": [annotation(), 3]}, "$.annotations[1]", "expected 'object', got 'int'"),
        ({"annotations": [annotation(image_id=...)]}, "$.annotations[0]", "'image_id'"),
        ({"annotations": [annotation(id=2**63)]}, "$.annotations[0].id", "<= 9223372036854775807"),
        ({"annotations": [annotation(id="x")]}, "$.annotations[0].id", "got 'str'"),
        ({"annotations": [annotation(bbox="1")]}, "$.annotations[0].bbox", "got 'str'"),
        ({"annotations": [annotation(bbox=[1, 2, "3", 4])]}, "$.annotations[0].bbox[2]", "'float'"),
        ({"annotations": [annotation(bbox=[1, 2, 3])]}, "$.annotations[0].bbox", "got 3 numbers"),
        ({"annotations": [annotation(bbox=[1] * 5)]}, "$.annotations[0].bbox", "got 5 numbers"),
        ({"annotations": [annotation(area=[])]}, "$.annotations[0].area", "got 'array'"),
        ({"annotations": [annotation(iscrowd="0")]}, "$.annotations[0].iscrowd", "got 'str'"),
        (
            {"annotations": [annotation(bbox=[], segmentation=[["a"]])]},
            "$.annotations[0].segmentation[0][0]",
            "expected 'float', got 'str'",
        ),
        ({"categories": [{"id": "1", "name": "x"}]}, "$.categories[0].id", "got 'str'"),
        ({"categories": [{"id": 1}]}, "$.categories[0]", "missing required field 'name'"),
        (
            {"categories": [{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}]},
            "$.categories[1].id",
            "'dog' has id 1, which is 'cat''s",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_content(content: dict[str, Any], place: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        read_coco(document() | content)

    assert (raised.value.uri, raised.value.place) == (URI, place)
    assert problem in raised.value.problem


@pytest.mark.parametrize(
    "entry",
    [
        {"image_id": 7, "caption": "A dog."},
        {"image_id": 7, "file_name": "a.png", "segments_info": []},
        {"image_id": 7, "category_id": 18},
    ],
    ids=["captions", "panoptic", "labels"],
)
def test_other_kinds_of_coco_file_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="none of the 2 annotations has a bbox"):
        read_coco(document(annotations=[entry, entry]))


def test_file_that_is_not_there(tmp_path: Path) -> None:
    uri = str(tmp_path / "nothing.json")

    with pytest.raises(InputError, match="there is no such file") as raised:
        list(CocoFormat(annotations=[uri]).read_annotations(storage=LocalStorage(), file_index=0))

    assert raised.value.uri == uri


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    source = CocoFormat(annotations=[str(tmp_path)])

    with pytest.raises(InputError, match="cannot be read"):
        list(source.read_annotations(storage=LocalStorage(), file_index=0))


def test_byte_order_mark_is_skipped() -> None:
    assert read_coco(b"\xef\xbb\xbf" + _GOOD) == read_coco(_GOOD)


def test_damaged_files_are_read_or_refused_with_their_name() -> None:
    """Seeded damages to a good file: never another exception, never an unusable value."""
    content = document(
        images=[image(id=k, file_name=f"é\ud83d{k}.jpg") for k in range(3)],
        annotations=[annotation(id=k, image_id=k % 4, bbox=[k] * (k % 5)) for k in (4, 9, 5, 14)],
    )
    good = json.dumps(content).encode()
    draw = random.Random(7)
    refused = []
    read = 0
    for _ in range(3_000):
        data = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            begin = draw.randrange(len(data))
            end = begin + draw.choice([0, 1, 1, 8])
            data[begin:end] = draw.choice(
                [b"", b'"', b"{", b"]", b"null", b"1e999", b"-", b"\\u0000", b"\xff", bytes([0])]
            )
        try:
            parsed = read_coco(bytes(data), keep_segmentation=True)
        except InputError as error:
            refused.append(error)
            continue
        read += 1
        parsed.images()
        for entry in parsed.entries:
            assert "\0" not in entry.key
            assert (entry.key + entry.detail).encode()
    assert read > 100
    assert len(refused) > 100
    assert {error.uri for error in refused} == {URI}
    assert all(error.place or error.problem.startswith("the file is") for error in refused)
