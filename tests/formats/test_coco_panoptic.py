from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    Category,
    ImageAnnotations,
    ImageRef,
    MaskRole,
    Segment,
)
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.coco.coco import CocoFormat
from tests.support.archive_files import write_files
from tests.support.builds import write_coco
from tests.support.coco_reading import ParsedCoco, image, read_content

_CATEGORIES = [
    {"id": 18, "name": "dog", "isthing": 1},
    {"id": 184, "name": "tree-merged", "isthing": 0},
]
_URI = "data/panoptic.json"


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


def _read(content: bytes | Mapping[str, Any]) -> ParsedCoco:
    return read_content(CocoFormat(images="i", panoptic=_URI, panoptic_masks="m"), content)


def _resolve(folder: Path, pngs: Mapping[str, str], *, masks: str = "m") -> CocoFormat:
    """Resolves a source whose panoptic file has `{image: its PNG}`; all PNGs are there."""
    write_files(folder, {f"m/{name}": "" for name in pngs.values()})
    images = [image(id=number, file_name=name) for number, name in enumerate(pngs)]
    annotations = [
        _annotation(image_id=number, file_name=name) for number, name in enumerate(pngs.values())
    ]
    document = {"images": images, "annotations": annotations, "categories": _CATEGORIES}
    file = write_coco(folder / "panoptic.json", document)
    source = CocoFormat(images="i", panoptic=str(file), panoptic_masks=f"{folder}/{masks}")
    return source.resolve()


def test_segments() -> None:
    parsed = _read(_document(_annotation()))

    assert parsed.categories == [
        Category(name="dog", source_id=18, origin=_URI),
        Category(name="tree-merged", source_id=184, origin=_URI, is_thing=False),
    ]
    assert parsed.images()["a"] == ImageAnnotations(
        image_id="7",
        width=640,
        height=480,
        segments=(
            Segment(segment_id=65536, label="dog", is_crowd=True),
            Segment(segment_id=3, label="tree-merged"),
        ),
    )
    # The file does not annotate the other one.
    assert parsed.images()["b"] == ImageAnnotations(image_id="8", width=640, height=480)


def test_describes_itself() -> None:
    source = CocoFormat(
        images="i",
        annotations=["a.json"],
        panoptic=_URI,
        panoptic_masks="m",
        semantic_masks="maps",
    )

    assert list(source.annotation_files()) == ["a.json", _URI]
    assert source.kinds == {Kind.DETECTION, Kind.PANOPTIC, Kind.SEMANTIC}
    assert source.place("a.png", root=1) == Place(
        role=Role.ATTACHED, join="a", mask=MaskRole.PANOPTIC
    )
    assert source.place("a.png", root=2).role is Role.MASK
    told = CocoFormat(
        images="i",
        annotations=["a.json"],
        panoptic=_URI,
        panoptic_masks="m",
        tasks=["detection"],
    )
    assert list(told.annotation_files()) == ["a.json"]
    assert told.place("a.png", root=1).role is Role.OTHER


@pytest.mark.parametrize(
    "pngs",
    [
        {"a.jpg": "a.png", "b.jpg": "b.png"},
        {"val/a.jpg": "a.png", "val/b.jpg": "b.png"},
        {"a.jpg": "deep/a.png", "b.jpg": "deep/b.png"},
        {"c/1_leftImg8bit.png": "c/1_panoptic.png", "c/2_leftImg8bit.png": "c/2_panoptic.png"},
        {"val/a_photo.jpg": "a_ids.png", "val/b_photo.jpg": "b_ids.png"},
    ],
)
def test_pngs_are_joined_by_their_names_which_may_begin_and_end_differently(
    tmp_path: Path, pngs: dict[str, str]
) -> None:
    source = _resolve(tmp_path, pngs)

    for name, png in pngs.items():
        assert source.place(png, root=1).join == source.place(name, root=0).join


def test_pngs_that_are_named_like_other_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the PNG of 'b' is 'c.png', unlike 'a.png' of"):
        _resolve(tmp_path, {"a.jpg": "a.png", "b.jpg": "c.png"})


def test_a_later_png_with_another_name_is_a_defect_of_its_image() -> None:
    parsed = _read(_document(_annotation(), _annotation(image_id=8, file_name="c.png")))

    (entry,) = parsed.defects()
    assert (entry.key, entry.image_id, entry.defect) == ("b", "8", Reason.MASK_UNREADABLE)
    assert entry.detail == (
        "panoptic.json: $.annotations[1].file_name: 'c.png' is not named like its image 'b.jpg', "
        "as the first PNGs are"
    )
    assert parsed.images().keys() == {"a"}


def test_a_folder_without_the_pngs_is_the_wrong_one(tmp_path: Path) -> None:
    write_files(tmp_path, {"other/x.png": ""})

    with pytest.raises(InputError, match=r"names 'a.png', the folder holds 'x.png'"):
        _resolve(tmp_path, {"a.jpg": "a.png"}, masks="other")
    with pytest.raises(InputError, match=r"names 'a.png', .*; add /m to it"):
        _resolve(tmp_path, {"a.jpg": "a.png"}, masks=".")


def test_a_png_without_segments_is_left_out() -> None:
    mask = ImageRef(uri="/m/a.png", size_bytes=1, version="")
    source = CocoFormat(images="i", panoptic=_URI, panoptic_masks="m")
    segments = (Segment(segment_id=1, label="dog"),)

    found = ImageAnnotations(image_id="7", masks={MaskRole.PANOPTIC: mask})
    assert source.reconcile(found).masks == {}
    found = ImageAnnotations(image_id="7", segments=segments, masks={MaskRole.PANOPTIC: mask})
    assert source.reconcile(found) == found


def test_segments_that_cannot_be_used_are_left_out_and_counted() -> None:
    segments = [
        {"id": 1, "category_id": 18},
        {"id": 1, "category_id": 184},
        {"id": 2, "category_id": 5},
        {"id": 3},
    ]

    found = _read(_document(_annotation(segments_info=segments))).images()["a"]

    assert found.segments == (Segment(segment_id=1, label="dog"),)
    assert found.corrections == {
        "duplicate_segment_dropped": 1,
        "region_of_unknown_class_void": 2,
    }


def test_of_two_annotations_of_an_image_the_first_counts() -> None:
    content = _document(_annotation(), _annotation(file_name="b.png", segments_info=[]))

    found = _read(content).images()["a"]

    assert len(found.segments) == 2
    assert found.corrections == {"duplicate_annotation_dropped": 1}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"segments_info": None}, "$.annotations[1].segments_info: expected `array`"),
        ({"segments_info": [{"category_id": 18}]}, "$.annotations[1].segments_info[0]: "),
    ],
)
def test_one_malformed_annotation_is_a_defect_of_its_image(
    change: dict[str, Any], place: str
) -> None:
    parsed = _read(_document(_annotation(), _annotation(image_id=8) | change))

    (entry,) = parsed.defects()
    assert (entry.key, entry.defect) == ("b", Reason.ANNOTATION_MALFORMED)
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
def test_files_that_are_something_else(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        _read(_document(_annotation()) | change)

    assert raised.value.uri == _URI
    assert raised.value.place.startswith("$")


def test_ids_may_be_texts_or_have_a_decimal_point() -> None:
    segments = [{"id": "65536", "category_id": "18", "iscrowd": "1"}, {"id": 3.0, "category_id": 5}]
    categories = [{"id": "18", "name": "dog"}, {"id": 5.0, "name": "cat"}]
    content = _document(_annotation(segments_info=segments), categories=categories)
    assert _read(content).images()["a"].segments == (
        Segment(segment_id=65536, label="dog", is_crowd=True),
        Segment(segment_id=3, label="cat"),
    )
