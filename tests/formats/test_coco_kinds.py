"""COCO files with more than boxes: keypoints, captions, classes of images, stuff."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardbeam.transforms.core.records import Category, ImageAnnotations, MaskRole
from shardbeam.transforms.formats.base import Place, Role
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.join.merge_entries import merge_annotations
from tests.support.coco_reading import URI, annotation, document, image, read_coco, read_content

_PERSON = {"id": 18, "name": "person", "keypoints": ["nose", "left_eye"], "skeleton": [[1, 2]]}
_KEYPOINTS = [1, 2.5, 2, 0, 0, 0]

# Keypoints


def test_keypoints_and_their_names() -> None:
    content = document(annotations=[annotation(keypoints=_KEYPOINTS)], categories=[_PERSON])

    parsed = read_coco(content, tasks=["keypoints"])

    assert parsed.categories == [
        Category(
            name="person",
            source_id=18,
            origin=URI,
            keypoints=("nose", "left_eye"),
            skeleton=((0, 1),),
        )
    ]
    (item,) = parsed.images()["a.jpg"].objects
    assert item.keypoints == (1.0, 2.5, 2.0, 0.0, 0.0, 0.0)
    assert item.bbox == (10, 20.5, 40, 60.5)


def test_without_the_task_keypoints_are_not_read() -> None:
    content = document(
        annotations=[annotation(keypoints="these")], categories=[_PERSON | {"keypoints": 3}]
    )

    parsed = read_coco(content, tasks=["detection"])

    assert parsed.categories == [Category(name="person", source_id=18, origin=URI)]
    assert parsed.images()["a.jpg"].objects[0].keypoints == ()


@pytest.mark.parametrize(
    "keypoints",
    [
        *(..., None, []),
        *([1, 2], [1, 2, 3], [1, 2, -1], [1, 2, 0.5], [1e39, 2, 2], [1, -1e39, 2], [1, 2, 1e300]),
    ],
)
def test_malformed_keypoints_are_left_out_and_counted(keypoints: object) -> None:
    content = document(annotations=[annotation(keypoints=keypoints)], categories=[_PERSON])

    found = read_coco(content, tasks=["keypoints"]).images()["a.jpg"]

    assert found.objects[0].keypoints == ()
    is_absent = keypoints in (..., None, [])
    assert found.corrections == ({} if is_absent else {"keypoints_malformed_dropped": 1})


@pytest.mark.parametrize(
    ("declared", "names"),
    [
        (..., ("keypoint_1", "keypoint_2")),
        (None, ("keypoint_1", "keypoint_2")),
        (["nose"], ("nose", "keypoint_2")),
        (["nose", "nose", ""], ("nose", "keypoint_2", "keypoint_3")),
    ],
)
def test_keypoints_without_a_name_are_numbered(declared: object, names: tuple[str, ...]) -> None:
    category = {"id": 18, "name": "person", "keypoints": declared}
    content = document(
        annotations=[annotation(keypoints=_KEYPOINTS), annotation(id=2, keypoints=[1, 2, 2])],
        categories=[{key: value for key, value in category.items() if value is not ...}],
    )

    assert read_coco(content, tasks=["keypoints"]).categories[0].keypoints == names


def test_an_object_of_both_files_is_joined_and_one_of_a_single_file_stays() -> None:
    instances = document(annotations=[annotation(), annotation(id=2, bbox=[1, 1, 1, 1])])
    keypoints = document(
        annotations=[
            annotation(keypoints=_KEYPOINTS, segmentation=...),
            annotation(id=3, bbox=[5, 5, 5, 5], keypoints=_KEYPOINTS),
        ]
    )
    parts = [
        read_coco(content, tasks=["keypoints"], masks=True).images()["a.jpg"]
        for content in (instances, keypoints)
    ]

    for ordered in (parts, parts[::-1]):
        merged = {item.annotation_id: item for item in merge_annotations(ordered).objects}
        assert merged.keys() == {1, 2, 3}
        assert merged[1].segmentation
        assert len(merged[1].keypoints) == 6
        assert merged[2].keypoints == ()
        assert merge_annotations(ordered).corrections == {}


# Captions


def _caption(text: object, **changes: object) -> dict[str, Any]:
    return {"id": 5, "image_id": 7, "caption": text} | changes


def test_captions_of_a_file_without_boxes_and_categories() -> None:
    content = document(
        images=[image(), image(id=8, file_name="b.jpg")],
        annotations=[_caption("A dog.\n"), _caption(""), _caption("Two\ndogs.", image_id=8)] * 2,
    )
    del content["categories"]

    parsed = read_coco(content, tasks=["captions"])

    assert parsed.categories == []
    assert parsed.images() == {
        "a.jpg": ImageAnnotations(
            image_id="7", width=640, height=480, captions=("A dog.\n", "", "A dog.\n", "")
        ),
        "b.jpg": ImageAnnotations(
            image_id="8", width=640, height=480, captions=("Two\ndogs.", "Two\ndogs.")
        ),
    }


_BOTH = annotation(caption="A dog.")


@pytest.mark.parametrize(
    ("item", "tasks", "uri", "parts"),
    [
        (_BOTH, ["detection", "captions"], URI, (1, 0, 1)),
        (_BOTH, ["detection"], URI, (1, 0, 0)),
        (_BOTH, ["captions"], URI, (0, 0, 1)),
        (_caption("A dog."), ["detection"], URI, (0, 0, 0)),
        # A caption is no object without a box, whether anybody asks for captions or not.
        (_caption("A dog.", category_id=18), ["detection", "captions"], URI, (0, 0, 1)),
        (_caption("A dog.", category_id=18), ["detection"], URI, (0, 0, 0)),
        # The name tells stuff where both are asked for.
        (_BOTH, ["detection", "semantic"], "stuff.json", (0, 1, 0)),
        (_BOTH, ["semantic"], URI, (0, 1, 0)),
        (_BOTH, ["detection"], "stuff.json", (1, 0, 0)),
    ],
)
def test_what_tasks_ask_for_is_read_and_nothing_else(
    item: dict[str, Any], tasks: list[str], uri: str, parts: tuple[int, ...]
) -> None:
    parsed = read_coco(document(annotations=[item]), tasks=tasks, uri=uri)

    found = parsed.images()["a.jpg"]
    assert (len(found.objects), len(found.stuff), len(found.captions)) == parts
    assert found.corrections == {}
    assert [category.is_thing for category in parsed.categories] == (
        [] if tasks == ["captions"] else [not parts[1]]
    )


# Classes of images


def test_annotations_of_a_category_alone_are_classes_of_the_image() -> None:
    labels = [{"id": k, "image_id": 7, "category_id": c} for k, c in enumerate([18, 2, 18, 99])]
    content = document(
        annotations=[*labels, annotation()],
        categories=[{"id": 18, "name": "dog"}, {"id": 2, "name": "cat"}],
    )

    found = read_coco(content, tasks=["classification"]).images()["a.jpg"]
    assert (found.labels, found.objects) == (("dog", "cat"), ())
    assert found.corrections == {"label_of_unknown_category_dropped": 1}

    both = read_coco(content, tasks=["classification", "detection"]).images()["a.jpg"]
    assert (both.labels, len(both.objects)) == (("dog", "cat"), 1)


# Stuff


def test_stuff_is_kept_apart_from_objects() -> None:
    regions = [
        annotation(),
        annotation(id=2, bbox=..., segmentation={"counts": [0, 3, 9], "size": [3, 4]}),
        annotation(id=3, segmentation=[]),
        annotation(id=4, category_id=99),
    ]

    parsed = read_coco(
        document(annotations=regions), tasks=["detection", "semantic"], uri="data/stuff_val.json"
    )

    assert [(item.name, item.is_thing) for item in parsed.categories] == [("dog", False)]
    found = parsed.images()["a.jpg"]
    assert found.objects == ()
    assert [item.annotation_id for item in found.stuff] == [1, 2]
    assert [json.loads(item.segmentation) for item in found.stuff] == [
        region["segmentation"] for region in regions[:2]
    ]
    assert found.corrections == {
        "region_of_unknown_class_void": 1,
        "region_unusable_dropped": 1,
    }


# Semantic masks


def test_images_and_semantic_masks_are_joined_by_their_path_without_extension() -> None:
    source = CocoFormat(
        images="i", annotations=["a.json"], semantic_masks="maps", tasks=["semantic"]
    )

    assert source.place("val/a.b.jpg", root=0) == Place(
        role=Role.IMAGE, key="val/a.b.jpg", join="val/a.b"
    )
    assert source.place("val/a.b.png", root=1) == Place(
        role=Role.MASK, join="val/a.b", mask=MaskRole.SEMANTIC
    )
    assert source.place("val/.DS_Store", root=1).role is Role.OTHER
    assert source.place("readme.txt", root=1).role is Role.OTHER
    assert source.place("readme.txt", root=0).role is Role.IMAGE


def test_entries_are_joined_as_their_images_are() -> None:
    content = document(images=[image(file_name="val/a.b.jpg")])
    source = CocoFormat(images="i", annotations=[URI], semantic_masks="maps")

    (entry,) = read_content(source, content).entries

    assert entry.key == "val/a.b"


def test_with_other_tasks_semantic_masks_are_nothing() -> None:
    source = CocoFormat(
        images="i", annotations=["a.json"], semantic_masks="maps", tasks=["detection"]
    )

    assert source.place("a.png", root=1).role is Role.OTHER
