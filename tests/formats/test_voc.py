"""Pascal VOC: its XML, what belongs together, and which splits there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    MaskRole,
    ObjectAnnotation,
    Value,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.voc import VOC_CLASSES, VocFormat, VocObject, parse_voc_xml
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.voc_files import voc_object, voc_xml, write

PATH = "Annotations/a.xml"


def parse(data: bytes) -> list[VocObject]:
    return list(parse_voc_xml(data, uri=PATH).objects)


def read(
    data: bytes, *, coordinates: Literal["one_based", "as_given"] = "one_based"
) -> tuple[list[Category], ImageAnnotations]:
    *categories, entry = VocFormat(root="data", coordinates=coordinates).read_listed(
        data, path=PATH, root=0
    )
    assert isinstance(entry, AnnotationEntry)
    assert entry.key == "a"
    return (
        [category for category in categories if isinstance(category, Category)],
        decode_annotations(entry.annotations),
    )


def resolve(root: str, **settings: Any) -> VocFormat:  # noqa: ANN401  # Those of `VocFormat`.
    """Makes a format as a run does, and sends it to a worker."""
    resolved = VocFormat(root=root, **settings).resolve()
    return msgspec.msgpack.decode(msgspec.msgpack.encode(resolved), type=VocFormat)


def listed(source: VocFormat) -> Iterator[AnnotationEntry]:
    for file_index in range(len(source.annotation_files())):
        for item in source.read_annotations(storage=LocalStorage(), file_index=file_index):
            if isinstance(item, AnnotationEntry):
                yield item


# The XML


def test_object_with_everything() -> None:
    data = voc_xml(
        voc_object(pose="Left", truncated=1, difficult=0, occluded=1),
        voc_object(name="cat", xmin=1.5, difficult=1),
    )

    assert parse_voc_xml(data, uri=PATH).width == 640
    assert parse(data) == [
        VocObject(name="dog", box=(10, 20, 30, 40), pose="Left", truncated=1, difficult=0),
        VocObject(name="cat", box=(1.5, 20, 30, 40), difficult=1),
    ]


def test_parts_have_boxes_and_names_of_their_own() -> None:
    data = b"""<annotation><object><name>person</name>
        <part><name>head</name><bndbox><xmin>5.5</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>
        </bndbox></part>
        <bndbox><xmax>4</xmax><xmin>1</xmin><ymin>2</ymin><ymax>8</ymax></bndbox>
        <actions><name>running</name></actions></object></annotation>"""

    assert parse(data) == [VocObject(name="person", box=(1, 2, 4, 8))]


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
    parsed = parse_voc_xml(voc_xml(size=size), uri=PATH)

    assert (parsed.width, parsed.height) == expected


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        *(("0", 0), ("1", 1), ("1.0", 1), ("0.3", 1), ("-1", None), ("", None)),
        *(("true", 1), ("False", 0), ("Unspecified", None)),
    ],
)
def test_flags(text: str, flag: int | None) -> None:
    (found,) = parse(voc_xml(voc_object(difficult=text, truncated=text)))

    assert (found.difficult, found.truncated) == (flag, flag)


def test_white_space_in_values_is_layout() -> None:
    (found,) = parse(voc_xml(voc_object(name="\n  night\n  heron ", xmin=" 1\t")))

    assert found.name == "night heron"
    assert found.box is not None
    assert found.box[0] == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gbk", "gb2312", "shift_jis"])
def test_encodings(encoding: str) -> None:
    declared = encoding.removesuffix("-sig")
    text = f"<?xml version='1.0' encoding='{declared}'?>\n{voc_xml(voc_object(name='犬')).decode()}"

    assert [item.name for item in parse(text.encode(encoding))] == ["犬"]


@pytest.mark.parametrize(
    ("data", "place", "problem"),
    [
        (b"", "", "the file is empty"),
        (b" \n", "", "the file is empty"),
        (b"<html><body/></html>", "line 1", "expected <annotation>, found <html>"),
        (b"<annotation>\n<object></annotation>", "line 2, column 11", "mismatched tag"),
        (b"<annotation>\n<object>", "line 2, column 9", "no element found"),
        (b"<annotation/><annotation/>", "line 1, column 14", "junk after document element"),
        (b"\x1f\x8b\x08\0", "", "compressed with gzip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "", "Git LFS pointer"),
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
        (voc_xml(voc_object(xmin="1,5")), "line 1", "expected a number, got '1,5'"),
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
            b"<annotation><object><bndbox/>\n<bndbox/></object></annotation>",
            "line 2",
            "<bndbox> is given twice",
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_broken_files(data: bytes, place: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_voc_xml(data, uri=PATH)

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
        parse_voc_xml(data, uri=PATH)


def test_document_types_do_no_harm() -> None:
    data = b"<!DOCTYPE annotation SYSTEM 'http://localhost/voc.dtd'>" + voc_xml(voc_object())

    assert len(parse(data)) == 1


def test_deep_nesting() -> None:
    depth = 100_000
    data = b"<annotation>" + b"<a>" * depth + b"</a>" * depth + b"</annotation>"

    assert parse(data) == []


_coordinates = st.integers(1, 5000) | st.floats(0, 5000).map(lambda value: round(value, 3))
_names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)
_objects = st.fixed_dictionaries(
    {"name": _names, **dict.fromkeys(("xmin", "ymin", "xmax", "ymax"), _coordinates)},
    optional={
        "pose": st.sampled_from(("Left", "Frontal")),
        "difficult": st.sampled_from((0, 1)),
        "truncated": st.sampled_from((0, 1)),
    },
)


@given(objects=st.lists(_objects, max_size=4), size=st.tuples(*[st.integers(0, 5000)] * 2))
def test_round_trip(objects: list[dict[str, object]], size: tuple[int, int]) -> None:
    parsed = parse_voc_xml(voc_xml(*objects, size=size), uri=PATH)

    assert (parsed.width, parsed.height) == size
    for written, found in zip(objects, parsed.objects, strict=True):
        assert found.name == written["name"]
        assert found.box == tuple(written[side] for side in ("xmin", "ymin", "xmax", "ymax"))
        assert found.pose == written.get("pose", "")
        assert found.difficult == written.get("difficult")
        assert found.truncated == written.get("truncated")


# Annotations


def test_boxes_give_their_first_and_last_pixels() -> None:
    whole = voc_object(xmin=1, ymin=1, xmax=640, ymax=480)
    pixel = voc_object(xmin=7, ymin=9, xmax=7, ymax=9)

    _, annotations = read(voc_xml(whole, pixel))
    assert [item.bbox for item in annotations.objects] == [(0, 0, 640, 480), (6, 8, 7, 9)]
    _, annotations = read(voc_xml(whole, pixel), coordinates="as_given")
    assert [item.bbox for item in annotations.objects] == [(1, 1, 640, 480), (7, 9, 7, 9)]


def test_annotations() -> None:
    categories, annotations = read(
        voc_xml(
            voc_object(pose="Left", truncated=1, difficult=1),
            voc_object(pose="Unspecified", truncated=0),
            voc_object(name="cat"),
        )
    )

    assert categories == [Category(name=name, origin="data") for name in ("dog", "cat")]
    box = (9, 19, 30, 40)
    extras: dict[str, Value] = {
        "image/object/difficult": 1,
        "image/object/truncated": 1,
        "image/object/view": "Left",
    }
    assert annotations == ImageAnnotations(
        image_id="",
        width=640,
        height=480,
        objects=(
            ObjectAnnotation(label="dog", bbox=box, annotation_id=1, attributes=extras),
            ObjectAnnotation(label="dog", bbox=box, annotation_id=2),
            ObjectAnnotation(label="cat", bbox=box, annotation_id=3),
        ),
    )


def test_objects_without_box_are_counted() -> None:
    without = voc_object(xmin=..., ymin=..., xmax=..., ymax=...)

    categories, annotations = read(voc_xml(without, voc_object(name="cat")))

    assert [category.name for category in categories] == ["cat"]
    # Its number in the map of objects stays.
    assert [(item.label, item.annotation_id) for item in annotations.objects] == [("cat", 2)]
    assert annotations.corrections == {Correction.OBJECT_WITHOUT_BOX_DROPPED.value: 1}


def test_extra_features_have_defaults_for_what_is_not_said() -> None:
    defaults = {
        extra.spec.key: (extra.default, extra.per_object)
        for extra in VocFormat(root="data").extra_features()
    }

    assert defaults == {
        "image/object/difficult": (None, True),
        "image/object/truncated": (None, True),
        "image/object/view": ("Unspecified", True),
    }


# What belongs together


def _image(key: str, join: str) -> Place:
    return Place(role=Role.IMAGE, key=key, join=join)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("JPEGImages/a.jpg", _image("JPEGImages/a.jpg", "a")),
        ("VOC2012/JPEGImages/a.b.JPG", _image("VOC2012/JPEGImages/a.b.JPG", "VOC2012/a.b")),
        ("a.jpg", _image("a.jpg", "a")),
        ("train/a.jpg", _image("train/a.jpg", "train/a")),
        ("Annotations/a.xml", Place(role=Role.ANNOTATION, join="a")),
        ("annotations/xmls/a.XML", Place(role=Role.ANNOTATION, join="a")),
        ("train/a.xml", Place(role=Role.ANNOTATION, join="train/a")),
        ("train/a.jpg.xml", Place(role=Role.ANNOTATION, join="train/a")),
        ("Annotations/sub/a.xml", Place(role=Role.ANNOTATION, join="sub/a")),
        ("SegmentationObject/a.png", Place(role=Role.OTHER)),
        ("SegmentationClass/a.png", Place(role=Role.OTHER)),
        ("SegmentationClassVisualization/a.jpg", Place(role=Role.OTHER)),
        ("ImageSets/Main/train.txt", Place(role=Role.OTHER)),
        ("labelmap.txt", Place(role=Role.OTHER)),
        # What only stands beside the images is excluded, and counted.
        ("Annotations/._a.xml", _image("Annotations/._a.xml", "Annotations/._a.xml")),
        ("a.txt", _image("a.txt", "a.txt")),
    ],
)
def test_place(path: str, place: Place) -> None:
    assert VocFormat(root="data").place(path, root=0) == place


def test_place_of_masks() -> None:
    both = VocFormat(root="data", _masks=True, semantic=True)
    classes = Place(role=Role.MASK, join="a", mask=MaskRole.VOC_CLASS)
    objects = Place(role=Role.MASK, join="a", mask=MaskRole.VOC_OBJECT)

    assert both.place("SegmentationClass/a.png", root=0) == classes
    assert both.place("SegmentationClassPNG/a.png", root=0) == classes
    assert both.place("SegmentationObject/a.png", root=0) == objects
    assert both.place("SegmentationClass/a.npy", root=0) == Place(role=Role.OTHER)
    assert both.kinds == {Kind.DETECTION, Kind.INSTANCE_MASKS, Kind.SEMANTIC}
    only_objects = VocFormat(root="data", _masks=True)
    assert only_objects.place("SegmentationClass/a.png", root=0) == Place(role=Role.OTHER)
    assert only_objects.kinds == {Kind.DETECTION, Kind.INSTANCE_MASKS}


def test_pictures_among_annotations_are_left_out() -> None:
    source = VocFormat(root="data")

    assert source.annotate_listed("annotations/trimaps/a.png") is Exclusion.ANNOTATION_FOLDER
    assert source.annotate_listed("JPEGImages/a.jpg") is None
    assert source.annotate_listed("train/a.jpg") is None
    assert source.annotate_listed("annotations/.a.jpg") is None
    assert source.annotate_listed("annotations/list.txt") is None


# Splits


def _told(entries: Iterable[AnnotationEntry]) -> list[tuple[str, str]]:
    return [(entry.key, entry.split) for entry in entries]


def test_splits_are_the_lists(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "Annotations/a.xml": voc_xml(),
            "ImageSets/Main/val.txt": "c\r\n",
            "ImageSets/Main/train.txt": '\ufeffa\n\n# a comment\n  b c \n"d e"\nf.jpg',
            "ImageSets/Main/test.txt": "\n",
            "ImageSets/Main/trainval.txt": "a\nc\n",
            "ImageSets/Main/dog_train.txt": "a -1\n",
            "ImageSets/Main/._train.txt": "\0",
            "ImageSets/Layout/test.txt": "x\n",
        },
    )
    source = resolve(root)

    # In their usual order; the empty one is none.
    assert list(source.predefined_splits()) == ["train", "val"]
    folder = f"{root}/ImageSets/Main"
    assert list(source.annotation_files()) == [f"{folder}/train.txt", f"{folder}/val.txt"]
    assert _told(listed(source)) == [
        *(("a", "train"), ("b c", "train"), ("d e", "train"), ("f", "train")),
        ("c", "val"),
    ]
    assert [entry.position for entry in listed(source)] == [1, 4, 5, 6, 1]

    assert _told(listed(resolve(root, splits=["trainval"]))) == [
        ("a", "trainval"),
        ("c", "trainval"),
    ]
    assert list(resolve(root, image_set="Layout").predefined_splits()) == ["test"]


def test_several_years_below_one_root(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "VOCdevkit/VOC2007/Annotations/a.xml": voc_xml(),
            "VOCdevkit/VOC2007/ImageSets/Main/train.txt": "a\n",
            "VOCdevkit/VOC2012/ImageSets/Main/train.txt": "a\n",
            "VOCdevkit/VOC2012/ImageSets/Main/val.txt": "b\n",
        },
    )
    source = resolve(root)

    assert list(source.predefined_splits()) == ["train", "val"]
    assert _told(listed(source)) == [
        ("VOCdevkit/VOC2007/a", "train"),
        ("VOCdevkit/VOC2012/a", "train"),
        ("VOCdevkit/VOC2012/b", "val"),
    ]
    assert source.place("VOCdevkit/VOC2012/JPEGImages/b.jpg", root=0).join == "VOCdevkit/VOC2012/b"


def test_without_lists_there_are_no_splits(tmp_path: Path) -> None:
    source = resolve(write(tmp_path, {"a.xml": voc_xml(), "train.txt": "a\n"}))

    assert list(source.predefined_splits()) == []
    assert list(source.annotation_files()) == []


def test_names_that_cannot_be_keys_are_rejected(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.xml": voc_xml(), "ImageSets/Main/train.txt": "a\nb\0c\n"})

    _, entry = listed(resolve(root))

    assert (entry.key, entry.defect) == ("b\\x00c", Reason.UNREADABLE_NAME)
    assert entry.detail == "ImageSets/Main/train.txt: line 2: the name holds a NUL character"


@pytest.mark.parametrize(
    ("files", "settings", "problem"),
    [
        ({}, {"splits": ["tain"]}, "no list ImageSets/Main/tain.txt; did you mean 'train'?; found"),
        ({}, {"splits": ["dog_train"]}, "'a -1' says whether an image holds a class"),
        ({}, {"image_set": "Segmentation", "splits": ["val"]}, "found: none"),
        ({"ImageSets/Main/train.txt": b"a\n\xff\n"}, {}, "line 2: expected UTF-8 text"),
        ({"labelmap.txt": "cat:1,2,3::\ncat:::\n"}, {"semantic": True}, "each once"),
        ({"labelmap.txt": b"\xff"}, {"semantic": True}, "expected UTF-8"),
    ],
)
def test_lists_that_cannot_be_used(
    tmp_path: Path, files: dict[str, str | bytes], settings: dict[str, Any], problem: str
) -> None:
    known: dict[str, str | bytes] = {
        "Annotations/a.xml": voc_xml(),
        "ImageSets/Main/train.txt": "a\n",
        "ImageSets/Main/dog_train.txt": "a -1\nb  1\n",
    }
    root = write(tmp_path, known | files)

    with pytest.raises(InputError) as raised:
        resolve(root, **settings)

    assert problem in str(raised.value)
    assert raised.value.uri.startswith(root)


def test_a_folder_without_annotations_is_no_dataset(tmp_path: Path) -> None:
    root = write(tmp_path, {"JPEGImages/a.jpg": b"", "Annotations/._a.xml": b""})

    with pytest.raises(InputError, match=r"no \.xml files found"):
        resolve(root)


def test_classes_of_the_maps(tmp_path: Path) -> None:
    root = write(tmp_path / "plain", {"Annotations/a.xml": voc_xml()})
    plain = resolve(root, semantic=True)
    data = voc_xml(voc_object(), voc_object(name="unicorn"))
    *categories, entry = plain.read_listed(data, path=PATH, root=0)

    assert categories == [
        Category(name=name, source_id=class_id, origin=root)
        for class_id, name in enumerate(VOC_CLASSES, 1)
    ]
    assert isinstance(entry, AnnotationEntry)
    assert decode_annotations(entry.annotations).corrections == {
        Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED.value: 1
    }
    assert VOC_CLASSES[11] == "dog"


def test_label_map_names_the_classes(tmp_path: Path) -> None:
    text = "# label:color_rgb:parts:actions\nbackground:0,0,0::\nyak:128,0,0::\nignored:9,9,9::\n"
    root = write(
        tmp_path,
        {
            "labelmap.txt": text,
            "Annotations/a.xml": voc_xml(),
            "ImageSets/Main/train.txt": "a\n",
        },
    )
    source = resolve(root, semantic=True)

    yak = Category(name="yak", source_id=1, origin=root)
    assert list(source.annotation_files())[-1] == f"{root}/labelmap.txt"
    last = len(source.annotation_files()) - 1
    assert list(source.read_annotations(storage=LocalStorage(), file_index=last)) == [yak]


# Real samples


def test_datumaro(shared_data: Path) -> None:
    folder = shared_data / "datumaro" / "voc_dataset"

    assert _told(listed(resolve(str(folder / "voc_dataset1")))) == [
        ("2007_000001", "train"),
        ("2007_000002", "test"),
    ]
    assert list(resolve(str(folder / "voc_dataset2")).predefined_splits()) == []
    assert _told(listed(resolve(str(folder / "voc_dataset3")))) == [("2007_000001", "train")]
    first = (folder / "voc_dataset1" / PATH.replace("a.xml", "2007_000001.xml")).read_bytes()
    assert parse(first) == [
        VocObject(name="cat", box=(1, 2, 3, 4), pose="Unspecified", truncated=1, difficult=0),
        VocObject(name="person", box=(4, 5, 6, 7)),
    ]
