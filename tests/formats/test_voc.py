"""Pascal VOC: its XML, what belongs together, and which splits there are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    MaskRole,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.voc.folders import VOC_CLASSES
from shardbeam.transforms.formats.voc.voc import VocFormat
from shardbeam.transforms.images.mask_file import voc_colour_map
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.archive_files import Files, write_files
from tests.support.image_makers import save
from tests.support.voc_files import voc_object, voc_xml

PATH = "Annotations/a.xml"
DIFFICULT, TRUNCATED, VIEW = (f"image/object/{name}" for name in ("difficult", "truncated", "view"))


def read(data: bytes, source: VocFormat | None = None) -> tuple[list[Category], ImageAnnotations]:
    source = source or VocFormat(root="data", coordinates="as_given")
    *categories, entry = source.read_listed(data, path=PATH, root=0)
    assert isinstance(entry, AnnotationEntry)
    assert entry.key == "a"
    return (
        [category for category in categories if isinstance(category, Category)],
        decode_annotations(entry.annotations),
    )


def objects(data: bytes) -> list[tuple[object, ...]]:
    return [(item.label, item.bbox, item.attributes) for item in read(data)[1].objects]


def resolve(folder: Path, files: Files, **settings: Any) -> VocFormat:  # noqa: ANN401  # Its keys.
    """Makes a format as a run does, and sends it to a worker."""
    resolved = VocFormat(root=str(write_files(folder, files)), **settings).resolve()
    return MsgpackDecoder(VocFormat).decode(msgspec.msgpack.encode(resolved))


def listed(source: VocFormat) -> list[AnnotationEntry]:
    return [
        item
        for file_index in range(len(source.annotation_files()))
        for item in source.read_annotations(storage=LocalStorage(), file_index=file_index)
        if isinstance(item, AnnotationEntry)
    ]


def splits(source: VocFormat) -> list[tuple[str, str]]:
    return [(entry.key, entry.split) for entry in listed(source)]


# The XML

BOX = (10, 20, 30, 40)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            voc_xml(
                voc_object(pose="Left", truncated=1, difficult=0, occluded=1),
                voc_object(name="cat", xmin=1.5, difficult=1),
                voc_object(pose="Unspecified", truncated=0),
            ),
            [
                ("dog", BOX, {VIEW: "Left", TRUNCATED: 1}),
                ("cat", (1.5, 20, 30, 40), {DIFFICULT: 1}),
                ("dog", BOX, {}),
            ],
        ),
        # Parts have boxes and names of their own.
        (
            b"""<annotation><object><name>person</name>
            <part><name>head</name><bndbox><xmin>5.5</xmin><ymin>1</ymin><xmax>9</xmax></bndbox>
            </part><bndbox><xmax>4</xmax><xmin>1</xmin><ymin>2</ymin><ymax>8</ymax></bndbox>
            <actions><name>running</name></actions></object></annotation>""",
            [("person", (1, 2, 4, 8), {})],
        ),
        # White space in values is layout.
        (
            voc_xml(voc_object(name="\n  night\n  heron ", xmin=" 10\t")),
            [("night heron", BOX, {})],
        ),
        # A document type does no harm; nothing is fetched.
        (
            b"<!DOCTYPE annotation SYSTEM 'http://localhost/voc.dtd'>" + voc_xml(voc_object()),
            [("dog", BOX, {})],
        ),
        (b"<annotation>" + b"<a>" * 30_000 + b"</a>" * 30_000 + b"</annotation>", []),
    ],
    ids=["attributes", "parts", "white space", "document type", "deep"],
)
def test_objects(data: bytes, expected: list[tuple[object, ...]]) -> None:
    assert objects(data) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 480), (640, 480)),
        (("640.0", " 480\n"), (640, 480)),
        ((0, 0), (0, 0)),
        (("", 480), (0, 480)),
        (None, (0, 0)),
    ],
)
def test_size(size: tuple[object, object] | None, expected: tuple[int, int]) -> None:
    _, found = read(voc_xml(size=size))

    assert (found.width, found.height) == expected


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        *(("0", 0), ("1", 1), ("1.0", 1), ("0.3", 1), ("-1", 0), ("", 0)),
        *(("true", 1), ("False", 0), ("Unspecified", 0)),
    ],
)
def test_flags(text: str, flag: int) -> None:
    ((_, _, attributes),) = objects(voc_xml(voc_object(difficult=text, truncated=text)))

    assert attributes == ({DIFFICULT: 1, TRUNCATED: 1} if flag else {})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gbk", "gb2312", "shift_jis"])
def test_encodings(encoding: str) -> None:
    declared = encoding.removesuffix("-sig")
    text = f"<?xml version='1.0' encoding='{declared}'?>\n{voc_xml(voc_object(name='犬')).decode()}"

    assert [label for label, *_ in objects(text.encode(encoding))] == ["犬"]


@pytest.mark.parametrize(
    ("data", "place", "problem"),
    [
        (b"", "", "the file is empty"),
        (b"<html><body/></html>", "line 1", "expected <annotation>, found <html>"),
        (b"<annotation>\n<object></annotation>", "line 2, column 11", "mismatched tag"),
        (b"<annotation>\n<object>", "line 2, column 9", "no element found"),
        (b"<annotation/><annotation/>", "line 1, column 14", "junk after document element"),
        (b"\x1f\x8b\x08\0", "", "compressed with gzip"),
        (b"<annotation>\xff</annotation>", "line 1, column 13", "invalid token"),
        (b"<?xml version='1.0' encoding='gbk'?>\n<annotation>\x81</annotation>", "line 2", "gbk"),
        (b"<?xml version='1.0' encoding='nope'?><annotation/>", "line 1", "encoding"),
        (b"<?xml version='1.0' encoding='euc_jis_2004'?><annotation/>", "line 1", "encoding"),
        (voc_xml(voc_object(name=...)), "line 1", "an <object> without <name>"),
        (voc_xml(voc_object(name=" ")), "line 1", "an <object> without <name>"),
        (voc_xml(voc_object(ymax=...)), "line 1", "whose <bndbox> has no <ymax>"),
        (voc_xml(voc_object(xmin="")), "line 1", "<xmin>: expected a number, got ''"),
        (voc_xml(voc_object(xmin="nan")), "line 1", "expected a number, got 'nan'"),
        (voc_xml(voc_object(xmin="1e999")), "line 1", "expected a number, got '1e999'"),
        (voc_xml(voc_object(xmin="1_0")), "line 1", "expected a number, got '1_0'"),
        (voc_xml(size=("x", 1)), "line 1", "<width>: expected a number, got 'x'"),
        (voc_xml(size=(1, -1)), "line 1", "<height>: expected pixels, got '-1'"),
        (voc_xml(size=(0.5, 1)), "line 1", "<width>: expected pixels, got '0.5'"),
        (voc_xml(size=(1, 2**31)), "line 1", "<height>: expected pixels"),
        (
            b"<annotation><object><name>a</name>\n<name>b</name></object></annotation>",
            "line 2",
            "<name> is given twice",
        ),
        (
            b"<annotation><object><name>a</name><bndbox/>\n<bndbox/></object></annotation>",
            "line 2",
            "<bndbox> is given twice",
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_broken_files(data: bytes, place: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        read(data)

    assert (raised.value.uri, raised.value.place) == (PATH, place)
    assert problem in raised.value.problem


def _entity_bomb() -> bytes:
    levels = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    return f'<!DOCTYPE a [<!ENTITY l0 "ha">{levels}]><annotation>&l11;</annotation>'.encode()


@pytest.mark.parametrize(
    "data",
    [
        _entity_bomb(),
        b"<!DOCTYPE a [<!ENTITY e 'x'>]><annotation>&e;</annotation>",
        b"<!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><annotation>&e;</annotation>",
        b"<!DOCTYPE a [<!ENTITY % e SYSTEM 'http://localhost/'>%e;]><annotation/>",
        b"<!DOCTYPE a SYSTEM 'http://localhost/a.dtd'><annotation>&e;</annotation>",
    ],
    ids=["bomb", "internal", "external", "parameter", "undeclared"],
)
def test_entities_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="are not read; write the text itself"):
        read(data)


def test_boxes_give_their_first_and_last_pixels() -> None:
    whole = voc_object(xmin=1, ymin=1, xmax=640, ymax=480)
    pixel = voc_object(xmin=7, ymin=9, xmax=7, ymax=9)

    _, annotations = read(voc_xml(whole, pixel), VocFormat(root="data"))
    assert [item.bbox for item in annotations.objects] == [(0, 0, 640, 480), (6, 8, 7, 9)]
    _, annotations = read(voc_xml(whole, pixel))
    assert [item.bbox for item in annotations.objects] == [(1, 1, 640, 480), (7, 9, 7, 9)]


def test_objects_without_box_are_counted() -> None:
    without = voc_object(xmin=..., ymin=..., xmax=..., ymax=...)

    categories, annotations = read(voc_xml(without, voc_object(name="cat")))

    assert categories == [
        Category(name="cat", origin="data"),
        Category(name="dog", origin="data", lost="no bndbox"),
    ]
    assert annotations.lost == {"dog": {"no bndbox": 1}}
    # Its number in the map of objects stays.
    assert [(item.label, item.annotation_id) for item in annotations.objects] == [("cat", 2)]
    assert annotations.corrections == {Correction.OBJECT_WITHOUT_BOX_DROPPED.value: 1}


def test_what_follows_a_deleted_object_is_read_and_keeps_its_number() -> None:
    deleted = voc_object(name="cat", deleted=1)

    _, annotations = read(voc_xml(deleted, voc_object()))

    assert [(item.label, item.annotation_id) for item in annotations.objects] == [("dog", 2)]
    assert annotations.corrections == {Correction.DELETED_OBJECT_DROPPED.value: 1}


def _drawn(inside: str, *, size: str = "") -> bytes:
    text = f"<annotation>{size}<object><name>dog</name>{inside}</object></annotation>"
    return text.encode()


def _robndbox(angle: float, *, height: float = 4) -> str:
    given = {"cx": 20, "cy": 10, "w": 8, "h": height, "angle": angle}
    sides = "".join(f"<{tag}>{value}</{tag}>" for tag, value in given.items())
    return f"<type>robndbox</type><robndbox>{sides}</robndbox>"


_PT = "<pt><x>{}</x><y>{}</y></pt>"
_CORNERS = "".join(_PT.format(x, y) for x, y in ((1, 2), (9, 2), (9, 7)))
_LABELME_OUTLINE = f"<polygon><username/>{_CORNERS}</polygon>"
_NUMBERED = "<polygon><x1>1</x1><y1>2</y1><x2>9</x2><y2>2</y2><x3>9</x3><y3>7</y3></polygon>"
_BOX_1_TO_5 = "<xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>6</ymax>"
_TRIANGLE = [[1.0, 2.0, 9.0, 2.0, 9.0, 7.0]]


@pytest.mark.parametrize(
    ("inside", "box", "outlines", "area", "corrections"),
    [
        # Clockwise: the right end of the rectangle goes down.
        (
            _robndbox(math.pi / 6),
            (
                20 - 2 * 3**0.5 - 1,
                10 - 2 - 3**0.5,
                20 + 2 * 3**0.5 + 1,
                10 + 2 + 3**0.5,
            ),
            [
                [
                    *(20 - 2 * 3**0.5 + 1, 10 - 2 - 3**0.5, 20 + 2 * 3**0.5 + 1, 10 + 2 - 3**0.5),
                    *(20 + 2 * 3**0.5 - 1, 10 + 2 + 3**0.5, 20 - 2 * 3**0.5 - 1, 10 - 2 + 3**0.5),
                ]
            ],
            32,
            {"box_turned": 1},
        ),
        # A line is not turned, and has no area.
        (
            _robndbox(math.pi / 6, height=0),
            (16, 10, 24, 10),
            [[16, 10, 24, 10, 24, 10, 16, 10]],
            0,
            {"box_turned": 1},
        ),
        (_LABELME_OUTLINE, (1, 2, 9, 7), _TRIANGLE, -1, {"box_from_polygons": 1}),
        (_NUMBERED, (1, 2, 9, 7), _TRIANGLE, -1, {"box_from_polygons": 1}),
        # A box that is given stays.
        (f"<bndbox>{_BOX_1_TO_5}</bndbox>{_NUMBERED}", (1, 2, 5, 6), _TRIANGLE, -1, {}),
        (f"<segm><box>{_BOX_1_TO_5}</box><mask>m.png</mask></segm>", (1, 2, 5, 6), [], -1, {}),
        # Two points make no area.
        (
            f"<polygon>{_PT.format(1, 2)}{_PT.format(9, 7)}</polygon>",
            None,
            [],
            -1,
            {"object_without_box_dropped": 1},
        ),
        (f"<deleted>1</deleted>{_NUMBERED}", None, [], -1, {"deleted_object_dropped": 1}),
        (
            f"<deleted>0</deleted>{_NUMBERED}",
            (1, 2, 9, 7),
            _TRIANGLE,
            -1,
            {"box_from_polygons": 1},
        ),
    ],
)
def test_outlines_and_turned_boxes(
    inside: str,
    box: tuple[float, ...] | None,
    outlines: list[list[float]],
    area: float,
    corrections: dict[str, int],
) -> None:
    for masks in (True, False):
        source = VocFormat(root="data", coordinates="as_given", _masks=masks)

        _, found = read(_drawn(inside), source)

        assert found.corrections == corrections
        assert len(found.objects) == (box is not None)
        for item in found.objects:
            assert item.bbox == pytest.approx(box)
            assert item.area == area
            drawn = json.loads(item.segmentation or b"[]")
            assert [*map(pytest.approx, outlines if masks else [])] == drawn


def test_outlines_do_not_count_pixels_from_1() -> None:
    for inside in (_NUMBERED, _robndbox(0), f"<segm><box>{_BOX_1_TO_5}</box></segm>"):
        ((item,), (same,)) = (
            read(_drawn(inside), VocFormat(root="data", coordinates=coordinates))[1].objects
            for coordinates in ("one_based", "as_given")
        )
        assert item.bbox == same.bbox


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        ("<robndbox><cx>1</cx></robndbox>", "<robndbox> has no <cy>"),
        ("<polygon><pt><x>1</x></pt></polygon>", "<pt> has no <y>"),
        ("<polygon><x1>1</x1></polygon>", "a <polygon> with <x1> has no <y1>"),
        ("<polygon><x1>nan</x1><y1>2</y1></polygon>", "expected a number"),
        ("<segm><box/></segm>", "<box> has no <xmin>"),
    ],
)
def test_broken_outlines(inside: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        read(_drawn(inside))

    assert problem in raised.value.problem


def test_the_size_of_labelmes_web_tool() -> None:
    size = "<imagesize><nrows>480</nrows><ncols>640</ncols></imagesize>"

    _, found = read(_drawn(_NUMBERED, size=size))

    assert (found.width, found.height) == (640, 480)


def test_extra_features_have_defaults_for_what_is_not_said() -> None:
    defaults = {
        extra.spec.key: (extra.default, extra.per_object)
        for extra in VocFormat(root="data").extra_features()
    }

    assert defaults == {
        DIFFICULT: (None, True),
        TRUNCATED: (None, True),
        VIEW: ("Unspecified", True),
    }


# Files that belong together


def _image(key: str, join: str) -> Place:
    return Place(role=Role.IMAGE, key=key, join=join)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("JPEGImages/a.jpg", _image("JPEGImages/a.jpg", "a")),
        ("VOC2012/JPEGImages/a.b.JPG", _image("VOC2012/JPEGImages/a.b.JPG", "VOC2012/a.b")),
        ("a.jpg", _image("a.jpg", "a")),
        ("train/a.jpg", _image("train/a.jpg", "train/a")),
        ("annotations/xmls/a.XML", Place(role=Role.ANNOTATION, join="a")),
        ("train/a.xml", Place(role=Role.ANNOTATION, join="train/a")),
        ("train/a.jpg.xml", Place(role=Role.ANNOTATION, join="train/a")),
        ("Annotations/sub/a.xml", Place(role=Role.ANNOTATION, join="sub/a")),
        ("SegmentationObject/a.png", Place(role=Role.OTHER)),
        ("SegmentationClassVisualization/a.jpg", Place(role=Role.OTHER)),
        ("ImageSets/Main/train.txt", Place(role=Role.OTHER)),
        ("labelmap.txt", Place(role=Role.OTHER)),
        # Files beside the images are excluded, and counted.
        ("Annotations/._a.xml", _image("Annotations/._a.xml", "Annotations/._a.xml")),
        ("a.txt", _image("a.txt", "a.txt")),
    ],
)
def test_place(path: str, place: Place) -> None:
    assert VocFormat(root="data").place(path, root=0) == place


@pytest.mark.parametrize(
    ("path", "mask"),
    [
        ("SegmentationClass/a.png", MaskRole.VOC_CLASS),
        ("SegmentationClassPNG/a.png", MaskRole.VOC_CLASS),
        ("SegmentationObject/a.png", MaskRole.VOC_OBJECT),
        ("SegmentationClass/a.npy", None),
    ],
)
def test_place_of_masks(path: str, mask: MaskRole | None) -> None:
    other = Place(role=Role.OTHER)
    wanted = other if mask is None else Place(role=Role.MASK, join="a", mask=mask)
    both = VocFormat(root="data", _masks=True, semantic=True)
    only_objects = VocFormat(root="data", _masks=True)

    assert both.place(path, root=0) == wanted
    assert only_objects.place(path, root=0) == (wanted if mask is MaskRole.VOC_OBJECT else other)
    assert both.kinds == {Kind.DETECTION, Kind.INSTANCE_MASKS, Kind.SEMANTIC}
    assert only_objects.kinds == {Kind.DETECTION, Kind.INSTANCE_MASKS}


@pytest.mark.parametrize(
    ("key", "exclusion"),
    [
        ("annotations/trimaps/a.png", Exclusion.ANNOTATION_FOLDER),
        ("JPEGImages/a.jpg", None),
        ("train/a.jpg", None),
        ("annotations/.a.jpg", None),
        ("annotations/list.txt", None),
    ],
)
def test_pictures_among_annotations_are_left_out(key: str, exclusion: Exclusion | None) -> None:
    assert VocFormat(root="data").annotate_listed(key) is exclusion


# Splits

MAIN = "ImageSets/Main"
YEARS: Files = {
    "VOCdevkit/VOC2007/Annotations/a.xml": voc_xml(),
    f"VOCdevkit/VOC2007/{MAIN}/train.txt": "a\n",
    f"VOCdevkit/VOC2012/{MAIN}/train.txt": "a\n",
    f"VOCdevkit/VOC2012/{MAIN}/val.txt": "b\n",
}
LISTS: Files = {
    "Annotations/a.xml": voc_xml(),
    f"{MAIN}/val.txt": "c\r\n",
    f"{MAIN}/train.txt": '\ufeffa\n\n# a comment\n  b c \n"d e"\nf.jpg',
    f"{MAIN}/test.txt": "\n",
    f"{MAIN}/trainval.txt": "a\nc\n",
    f"{MAIN}/dog_train.txt": "a -1\nb  1\n",
    f"{MAIN}/._train.txt": "\0",
    "ImageSets/Layout/test.txt": "x\n",
}


@pytest.mark.parametrize(
    ("files", "settings", "expected"),
    [
        # In their usual order; the empty name is not a class.
        (
            LISTS,
            {},
            [*(("a", "train"), ("b c", "train"), ("d e", "train"), ("f", "train")), ("c", "val")],
        ),
        (LISTS, {"splits": ["trainval"]}, [("a", "trainval"), ("c", "trainval")]),
        (LISTS, {"image_set": "Layout"}, [("x", "test")]),
        (
            YEARS,
            {},
            [
                ("VOCdevkit/VOC2007/a", "train"),
                ("VOCdevkit/VOC2012/a", "train"),
                ("VOCdevkit/VOC2012/b", "val"),
            ],
        ),
        ({"a.xml": voc_xml(), "train.txt": "a\n"}, {}, []),
    ],
    ids=["lists", "chosen", "folder", "years", "none"],
)
def test_splits_are_the_lists(
    tmp_path: Path, files: Files, settings: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    source = resolve(tmp_path, files, **settings)

    assert splits(source) == expected
    assert list(source.predefined_splits()) == list(dict.fromkeys(split for _, split in expected))
    assert bool(source.annotation_files()) == bool(expected)


def test_lines_of_lists(tmp_path: Path) -> None:
    source = resolve(tmp_path, LISTS)

    assert list(source.annotation_files()) == [
        f"{tmp_path}/{MAIN}/{name}.txt" for name in ("train", "val")
    ]
    assert [entry.position for entry in listed(source)] == [1, 4, 5, 6, 1]
    # A name that cannot be a key is a reject.
    _, entry = listed(resolve(tmp_path / "nul", {"a.xml": b"", f"{MAIN}/train.txt": "a\nb\0c\n"}))
    assert (entry.key, entry.defect) == ("b\\x00c", Reason.UNREADABLE_NAME)
    assert entry.detail == "ImageSets/Main/train.txt: line 2: the name holds a NUL character"


@pytest.mark.parametrize(
    ("files", "settings", "problem"),
    [
        ({}, {"splits": ["tain"]}, "no list ImageSets/Main/tain.txt; did you mean 'train'?; found"),
        ({}, {"splits": ["dog_train"]}, "'a -1' says whether an image shows a class"),
        ({}, {"image_set": "Segmentation", "splits": ["val"]}, "found: none"),
        ({f"{MAIN}/train.txt": b"a\n\xff\n"}, {}, "line 2: expected UTF-8 text"),
        ({"labelmap.txt": "cat:1,2,3::\ncat:::\n"}, {"semantic": True}, "each once"),
        ({"labelmap.txt": b"\xff"}, {"semantic": True}, "expected UTF-8"),
    ],
)
def test_lists_that_cannot_be_used(
    tmp_path: Path, files: Files, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as raised:
        resolve(tmp_path, {**LISTS, **files}, **settings)

    assert problem in str(raised.value)
    assert raised.value.uri.startswith(str(tmp_path))


def in_folders(layout: str, **names: str) -> Files:
    """Writes images `a`, `b` of each split; the layout has a split, a kind of file and a name."""
    files: dict[str, bytes | str] = {}
    for split, own in names.items():
        for name in own:
            files[layout.format(split=split, kind="JPEGImages", file=f"{name}.jpg")] = b"image"
            files[layout.format(split=split, kind="Annotations", file=f"{name}.xml")] = voc_xml()
    return files


LAYOUTS = ["{split}/{kind}/{file}", "{kind}/{split}/{file}", "{split}/{file}"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_that_are_named_like_splits_are_splits(tmp_path: Path, layout: str) -> None:
    # Neither an image without an XML file nor another file makes a split.
    others: Files = {"testing/z.jpg": b"", "docs/z.txt": b""}
    files = in_folders(layout, Train="abcd", valid="ef", test="g")
    source = resolve(tmp_path / "all", {**files, **others})
    assert list(source.predefined_splits()) == ["Train", "valid", "test"]
    split = {Path(path).stem: source.split_listed(path) for path in files if path.endswith(".jpg")}
    assert split == {**dict.fromkeys("abcd", "Train"), **dict.fromkeys("ef", "valid"), "g": "test"}
    assert source.split_listed("testing/z.jpg") == ""
    # A missing image has the split of its XML file.
    path = layout.format(split="valid", kind="Annotations", file="y.xml")
    (entry,) = source.read_listed(voc_xml(), path=path, root=0)
    assert isinstance(entry, AnnotationEntry)
    assert entry.split == "valid"

    some = resolve(tmp_path / "some", files, splits=["test"])
    assert list(some.predefined_splits()) == ["test"]
    with pytest.raises(InputError, match="no folder 'val' with annotated images; did you mean"):
        resolve(tmp_path / "none", files, splits=["val"])


def test_lists_are_splits_before_folders_are(tmp_path: Path) -> None:
    files = in_folders(LAYOUTS[0], train="ab", val="c")
    source = resolve(tmp_path, {**files, "ImageSets/Main/test.txt": "train/a"})
    assert list(source.predefined_splits()) == ["test"]
    assert source.split_listed("train/JPEGImages/a.jpg") == ""


@pytest.mark.parametrize(
    ("names", "is_mixed"),
    [({"train": "a", "val": "b", "more": "c"}, True), ({"train": "a", "more": "c"}, False)],
)
def test_folders_of_which_only_some_are_named_like_splits(
    tmp_path: Path, names: dict[str, str], is_mixed: bool
) -> None:
    source = resolve(tmp_path, in_folders(LAYOUTS[2], **names))
    if not is_mixed:
        assert source.predefined_splits() == []
        return
    with pytest.raises(Problem, match=r"like splits \(train, val\) and in others \(more\)"):
        source.predefined_splits()


def test_copies_of_xml_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    files = in_folders(LAYOUTS[0], train="ab", val="cd")
    copies: Files = {f"old/xml/{name}.xml": voc_xml() for name in "abcdx"}
    # These are no copies: at most a few of them have the names of others.
    others: Files = {f"new/{name}.xml": voc_xml() for name in "aopq"}
    source = resolve(tmp_path, {**files, **copies, **others})
    assert list(source.predefined_splits()) == ["train", "val"]
    assert source.resolve() == source
    assert source.place("old/xml/x.xml", root=0).role is Role.OTHER
    for path in ("new/a.xml", "train/Annotations/a.xml"):
        assert source.place(path, root=0).role is Role.ANNOTATION
    assert list(source.warnings()) == [
        "old/xml: 5 XML files are not read: their images are not there, and 4 of them have the "
        "names of XML files beside images"
    ]


def test_xml_files_that_are_joined_by_name_are_no_copies(tmp_path: Path) -> None:
    files: Files = {"pictures/a.jpg": b"", "one/a.xml": voc_xml(), "two/a.xml": voc_xml()}
    source = resolve(tmp_path, files, match="name")
    assert not list(source.warnings())
    assert source.place("two/a.xml", root=0).role is Role.ANNOTATION


def test_a_folder_without_annotations_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \.xml files found"):
        resolve(tmp_path, {"JPEGImages/a.jpg": b"", "Annotations/._a.xml": b""})


@pytest.mark.parametrize(
    ("exists", "problem"),
    [
        (False, "there is no such folder"),
        (True, "the folder is empty; is this the dataset's folder?"),
    ],
)
def test_a_root_without_files_is_missing_or_empty(
    tmp_path: Path, exists: bool, problem: str
) -> None:
    root = tmp_path / "voc"
    if exists:
        root.mkdir()
    for semantic in (False, True):
        with pytest.raises(InputError) as raised:
            VocFormat(root=str(root), semantic=semantic).resolve()
        assert raised.value.uri == str(root)
        assert raised.value.problem.startswith(problem)


def class_map(palette: npt.NDArray[np.uint8] | None) -> bytes:
    image = Image.fromarray(np.zeros((2, 2), np.uint8))
    if palette is not None:
        image.putpalette(palette.ravel().tolist())
    return save(image, "PNG")


VOC_MAP, OTHER_MAP = class_map(voc_colour_map()), class_map(voc_colour_map()[::-1])


@pytest.mark.parametrize(
    ("maps", "warning"),
    [
        ({}, None),
        (
            {"SegmentationClass/a.png": VOC_MAP},
            "SegmentationClass/a.png: its colours look like VOC's, ",
        ),
        # The first one by name that is a map decides.
        (
            {
                "VOC2012/SegmentationClassPNG/b.png": VOC_MAP,
                "VOC2012/SegmentationClassPNG/c.png": OTHER_MAP,
                "VOC2012/SegmentationClassPNG/a.png": b"no PNG",
                "VOC2012/SegmentationClassPNG/._a.png": OTHER_MAP,
                "VOC2012/SegmentationObject/a.png": OTHER_MAP,
                "VOC2012/JPEGImages/a.png": OTHER_MAP,
            },
            "VOC2012/SegmentationClassPNG/b.png: its colours look like VOC's",
        ),
    ],
)
def test_classes_of_maps_in_vocs_colours(tmp_path: Path, maps: Files, warning: str | None) -> None:
    files = {"Annotations/a.xml": b"", **maps}
    plain = resolve(tmp_path, files, semantic=True)

    categories, annotations = read(voc_xml(voc_object(), voc_object(name="unicorn")), plain)

    assert categories == [
        Category(name=name, source_id=class_id, origin=str(tmp_path))
        for class_id, name in enumerate(VOC_CLASSES, 1)
    ]
    assert annotations.corrections == {Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED.value: 1}
    assert [item.label for item in annotations.objects] == ["dog"]
    assert VOC_CLASSES[11] == "dog"
    warnings = list(plain.warnings())
    assert len(warnings) == (warning is not None)
    assert not warning or warnings[0].startswith(warning)
    assert not list(resolve(tmp_path, files).warnings())


@pytest.mark.parametrize("data", [OTHER_MAP, class_map(None)], ids=["palette", "gray"])
def test_other_maps_hold_numbers_without_names(tmp_path: Path, data: bytes) -> None:
    plain = resolve(tmp_path, {"SegmentationClass/a.png": data}, semantic=True)

    categories, annotations = read(voc_xml(voc_object(name="unicorn")), plain)

    assert [(each.name, each.source_id) for each in categories] == [("unicorn", None)]
    assert annotations.corrections == {}
    (warning,) = plain.warnings()
    assert warning.startswith("SegmentationClass/a.png: the palette is not VOC's, so the maps'")
    assert "name them in a labelmap.txt in the root" in warning


def test_label_map_names_the_classes(tmp_path: Path) -> None:
    text = "# label:color_rgb:parts:actions\nbackground:0,0,0::\nyak:128,0,0::\nignored:9,9,9::\n"
    source = resolve(
        tmp_path, {"labelmap.txt": text, "a.xml": b"", f"{MAIN}/train.txt": "a\n"}, semantic=True
    )

    assert list(source.annotation_files())[1:] == [f"{tmp_path}/labelmap.txt"]
    assert list(source.warnings()) == []
    assert list(source.read_annotations(storage=LocalStorage(), file_index=1)) == [
        Category(name="yak", source_id=1, origin=str(tmp_path))
    ]


@pytest.mark.parametrize("keys", [{"mask_classes": {"1": "yak"}}, {"mask_values": {"9": 1}}])
def test_what_values_of_maps_mean_is_said_only_where_maps_are_read(keys: dict[str, Any]) -> None:
    with pytest.raises(Problem, match="has no effect without semantic: true"):
        VocFormat(root="data", **keys)
    source = VocFormat(root="data", semantic=True, **keys)
    assert {key: getattr(source, key) for key in keys} == keys


def test_the_summary_says_what_255_means_in_maps_of_two_values(tmp_path: Path) -> None:
    pixels = np.array([[0, 255], [0, 0]], np.uint8)
    source = resolve(
        tmp_path,
        {
            "SegmentationClass/a.png": save(Image.fromarray(pixels), "PNG"),
            "labelmap.txt": "background:0,0,0::\nyak:128,0,0::\n",
        },
        semantic=True,
    )

    (said,) = source.warnings()

    assert said.startswith("the pixels of SegmentationClass/a.png are only 0 and 255: ")
    assert "255 is class 1 (yak)" in said
