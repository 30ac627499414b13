from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    decode_annotations,
)
from shardbeam.transforms.formats.coco.annotations import AnnotationReader
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.coco.lvis import LvisFormat
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.builds import Json
from tests.support.coco_reading import (
    URI,
    ParsedCoco,
    annotation,
    document,
    image,
    peak_bytes,
    read_coco,
    read_content,
    read_image,
)
from tests.support.making import make_format


def test_entries_carry_the_index_of_their_file(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        files.append(str(tmp_path / f"{name}.json"))
        content = json.dumps(document(images=[image(file_name=f"{name}.jpg")]))
        Path(files[-1]).write_text(content, encoding="utf-8")
    source = CocoFormat(images="i", annotations=files)

    entry, category = source.read_annotations(storage=LocalStorage(), file_index=1)

    assert isinstance(category, Category)
    assert category.origin == files[1]
    assert not isinstance(entry, Category)
    assert (entry.key, entry.file_index) == ("b.jpg", 1)


@pytest.mark.parametrize("absent", [..., None])
def test_optional_values_have_defaults(absent: object) -> None:
    parsed = read_coco(
        document(
            images=[{"id": 7, "file_name": "a.jpg"}],
            annotations=[annotation(id=absent, area=absent, iscrowd=absent, segmentation=absent)],
        ),
        masks=True,
    )

    found = parsed.images()["a.jpg"]
    assert (found.width, found.height) == (0, 0)
    (item,) = found.objects
    assert (item.annotation_id, item.area, item.is_crowd, item.segmentation) == (
        0,
        -1.0,
        False,
        b"",
    )


def test_sizes_may_be_floats_of_integral_value() -> None:
    found = read_image(document(images=[image(width=640.0, height=480.0)]))

    assert (found.width, found.height) == (640, 480)
    assert isinstance(found.width, int)


@pytest.mark.parametrize(("listed", "named"), [("x-1", "x-1"), ("7", 7), (7, "7")])
def test_image_ids_may_be_strings(listed: object, named: object) -> None:
    parsed = read_coco(
        document(images=[image(id=listed)], annotations=[annotation(image_id=named)])
    )

    assert parsed.entries[0].image_id == str(listed)
    assert len(parsed.images()["a.jpg"].objects) == 1


_BOX = (10, 20.5, 40, 60.5)
_NO_BOX: tuple[object, ...] = (..., None, [])
_POLYGONS = [[10, 20, 30, 25, 12, 50], [5, 21, 6, 22]]
_PIXELS = np.zeros((480, 640), np.uint8)
_PIXELS[10:30, 100:103] = 1
_RLE = coco_mask.encode(np.asfortranarray(_PIXELS))["counts"].decode()
# Runs of three columns of 20 pixels in an image of 640 x 480.
_RUNS = {
    "text": {"counts": _RLE, "size": [480, 640]},
    "numbers": {"counts": [48010, 20, 460, 20, 460, 20], "size": [480, 640]},
    "no size": {"counts": _RLE},
    "sides exchanged": {"counts": _RLE, "size": [640, 480]},
}
_UNUSABLE_RUNS: tuple[Json, ...] = (
    {"counts": [12], "size": [3, 4]},
    {"counts": [0, 3, 10], "size": [3, 4]},
    {"counts": [0, 3, 9], "size": [4, 3]},
    {"counts": [0, 3, -1], "size": [3, 4]},
    {"counts": "ö", "size": [3, 4]},
    {"counts": [0, 3, 9], "size": [1e6, 1e6]},
    {"size": [3, 4]},
)
# Labelled and visible, labelled and hidden, not labelled.
_POINTS = [10, 20, 2, 30, 45, 1, 0, 0, 0]
# {case: (annotations of one image, ids and boxes of its objects, corrections)}
_ANNOTATIONS: dict[str, tuple[list[Json], list[tuple[int, tuple[float, ...]]], dict[str, int]]] = {
    **{
        f"box from polygons: {bbox}": (
            [annotation(bbox=bbox, segmentation=_POLYGONS)],
            [(1, (5, 20, 30, 50))],
            {"box_from_polygons": 1},
        )
        for bbox in _NO_BOX
    },
    **{
        f"neither box nor polygons: {segmentation}": (
            [annotation(), annotation(id=2, bbox=..., segmentation=segmentation)],
            [(1, _BOX)],
            {"object_without_box_dropped": 1},
        )
        for segmentation in (*_NO_BOX, [[]], *_UNUSABLE_RUNS)
    },
    "box from one polygon without a list around it": (
        [annotation(bbox=..., segmentation=_POLYGONS[0])],
        [(1, (10, 20, 30, 50))],
        {"box_from_polygons": 1},
    ),
    **{
        f"box from runs: {case}": (
            [annotation(bbox=..., segmentation=runs)],
            [(1, (100, 10, 103, 30))],
            {"box_from_mask": 1},
        )
        for case, runs in _RUNS.items()
    },
    "box from runs of another size": (
        [annotation(bbox=..., segmentation={"counts": [27, 3], "size": [24, 32]})],
        [(1, (20, 60, 40, 120))],
        {"box_from_mask": 1},
    ),
    **{
        f"box from keypoints, and not from {segmentation}": (
            [annotation(bbox=..., segmentation=segmentation, keypoints=_POINTS)],
            [(1, (10, 20, 30, 45))],
            {"box_from_keypoints": 1},
        )
        for segmentation in (*_NO_BOX, *_UNUSABLE_RUNS)
    },
    "no keypoint is labelled": (
        [
            annotation(),
            annotation(id=2, **dict.fromkeys(("bbox", "segmentation"), ...), keypoints=[1, 2, 0]),
        ],
        [(1, _BOX)],
        {"object_without_box_dropped": 1},
    ),
    **{
        f"unknown category: {category_id}": (
            [annotation(category_id=category_id)],
            [],
            {"object_of_unknown_category_dropped": 1},
        )
        for category_id in (..., None, 19)
    },
    "repeated": (
        [annotation(), annotation(id=2), annotation(), annotation(area=1)],
        [(1, _BOX), (2, _BOX)],
        {"duplicate_annotation_dropped": 2},
    ),
    "repeated without an id": (
        [annotation(id=..., bbox=[1, 2, 3, height]) for height in (4, 5, 4)],
        [(0, (1, 2, 4, 6)), (0, (1, 2, 4, 7))],
        {"duplicate_annotation_dropped": 1},
    ),
    "one id, other box": (
        [annotation(), annotation(bbox=[10, 20.5, 30, 41])],
        [(1, _BOX), (1, (10, 20.5, 40, 61.5))],
        {},
    ),
    "one id, other category": (
        [annotation(), annotation(category_id=2)],
        [(1, _BOX), (1, _BOX)],
        {},
    ),
}


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    ("more", "turned"),
    [
        ({"attributes": {"rotation": 90}}, True),
        ({"attributes": {"occluded": False, "rotation": 450.0}}, True),
        ({"attributes": {"rotation": 90}, "segmentation": []}, True),
        # The outline shows the object as it is, and some tools have other attributes.
        ({"attributes": {"rotation": 90}, "segmentation": _POLYGONS}, False),
        ({"attributes": {"rotation": 0.0}}, False),
        ({"attributes": {"rotation": True}}, False),
        ({"attributes": {"rotation": "90"}}, False),
        ({"attributes": {"rotation": 1e300}}, False),
        ({"attributes": ["rotation"]}, False),
        ({"attributes": {"other": {"rotation": 90}}}, False),
    ],
)
def test_boxes_that_cvat_turned(more: Json, turned: bool, masks: bool) -> None:
    # The box is 30 x 40 pixels around (25, 40.5).
    content = document(annotations=[annotation(**{"segmentation": ..., **more})])

    found = read_image(content, masks=masks)

    (item,) = found.objects
    assert item.bbox == pytest.approx((5, 25.5, 45, 55.5) if turned else (10, 20.5, 40, 60.5))
    assert found.corrections == ({"box_turned": 1} if turned else {})
    assert item.area == 600.25
    if masks and turned:
        corners = [45, 25.5, 45, 55.5, 5, 55.5, 5, 25.5]
        assert json.loads(item.segmentation) == [pytest.approx(corners)]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    ("annotations", "objects", "corrections"), _ANNOTATIONS.values(), ids=_ANNOTATIONS
)
def test_what_becomes_of_annotations(
    annotations: list[Json],
    objects: list[tuple[int, tuple[float, ...]]],
    corrections: dict[str, int],
    masks: bool,
) -> None:
    categories = [{"id": 18, "name": "dog"}, {"id": 2, "name": "cat"}]

    found = read_image(document(annotations=annotations, categories=categories), masks=masks)

    assert [(item.annotation_id, item.bbox) for item in found.objects] == objects
    assert {item.area for item in found.objects} <= {600.25}
    assert found.corrections == corrections


@pytest.mark.parametrize(
    ("segmentation", "kept"),
    [
        ([[1, 2.5, 3, 4, 5, 6]], True),
        (_RUNS, True),
        ({"counts": 'a"\\]}b', "size": [3, 4]}, True),
        ([], False),
        ({}, False),
        (..., False),
    ],
)
def test_segmentation_is_kept_as_it_is_written(segmentation: object, kept: bool) -> None:
    content = document(annotations=[annotation(segmentation=segmentation)])

    (with_masks,) = read_image(content, masks=True).objects
    (without,) = read_image(content).objects

    assert with_masks.segmentation == (json.dumps(segmentation).encode() if kept else b"")
    assert without.segmentation == b""


# Categories


@pytest.mark.parametrize(
    "named", [[(18, "dog"), (18, "dog")], [(18, "dog"), (19, "dog")]], ids=["twice", "two ids"]
)
def test_a_category_is_declared_once_for_each_id(named: list[tuple[int, str]]) -> None:
    categories = [{"id": number, "name": name} for number, name in named]

    declared = read_coco(document(categories=categories)).categories

    assert [(item.source_id, item.name) for item in declared] == list(dict.fromkeys(named))


# Duplicates


OTHERS = [
    {"id": 1, "name": "cat", "supercategory": "pets"},
    {"id": 2, "name": "dog", "supercategory": "pets"},
]


@pytest.mark.parametrize(
    ("zero", "others", "is_dummy"),
    [
        ({"supercategory": "none"}, OTHERS, True),
        ({"supercategory": "none"}, OTHERS[:1], True),
        # A class of its own, and one of several groups.
        ({"supercategory": "none"}, [], False),
        ({"supercategory": "none"}, [*OTHERS, {"id": 3, "name": "x", "supercategory": "y"}], False),
        ({"supercategory": "none"}, [{"id": 1, "name": "cat"}], False),
        ({"supercategory": "pets"}, OTHERS, False),
        ({"supercategory": None}, OTHERS, False),
        ({"supercategory": 7}, OTHERS, False),
        ({"supercategory": "none", "id": 5}, OTHERS, False),
        ({}, OTHERS, False),
    ],
)
@pytest.mark.parametrize("name", ["coco", "lvis"])
def test_the_dummy_that_roboflow_adds(
    name: str, zero: dict[str, Any], others: list[dict[str, Any]], is_dummy: bool
) -> None:
    categories = [{"id": 0, "name": "pets", **zero}, *others]
    source = make_format(name, images="i", annotations=["a.json"])

    found = read_content(source, document(annotations=[], categories=categories)).categories

    assert {each.name: each.is_background for each in found} == {
        each["name"]: each["name"] == "pets" and is_dummy for each in categories
    }


@pytest.mark.parametrize(
    "other",
    [{"file_name": "b.jpg"}, {"file_name": "b.jpg", "width": 1}, {"width": 1, "height": 1}],
)
@pytest.mark.parametrize("ids", [(7, 7), (7, "7")])
def test_images_that_share_an_id_cannot_be_used(
    ids: tuple[int | str, int | str], other: dict[str, Any]
) -> None:
    images = [image(id=ids[0]), image(id=8, file_name="c.jpg"), image(id=ids[1], **other)]
    parsed = read_coco(document(images=images, annotations=[annotation(), annotation(image_id=8)]))

    first, second = parsed.defects()
    assert {first.defect, second.defect} == {Reason.DUPLICATE_IMAGE_ID}
    assert (first.key, first.position, second.position) == ("a.jpg", 0, 2)
    name = other.get("file_name", "a.jpg")
    assert second.key == name
    assert first.detail == (
        f"instances.json: $.images[0]: {name!r} ($.images[2]) has the image id 7, too, and nobody "
        "knows whose its annotations are: give each image its own id"
    )
    assert "$.images[2]: 'a.jpg' ($.images[0]) has the image id 7, too" in second.detail
    assert parsed.images().keys() == {"c.jpg"}


@pytest.mark.parametrize("other", [{}, {"file_name": "./a.jpg"}, {"width": None}])
def test_an_image_that_is_listed_twice_under_its_id_is_one(other: dict[str, Any]) -> None:
    first, second = read_coco(document(images=[image(), image(**other)])).entries

    assert (first.defect, second.defect) == (None, None)
    found, repeated = (decode_annotations(each.annotations) for each in (first, second))
    assert (len(found.objects), found.corrections) == (1, {})
    assert (len(repeated.objects), repeated.corrections) == (0, {"entries_merged": 1})


def test_images_with_one_name_and_several_ids_are_left_to_the_join() -> None:
    images = [image(), image(id=8, file_name="./a.jpg")]
    parsed = read_coco(document(images=images, annotations=[annotation(image_id=8)]))

    assert [(each.key, each.image_id, each.defect) for each in parsed.entries] == [
        ("a.jpg", "7", None),
        ("a.jpg", "8", None),
    ]


def test_annotations_of_unknown_images_are_one_entry_an_id() -> None:
    annotations = [annotation(image_id=k) for k in (7, 99, "x", 99)]

    parsed = read_coco(document(annotations=annotations))

    first, second = parsed.defects()
    assert {first.defect, second.defect} == {Reason.UNKNOWN_IMAGE_ID}
    assert (first.key, first.image_id, first.position) == ("image_id=99", "99", 1)
    assert (second.key, second.image_id, second.position) == ("image_id=x", "x", 2)
    assert first.detail.startswith("instances.json: $.annotations[1]: ")
    assert "2 annotations" in first.detail
    assert "1 annotations" in second.detail


# Keys


def test_key_is_the_normalized_file_name() -> None:
    (entry,) = read_coco(document(images=[image(file_name="./train//a e\u0301.jpg")])).entries

    assert (entry.key, entry.defect) == ("train/a é.jpg", None)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (r"a\u0000.jpg", r"a\x00.jpg"),
        ("", "image_id=7"),
        ("./", "image_id=7"),
    ],
)
def test_unreadable_file_name_is_a_defect(written: str, key: str) -> None:
    data = json.dumps(document(images=[image(file_name="@@"), image(id=8, file_name="b.jpg")]))

    parsed = read_coco(data.replace("@@", written).encode())

    (entry,) = parsed.defects()
    assert (entry.key, entry.defect) == (key, Reason.UNREADABLE_NAME)
    assert "$.images[0]: file_name" in entry.detail
    assert parsed.images().keys() == {"b.jpg"}


@pytest.mark.parametrize(
    ("written", "file_name", "lone"),
    [
        (r"\ud83d.jpg", "\ufffd.jpg", 1),
        (r"\udc00\ud83d\\.jpg", "\ufffd\ufffd\\.jpg", 2),
        # A pair, and what an escaped backslash begins, stay as they are.
        (r"\ud83d\ude00\\ud83d.jpg", "😀\\ud83d.jpg", 0),
    ],
)
def test_lone_surrogates_of_an_image_are_replaced_and_counted(
    written: str, file_name: str, lone: int
) -> None:
    data = json.dumps(document(images=[image(file_name="@@"), image(id=8, file_name="b.jpg")]))

    found = read_coco(data.replace("@@", written).encode()).images()

    assert found.keys() == {file_name, "b.jpg"}
    assert found[file_name].corrections == ({"lone_surrogate_replaced": lone} if lone else {})
    assert found["b.jpg"].corrections == {}


def test_lone_surrogates_of_a_class_are_counted_for_each_of_its_objects() -> None:
    content = document(
        images=[image(), image(id=8, file_name="b.jpg")],
        annotations=[annotation(), annotation(id=2), annotation(id=3, category_id=2)],
        categories=[{"id": 18, "name": "d@g"}, {"id": 2, "name": "cat"}],
    )

    parsed = read_coco(json.dumps(content).replace("@", r"\udfff").encode())

    assert [category.name for category in parsed.categories] == ["d\ufffdg", "cat"]
    assert parsed.images()["a.jpg"].corrections == {"lone_surrogate_replaced": 2}
    assert parsed.images()["b.jpg"].corrections == {}


def test_image_ids_that_are_no_clean_text_make_no_unclean_keys() -> None:
    parsed = read_coco(document(annotations=[annotation(image_id="\0")]))

    assert [entry.key for entry in parsed.defects()] == [r"image_id=\x00"]


# Anything valid


_NUMBERS = st.integers(-50, 700) | st.floats(-50, 700, width=32)
_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/."), min_size=1)


@st.composite
def _documents(draw: st.DrawFn) -> dict[str, Any]:
    image_ids = draw(st.lists(st.integers(0, 2**40) | _NAMES, unique_by=str, max_size=4))
    file_names = draw(
        st.lists(
            _NAMES.map(lambda name: unicodedata.normalize("NFC", name)),
            unique=True,
            min_size=len(image_ids),
            max_size=len(image_ids),
        )
    )
    categories = draw(
        st.dictionaries(st.integers(-5, 2**40), _NAMES, min_size=1, max_size=4).map(
            lambda names: [{"id": key, "name": name, "extra": [1]} for key, name in names.items()]
        )
    )
    annotations = [
        annotation(
            # Crowds of train2017 have ids like this: 9, the image's id and the category's.
            id=908_400_098_480_000 + index,
            image_id=draw(st.sampled_from(image_ids)),
            category_id=draw(st.sampled_from(categories))["id"],
            bbox=draw(st.lists(_NUMBERS, min_size=4, max_size=4)),
            area=draw(st.floats(0, 1e6)),
            iscrowd=draw(st.sampled_from([0, 1, False, True])),
            extra={"attributes": [None, {}]},
        )
        for index in range(draw(st.integers(0, 6)) if image_ids else 0)
    ]
    return document(
        images=[
            image(id=image_id, file_name=name)
            for image_id, name in zip(image_ids, file_names, strict=True)
        ],
        annotations=annotations,
        categories=categories,
    )


@given(content=_documents(), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_every_valid_document_is_read_back(
    content: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    names = {item["id"]: item["name"] for item in content["categories"]}
    expected = {
        listed["file_name"]: ImageAnnotations(
            image_id=str(listed["id"]),
            width=640,
            height=480,
            objects=tuple(
                ObjectAnnotation(
                    label=names[item["category_id"]],
                    bbox=(x, y, x + width, y + height),
                    area=item["area"],
                    is_crowd=item["iscrowd"] == 1,
                    annotation_id=item["id"],
                )
                for item in content["annotations"]
                if item["image_id"] == listed["id"]
                for x, y, width, height in [map(float, item["bbox"])]
            ),
        )
        for listed in content["images"]
    }

    data = json.dumps(content, indent=indent, ensure_ascii=ascii_only).encode()
    parsed = read_coco(data)

    assert parsed.images() == expected
    assert parsed.defects() == []
    assert [(item.source_id, item.name) for item in parsed.categories] == list(names.items())


# Memory


@pytest.mark.parametrize(
    ("skeleton", "pairs"),
    [
        ([[1, 2], [3, 1]], ((0, 1), (2, 0))),
        # Some exporters count from 0.
        ([[0, 1], [2, 0]], ((0, 1), (2, 0))),
        ([[2, 3], [2, 3]], ((1, 2),)),
        ([[-1, 2], [2, 1]], ((1, 0),)),
        ([], ()),
        (None, ()),
        (..., ()),
        # A drawing is nothing to refuse a build for.
        ("a-b", ()),
        ([[1, 2, 3]], ()),
        ([[1.5, 2]], ()),
    ],
)
def test_the_skeleton_of_a_category(skeleton: object, pairs: object) -> None:
    category = {"id": 1, "name": "person", "keypoints": ["a", "b", "c"]}
    if skeleton is not ...:
        category["skeleton"] = skeleton
    content = document(annotations=[annotation(category_id=1)], categories=[category])
    (found,) = read_coco(content, tasks=["keypoints"]).categories
    assert found.skeleton == pairs
    (found,) = read_coco(content, tasks=["detection"]).categories
    assert found.skeleton == ()


_LONG_POLYGONS = [[k + 0.25 for k in range(40)]]
_KEYPOINTS = [float(k % 3) for k in range(51)]


@pytest.mark.parametrize(
    ("changes", "tasks", "masks"),
    [
        ({"segmentation": ...}, ["detection"], False),
        ({"segmentation": _LONG_POLYGONS, "keypoints": _KEYPOINTS}, ["keypoints"], True),
        (
            dict.fromkeys(["segmentation", "bbox", "area", "iscrowd"], ...)
            | {"caption": "A man with a red helmet on a small moped on a dirt road."},
            ["captions"],
            False,
        ),
    ],
    ids=["boxes", "keypoints and polygons", "captions"],
)
def test_memory_stays_below_three_times_the_file(
    tmp_path: Path, changes: dict[str, Any], tasks: list[str], masks: bool
) -> None:
    file = tmp_path / "file.json"
    content = document(
        images=[image(id=k, file_name=f"{k:012}.jpg") for k in range(1_500)],
        annotations=[
            annotation(
                **{"id": k, "image_id": k * 7 % 1_500, "bbox": [k + 0.5] * 4, "area": k + 0.5}
                | changes
            )
            for k in range(10_000)
        ],
    )
    file.write_text(json.dumps(content), encoding="utf-8")
    del content
    source = make_format("coco", images="i", annotations=[str(file)], tasks=tasks, _masks=masks)

    assert peak_bytes(source) < 3 * file.stat().st_size


# Most annotations take a short way through the reader


def _outcome(data: bytes, *, tasks: list[str] | None, masks: bool) -> ParsedCoco | str:
    try:
        if tasks is None:
            source = LvisFormat(images="i", annotations=[URI], _masks=masks)
            return read_content(source, data)
        return read_coco(data, tasks=tasks, masks=masks)
    except InputError as error:
        return str(error)


_SEGMENTATIONS: list[object] = [[[1, 2, 5, 2, 5, 9]], [], None, {"counts": [1], "size": [1, 1]}]
_TEXTS: list[object] = ["A dog.", "", '"image_id": 7', "}, {", "\\", "é", "\ud800", None]
_VALUES: dict[str, list[object]] = {
    "id": [1, 2, -1, 2**63 - 1, None],
    "image_id": [7, 8, 9, "7", "x", "\ud800"],
    "category_id": [18, 19, 99, None],
    "bbox": [[1, 2, 3, 4], [1, 2, 1e300, 2**53 + 1], [-0.0, 0.5, 0, 0], [1, 2, 3], [], None],
    "area": [0, 2.5, 1e300, -1, None],
    "iscrowd": [0, 1, True, 10**30, None],
    "caption": _TEXTS,
    "segmentation": _SEGMENTATIONS,
    "keypoints": [[1, 2, 2], [1, 2], [], None],
    "num_keypoints": [1, None],
    "segments_info": [[{"id": 1, "category_id": 18}], None],
    "file_name": _TEXTS,
    "note": [*_TEXTS, *_SEGMENTATIONS],
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
