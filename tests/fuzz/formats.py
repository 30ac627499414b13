"""Broken sources of each format: every outcome is entries that fit together, or an error.

A source is a few good files. Some of their tokens are exchanged for odd ones, some bytes changed,
some lines doubled. What is read must be what a build relies on; what cannot be read must be told
with the file's name.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import math
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ListedImage,
    decode_annotations,
)
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.formats.base import Format, Role
from shardbeam.transforms.formats.names import key_problem
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.image_bytes import read_bytes
from shardbeam.transforms.storage.local import LocalStorage
from tests.fuzz.outcome import FOLDER, read_or_refuse
from tests.support.archive_files import tar_bytes, write_files
from tests.support.hub_files import BOXES, IMAGE, classes, hub_image, hub_parquet, list_of, value
from tests.support.image_makers import save
from tests.support.label_studio_files import encode_brush, region, task
from tests.support.making import make_format
from tests.support.table_reading import read_parts, write_parquet
from tests.support.tfrecords import draw_image, make_example, tfrecord
from tests.support.voc_files import voc_object, voc_xml

Item = AnnotationEntry | Category | ListedImage


class Seed(NamedTuple):
    """A good source.

    Attributes:
        format: The format's name.
        keys: Its keys; `@` is the source's folder.
        files: The folder's files; a tar is a mapping of its own, and a TFRecord file a list of its
            records.
    """

    format: str
    keys: Mapping[str, Any]
    files: Mapping[str, bytes | str | Mapping[str, bytes | str] | Sequence[bytes]]


def _coco(**annotation: object) -> str:
    images = [
        {"id": 7 + k, "file_name": f"{k}.jpg", "width": 64, "height": 48, "neg_category_ids": [1]}
        for k in range(3)
    ]
    categories = [
        {"id": 1 + k, "name": f"c{k}", "keypoints": ["a", "b"], "isthing": k} for k in range(2)
    ]
    annotations = [
        {"id": k, "image_id": 7 + k // 2, "category_id": 1 + k % 2, **annotation} for k in range(4)
    ]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


_BOX = {"bbox": [0, 1.5, 3, 20], "area": 60, "iscrowd": 0, "segmentation": [[1, 2, 3, 4, 5, 6]]}
_KINDS = _coco(**_BOX, keypoints=[1, 2, 2, 0, 0, 0], caption="A\ndog.")
_SEGMENTS = _coco(file_name="a.png", segments_info=[{"id": 3, "category_id": 1, "iscrowd": 0}])
_RUNS = _coco(bbox=[0, 0, 4, 3], segmentation={"counts": [0, 3, 9], "size": [3, 4]})
_COCO = {"images": "@/images", "annotations": ["@/stuff.json"]}
_GRAY = save(Image.new("L", (4, 3), 1), "PNG")
_TABLE = {"manifest": ["@/table"]}
_ROOTED = {**_TABLE, "image_root": ["/data"]}
_VERTEX = {
    "imageGcsUri": "/data/a.jpg",
    "classificationAnnotation": {"displayName": "cat"},
    "classificationAnnotations": [{"displayName": "cat"}, {"displayName": "dog"}],
    "boundingBoxAnnotations": [
        {"displayName": "cat", "xMin": 0, "yMin": 0.25, "xMax": 1, "yMax": 0.5}
    ],
    "dataItemResourceLabels": {"aiplatform.googleapis.com/ml_use": "training"},
}
_YOLO = {"images/a.jpg": b"x", "images/b.jpg": b"x"}
_LABELS = "0 0.5 0.5 0.25 1.0\n1 .25 0.5 0.75 0.5 0.75 1 0.25 1\n0 0.5 0.5 1e-1 1 0.9\n"
_BOX_ROW = "a,s,/m/0,1,0,0.25,0,1,1,0,-1,0,0\n"
_OPEN_IMAGES = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,"
    f"IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside\n{_BOX_ROW}{_BOX_ROW}b{_BOX_ROW[1:]}"
)
_CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations><meta><project><subsets>train
test</subsets><labels><label><name>dog</name></label>
<label><name>nose</name><parent>dog</parent></label></labels></project></meta>
<image id="7" name="a.jpg" subset="train" width="64" height="48">
<box label="dog" xtl="0" ytl="1.5" xbr="3" ybr="20" rotation="7" occluded="1"/>
<polygon label="dog" points="1,2;3.5,4;5,6"/><tag label="dog"/>
<ellipse label="dog" cx="7" cy="8" rx="7" ry="2"/><polyline label="dog" points="1,2;3,4"/>
<mask label="dog" left="1" top="2" width="2" height="2" rle="1, 2, 1"/>
<skeleton label="dog"><points label="nose" points="1,2" outside="0"/></skeleton>
</image><image id="8" name="b.jpg" subset="test" width="64" height="48"/></annotations>
"""
_HUB_FEATURES = {
    "image": IMAGE,
    "label": classes("cat", "dog"),
    "text": value("string"),
    "n": value("int64"),
    "objects": {
        "bbox": BOXES,
        "category": list_of(classes("cat", "dog")),
        "id": list_of(value("int64")),
        "area": list_of(value("float32")),
        "segmentation": list_of(list_of(list_of(value("float32")))),
        "blur": list_of(value("string")),
    },
}
_HUB_OBJECTS = {
    **{"bbox": [[0, 1.5, 3, 20]], "category": [1], "id": [7], "area": [60.0]},
    **{"segmentation": [[[1, 2, 3, 4, 5, 6]]], "blur": ["no"]},
}
_HUB_ROW = {
    **{"image": hub_image(b"x", "a.jpg"), "label": 1, "text": "A cat.", "n": 3},
    "objects": _HUB_OBJECTS,
}
_HUB_TABLE = "".join(
    json.dumps({"file_name": name, "objects": {"bbox": [[0, 0, 1, 0.5]], "categories": [0]}}) + "\n"
    for name in ("a.jpg", "b.jpg")
)
_README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: ["**/b.parquet"]
dataset_info:
  features:
  - name: label
    dtype: {class_label: {names: {'0': cat, '1': dog}}}
---
"""
_CVAT_VIDEO = """<annotations><meta><job><size>3</size><mode>interpolation</mode>
<start_frame>2</start_frame><stop_frame>4</stop_frame><frame_filter>step=1</frame_filter>
<labels><label><name>dog</name></label></labels></job>
<original_size><width>64</width><height>48</height></original_size></meta>
<track id="0" label="dog"><box frame="2" keyframe="1" outside="0" xtl="0" ytl="1" xbr="3" ybr="20"/>
<box frame="3" keyframe="0" outside="0" xtl="0" ytl="1.5" xbr="3" ybr="20"/>
<box frame="4" keyframe="1" outside="1" xtl="0" ytl="1.5" xbr="3" ybr="20"/></track>
<track id="1" label="dog"><polygon frame="2" keyframe="1" points="1,2;3.5,4;5,6"/></track>
</annotations>
"""
_MASK = base64.b64encode(save(Image.new("L", (2, 1), 1), "PNG")).decode()
_LABELME = json.dumps(
    {
        "flags": {"day": True, "night": False},
        "shapes": [
            {
                "label": "dog",
                "points": [[1, 2], [3, 4.5], [5, 7]],
                "shape_type": kind,
                "group_id": 1,
            }
            | ({"mask": _MASK} if kind == "mask" else {})
            for kind in ("polygon", "rectangle", "circle", "mask", "line", None)
        ],
        "imagePath": "../a.jpg",
        "imageData": None,
        "imageWidth": 64,
        "imageHeight": 48,
    }
)
_VIA = {
    f"{name}7": {
        "filename": name,
        "size": 7,
        "regions": regions,
        "file_attributes": {},
    }
    for name, regions in (
        (
            "a.jpg",
            [
                {"shape_attributes": {"name": name, **shape}, "region_attributes": {"kind": kind}}
                for name, shape, kind in (
                    ("rect", {"x": 1, "y": 2, "width": 3.5, "height": 4}, "dog"),
                    ("circle", {"cx": 7, "cy": 8, "r": 2}, {"dog": True, "big": True}),
                    ("ellipse", {"cx": 7, "cy": 8, "rx": 2, "ry": 1, "theta": 0.5}, "dog"),
                    ("polyline", {"all_points_x": [1, 2, 3], "all_points_y": [4, 5, 1]}, 7),
                    ("point", {"cx": 7, "cy": 8}, ""),
                )
            ],
        ),
        (
            "b.jpg",
            {"0": {"shape_attributes": {"name": "point"}, "region_attributes": {"kind": "cat"}}},
        ),
        ("c.jpg", []),
    )
}
_VIA_CSV = """#filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes
a.jpg,7,"{}",2,0,"{""name"":""rect"",""x"":1,""y"":2,""width"":3,""height"":4}","{""kind"":""dog""}"
a.jpg,7,"{}",2,1,"{""name"":""polygon"",""all_points_x"":[1,2,3],""all_points_y"":[4,5,1]}","{""kind"":""cat""}"
b.jpg,8,"{}",0,0,"{}","{}"
"""  # noqa: E501
_EXAMPLE: Mapping[str, object] = {
    "image/encoded": draw_image("PNG", width=8, height=4),
    "image/filename": b"a.png",
    "image/source_id": b"7",
    "image/width": 8,
    "image/height": 4,
    "image/class/label": [1, 2],
    "image/class/confidence": [0.5, 0.25],
    "image/caption": [b"A dog"],
    "image/object/class/label": [1],
    "image/object/class/text": [b"dog"],
    **{f"image/object/bbox/{side}": [0.25] for side in ("xmin", "ymin")},
    **{f"image/object/bbox/{side}": [0.75] for side in ("xmax", "ymax")},
    "image/object/area": [9.0],
    "image/object/mask": [save(Image.new("L", (8, 4), 1), "PNG")],
    "image/object/keypoint/x": [0.5, 0.25],
    "image/object/keypoint/y": [0.5, 0.25],
    "image/object/keypoint/text": [b"nose", b"tail"],
    "image/object/view": [b"left"],
    "image/segmentation/class/encoded": save(Image.new("L", (8, 4), 1), "PNG"),
    "n": [1, 2],
}
_ANNOTATION: Mapping[str, object] = {
    "image/encoded": draw_image("PNG", width=8, height=4),
    "image/filename": b"b.png",
    "annotation/id": 3,
    "annotation/bbox": [0.0, 1.0, 2.0, 3.0],
    "annotation/class/label": 1,
}
_SAMPLE = '{"label": 7, "caption": "A cat", "n": 1, "f": 0.5, "s": "text"}'

SEEDS = (
    *(
        Seed("coco", {**_COCO, "tasks": tasks, "_masks": True}, {"stuff.json": content})
        for tasks in (["detection", "keypoints", "captions"], ["semantic"], ["classification"])
        for content in (_KINDS, _RUNS)
    ),
    Seed("coco", _COCO, {"stuff.json": _KINDS}),
    Seed(
        "coco",
        {"images": "@/images", "panoptic": "@/panoptic.json", "panoptic_masks": "@/masks"},
        {"panoptic.json": _SEGMENTS, "masks/a.png": b"png", "masks/b.png": b"png"},
    ),
    Seed("lvis", _COCO, {"stuff.json": _KINDS.replace("0.jpg", "COCO_val2014_000000000139.jpg")}),
    Seed("lvis", _COCO, {"stuff.json": _KINDS.replace("file_name", "coco_url")}),
    Seed(
        "voc",
        {"root": "@"},
        {
            "Annotations/a.xml": voc_xml(
                voc_object(pose="Left", truncated=1), voc_object(name="night heron", difficult=1)
            ),
            "Annotations/b.xml": b"<?xml version='1.0' encoding='utf-8'?>" + voc_xml(voc_object()),
            "ImageSets/Main/train.txt": "a\nb\n",
        },
    ),
    Seed(
        "yolo",
        {"root": "@", "_masks": True},
        {
            **_YOLO,
            "data.yaml": "path: .\nnames: [dog, cat]\nnc: 2\ntrain: images\nval: val.txt\n",
            "val.txt": "./images/b.jpg\n",
            "labels/a.txt": _LABELS,
        },
    ),
    Seed(
        "yolo",
        {"root": "@"},
        {
            **_YOLO,
            "data.yaml": "names: [dog]\nkpt_shape: [2, 3]\nflip_idx: [1, 0]\n"
            "kpt_names:\n  0: [a, b]\n",
            "labels/a.txt": "0 0.5 0.5 0.25 1.0 0.5 .5 2 0 0 0\n",
        },
    ),
    Seed("yolo", {"root": "@"}, {**_YOLO, "classes.txt": "dog\ncat\n", "labels/a.txt": _LABELS}),
    Seed(
        "yolo",
        {"root": "@"},
        {
            **_YOLO,
            "obj.data": "classes = 2\nnames = obj.names\ntrain = train.txt\n",
            "obj.names": "dog\ncat\n",
            "train.txt": "images/a.jpg\n",
            "images/a.txt": _LABELS,
        },
    ),
    Seed(
        "cvat",
        {"images": "@/images", "annotations": ["@/cvat.xml"], "_masks": True},
        {"cvat.xml": _CVAT, "images/train/a.jpg": b"x"},
    ),
    *(
        Seed("masks", {"images": "@"}, {"images/a.png": _GRAY, "masks/a.png": _GRAY, name: content})
        for name, content in (
            ("class_dict.csv", 'name,r,g,b\nroad,0,0,0\n"a, car",64,128,0\n'),
            ("_classes.csv", "Pixel Value, Class\n0, background\n1, road\n"),
            ("id2label.json", '{"0": "background", "1": "road"}'),
            ("labelmap.txt", "# label:color_rgb:parts:actions\nbackground:0,0,0::\nroad:1,2,3::\n"),
            ("label_colors.txt", "64 128 64\tAnimal\n0 0 0\tVoid\n"),
        )
    ),
    Seed(
        "cvat",
        {"images": "@/images", "annotations": ["@/cvat.xml"], "_masks": True},
        {"cvat.xml": _CVAT_VIDEO, "images/frame_000002.jpg": b"x"},
    ),
    Seed(
        "labelme",
        {"root": "@", "_masks": True},
        {
            "a.jpg": b"x",
            "x/a.json": _LABELME,
            "x/b.json": _LABELME.replace("../a.jpg", "b.jpg").replace("null", '"/9j/AA=="'),
        },
    ),
    Seed(
        "label-studio",
        {"images": "@", "annotations": ["@/e.json"], "_masks": True, "keypoints": ["nose"]},
        {
            "e.json": json.dumps(
                [
                    task(
                        "/data/upload/1/1f2e3d4c-a.jpg",
                        region("rectangle", "cat", x=1, y=2.5, width=30, height=40, rotation=5),
                        region("polygon", "dog", points=[[1, 2], [30, 4], [5, 60]]),
                        region("brush", "cat", rle=encode_brush([0] * 40_000 + [9] * 40_000)),
                        region("keypoint", "nose", x=1, y=1),
                    ),
                    task("b.jpg", {"type": "choices", "value": {"choices": ["cat"]}}),
                    task("c.jpg", was_cancelled=True),
                ]
            )
        },
    ),
    Seed("open-images", {"images": "i", "boxes": ["@/a.csv"]}, {"a.csv": _OPEN_IMAGES}),
    Seed(
        "open-images",
        {"images": "i", "image_labels": ["@/a.csv"], "classes": "@/classes.csv"},
        {
            "a.csv": "ImageID,Source,LabelName,Confidence\na,v,/m/0,1\na,m,/m/1,0.5\nb,v,/m/0,0\n",
            "classes.csv": '/m/0,Cat\n/m/1,"Dog, or so"\n',
        },
    ),
    *(
        Seed("csv", {**keys, "multiline": multiline}, {"table": content})
        for multiline in (False, True)
        for keys, content in (
            (_TABLE, "a,b,c,split\n1,0.5,x,train\n-2,7,true,TEST\n3,,[1],DISCARD\n"),
            ({**_TABLE, "columns": {"a": "float?", "b": "list[int]"}}, 'a,b\n1,"[1, 2]"\n,3\n'),
            (
                {**_ROOTED, "label_separator": "|"},
                "image,label,split,n\n/data/a.jpg,cat|dog,train,1\nb/c.png,cat,test,2\n",
            ),
            (
                {**_TABLE, "image_root": ["/data/a", "/data/b"], "splits": ["train"]},
                "filename,class,xmin,ymin,xmax,ymax,split\na/x.jpg,cat,0,0.25,1,1,train\n",
            ),
            (_ROOTED, 'image,n,caption\na.jpg,1,A cat, a dog\na.jpg#1,,"Two, pets"\n'),
            (
                {**_ROOTED, "box_format": "xywh"},
                'image,label,class,bbox,n\na.jpg,3,cat,"[1, 2, 3, 4]",9\nb.jpg,7,dog,1 2 3 4,\n',
            ),
        )
    ),
    *(
        Seed("jsonl", keys, {"table": "".join(f"{json.dumps(row)}\n" for row in rows)})
        for keys, rows in (
            (_TABLE, [{"a": 1, "b": 0.5, "c": "x"}, {"a": -2, "b": 7, "c": None}, {"a": [1, 2]}]),
            ({**_TABLE, "columns": {"a": "list[string]"}}, [{"a": ["x"], "b": True}, {"a": None}]),
            (
                {**_ROOTED, "caption_column": "c"},
                [{"image": "a.jpg", "c": ["x", "y"], "label": 3, "class": "cat", "n": [1]}],
            ),
            (
                {**_ROOTED, "box_format": "cxcywh"},
                [{"image": "a.jpg", "label": "cat", "box": [1, 2, "3", 4.5], "split": "TEST"}],
            ),
            (_ROOTED, [{"image": f"/data/{k}.jpg", "label": "cat", "n": k} for k in range(4)]),
            (_ROOTED, [_VERTEX, _VERTEX, {"imageGcsUri": "b.jpg"}]),
        )
    ),
    *(
        Seed("parquet", keys, {"table": write_parquet(rows)})
        for keys, rows in (
            (_TABLE, [{"a": [number], "b": {"c": 0.5, "d": ["x"]}} for number in range(5)]),
            (_ROOTED, [{"image": f"/data/{k}.jpg", "label": "cat", "n": k} for k in range(5)]),
        )
    ),
    Seed(
        "cifar10",
        {"root": "@"},
        {
            "data_batch_1.bin": (b"\3" + bytes(3072)) * 2,
            "test_batch.bin": b"\x0a" + bytes(3072),
            "batches.meta.txt": "".join(f"class {index}\n" for index in range(10)),
        },
    ),
    Seed(
        "cifar100",
        {"root": "@", "coarse": True},
        {
            "train.bin": (b"\3\x63" + bytes(3072)) * 2,
            "fine_label_names.txt": "".join(f"fine {index}\n" for index in range(100)),
            "coarse_label_names.txt": "".join(f"super {index}\n" for index in range(20)),
        },
    ),
    Seed(
        "webdataset",
        {"tars": ["@/0.tar"], "fields": {"n": "int", "f": "float", "s": "string"}},
        {
            "0.tar": {
                **{"a/1.jpg": b"1", "a/1.cls": "7", "a/1.txt": "A cat\n", "a/1.seg.png": b"png"},
                **{"2.png": b"2", "2.json": _SAMPLE, "3.JPG": b"3", "3.cls": "cat"},
            }
        },
    ),
    *(
        # Without these keys, files may ask which attribute is the class.
        Seed(
            "via",
            {
                **{"images": "@", "annotations": [f"@/{name}"], "_masks": True},
                **{"class_name": "cat", "label_attribute": "kind"},
            },
            {name: content},
        )
        for name, content in (
            ("a.json", json.dumps({"_via_img_metadata": _VIA, "_via_settings": {}})),
            ("b.json", json.dumps(_VIA)),
            ("c.csv", _VIA_CSV),
        )
    ),
    Seed(
        "idx",
        {"root": "@"},
        {
            "e-train-images-idx3-ubyte": b"\0\0\x08\x03\0\0\0\2\0\0\0\2\0\0\0\3" + bytes(12),
            "e-train-labels-idx1-ubyte": b"\0\0\x08\1\0\0\0\2\0\1",
            "e-t10k-images-idx3-ubyte.gz": gzip.compress(
                b"\0\0\x08\x03\0\0\0\1\0\0\0\2\0\0\0\3" + bytes(6), mtime=0
            ),
            "e-t10k-labels-idx1-ubyte": b"\0\0\x08\1\0\0\0\1\0",
            "e-mapping.txt": "0 48\n1 65 97\n",
        },
    ),
    Seed(
        "keras-txt",
        {"images": "@", "annotations": ["@/a.txt"]},
        {
            "a.txt": "a b.jpg 1,2,30,40,0 5.5,6,7e0,8,1\nc.jpg\n\nC:\\x\\d.png 1,2,3,4,1\n",
            "_classes.txt": "dog\ncat\n",
        },
    ),
    Seed(
        "huggingface",
        {"data": ["@"], "box_format": "xywh", "box_units": "px", "_masks": True},
        {
            "README.md": _README,
            "data/train-00000-of-00001.parquet": hub_parquet([_HUB_ROW] * 2, _HUB_FEATURES),
            "test/b.parquet": hub_parquet([_HUB_ROW], _HUB_FEATURES, described=False),
        },
    ),
    Seed(
        "huggingface",
        {"data": ["@"], "box_format": "yxyx"},
        {"train/metadata.jsonl": _HUB_TABLE, "train/a.jpg": b"x", "train/b.jpg": b"x"},
    ),
    Seed(
        "huggingface",
        {"data": ["@"]},
        {"metadata.csv": "file_name,label,text,n\na.jpg,cat,A cat.,1\n", "a.jpg": b"x"},
    ),
    Seed(
        "tfrecord",
        {"tfrecords": ["@"], "_masks": True},
        {
            "label_map.pbtxt": "item { id: 1 name: 'dog' } item { id: 2, name: 'cat' }",
            "a.tfrecord": [make_example(_EXAMPLE), make_example({"image/encoded": b"1", "n": 1})],
            "b.tfrecord": [make_example(_ANNOTATION), make_example(_ANNOTATION)],
        },
    ),
)

# Values for the wrong places: JSON values, and words for other files.
_VALUES = (
    *(b"0", b"1", b"-1", b"2", b"7", b"8", b"99", b"0.5", b"2147483648", b"9223372036854775808"),
    *(b"1e39", b"1e999", b"9" * 400, b"null", b"true", b"false", b'""', b'"7"', b'"a.jpg"'),
    *(b'"x\\ny"', b'"\\u0000"', b'"\\ud83d"', b'"../a.jpg"', b'"gs://b/x.png"', b"[]", b"{}"),
    *(b"[[]]", b"[null]", b"[1, 2]", b"[1e308, 1, 1, 1]", b'["a"]', b"[[1, 2, 3]]", b"[" * 3000),
    *(b'{"counts": "a", "size": [3, 4]}', '"é"'.encode(), b'"DISCARD"', b'"1st"', b'{"x": 1}'),
)
_WORDS = (
    *(b"", b".5", b"1.005", b"-0.001", b"320", b"nan", b"inf", b"1_0", b"0x1", b'"', b"'", b"\0"),
    *("é".encode(), "e\u0301".encode(), "٣".encode(), b"\xe2\x80\xa8", b"\xc2\x85", b"x" * 300),
    *(b"../a.jpg", b"/etc/passwd", b"gs://b/x.png", b"C:\\a", b"a/b", b"train", b"all", b"1st"),
    *(b"a|b", b" 7 ", b"-", b"*a", b"&a [*a]", b"!!python/object:os.system x", b"---\n", b"? "),
    *(b"names:", b"#", b"cat", b"dog", b"DISCARD", b"Unspecified", b"\xff"),
)
_PIECES = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b";", b":", b"=", b"\n", b"\r", b"\t", b"\0", b"\xff"),
    *(
        b"\xef\xbb\xbf",
        b"\xfe\xff",
        b"\xed\xa0\x80",
        b"</object>",
        b"<object>",
        b"<bndbox>",
        b"<a>",
    ),
    *(b"<name>dog</name>", b"<name/>", b"&e;", b"&amp;", b"&#0;", b"&#xD800;", b"]]>", b"<!--"),
    *(b'<!DOCTYPE a [<!ENTITY e "x">]>', b'<?xml version="1.0" encoding="gbk"?>', b"<![CDATA["),
    *(b'<?xml version="1.0" encoding="cp500"?>', b"%YAML 3.0\n", b"<<: *b\n", b"|\n"),
)
_TOKEN = re.compile(rb'"[^"]*"|[\w.+/-]+')


def damage(data: bytes, random: random.Random) -> bytes:
    """Breaks the bytes of a file in a few places."""
    odd = _VALUES if data[:1] == b"{" and random.random() < 0.9 else (*_VALUES, *_WORDS)
    share = 0.9 if odd is _VALUES else 0.55
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        at = random.randrange(len(data) + 1)
        kind = random.random()
        tokens = [match.span() for match in _TOKEN.finditer(data)] if kind < share else []
        if tokens:
            begin, end = random.choice(tokens)
            other = slice(*random.choice(tokens))
            token = data[other] if random.random() < 0.3 else random.choice(odd)
            data = data[:begin] + token + data[end:]
        elif kind < 0.65:
            data = data[:at] + data[at + random.randrange(20) :]
        elif kind < 0.75:
            data = data[:at] + random.choice(_PIECES) + data[at:]
        elif kind < 0.85:
            data = data[:at] + random.randbytes(random.randrange(1, 4)) + data[at + 1 :]
        elif kind < 0.95:
            lines = data.splitlines(keepends=True) or [b""]
            lines.insert(random.randrange(len(lines)), random.choice(lines))
            data = b"".join(lines)
        else:
            data = random.choice((data[:at], data.replace(b"\n", b"\r\n")))
    return data


def read_broken(name: str, random: random.Random) -> str:
    """Reads one source of a format of which a file is broken, in parts of random size."""
    seed = random.choice([each for each in SEEDS if each.format == name])
    broken = random.choice(list(seed.files))
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        files: dict[str, bytes | str] = {}
        for path, content in seed.files.items():
            if isinstance(content, Mapping):
                members = {member: _bytes(data) for member, data in content.items()}
                member = random.choice(list(members))
                members[member] = damage(members[member], random)
                data = tar_bytes(members)
                files[path] = damage(data, random) if random.random() < 0.2 else data
            elif not isinstance(content, (bytes, str)):
                records = [damage(each, random) if path == broken else each for each in content]
                files[path] = tfrecord(*records)
            else:
                files[path] = damage(_bytes(content), random) if path == broken else content
        write_files(Path(folder), files)
        keys = json.loads(json.dumps(seed.keys).replace("@", folder))
        chunk_bytes = random.randrange(1, 400)

        def read() -> tuple[Format, list[Item]]:
            source = make_format(name, **keys).resolve()
            return source, list(_read(source, chunk_bytes=chunk_bytes))

        found = read_or_refuse(read, uri=folder)
        if found is None:
            return "refused"
        source, items = found
        _check(source, items, folder=folder)
        if name == "csv" and not keys["multiline"]:
            rows = enumerate(_bytes(files["table"]).split(b"\n")[1:], 2)
            positions = {item.position for item in items if isinstance(item, AnnotationEntry)}
            assert positions == {number for number, row in rows if row.removesuffix(b"\r")}
    return "read"


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _read(source: Format, *, chunk_bytes: int) -> Iterator[Item]:
    for file_index in range(len(source.annotation_files())):
        yield from read_parts(
            source, storage=LocalStorage(), file_index=file_index, chunk_bytes=chunk_bytes
        )
    for root, uri in enumerate(source.roots() if source.lists_annotations else ()):
        for path, file in list_root(uri, open_archives=False):
            role = source.place(path, root=root).role
            if role is Role.CONTAINER:
                yield from source.read_container(file, path=path, root=root)
            elif role is Role.ANNOTATION:
                # An error becomes a reject.
                with contextlib.suppress(InputError, RejectedError):
                    yield from source.read_listed(read_bytes(file), path=path, root=root)


def _check(source: Format, items: list[Item], *, folder: str) -> None:
    names = {item.name for item in items if isinstance(item, Category)}
    features = {extra.spec.key: extra for extra in source.extra_features()}
    places: set[tuple[object, ...]] = set()
    for item in items:
        if isinstance(item, Category):
            item.name.encode()
            assert len(set(item.keypoints)) == len(item.keypoints)
            continue
        assert key_problem(item.key) is None, item
        if isinstance(item, ListedImage):
            continue
        is_good = item.defect is None
        place = (item.key, item.file_index, item.position, is_good)
        assert place not in places or not source.annotation_files()
        places.add(place)
        if not is_good:
            assert item.detail
            item.detail.encode()
            assert folder not in item.detail
        elif item.annotations:
            found = decode_annotations(item.annotations)
            assert 0 <= found.width < 2**31
            assert 0 <= found.height < 2**31
            objects = (*found.objects, *found.stuff)
            assert names.issuperset([*found.labels, *(each.label for each in objects)])
            assert found.values.keys() <= features.keys()
            for name, values in found.values.items():
                assert features[name].spec.repeated or len(values) == 1
            for each in objects:
                assert each.label
                assert all(map(math.isfinite, each.bbox))
                assert all(abs(value) <= MAX_FLOAT32 for value in each.keypoints)
                assert each.attributes.keys() <= features.keys()
            for caption in found.captions:
                caption.encode()


def _target(name: str) -> Callable[[random.Random], str]:
    return lambda random: read_broken(name, random)


TARGETS = {name: _target(name) for name in sorted({seed.format for seed in SEEDS})}
