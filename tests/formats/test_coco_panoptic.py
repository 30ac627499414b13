from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Category, ImageAnnotations, MaskRole, Segment
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.coco import CocoFormat
from tests.support.coco_reading import ParsedCoco, image, read_content

_CATEGORIES = [
    {"id": 18, "name": "dog", "isthing": 1},
    {"id": 184, "name": "tree-merged", "isthing": 0},
]
_URI = "data/panoptic.json"


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """A folder of PNGs; what is in them does not matter."""
    folder = tmp_path / "panoptic_val"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(b"png")
    return folder


def _annotation(**changes: object) -> dict[str, Any]:
    return {
        "image_id": 7,
        "file_name": "a.png",
        "segments_info": [
            {"id": 65536, "category_id": 18, "area": 5, "bbox": [1, 2, 3, 4], "iscrowd": 1},
            {"id": 3, "category_id": 184, "area": 5, "bbox": [1, 2, 3, 4]},
        ],
    } | changes


def _document(*annotations: dict[str, Any], **changes: object) -> dict[str, Any]:
    images = [image(), image(id=8, file_name="b.jpg")]
    return {
        "images": images,
        "annotations": list(annotations),
        "categories": _CATEGORIES,
    } | changes


def _read(content: bytes | Mapping[str, Any], *, masks: Path) -> ParsedCoco:
    source = CocoFormat(images="i", panoptic=_URI, panoptic_masks=str(masks))
    return read_content(source, content)


def test_segments_and_their_png(masks: Path) -> None:
    parsed = _read(_document(_annotation()), masks=masks)

    assert parsed.categories == [
        Category(name="dog", source_id=18, origin=_URI),
        Category(name="tree-merged", source_id=184, origin=_URI, is_thing=False),
    ]
    found = parsed.images()["a.jpg"]
    mask = found.masks[MaskRole.PANOPTIC]
    assert (mask.uri, mask.size_bytes) == (str(masks / "a.png"), 3)
    assert found == ImageAnnotations(
        image_id="7",
        width=640,
        height=480,
        segments=(
            Segment(segment_id=65536, label="dog", is_crowd=True),
            Segment(segment_id=3, label="tree-merged"),
        ),
        masks={MaskRole.PANOPTIC: mask},
    )
    # Nothing is said about the other one.
    assert parsed.images()["b.jpg"] == ImageAnnotations(image_id="8", width=640, height=480)


def test_describes_itself(masks: Path) -> None:
    source = CocoFormat(
        images="i",
        annotations=["a.json"],
        panoptic=_URI,
        panoptic_masks=str(masks),
        semantic_masks="maps",
    )

    assert list(source.annotation_files()) == ["a.json", _URI]
    assert source.kinds == {Kind.DETECTION, Kind.PANOPTIC, Kind.SEMANTIC}
    # Named by the JSON file: in the listing they only count as input.
    assert source.place("a.png", root=1) == Place(role=Role.ATTACHED)
    assert source.place("a.png", root=2).role is Role.MASK
    told = CocoFormat(
        images="i",
        annotations=["a.json"],
        panoptic=_URI,
        panoptic_masks=str(masks),
        tasks=["detection"],
    )
    assert list(told.annotation_files()) == ["a.json"]


def test_the_png_is_found_by_its_file_name_and_not_by_the_images(masks: Path) -> None:
    (masks / "deep").mkdir()
    (masks / "deep" / "other.png").write_bytes(b"")

    found = _read(_document(_annotation(file_name="./deep/other.png")), masks=masks).images()

    assert found["a.jpg"].masks[MaskRole.PANOPTIC].uri == str(masks / "deep" / "other.png")


def test_a_missing_png_is_a_defect_of_its_image(masks: Path) -> None:
    parsed = _read(
        _document(_annotation(), _annotation(image_id=8, file_name="c.png")), masks=masks
    )

    (entry,) = parsed.defects()
    assert (entry.key, entry.image_id, entry.defect) == ("b.jpg", "8", Reason.MASK_UNREADABLE)
    assert entry.detail == (
        "panoptic.json: $.annotations[1].file_name: there is no 'c.png' in panoptic_masks"
    )
    assert parsed.images().keys() == {"a.jpg"}


def test_a_folder_without_any_of_the_pngs_is_the_wrong_one(masks: Path) -> None:
    content = _document(_annotation(file_name="000.png"))

    with pytest.raises(InputError, match=r"names '000.png', the folder holds 'a.png'"):
        _read(content, masks=masks)


def test_a_folder_further_up_is_told(masks: Path) -> None:
    with pytest.raises(InputError, match="add /panoptic_val to it"):
        _read(_document(_annotation()), masks=masks.parent)


def test_segments_that_cannot_be_used_are_left_out_and_counted(masks: Path) -> None:
    segments = [
        {"id": 1, "category_id": 18},
        {"id": 1, "category_id": 184},
        {"id": 2, "category_id": 5},
        {"id": 3},
    ]

    found = _read(_document(_annotation(segments_info=segments)), masks=masks).images()["a.jpg"]

    assert found.segments == (Segment(segment_id=1, label="dog"),)
    assert found.corrections == {
        "duplicate_segment_dropped": 1,
        "object_of_unknown_category_dropped": 2,
    }


def test_of_two_annotations_of_an_image_the_first_counts(masks: Path) -> None:
    content = _document(_annotation(), _annotation(file_name="b.png", segments_info=[]))

    found = _read(content, masks=masks).images()["a.jpg"]

    assert len(found.segments) == 2
    assert found.corrections == {"duplicate_annotation_dropped": 1}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"segments_info": None}, "$.annotations[1].segments_info: expected `array`"),
        ({"segments_info": [{"category_id": 18}]}, "$.annotations[1].segments_info[0]: "),
        ({"segments_info": [{"id": "1"}]}, "$.annotations[1].segments_info[0].id: "),
    ],
)
def test_one_malformed_annotation_is_a_defect_of_its_image(
    masks: Path, change: dict[str, Any], place: str
) -> None:
    parsed = _read(_document(_annotation(), _annotation(image_id=8) | change), masks=masks)

    (entry,) = parsed.defects()
    assert (entry.key, entry.defect) == ("b.jpg", Reason.ANNOTATION_MALFORMED)
    assert entry.detail.startswith(f"panoptic.json: {place}".replace("`", "'"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"annotations": None}, "missing: annotations"),
        ({"categories": None}, "missing: categories"),
        ({"images": None}, "missing: images"),
        ({"annotations": [{"image_id": 7, "bbox": [1, 2, 3, 4]}]}, "panoptic segments"),
        ({"annotations": [{"file_name": "a.png"}]}, "image_id"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "'b' has id 1"),
    ],
)
def test_files_that_are_something_else(masks: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        _read(_document(_annotation()) | change, masks=masks)

    assert raised.value.uri == _URI
    assert raised.value.place.startswith("$")


def test_masks_that_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(InputError):
        _read(_document(_annotation()), masks=tmp_path / "file")
