from __future__ import annotations

from typing import Any

import pytest

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.coco.lvis import LvisFormat
from tests.support.coco_reading import URI, ParsedCoco, document, image, read_content

_CATEGORIES = [{"id": k, "name": name} for k, name in enumerate(["acorn", "dog", "cat"], 17)]
_NEGATIVE = "image/neg_category_ids"
_NOT_EXHAUSTIVE = "image/not_exhaustive_category_ids"


def _image(**changes: object) -> dict[str, Any]:
    entry = image() | {"neg_category_ids": [17], "not_exhaustive_category_ids": []} | changes
    return {key: value for key, value in entry.items() if value is not ...}


def _read(*images: dict[str, Any], masks: bool = False, **changes: object) -> ParsedCoco:
    content = document(images=list(images), categories=_CATEGORIES) | changes
    return read_content(LvisFormat(images="i", annotations=[URI], _masks=masks), content)


def test_objects_and_what_was_looked_for() -> None:
    found = _read(_image(neg_category_ids=[19, 17], not_exhaustive_category_ids=[18])).images()

    (item,) = found["a.jpg"].objects
    assert (item.label, item.bbox, item.is_crowd) == ("dog", (10, 20.5, 40, 60.5), False)
    assert found["a.jpg"].values == {_NEGATIVE: ("cat", "acorn"), _NOT_EXHAUSTIVE: ("dog",)}
    assert found["a.jpg"].corrections == {}


def test_describes_itself() -> None:
    source = LvisFormat(images="i", annotations=["a.json", "b.json"], _masks=True)

    assert source.kinds == {Kind.DETECTION, Kind.INSTANCE_MASKS}
    assert list(source.annotation_files()) == ["a.json", "b.json"]
    specs = {extra.spec.key: extra.spec for extra in source.extra_features()}
    assert specs.keys() == {_NEGATIVE, _NOT_EXHAUSTIVE}
    assert {(spec.kind, spec.repeated, spec.role) for spec in specs.values()} == {
        (FeatureKind.INT64, True, FeatureRole.LABEL)
    }


@pytest.mark.parametrize("absent", [..., None, []])
def test_lists_may_be_absent(absent: object) -> None:
    found = _read(_image(neg_category_ids=absent, not_exhaustive_category_ids=absent)).images()

    assert found["a.jpg"].values == {_NEGATIVE: (), _NOT_EXHAUSTIVE: ()}


def test_unknown_ids_in_the_lists_are_left_out_and_counted() -> None:
    found = _read(_image(neg_category_ids=[99, 18, 18], not_exhaustive_category_ids=[98])).images()

    assert found["a.jpg"].values == {_NEGATIVE: ("dog",), _NOT_EXHAUSTIVE: ()}
    assert found["a.jpg"].corrections == {"label_of_unknown_category_dropped": 2}


@pytest.mark.parametrize(
    ("file_name", "coco_url", "join"),
    [
        # v0.5: the files' names of 2014
        ("COCO_val2014_000000266409.jpg", "http://x/val2017/000000266409.jpg", "000000266409.jpg"),
        # v1: the files' names of 2017, with their folder
        (..., "http://images.cocodataset.org/val2017/000000397133.jpg", "000000397133.jpg"),
        ("", "http://images.cocodataset.org/train2017/000000397133.jpg", "000000397133.jpg"),
        ("val2017/000000397133.jpg", ..., "000000397133.jpg"),
        # whatever else
        ("pictures/a.jpg", "http://x/val2017/000000397133.jpg", "pictures/a.jpg"),
        ("0001.jpg", ..., "0001.jpg"),
        (..., "https://example.org/some/a.jpg", "some/a.jpg"),
        (..., "some/a.jpg", "some/a.jpg"),
        ("COCO_val2014_000000266409.png", ..., "COCO_val2014_000000266409.png"),
    ],
)
def test_what_an_image_is_joined_by(file_name: object, coco_url: object, join: str) -> None:
    (entry,) = _read(_image(file_name=file_name, coco_url=coco_url)).entries

    assert (entry.key, entry.defect) == (join, None)


@pytest.mark.parametrize(
    ("path", "join"),
    [
        ("val2017/000000397133.jpg", "000000397133.jpg"),
        ("000000397133.jpg", "000000397133.jpg"),
        ("val2014/COCO_val2014_000000397133.jpg", "000000397133.jpg"),
        ("val2017/0000397133.jpg", "val2017/0000397133.jpg"),
        ("a.jpg", "a.jpg"),
    ],
)
def test_what_a_listed_image_is_joined_by(path: str, join: str) -> None:
    place = LvisFormat(images="i", annotations=["a.json"]).place(path, root=0)

    assert (place.key, place.join) == (path, join)


def test_an_image_without_any_name_is_a_defect() -> None:
    parsed = _read(_image(file_name=..., coco_url=...), _image(id=8))

    (entry,) = parsed.defects()
    assert (entry.key, entry.defect) == ("image_id=7", Reason.UNREADABLE_NAME)
