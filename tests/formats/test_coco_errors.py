"""Files that are no COCO instances: the error names the file, the place and what was expected."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.formats.annotation_file import repeated_key
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.coco_reading import URI, annotation, document, image, read_coco

_GOOD = json.dumps(document()).encode()


@pytest.mark.parametrize(
    ("data", "place", "problem"),
    [
        (b"", "", "the file is empty"),
        (b" \n", "", "the file is empty"),
        (gzip.compress(_GOOD, mtime=0), "", "gzip"),
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
        (_GOOD.replace(b"600.25", b"NaN"), r"line 1, column \d+", "NaN is no JSON: write null"),
        (_GOOD.replace(b"600.25", b"-Infinity"), r"line 1, column \d+", "-Infinity is no JSON"),
        (_GOOD.replace(b"600.25", b"1e999"), r"\$\.annotations\[0\]\.area", "out of range"),
        (b'{"images": [{"id": 1, "file_name": "\xe9.jpg"}]}', r"\$\.images\[0\]", "UTF-8"),
        (b'{\n"images": [], "\xe9": 1}', "line 2, column 16", "UTF-8"),
        (_GOOD.replace(b'"image_id": 7', b'"image_id": "\xe9"'), r"\$\.annotations\[0\]", "UTF-8"),
        (b'{"info": ' + b"[" * 100_000, "", "nested too deeply"),
        (b"[]", r"\$", "expected 'object', got 'array'"),
        (b' [{"image_id": 1, "score": 0.5}]', r"\$", "a list of results, without the images"),
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
    content = document() | {"extra\n": 1}
    del content[section]

    with pytest.raises(
        InputError, match=f"missing: {section}; found: .*'extra\\\\n', .*info"
    ) as raised:
        read_coco(content)

    assert raised.value.place == "$"


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        ({"images": {}}, "$.images", "expected 'array | null', got 'object'"),
        ({"images": [3]}, "$.images[0]", "expected 'object', got 'int'"),
        ({"images": [{"id": 1}]}, "$.images[0]", "missing required field 'file_name'"),
        ({"images": [image(id=1.5)]}, "$.images[0].id", "expected 'int | str', got 'float'"),
        ({"images": [image(file_name=5)]}, "$.images[0].file_name", "expected 'str', got 'int'"),
        ({"images": [image(width=640.5)]}, "$.images[0].width", "multiple of 1"),
        ({"images": [image(height=-1)]}, "$.images[0].height", ">= 0"),
        ({"images": [image(height=2**40)]}, "$.images[0].height", "<= 2147483647"),
        ({"annotations": [annotation(), 3]}, "$.annotations[1]", "expected 'object', got 'int'"),
        ({"annotations": [annotation(image_id=...)]}, "$.annotations[0]", "'image_id'"),
        ({"annotations": [annotation(id=2**63)]}, "$.annotations[0].id", "<= 9223372036854775807"),
        ({"annotations": [annotation(id="x")]}, "$.annotations[0].id", "got 'str'"),
        ({"annotations": [annotation(bbox=[1, 2, "x", 4])]}, "$.annotations[0].bbox[2]", "'float'"),
        ({"annotations": [annotation(bbox=[1, 2, 3])]}, "$.annotations[0].bbox", "got 3 numbers"),
        ({"annotations": [annotation(bbox=[1] * 5)]}, "$.annotations[0].bbox", "got 5 numbers"),
        ({"annotations": [annotation(iscrowd="x")]}, "$.annotations[0].iscrowd", "got 'str'"),
        (
            {"annotations": [annotation(bbox=[], segmentation=[["a"]])]},
            "$.annotations[0].segmentation[0][0]",
            "expected 'float', got 'str'",
        ),
        ({"categories": [{"id": "one", "name": "x"}]}, "$.categories[0].id", "got 'str'"),
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


def test_a_file_without_annotations_may_only_be_one_of_images() -> None:
    content = {"images": [image()], "categories": [], "licenses": []}

    assert read_coco(content).images().keys() == {"a.jpg"}
    with pytest.raises(InputError, match="missing: annotations; found: annotation, categories"):
        read_coco(content | {"annotation": []})


def test_annotations_without_anything_to_use_are_refused() -> None:
    entry = {"image_id": 7, "category_id": 18}

    with pytest.raises(InputError, match="none of the 2 annotations has a bbox"):
        read_coco(document(annotations=[entry, entry]))


def test_a_panoptic_file_is_refused_with_its_place() -> None:
    entry = {"image_id": 7, "file_name": "a.png", "segments_info": []}

    with pytest.raises(InputError, match=r"--panoptic FILE.*--panoptic-masks DIR"):
        read_coco(document(annotations=[entry]))


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"bbox": [1, 2, 3]}, r"$.annotations[1].bbox: expected [x, y, width, height], got 3"),
        ({"area": "x"}, "$.annotations[1].area: expected `float | null`, got `str`"),
        ({"category_id": "x"}, "$.annotations[1].category_id: expected"),
        ({"bbox": None, "segmentation": [["a"]]}, "$.annotations[1].segmentation[0][0]"),
    ],
)
def test_one_bad_annotation_is_a_defect_of_its_image(bad: dict[str, Any], problem: str) -> None:
    images = [image(), image(id=8, file_name="b.jpg")]
    bad_annotation = annotation(image_id=8) | bad

    parsed = read_coco(document(images=images, annotations=[annotation(), bad_annotation]))

    (entry,) = parsed.defects()
    assert (entry.key, entry.image_id, entry.defect) == ("b.jpg", "8", Reason.ANNOTATION_MALFORMED)
    assert entry.detail.startswith(f"instances.json: {problem}".replace("`", "'"))
    assert len(parsed.images()["a.jpg"].objects) == 1


def test_a_bad_annotation_of_an_unknown_image_counts_with_the_others() -> None:
    annotations = [annotation(), annotation(image_id=9), annotation(image_id=9, area="12")]

    (entry,) = read_coco(document(annotations=annotations)).defects()

    assert entry.defect is Reason.UNKNOWN_IMAGE_ID
    assert "2 annotations" in entry.detail


@pytest.mark.parametrize("key", ["caption", "image_id"])
def test_a_lone_surrogate_in_an_annotation_is_replaced(key: str) -> None:
    content = document(annotations=[annotation(), annotation(**{key: "@"})])
    data = json.dumps(content).replace("@", r"\ud83d").encode()

    parsed = read_coco(data, tasks=["detection", "captions"])

    found = parsed.images()["a.jpg"]
    assert found.captions == (("\ufffd",) if key == "caption" else ())
    assert found.corrections.get("lone_surrogate_replaced", 0) == (key == "caption")
    assert [entry.key for entry in parsed.defects()] == (
        ["image_id=\ufffd"] if key == "image_id" else []
    )


@pytest.mark.parametrize(
    ("written", "twice", "place", "key"),
    [
        ('"images": [', '"images": [], "images": [', "$", "images"),
        ('"annotations": [', '"annotations": null, "annotations": [', "$", "annotations"),
        ('"categories": [', '"categories": [{"id": 3}], "categories": [', "$", "categories"),
        ('"info": {}', '"info": {}, "info": 3', "$", "info"),
        ('"info": {}', r'"info": {}, "info": "\ud800"', "$", "info"),
        ('"file_name": ', '"file_name": "b.jpg", "file_name": ', "$.images[0]", "file_name"),
        ('"id": 1,', '"id": 1, "id": 1,', "$.annotations[0]", "id"),
        (
            '"image_id": ',
            r'"x": "\"\ud800", "image_id":8,"image_id": ',
            "$.annotations[0]",
            "image_id",
        ),
        ('"iscrowd": ', '"segments": [{"id": 1}], "x": 1, "x": ', "$.annotations[0]", "x"),
        ('"name": ', '"name": "cat", "name": ', "$.categories[0]", "name"),
        # Another key occurs in the value that a decoder would drop.
        ('"annotations": ', '"annotations": [{"images": 1}], "annotations": ', "$", "annotations"),
        ('"info": ', r'"inf\u006f": 1, "info": ', "$", "info"),
    ],
)
def test_a_key_that_is_given_twice(written: str, twice: str, place: str, key: str) -> None:
    data = json.dumps(document())
    assert data.count(written) == 1

    with pytest.raises(InputError) as raised:
        read_coco(data.replace(written, twice).encode())

    assert (raised.value.uri, raised.value.place) == (URI, place)
    assert raised.value.problem == f"the key {key!r} is given twice"


_KEYS = st.lists(st.text(st.sampled_from('ab1"\\é:,\ud800')), min_size=1, max_size=4)
_VALUES = st.recursive(
    st.integers() | st.text(st.sampled_from('ab":,\\')),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abid"), inner),
)


@given(
    all_keys=st.lists(_KEYS, min_size=1, max_size=4),
    values=st.lists(_VALUES, min_size=4, max_size=4),
    is_ascii=st.booleans(),
)
def test_a_key_is_repeated_or_not(
    all_keys: list[list[str]], values: list[Any], is_ascii: bool
) -> None:
    """As Python's decoder sees it; lone surrogates are replaced."""
    for keys in all_keys:
        pairs = [
            f"{json.dumps(key, ensure_ascii=is_ascii or not key.isprintable())}: "
            f"{json.dumps(value)}"
            for key, value in zip(keys, values, strict=False)
        ]
        written = [key.replace("\ud800", "\ufffd") for key in keys]
        repeated = [key for key, count in Counter(written).items() if count > 1]
        data = f"{{{', '.join(pairs)}}}".encode()

        assert repeated_key(data) == next(iter(repeated), None)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    source = CocoFormat(images="i", annotations=[str(tmp_path)])

    with pytest.raises(InputError, match="cannot be read"):
        list(source.read_annotations(storage=LocalStorage(), file_index=0))


def test_byte_order_mark_is_skipped() -> None:
    assert read_coco(b"\xef\xbb\xbf" + _GOOD) == read_coco(_GOOD)
