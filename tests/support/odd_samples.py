"""Odd inputs of the formats, most of them partly broken, and the outcome of each file.

Each is so small that all it must give can be written down: every image, reject and count.
"""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.support.archive_files import Files, tar_bytes, write_files, zip_bytes
from tests.support.image_makers import jpegs, plain_jpeg, save
from tests.support.voc_files import small_voc, voc_object, voc_xml

# {key of an image: what its Example must hold, by key}; see `observe` in `format_samples`.
Examples = Mapping[str, Mapping[str, object]]


class OddSample(NamedTuple):
    """An input, and the outcome of everything in it.

    Attributes:
        name: The case that it shows.
        files: The input.
        words: The words after `shardbeam build`; `{data}` stands for the input's folder.
        examples: The written Examples, by split.
        rejects: `{key: reason}`.
        details: `{key: beginning of the reject's detail}`.
        excluded: `{rule: files}`.
        corrections: `{correction: count}`.
        unannotated: The number of images without annotations.
    """

    name: str
    files: Files
    words: str
    examples: Mapping[str, Examples]
    rejects: Mapping[str, str] = {}
    details: Mapping[str, str] = {}
    excluded: Mapping[str, int] = {}
    corrections: Mapping[str, int] = {}
    unannotated: int = 0

    def command(self, data: Path | str) -> list[str]:
        return _split(self.words, data=data)

    def place(self, folder: Path, **_: object) -> Path:
        return write_files(folder, self.files)


class BadInput(NamedTuple):
    """An input that ends the run.

    Attributes:
        name: The fault.
        files: The input.
        words: The words after `shardbeam build`; `{data}` stands for the input's folder.
        exit_code: The command's exit code.
        message: A part of stderr; `{data}` stands for the folder.
    """

    name: str
    files: Files
    words: str
    exit_code: int
    message: str

    def command(self, data: Path | str) -> list[str]:
        return _split(self.words, data=data)


def _split(words: str, *, data: Path | str) -> list[str]:
    return [word.replace("{data}", str(data)) for word in shlex.split(words)]


def _objects(*, xmin: list[float], **more: object) -> dict[str, object]:
    return {"image/object/bbox/xmin": xmin, **more}


def _class_ids(*ids: int) -> dict[str, list[int]]:
    return {"image/object/class/label": list(ids)}


# VOC

# The colours of values 0 to 3, and 255, in VOC's maps.
_PALETTE = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 3: (128, 128, 0), 255: (224, 224, 192)}


def _colours(values: npt.NDArray[np.uint8]) -> bytes:
    """A map in the palette's colours, without the palette."""
    picture = Image.fromarray(values, "P")
    palette = [_PALETTE.get(value, (value, 1, 2)) for value in range(256)]
    picture.putpalette([channel for colour in palette for channel in colour])
    return save(picture.convert("RGB"), "PNG")


def _voc_maps() -> Files:
    numbers = np.zeros((24, 32), np.uint8)
    numbers[2:10, 1:9] = 1
    numbers[12:20, 10:30] = 3
    numbers[10, 1:9] = 255
    classes = numbers.copy()
    classes[numbers == 1] = 2
    # The second object has no box: it is left out, and takes its number along.
    objects: tuple[dict[str, object], ...] = (
        {"name": "bicycle", "xmin": 2, "ymin": 3, "xmax": 9, "ymax": 10},
        {"name": "cat"},
        {"name": "bird", "xmin": 11, "ymin": 13, "xmax": 30, "ymax": 20},
    )
    return small_voc(
        **{
            "Annotations/a.xml": voc_xml(*objects, size=(32, 24)),
            "SegmentationObject/a.png": _colours(numbers),
            "SegmentationClass/a.png": _colours(classes),
        }
    )


def _entity_bomb() -> str:
    levels = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    return f'<!DOCTYPE a [<!ENTITY l0 "ha">{levels}]><annotation>&l11;</annotation>'


_XML = voc_xml(voc_object(), size=(32, 24))
_VOC_VALUES = {
    "image/object/difficult": [1],
    "image/object/truncated": [0],
    "image/object/view": [b"Left"],
}
_DEVKIT = "VOCdevkit/VOC2012"
_VOC_PICTURES = ("good", "broken", "bomb", "twice", "both", "unlisted", "other", "moved")
_VOC_XML = ("good", "twice", "both", "xmls/both", "size", "alone", "moved")

VOC = (
    OddSample(
        "voc: maps in colours",
        _voc_maps(),
        "voc --root {data} --semantic --set masks=png --splits train",
        {
            "train": {
                "JPEGImages/a.jpg": {
                    "image/object/class/text": [b"bicycle", b"bird"],
                    "image/object/class/label": [2, 3],
                    "image/object/mask": [8 * 8, 8 * 20],
                    "image/segmentation/class/encoded": {0: 536, 2: 64, 3: 160, 255: 8},
                }
            }
        },
        excluded={"in_no_split": 1},
        corrections={"object_without_box_dropped": 1},
    ),
    OddSample(
        "voc: in an archive",
        {
            "voc.zip": zip_bytes(
                {f"{_DEVKIT}/{path}": content for path, content in small_voc().items()}
            )
        },
        "voc --root {data}/voc.zip",
        {
            "train": {f"{_DEVKIT}/JPEGImages/a.jpg": _objects(xmin=[9 / 32], **_VOC_VALUES)},
            "val": {f"{_DEVKIT}/JPEGImages/b.jpg": _objects(xmin=[])},
        },
        corrections={"box_clipped": 1},
    ),
    OddSample(
        "voc: trainval in place of train and val",
        {
            **{path: content for path, content in small_voc().items() if "/Main/" not in path},
            "ImageSets/Main/trainval.txt": "a\n",
            "ImageSets/Main/test.txt": "b\n",
        },
        "voc --root {data}",
        {
            "trainval": {"JPEGImages/a.jpg": _objects(xmin=[9 / 32])},
            "test": {"JPEGImages/b.jpg": _objects(xmin=[])},
        },
        corrections={"box_clipped": 1},
    ),
    OddSample(
        "voc: lists that share an image, and are not used",
        {**small_voc(), "ImageSets/Main/val.txt": "a\nb\n"},
        "voc --root {data} --split all_of_it",
        {
            "all_of_it": {
                "JPEGImages/a.jpg": _objects(xmin=[9 / 32]),
                "JPEGImages/b.jpg": _objects(xmin=[]),
            }
        },
        corrections={"box_clipped": 1},
    ),
    OddSample(
        "voc: bad files",
        {
            **jpegs(*(f"JPEGImages/{name}.jpg" for name in _VOC_PICTURES), "JPEGImages/twice.png"),
            "JPEGImages/size.jpg": plain_jpeg((16, 16)),
            **{f"Annotations/{name}.xml": _XML for name in _VOC_XML},
            "Annotations/broken.xml": "<annotation>\n<object>",
            "Annotations/bomb.xml": _entity_bomb(),
            # The map of `broken` alone is not enough.
            **dict.fromkeys(
                [
                    *(f"SegmentationObject/{name}.png" for name in ("good", "broken", "alone_too")),
                    "Annotations/trimaps/good.png",
                ],
                _colours(np.zeros((24, 32), np.uint8)),
            ),
            # An image in two splits stays in the first.
            "ImageSets/Main/train.txt": "good\nbroken\nbomb\ntwice\nboth\nsize\nmissing\nmoved",
            "ImageSets/Main/val.txt": "moved\nother",
        },
        "voc --root {data} --set masks=png --set rejects.max_ratio=1",
        {
            "train": {
                "JPEGImages/both.jpg": _objects(xmin=[9 / 32]),
                "JPEGImages/good.jpg": _objects(xmin=[9 / 32]),
                "JPEGImages/moved.jpg": _objects(xmin=[9 / 32]),
            },
            "val": {"JPEGImages/other.jpg": _objects(xmin=[])},
        },
        rejects={
            "JPEGImages/broken.jpg": "annotation_malformed",
            "JPEGImages/bomb.jpg": "annotation_malformed",
            "JPEGImages/twice.jpg": "ambiguous_stem",
            "JPEGImages/twice.png": "ambiguous_stem",
            "JPEGImages/moved.jpg": "duplicate_key",
            "JPEGImages/size.jpg": "size_mismatch",
            "missing": "missing_image",
            "alone": "missing_image",
            "alone_too": "missing_image",
        },
        details={
            "JPEGImages/broken.jpg": "Annotations/broken.xml: line 2, column 9: the XML is broken: "
            "no element found"
        },
        excluded={"annotation_folder": 1, "unannotated": 1},
        corrections={"box_clipped": 3, "entries_merged": 1, "mask_empty_no_segmentation": 3},
        unannotated=1,
    ),
)

# YOLO

# As Roboflow exports it.
_ANIMALS: Files = {
    "data.yaml": "train: ../train/images\nval: ../valid/images\nnames: [dog, cat]\nnc: 2\n",
    "README.dataset.txt": "# Animals\nlicense: none\n",
    "train/images/a.jpg": plain_jpeg(),
    "train/labels/a.txt": "1 0.5 0.5 0.25 0.2\n",
    "train/images/empty.jpg": plain_jpeg(),
    "train/labels/empty.txt": "",
    **jpegs("train/images/unlabelled.jpg", "valid/images/b.jpg"),
    "valid/labels/b.txt": "0 0.5 0.5 1 1\n0 0.25 0.5 0.1 0.2\n",
}
# A file without labels and no file are both an image without objects; the latter is counted.
_TRAIN: Examples = {
    "train/images/a.jpg": _objects(xmin=[0.375], **_class_ids(2)),
    "train/images/empty.jpg": _objects(xmin=[]),
    "train/images/unlabelled.jpg": _objects(xmin=[]),
}
_VAL: Examples = {"valid/images/b.jpg": _objects(xmin=[0, 0.2], **_class_ids(1, 1))}
_ONLY_TRAIN: Files = {
    **_ANIMALS,
    "data.yaml": "names: [dog, cat]\ntrain: ../train/images\ntest: ../test/images\n",
}

YOLO = (
    *(
        OddSample(
            f"yolo: {name}",
            files,
            f"yolo {words}",
            {"train": _TRAIN, "val": _VAL},
            excluded={"not_an_image_name": 1},
            unannotated=1,
        )
        for name, files, words in (
            ("splits of a data.yaml", _ANIMALS, "--data {data}/data.yaml"),
            (
                "splits of the only YAML",
                {"pets.YML" if name == "data.yaml" else name: _ANIMALS[name] for name in _ANIMALS},
                "--root {data}",
            ),
            ("in an archive", {"yolo.zip": zip_bytes(_ANIMALS)}, "--root {data}/yolo.zip"),
        )
    ),
    OddSample(
        "yolo: segments become masks",
        {
            "classes.txt": "dog\ncat\n",
            "images/a.jpg": plain_jpeg((40, 30)),
            "labels/a.txt": "0 .1 .1 .5 .1 .5 .5 .1 .5\n1 0.5 0.5 0.5 0.5\n",
        },
        "yolo --root {data} --set masks=png",
        {
            "train": {
                "images/a.jpg": _objects(
                    xmin=[0.1, 0.25],
                    **_class_ids(1, 2),
                    **{"image/object/area": [16 * 12, 20 * 15], "image/object/mask": [16 * 12, 0]},
                )
            }
        },
        corrections={"mask_empty_no_segmentation": 1},
    ),
    OddSample(
        "yolo: bad labels",
        {
            **_ANIMALS,
            "train/labels/a.txt": "0 0.5 0.5 0.5 0.5\n2 0.5 0.5 0.5 0.5\n",
            "train/labels/empty.txt": "0 20 15 10 5\n",
            "train/labels/nowhere.txt": "0 0.5 0.5 0.5 0.5\n",
            **jpegs("train/images/twice.jpg", "train/images/twice.png", "train/images/sure.jpg"),
            "train/labels/sure.txt": "0 .5 .5 .5 .5 .9\n0 .9 .9 .25 .25\n0 .5 .5 0 0\n",
        },
        "yolo --root {data} --set rejects.max_ratio=1",
        {
            "train": {
                "train/images/sure.jpg": _objects(xmin=[0.25, 0.775]),
                "train/images/unlabelled.jpg": _objects(xmin=[]),
            },
            "val": _VAL,
        },
        rejects={
            "train/images/a.jpg": "annotation_malformed",
            "train/images/empty.jpg": "annotation_malformed",
            "train/labels/nowhere": "missing_image",
            "train/images/twice.jpg": "ambiguous_stem",
            "train/images/twice.png": "ambiguous_stem",
        },
        details={
            "train/images/a.jpg": "train/labels/a.txt: line 2: class 2 has no name: 2 classes are "
            "named"
        },
        excluded={"not_an_image_name": 1},
        corrections={
            "box_clipped_slightly": 1,
            "box_without_area_dropped": 1,
            "confidence_dropped": 1,
        },
        unannotated=1,
    ),
    OddSample(
        "yolo: poses, some of them bad",
        {
            "data.yaml": "names: [dog]\nkpt_shape: [2, 3]\nkpt_names: {0: [nose, tail]}\n",
            **{f"images/{letter}.jpg": plain_jpeg() for letter in "abc"},
            "labels/a.txt": "0 .5 .5 .5 .5 .25 .75 1 0 0 0\n0 .5 .5 1 1\n",
            "labels/b.txt": "0 .5 .5 .5 .5 .25 .75 1\n",
            "labels/c.txt": "0 .5 .5 .5 .5 .25 .75 .9 0 0 0\n",
        },
        "yolo --root {data} --set rejects.max_ratio=1",
        {
            "train": {
                "images/a.jpg": _objects(
                    xmin=[0.25, 0],
                    **{
                        "image/object/keypoint/x": [0.25, 0, 0, 0],
                        "image/object/keypoint/y": [0.75, 0, 0, 0],
                        "image/object/keypoint/visibility": [1, 0, 0, 0],
                        "image/object/keypoint/num": [1, 0],
                        "image/object/keypoint/text": [b"nose", b"tail"] * 2,
                    },
                )
            }
        },
        rejects={
            "images/b.jpg": "annotation_malformed",
            "images/c.jpg": "annotation_malformed",
        },
        details={
            "images/c.jpg": "labels/c.txt: line 1: expected a visibility (0, 1 or 2), got '.9'"
        },
    ),
    # A split that is not there is an error only where it matters.
    OddSample(
        "yolo: a split is chosen",
        _ONLY_TRAIN,
        "yolo --root {data} --splits train",
        {"train": _TRAIN},
        excluded={"in_no_split": 1, "not_an_image_name": 1},
        unannotated=1,
    ),
)

# WebDataset, image-folder, filename-label

_LABELS = "image/class/text"
_TAR = tar_bytes(
    {
        "1.jpg": plain_jpeg(),
        "1.cls": b"7",
        "1.json": b'{"similarity": 0.5}',
        "2.jpg": b"no image",
        "3.cls": b"1",
        "4.jpg": b"1",
        "4.png": b"2",
        "5.txt": b"x",
    }
)

_SPLIT_FOLDERS: Files = {
    "readme.md": "flowers",
    **jpegs("Train/cat/a.jpg", "Train/dog/more/b.jpg", "valid/cat/a.jpg", "testing/dog/a.jpg"),
}
_FOLDS: Files = {"readme.md": "", "b/cat/a.jpg": plain_jpeg(), "a/cat/a.jpg": plain_jpeg()}
# {split: {key: class}}
_SPLIT_IMAGES = {
    "Train": {"Train/cat/a.jpg": b"cat", "Train/dog/more/b.jpg": b"dog"},
    "valid": {"valid/cat/a.jpg": b"cat"},
    "testing": {"testing/dog/a.jpg": b"dog"},
}
_ALL_IMAGES = {key: label for images in _SPLIT_IMAGES.values() for key, label in images.items()}

OTHERS = (
    *(
        OddSample(
            f"image-folder: folders of splits{where}",
            files,
            f"image-folder --images {{data}}{below} {words}",
            {
                split: {key: {_LABELS: [label]} for key, label in images.items()}
                for split, images in splits.items()
            },
            excluded={"not_an_image_name": 1},
        )
        for where, files, below, words, splits in (
            ("", _SPLIT_FOLDERS, "", "", _SPLIT_IMAGES),
            (" in an archive", {"a.zip": zip_bytes(_SPLIT_FOLDERS)}, "/a.zip", "", _SPLIT_IMAGES),
            (" and of the config", _SPLIT_FOLDERS, "", "--split mine", {"mine": _ALL_IMAGES}),
            (
                " that are none",
                _SPLIT_FOLDERS,
                "",
                "--no-split-folders",
                {"train": {key: key.partition("/")[0].encode() for key in _ALL_IMAGES}},
            ),
            (
                " of any name",
                _FOLDS,
                "",
                "--split-folders",
                {"a": {"a/cat/a.jpg": b"cat"}, "b": {"b/cat/a.jpg": b"cat"}},
            ),
        )
    ),
    *(
        OddSample(
            f"filename-label: {name}",
            {"train/1_cat.jpg": plain_jpeg(), "TEST/x/2_dog.jpg": plain_jpeg()},
            f"filename-label --images {{data}} {words}",
            examples,
        )
        for name, words, examples in (
            (
                "folders of splits",
                "",
                {
                    "train": {"train/1_cat.jpg": {_LABELS: [b"cat"]}},
                    "TEST": {"TEST/x/2_dog.jpg": {_LABELS: [b"dog"]}},
                },
            ),
            (
                "folders that are no splits",
                "--no-split-folders",
                {
                    "train": {
                        "train/1_cat.jpg": {_LABELS: [b"cat"]},
                        "TEST/x/2_dog.jpg": {_LABELS: [b"dog"]},
                    }
                },
            ),
        )
    ),
    OddSample(
        "webdataset: bad samples, and a field",
        {"0.tar": _TAR},
        "webdataset --tars {data} --set rejects.max_ratio=1 "
        "--set 'splits.train.fields={similarity: float}'",
        {"train": {"0.tar/1.jpg": {"image/class/label": [7], "similarity": [0.5]}}},
        rejects={
            "0.tar/2.jpg": "not_an_image",
            "0.tar/3": "missing_image",
            "0.tar/4.jpg": "ambiguous_stem",
            "0.tar/4.png": "ambiguous_stem",
            "0.tar/5": "missing_image",
        },
    ),
    OddSample(
        "filename-label: further groups",
        {
            name: plain_jpeg()
            for name in ("x/left-cat-1.jpg", "x/right-dog-2.jpg", "y/left-dog-3.jpg", "y/none.jpg")
        },
        "filename-label --images {data} --set rejects.max_ratio=0.5 "
        "--pattern '(?P<camera>left|right)-(?P<label>[a-z]+)'",
        {
            "train": {
                "x/left-cat-1.jpg": {"image/class/label": [0], "camera": [b"left"]},
                "x/right-dog-2.jpg": {"image/class/label": [1], "camera": [b"right"]},
                "y/left-dog-3.jpg": {"image/class/label": [1], "camera": [b"left"]},
            }
        },
        rejects={"y/none.jpg": "name_not_matched"},
    ),
)

# Tables, COCO's maps


def _coco(**sections: object) -> str:
    """A COCO file; its images are `val/a.jpg`, `val/b.jpg` and so on."""
    images = [
        {"id": number, "file_name": f"val/{letter}.jpg", "width": 32, "height": 24}
        for number, letter in enumerate("ab", 1)
    ]
    categories = [{"id": 18, "name": "dog"}, {"id": 92, "name": "sky"}]
    return json.dumps({"images": images, "categories": categories, **sections})


def _sky_and_dog() -> bytes:
    classes = np.full((24, 32), 92, np.uint8)
    classes[:12] = 18
    return save(Image.fromarray(classes), "PNG")


_IMAGE_ROWS: Files = {
    "images/a.jpg": plain_jpeg(),
    "m.csv": "filename,label\na.jpg,cat\nb.PNG,dog\n",
    "m.jsonl": '{"path": "x/a.jpg", "label": "cat"}\n',
}

TABLES = (
    OddSample(
        "csv: splits as TFRecorder has them",
        {
            **{f"images/{number}.jpg": plain_jpeg() for number in range(6)},
            "data.csv": "split,image_uri,label\nTRAIN,0.jpg,cat\nTRAIN,./../images/1.jpg,dog\n"
            "VALIDATION,2.jpg,cat\nTEST,3.jpg,dog\nDISCARD,4.jpg,cat\nTRAIN,../x.jpg,cat\n"
            "TEST,missing.jpg,cat\n",
        },
        "csv --manifest {data}/data.csv --image-root {data}/images --set rejects.max_ratio=0.5",
        {
            "train": {"0.jpg": {_LABELS: [b"cat"]}, "1.jpg": {_LABELS: [b"dog"]}},
            "validation": {"2.jpg": {_LABELS: [b"cat"]}},
            "test": {"3.jpg": {_LABELS: [b"dog"]}},
        },
        rejects={"../x.jpg": "outside_roots", "missing.jpg": "missing_image"},
        details={"../x.jpg": "data.csv: line 7: the image lies in none of the image_root folders"},
        excluded={"discarded": 1, "unannotated": 1},
    ),
    OddSample(
        "csv: features, two roots, an image twice, a stray quote",
        {
            **jpegs("one/a.jpg", "two/a.jpg", "two/c.jpg"),
            "m.csv": "image,label,age,note\none/a.jpg,cat|dog,3,x\ntwo/a.jpg,dog,,y\n"
            'one/a.jpg,dog,4,z\ntwo/c.jpg,"dog,5,w\n',
        },
        "csv --manifest {data}/m.csv --image-root {data}/one --image-root {data}/two "
        "--label-separator '|' --set rejects.max_ratio=0.5",
        {
            "train": {
                "one/a.jpg": {_LABELS: [b"cat", b"dog"], "age": [3], "note": [b"x"]},
                "two/a.jpg": {_LABELS: [b"dog"], "age": [], "note": [b"y"]},
            }
        },
        rejects={"one/a.jpg": "duplicate_key", "m.csv: line 5": "annotation_malformed"},
        excluded={"unannotated": 1},
    ),
    *(
        OddSample(
            f"csv: no header, decimal commas and empty cells; {name}",
            {
                **{f"images/{letter}.jpg": plain_jpeg() for letter in "abcdef"},
                name: "a.jpg;0;0;16;12;cat\nb.jpg;;;;;\nc.jpg;1,5;2;9;9;cat\n"
                "d.jpg;1;;9;9;cat\ne.jpg;;;;;cat\nf.jpg;8.5;0;16;12;dog\n".replace(";", delimiter),
            },
            f"csv --manifest {{data}}/{name} --image-root {{data}}/images "
            f"--header path,x1,y1,x2,y2,class --set rejects.max_ratio=0.5 {words}",
            {
                "train": {
                    "a.jpg": _objects(xmin=[0], **_class_ids(1)),
                    "b.jpg": _objects(xmin=[]),
                    "f.jpg": _objects(xmin=[8.5 / 32], **_class_ids(2)),
                }
            },
            rejects=dict.fromkeys(("c.jpg", "d.jpg", "e.jpg"), "annotation_malformed"),
            details={
                "c.jpg": f"{name}: line 3: column x1: expected float, got '1,5'; write a decimal",
                "d.jpg": f"{name}: line 4: expected four finite numbers of a box",
                "e.jpg": f"{name}: line 5: a label without a box",
            },
        )
        for name, delimiter, words in (
            ("boxes.tsv", "\t", ""),
            ("boxes.csv", ";", "--delimiter ';'"),
            ("boxes.txt", "\t", r"--delimiter '\t' --multiline"),
        )
    ),
    OddSample(
        "csv: a column a class",
        {
            **{f"images/{letter}.jpg": plain_jpeg() for letter in "abcd"},
            "t.csv": "image,dog,class,cat,age\na,1,0,1.0,3\nb,0,0,0,4\nc,0.5,0,1,5\nd,,0,1,5\n",
        },
        "csv --manifest {data}/t.csv --image-root {data}/images --one-hot "
        "--set source.columns.age=int --set rejects.max_ratio=0.5",
        {
            "train": {
                "a.jpg": {_LABELS: [b"dog", b"cat"], "image/class/label": [0, 2], "age": [3]},
                "b.jpg": {_LABELS: [], "age": [4]},
            }
        },
        rejects=dict.fromkeys(("c.jpg", "d.jpg"), "annotation_malformed"),
        details={
            "c.jpg": "t.csv: line 4: column dog: expected int, got '0.5'",
            "d.jpg": "t.csv: line 5: column dog: expected int, found nothing",
        },
    ),
    OddSample(
        "csv: match by name, also of paths elsewhere; two that fit are refused",
        {
            **{f"images/{key}": plain_jpeg() for key in ("x/a.jpg", "B.JPG", "c.jpg", "d.jpg")},
            "images/x/D.jpg": plain_jpeg(),
            "data.csv": "image,label\n/old/a.jpg,cat\ngs://bucket/b.jpeg,dog\n1/c.jpg,cat\n"
            "2/c.jpg,dog\nd.jpg,cat\n",
        },
        "csv --manifest {data}/data.csv --image-root {data}/images --match name "
        "--set rejects.max_ratio=0.9",
        {"train": {"x/a.jpg": {_LABELS: [b"cat"]}, "B.JPG": {_LABELS: [b"dog"]}}},
        rejects=dict.fromkeys(("c.jpg", "d.jpg", "x/D.jpg"), "ambiguous_stem"),
        details={"c.jpg": "annotations name several images that may be this: 1/c.jpg, 2/c.jpg"},
    ),
    OddSample(
        "coco: match by suffix",
        {
            **jpegs("images/deep/VAL/a.JPEG", "images/b.jpg"),
            "a.json": _coco(
                annotations=[{"id": 1, "image_id": 1, "category_id": 18, "bbox": [0, 0, 16, 12]}]
            ),
        },
        "coco --images {data}/images --annotations {data}/a.json --match suffix "
        "--set rejects.max_ratio=0.9",
        {"train": {"deep/VAL/a.JPEG": _objects(xmin=[0])}},
        rejects={"val/b.jpg": "missing_image"},
        excluded={"unannotated": 1},
    ),
    *(
        OddSample(
            f"coco: pictures that no file names{words}",
            {
                **jpegs(
                    "images/val/a.jpg",
                    "images/val/b.jpg",
                    "images/README.jpg",
                    "images/drawn/a.jpg",
                ),
                "images/notes.txt": "",
                # The second is a negative: it is listed.
                "a.json": _coco(
                    annotations=[
                        {"id": 1, "image_id": 1, "category_id": 18, "bbox": [8, 0, 16, 12]}
                    ],
                ),
            },
            f"coco --images {{data}}/images --annotations {{data}}/a.json{words}",
            {
                "train": {
                    "val/a.jpg": _objects(xmin=[0.25]),
                    "val/b.jpg": _objects(xmin=[]),
                    **dict.fromkeys(negatives, _objects(xmin=[])),
                }
            },
            excluded={"not_an_image_name": 1, **excluded},
            unannotated=len(negatives),
        )
        for words, negatives, excluded in (
            ("", (), {"unannotated": 2}),
            (" --unannotated drop", (), {"unannotated": 2}),
            (" --unannotated keep", ("README.jpg", "drawn/a.jpg"), {}),
        )
    ),
    *(
        OddSample(
            f"csv: images that no row names are written{words}",
            {
                **jpegs("images/a.jpg", "images/b.jpg"),
                "images/t.txt": "",
                "t.csv": table,
            },
            f"csv --manifest {{data}}/t.csv --image-root {{data}}/images --unannotated keep{words}",
            {"train": {"a.jpg": known, "b.jpg": unknown}},
            excluded={"not_an_image_name": 1},
            unannotated=1,
        )
        for words, table, known, unknown in (
            (
                "",
                "image,label,age,note\na.jpg,cat,3,x\n",
                {_LABELS: [b"cat"], "age": [3], "note": [b"x"]},
                {_LABELS: [], "age": [0], "note": [b""]},
            ),
            (
                " --label-column class",
                "image,xmin,ymin,xmax,ymax,class\na.jpg,8,0,16,12,cat\n",
                _objects(xmin=[0.25]),
                _objects(xmin=[]),
            ),
        )
    ),
    OddSample(
        "open-images: what one file verified to be absent is no label of another",
        {
            "images/a.jpg": plain_jpeg(),
            "machine.csv": "ImageID,Source,LabelName,Confidence\n"
            "a,machine,/m/0,0.9\na,machine,/m/1,0.6\n",
            "human.csv": "ImageID,Source,LabelName,Confidence\na,verification,/m/0,0\n",
        },
        "open-images --images {data}/images "
        "--image-labels {data}/machine.csv --image-labels {data}/human.csv",
        {
            "train": {
                "a.jpg": {
                    _LABELS: [b"/m/1"],
                    "image/class/label": [1],
                    "image/class/confidence": [0.6],
                    "image/class/absent/text": [b"/m/0"],
                }
            }
        },
    ),
    *(
        OddSample(
            f"coco: a category 0{kept}",
            {
                **jpegs("images/val/a.jpg", "images/val/b.jpg"),
                "instances.json": _coco(
                    categories=[{"id": 0, "name": "dog"}, {"id": 7, "name": "sky"}],
                    annotations=[
                        {"id": k, "image_id": 1, "category_id": category, "bbox": [0, 0, 16, 3]}
                        for k, category in enumerate((0, 7))
                    ],
                ),
            },
            f"coco --images {{data}}/images --annotations {{data}}/instances.json {words}",
            {
                "train": {
                    "val/a.jpg": {
                        "image/object/class/text": [b"dog", b"sky"],
                        **_class_ids(*ids),
                    },
                    "val/b.jpg": _objects(xmin=[]),
                }
            },
        )
        for kept, words, ids in (
            ("", "", (1, 8)),
            (", kept", "--set labels.first_id=0", (0, 7)),
        )
    ),
    OddSample(
        "coco: semantic masks by stem",
        {
            **{f"images/val/{name}": plain_jpeg() for name in ("a.jpg", "b.jpg", "c.jpg", "c.png")},
            "maps/val/a.png": _sky_and_dog(),
            "maps/readme.txt": "maps",
            "instances.json": _coco(
                annotations=[{"id": 1, "image_id": 1, "category_id": 18, "bbox": [0, 0, 16, 3]}]
            ),
        },
        "coco --images {data}/images --annotations {data}/instances.json "
        "--semantic-masks {data}/maps --set rejects.max_ratio=0.5",
        {
            "train": {
                "val/a.jpg": {
                    "image/object/class/label": [18],
                    "image/segmentation/class/encoded": {18: 384, 92: 384},
                },
                "val/b.jpg": {"image/segmentation/class/encoded": {255: 768}},
            }
        },
        rejects={"val/c.jpg": "ambiguous_stem", "val/c.png": "ambiguous_stem"},
        corrections={"map_missing_left_void": 1},
    ),
    OddSample(
        "coco: stuff becomes a map",
        {
            **jpegs("images/val/a.jpg", "images/val/b.jpg"),
            "stuff_val.json": _coco(
                # Column by column: the left half, and of the right one the last column.
                annotations=[
                    {"id": k, "image_id": 1, "category_id": category, "segmentation": region}
                    for k, (category, region) in enumerate(
                        [
                            (92, {"counts": [0, 384, 384], "size": [24, 32]}),
                            (18, {"counts": [744, 24], "size": [24, 32]}),
                        ]
                    )
                ]
            ),
        },
        "coco --images {data}/images --annotations {data}/stuff_val.json",
        {
            "train": {
                "val/a.jpg": {
                    "image/object/class/label": None,
                    "image/segmentation/class/encoded": {18: 24, 92: 384, 255: 360},
                },
                "val/b.jpg": {"image/segmentation/class/encoded": {255: 768}},
            }
        },
        corrections={"map_missing_left_void": 1},
    ),
)

# CVAT

_LABELS_OF_OBJECTS = "image/object/class/text"
_CVAT_LABELS = (
    "<meta><job><labels><label><name>dog</name></label><label><name>day</name></label>"
    "<label><name>body</name><type>skeleton</type></label>"
    "<label><name>nose</name><parent>body</parent></label>"
    "<label><name>tail</name><parent>body</parent></label></labels></job></meta>"
)


def _cvat(**images: str) -> str:
    """A file of images of 32 x 24 pixels; `a` is `a.jpg`."""
    elements = "".join(
        f'<image id="{number}" name="{name}.jpg" width="32" height="24">{shapes}</image>\n'
        for number, (name, shapes) in enumerate(images.items())
    )
    return f"<annotations><version>1.1</version>{_CVAT_LABELS}\n{elements}</annotations>"


def _points(label: str, *, at: str, more: str = "") -> str:
    return f'<points label="{label}" points="{at}" {more}/>'


CVAT = (
    OddSample(
        "cvat: shapes of every kind",
        {
            **{f"images/{name}.jpg": plain_jpeg() for name in ("a", "b", "c", "none")},
            "cvat.xml": _cvat(
                # A square of 8 around (16, 12), turned by 45 degrees; an ellipse turned by 90.
                a='<box label="dog" xtl="12" ytl="8" xbr="20" ybr="16" rotation="45" occluded="1"/>'
                '<ellipse label="dog" cx="16" cy="12" rx="8" ry="4" rotation="90"/>'
                '<tag label="day"/><tag label="night"/><tag label="day"/>',
                # Two rows of three pixels, without the last.
                c='<mask label="dog" left="2" top="4" width="3" height="2" rle="0, 5, 1"/>'
                '<polygon label="dog" points="0,0;16,0;16.00,12;0,12"/>',
                b='<skeleton label="body">'
                + _points("tail", at="8.00,6.00", more='occluded="1"')
                + _points("nose", at="16,18", more='outside="0" occluded="0"')
                + "</skeleton><skeleton label='body'>"
                + _points("nose", at="1,1", more='outside="1"')
                + "</skeleton>"
                + _points("dog", at="1,2;3,4")
                + '<polyline label="dog" points="1,2;3,4"/><cuboid label="dog"/><what/>'
                '<box label="cat" xtl="0" ytl="0" xbr="1" ybr="1"/>'
                '<mask label="dog" left="0" top="0" width="1" height="2" rle="2"/>',
            ),
        },
        "cvat --images {data}/images --annotations {data}/cvat.xml --set masks=png",
        {
            "train": {
                "a.jpg": _objects(
                    xmin=[(16 - 32**0.5) / 32, 12 / 32],
                    **{
                        "image/object/bbox/ymax": [(12 + 32**0.5) / 24, 20 / 24],
                        "image/object/area": [64, float(np.float32(np.pi * 32))],
                        "image/object/occluded": [1, 0],
                        "image/class/text": [b"day"],
                        _LABELS_OF_OBJECTS: [b"dog"] * 2,
                    },
                ),
                "b.jpg": {
                    _LABELS_OF_OBJECTS: [b"body"],
                    "image/object/bbox/xmin": [0.25],
                    "image/object/bbox/ymax": [0.75],
                    "image/object/keypoint/text": [b"nose", b"tail"],
                    "image/object/keypoint/x": [0.5, 0.25],
                    "image/object/keypoint/visibility": [2, 1],
                },
                "c.jpg": _objects(
                    xmin=[2 / 32, 0],
                    **{
                        "image/object/bbox/ymax": [6 / 24, 0.5],
                        "image/object/area": [5, 192],
                        "image/object/mask": [5, 192],
                    },
                ),
            }
        },
        excluded={"unannotated": 1},
        corrections={
            "box_turned": 1,
            "label_of_unknown_category_dropped": 1,
            "object_of_unknown_category_dropped": 1,
            "object_without_box_dropped": 5,
            "mask_empty_no_segmentation": 1,
        },
    ),
    OddSample(
        "cvat: bad images",
        {
            **{f"images/{name}.jpg": plain_jpeg() for name in "abcdefgh"},
            "images/i.jpg": plain_jpeg((16, 16)),
            "cvat.xml": _cvat(
                a='<box label="dog" xtl="8" ytl="0" xbr="16" ybr="9"/>',
                b='<box label="dog" xtl="x" ytl="0" xbr="1" ybr="9"/>',
                c='<box label="dog" ytl="0" xbr="1" ybr="9"/>',
                d='<polygon label="dog" points="1,2;3"/>',
                e='<mask label="dog" left="0" top="0" width="2" height="2" rle="1, 2"/>',
                f='<mask label="dog" left="0" top="0" width="99999" height="99999" rle="1"/>',
                g='<skeleton label="body">' + _points("ear", at="1,2") + "</skeleton>",
                h='<polygon points="1,2;3,4;5,6"/>',
                i='<box label="dog" xtl="8" ytl="0" xbr="32" ybr="9"/>',
                gone="",
            ).replace("</annotations>", '<image id="9"/><image name="../x.jpg"/></annotations>'),
        },
        "cvat --images {data}/images --annotations {data}/cvat.xml --set rejects.max_ratio=1",
        {"train": {"a.jpg": _objects(xmin=[0.25])}},
        rejects={
            **{f"{name}.jpg": "annotation_malformed" for name in "bcdefgh"},
            "i.jpg": "size_mismatch",
            "gone.jpg": "missing_image",
            "../x.jpg": "missing_image",
            "cvat.xml: line 12": "unreadable_name",
        },
        details={
            "b.jpg": "cvat.xml: line 3: xtl: expected a number, got 'x'",
            "c.jpg": "cvat.xml: line 4: a <box> without xtl",
            "d.jpg": "cvat.xml: line 5: points: expected `x,y;x,y;…`",
            "e.jpg": "cvat.xml: line 6: rle: expected runs of 4 pixels in all",
            "f.jpg": "cvat.xml: line 7: the mask's left, top, width and height",
            "g.jpg": "cvat.xml: line 8: the label declares no keypoint 'ear'",
            "h.jpg": "cvat.xml: line 9: a <polygon> without label",
        },
    ),
)

# LabelMe


def _labelme(
    *shapes: dict[str, object], path: str | None = "a.jpg", data: bytes = b"", **more: object
) -> str:
    """A file of an image of 32 x 24 pixels."""
    picture = base64.b64encode(data).decode() or None
    file: dict[str, object] = {
        "flags": {},
        "shapes": shapes,
        "imagePath": path,
        "imageData": picture,
    }
    return json.dumps(file | {"imageWidth": 32, "imageHeight": 24} | more)


def _shape(kind: str | None, *points: tuple[float, float], **more: object) -> dict[str, object]:
    return {"label": "dog", "points": points, "shape_type": kind, "group_id": None} | more


def _patch_png(rows: list[list[int]]) -> str:
    return base64.b64encode(save(Image.fromarray(np.array(rows, np.uint8)), "PNG")).decode()


_MASK = _patch_png([[1, 1, 0], [1, 1, 1]])
# As Supervisely writes masks.
_ZLIB = base64.b64encode(zlib.compress(base64.b64decode(_MASK))).decode()

_LABELME_SPLITS: Files = {
    "train/a.jpg": plain_jpeg(),
    "train/a.json": _labelme(_shape("rectangle", (8, 0), (16, 12))),
    "train/gone.json": _labelme(path="gone.jpg"),
    "train/bad.json": '{"imagePath": "bad.jpg"}',
    "Val/json/b.json": _labelme(path="b.jpg", data=plain_jpeg()),
    # Nobody has annotated these.
    "test/c.jpg": plain_jpeg(),
    "test/d.json": _labelme(path="d.jpg"),
    "drawn/a.jpg": plain_jpeg(),
}

LABELME = (
    OddSample(
        "labelme: shapes of every kind",
        {
            "images/a.jpg": plain_jpeg(),
            "json/a.json": _labelme(
                _shape("rectangle", (16, 12), (8, 6)),
                # Without a type, as old files are; parts of one object.
                _shape(None, (0, 0), (4, 0), (4, 3), (0, 3), group_id=1),
                _shape("polygon", (8, 0), (12, 0), (12, 6), (8, 6), group_id=1),
                _shape("circle", (16, 12), (16, 16), label="cat"),
                _shape("mask", (2.5, 4.5), (4.5, 5.5), mask=_MASK),
                _shape("mask", (0, 0), (1, 0), mask=_patch_png([[0, 0]])),
                *(
                    _shape(kind, (1, 1), (2, 2))
                    for kind in ("line", "linestrip", "point", "points")
                ),
                _shape("rectangle", (0, 0), (8, 8), label="__ignore__"),
                path="..\\images\\a.jpg",
                flags={"day": True, "night": False, "__ignore__": True},
            ),
            "other/b.jpg": plain_jpeg(),
            "other/b.json": _labelme(path="C:\\photos\\b.jpg"),
        },
        "labelme --root {data}",
        {
            "train": {
                "images/a.jpg": _objects(
                    xmin=[0.25, 0, 12 / 32, 2 / 32],
                    **{
                        "image/object/bbox/ymax": [0.5, 0.25, 16 / 24, 6 / 24],
                        "image/object/class/text": [b"dog", b"dog", b"cat", b"dog"],
                        "image/class/text": [b"day"],
                    },
                ),
                "other/b.jpg": _objects(xmin=[]),
            }
        },
        corrections={
            "excluded_label_dropped": 1,
            "object_of_excluded_label_dropped": 1,
            "object_without_box_dropped": 5,
        },
    ),
    OddSample(
        "labelme: pictures that were moved to another folder with their files",
        {
            "a.jpg": plain_jpeg(),
            "a.json": _labelme(_shape("rectangle", (8, 0), (16, 12)), path="..\\test-2\\a.jpg"),
            # Another picture with the same name does not count.
            "b/b.jpg": plain_jpeg(),
            "b/b.json": _labelme(_shape("rectangle", (16, 0), (20, 12)), path="../old/b.jpg"),
            "old/b.jpg": plain_jpeg(),
        },
        "labelme --root {data}",
        {"train": {"a.jpg": _objects(xmin=[0.25]), "b/b.jpg": _objects(xmin=[0.5])}},
        excluded={"unannotated": 1},
    ),
    *(
        OddSample(
            f"labelme: folders of splits{where}",
            files,
            f"labelme --root {{data}}{below} --set rejects.max_ratio=0.7",
            {
                "train": {"train/a.jpg": _objects(xmin=[0.25])},
                "Val": {"Val/json/b.jpg": _objects(xmin=[])},
            },
            rejects={
                "train/gone.jpg": "missing_image",
                "train/bad.json": "annotation_malformed",
                "test/d.jpg": "missing_image",
            },
            excluded={"unannotated": 2},
        )
        for where, files, below in (
            ("", _LABELME_SPLITS, ""),
            (" in an archive", {"l.tar": tar_bytes(_LABELME_SPLITS)}, "/l.tar"),
        )
    ),
    OddSample(
        "labelme: folders of splits that the command does not ask for",
        {
            "train/a.jpg": plain_jpeg(),
            "train/a.json": _labelme(_shape("rectangle", (8, 0), (16, 12))),
            "val/a.jpg": plain_jpeg(),
            "val/a.json": _labelme(_shape("rectangle", (16, 0), (20, 12))),
            "more/a.jpg": plain_jpeg(),
            "more/a.json": _labelme(),
        },
        "labelme --root {data} --split everything",
        {
            "everything": {
                "train/a.jpg": _objects(xmin=[0.25]),
                "val/a.jpg": _objects(xmin=[0.5]),
                "more/a.jpg": _objects(xmin=[]),
            }
        },
    ),
    OddSample(
        "labelme: masks, and the picture inside",
        {
            # There is no such file, and none outside of the root is looked for.
            "a.json": _labelme(
                _shape("mask", (2, 4), (4, 5), mask=_MASK),
                _shape("polygon", (0, 0), (4, 0), (4, 3), (0, 3), group_id=1),
                _shape("polygon", (8, 0), (12, 0), (12, 6), (8, 6), group_id=1),
                path="../../a.bmp",
                data=plain_jpeg(),
            ),
            "b.jpg": plain_jpeg(),
            "b.json": _labelme(
                _shape("rectangle", (8, 0), (9, 9), label="\ud83d"), path="b.jpg", data=b"unused"
            ),
        },
        "labelme --root {data} --set masks=png",
        {
            "train": {
                "a.jpg": _objects(xmin=[2 / 32, 0], **{"image/object/mask": [5, 4 * 3 + 4 * 6]}),
                "b.jpg": _objects(xmin=[0.25]),
            }
        },
        corrections={"lone_surrogate_replaced": 1, "mask_empty_no_segmentation": 1},
    ),
    OddSample(
        "labelme: bad files",
        {
            **{f"{name}.jpg": plain_jpeg() for name in ("d2", "d3", *"abcdefg")},
            "a.json": _labelme(_shape("rectangle", (8, 0), (9, 9))),
            "b.json": _labelme(_shape("star", (8, 0), (9, 9)), path="b.jpg"),
            "c.json": _labelme(_shape("circle", (8, 0)), path="c.jpg"),
            "d.json": _labelme(_shape("mask", (8, 0), (9, 9), mask="?"), path="d.jpg"),
            "d2.json": _labelme(_shape("mask", (8, 0), (9, 9), mask=None), path="d2.jpg"),
            "d3.json": _labelme(_shape("mask", (8, 0), (9, 9), mask=_ZLIB), path="d3.jpg"),
            "e.json": _labelme(_shape("polygon"), path="e.jpg"),
            "f.json": _labelme(_shape("rectangle", (8, 0), (9, 9), label=""), path="f.jpg"),
            "g.json": _labelme(
                _shape("rectangle", (4, 0), (8, 6)), path="g.jpg", imageWidth=16, imageHeight=12
            ),
            "h.json": _labelme(_shape("rectangle", (8, 0), (9, 9)), path="h.jpg"),
            "i.json": _labelme(path="i.jpg").replace("null", '"?"'),
            "j.json": _labelme(path=None),
            "k.json": '{"imagePath": "k.jpg"}',
            "l.json": '{"shapes": [',
            "m.json": _labelme(path="m.jpg", data=b"no picture"),
            "n.json": _labelme(path="a.jpg"),
        },
        "labelme --root {data} --set rejects.max_ratio=1",
        {"train": {"a.jpg": _objects(xmin=[0.25]), "g.jpg": _objects(xmin=[0.25])}},
        rejects={
            **{f"{name}.jpg": "annotation_malformed" for name in ("d2", "d3", *"bcdef")},
            "a.jpg": "duplicate_key",
            "h.jpg": "missing_image",
            "i.jpg": "image_unreadable",
            **{f"{name}.json": "annotation_malformed" for name in "jkl"},
            "m.jpg": "not_an_image",
        },
        details={
            "b.jpg": "b.json: $.shapes[0]: unknown shape_type 'star'",
            "c.jpg": "c.json: $.shapes[0]: points: a circle has two, got 1",
            "d.jpg": "d.json: $.shapes[0]: expected base64",
            "d2.jpg": "d2.json: $.shapes[0]: mask: expected a PNG as base64, got nothing (null)",
            "d3.jpg": "d3.json: $.shapes[0]: mask: expected a PNG as base64, got zlib-compressed",
            "e.jpg": "e.json: $.shapes[0]: points: expected [x, y] of each point",
            "f.jpg": "f.json: $.shapes[0]: the label is empty",
            "i.jpg": "imageData: expected base64",
            "j.json": "j.json: imagePath: expected an image's path, got ''",
            "k.json": "k.json: $: object missing required field 'shapes'",
            "l.json": "l.json: line 1, column 13: the JSON ends in the middle",
        },
        corrections={"annotated_size_scaled": 1},
    ),
    OddSample(
        "labelme: in archives",
        {
            "labelme.zip": zip_bytes(
                {
                    "x/a.json": _labelme(_shape("rectangle", (8, 0), (9, 9))),
                    "x/a.jpg": plain_jpeg(),
                    "x/b.json": _labelme(path="b.jpg", data=plain_jpeg()),
                }
            ),
        },
        "labelme --root {data}/labelme.zip --set rejects.max_ratio=1",
        {"train": {"x/a.jpg": _objects(xmin=[0.25])}},
        rejects={"x/b.jpg": "image_unreadable"},
        details={"x/b.jpg": "the picture lies in a JSON file inside a zip archive"},
    ),
    OddSample(
        "labelme: the picture inside, in a tar",
        {"labelme.tar": tar_bytes({"b.json": _labelme(path="b.jpg", data=plain_jpeg()).encode()})},
        "labelme --root {data}/labelme.tar",
        {"train": {"b.jpg": _objects(xmin=[])}},
    ),
)

# Masks


def _mask(*values: int, mode: str = "L") -> bytes:
    """A mask whose columns, of equal width, have these values."""
    pixels = np.repeat(np.array([values] * 24, np.uint8), 32 // len(values), axis=1)
    return save(Image.fromarray(pixels).convert(mode), "PNG")


def _colour_mask(*colours: tuple[int, int, int], colours_of_palette: int = 0) -> bytes:
    """A mask in colours, as RGB or with a palette in any order."""
    pixels = np.repeat(np.array([colours] * 24, np.uint8), 32 // len(colours), axis=1)
    picture = Image.fromarray(pixels)
    return save(picture.quantize(colours_of_palette) if colours_of_palette else picture, "PNG")


def _map(**counts: int) -> dict[str, dict[int, int]]:
    return {
        "image/segmentation/class/encoded": {
            int(name.removeprefix("of_")): count for name, count in counts.items()
        }
    }


def _with_mask(files: Files) -> Files:
    return {"images/a.jpg": plain_jpeg(), "masks/a.png": _mask(0, 1), **files}


_MASKS = "masks --images {data}"
_CAT, _DOG, _LINE = (64, 128, 0), (0, 0, 128), (224, 224, 192)
MASKS = (
    OddSample(
        "masks: folders in folders of splits, images and masks without each other",
        {
            **{f"train/images/{name}.jpg": plain_jpeg() for name in "abc"},
            **{f"train/masks/{name}.png": _mask(0, 1) for name in "ab"},
            "train/masks/z.png": _mask(0, 2),
            "val/images/a.jpg": plain_jpeg(),
            "val/masks/a.png": _mask(0, 2),
            **jpegs("test/a.jpg", "preview.jpg"),
        },
        f"{_MASKS} --set rejects.max_ratio=1",
        {
            "train": {f"train/images/{name}.jpg": _map(of_0=384, of_1=384) for name in "ab"},
            "val": {"val/images/a.jpg": _map(of_0=384, of_2=384)},
        },
        rejects={"train/masks/z.png": "missing_image"},
        excluded={"unannotated": 3},
    ),
    OddSample(
        "masks: colours of a table, also in a palette; one that it does not name",
        {
            **{f"train/{name}.jpg": plain_jpeg() for name in "abcd"},
            "train_labels/a_L.png": _colour_mask(_CAT, _DOG),
            "train_labels/b_L.png": _colour_mask(_DOG, _CAT, colours_of_palette=4),
            "train_labels/c_L.png": _colour_mask(_CAT, (1, 2, 3)),
            "train_labels/d_L.png": _colour_mask(_CAT, _LINE),
            "class_dict.csv": '\ufeffname,r,g,b\n"cat, tabby",64,128,0\ndog,0,0,128\n'
            "ignored,224,224,192\n",
        },
        f"{_MASKS} --set rejects.max_ratio=0.5",
        {
            "train": {
                "train/a.jpg": _map(of_0=384, of_1=384),
                "train/b.jpg": _map(of_0=384, of_1=384),
                "train/d.jpg": _map(of_0=384, of_255=384),
            }
        },
        rejects={"train/c.jpg": "mask_value_unknown"},
        details={"train/c.jpg": "the colour #010203 of 384 pixels is not among those"},
    ),
    OddSample(
        "masks: Cityscapes",
        {
            f"{top}/{split}/bonn/bonn_1_{name}": content
            for split, value in (("train", 7), ("val", 24))
            for top, name, content in (
                ("leftImg8bit", "leftImg8bit.jpg", plain_jpeg()),
                ("gtFine", "gtFine_labelIds.png", _mask(value, 0)),
                ("gtFine", "gtFine_instanceIds.png", _mask(1, 2)),
                ("gtFine", "gtFine_color.png", _colour_mask(_CAT, _DOG)),
                ("gtFine", "gtFine_polygons.json", "{}"),
            )
        },
        f"{_MASKS} --set 'source.mask_classes={{7: road, 24: person}}'",
        {
            "train": {
                "leftImg8bit/train/bonn/bonn_1_leftImg8bit.jpg": _map(of_0=384, of_7=384),
            },
            "val": {"leftImg8bit/val/bonn/bonn_1_leftImg8bit.jpg": _map(of_0=384, of_24=384)},
        },
        excluded={"not_an_image_name": 2},
    ),
    OddSample(
        "masks: Pascal VOC without XML, in a zip",
        {
            "voc.zip": zip_bytes(
                {
                    "d/JPEGImages/a.jpg": plain_jpeg(),
                    "d/SegmentationClass/a.png": _colour_mask(
                        (0, 0, 0), (128, 0, 0), (0, 128, 0), (224, 224, 192)
                    ),
                    "d/SegmentationObject/a.png": _mask(1, 2),
                }
            )
        },
        "masks --images {data}/voc.zip --set 'source.mask_classes={1: lion, 2: zebra}'",
        {"train": {"d/JPEGImages/a.jpg": _map(of_0=192, of_1=192, of_2=192, of_255=192)}},
    ),
    OddSample(
        "masks: two folders, two masks of an image, masks of other sizes and as JPEGs",
        {
            **{f"photos/{name}.jpg": plain_jpeg() for name in "abcde"},
            "photos/drawn/d.png": _mask(0, 255),
            "photos/drawn/masks/e.png": _mask(0, 255),
            "photos/drawn/e_mask.png": _mask(0, 255),
            "photos/drawn/a_mask.png": _mask(0, 255),
            "photos/drawn/b_mask.png": save(Image.new("L", (5, 5)), "PNG"),
            "photos/drawn/c_mask.png": save(Image.new("L", (32, 24)), "JPEG"),
            "photos/drawn/id2label.json": '{"0": "background", "1": "crack"}',
        },
        "masks --images {data}/photos --semantic-masks {data}/photos/drawn "
        "--set rejects.max_ratio=1",
        {"train": {f"{name}.jpg": _map(of_0=384, of_1=384) for name in "ad"}},
        rejects={
            "b.jpg": "mask_mismatch",
            "c.jpg": "mask_unreadable",
            "e.jpg": "ambiguous_stem",
        },
        details={
            "c.jpg": "a JPEG, whose pixels are not exactly those that were saved",
            "e.jpg": "several masks fit it: e_mask.png, masks/e.png",
        },
    ),
    OddSample(
        "images: folders of splits",
        {
            **jpegs("train/x/a.jpg", "train/b.jpg", "test/a.jpg"),
            "notes.txt": "",
        },
        "images --images {data}",
        {"train": {"train/x/a.jpg": {}, "train/b.jpg": {}}, "test": {"test/a.jpg": {}}},
        excluded={"not_an_image_name": 1},
        unannotated=3,
    ),
)

ODD_SAMPLES = (*VOC, *YOLO, *CVAT, *LABELME, *OTHERS, *TABLES, *MASKS)

BAD_INPUTS = (
    *(
        BadInput(
            f"masks: {name}",
            _with_mask(files),
            f"masks --images {{data}}{words}",
            1 if message.startswith("{data}") else 2,
            message,
        )
        for name, files, words, message in (
            (
                "none",
                {"masks/b.png": _mask(0, 1)},
                " --semantic-masks {data}/images",
                "{data}/images: no mask is named like an image",
            ),
            (
                "none that can be read",
                {"masks/a.png": save(Image.new("L", (32, 24)), "JPEG")},
                "",
                "{data}: none of the first masks can be read: masks/a.png: a JPEG, whose pixels",
            ),
            (
                "colours without a table",
                {"masks/a.png": _colour_mask(_CAT, _DOG)},
                "",
                "{data}: none of the first masks can be read: masks/a.png: its pixels are colours, "
                "not class ids; expected one channel, or a palette; to read colours, name them in",
            ),
            (
                "several folders",
                {"labels/a.png": _mask(0, 1)},
                "",
                "semantic_masks: most images have several masks, such as labels/a.png and "
                "masks/a.png: name the folder of those that count",
            ),
            (
                "two files of classes",
                {"id2label.json": '{"1": "a"}', "class_dict.csv": "name,r,g,b\nb,1,2,3\n"},
                "",
                "mask_classes: missing: class_dict.csv and id2label.json do not name the same",
            ),
            (
                "folders of splits and others",
                {
                    f"{top}/{kind}/x.png": _mask(0, 1)
                    for top in ("train", "val", "more")
                    for kind in ("images", "masks")
                },
                "",
                "images: {data} holds annotated images in folders named like splits (train, val)",
            ),
        )
    ),
    *(
        BadInput(
            f"masks: classes: {content[:30]!r}",
            _with_mask({name: content}),
            "masks --images {data}",
            1,
            f"{{data}}/{name}: {problem}",
        )
        for name, content, problem in (
            ("class_dict.csv", "id,class\n1,a\n", "line 1: expected a header `name,r,g,b`"),
            ("class_dict.csv", "name,r,g,b\na,1,2\n", "line 2: expected numbers, got"),
            ("class_dict.csv", "name,r,g,b\na,1,2,999\n", "line 2: expected numbers, got"),
            ("class_dict.csv", "name,r,g,b\na,1,2,3\nb,1,2,3\n", "line 3: another class"),
            ("class_dict.csv", "name,r,g,b\na,1,2,3\na,1,2,4\n", "line 3: the class 'a'"),
            ("class_dict.csv", "", "line 1: expected a header"),
            ("class_dict.csv", 'name,r,g,b\n"a,1,2,3\n', "line 2: a quote does not end"),
            (
                "_classes.csv",
                "Pixel Value, Class\n300, a\n",
                "line 2: expected an id from 0",
            ),
            ("_classes.csv", "Pixel Value, Class\n-1, a\n", "line 2: expected numbers"),
            ("id2label.json", '{"1": "a", "1": "b"}', "$.1: the key is there twice"),
            ("id2label.json", '{"1": 2}', "$[...]: expected 'str', got 'int'"),
            ("id2label.json", '{"1": ', "line 1, column 7: the JSON ends in"),
            ("labelmap.txt", "a:1,2:\n", "line 1: expected numbers"),
            ("label_colors.txt", "1 2 3\n", "line 1: the class '' has no name"),
            ("labelmap.txt", "# nothing\n", "the file names no classes"),
        )
    ),
    *(
        BadInput(
            f"cvat: {name}",
            {"images/a.jpg": plain_jpeg(), "cvat.xml": content},
            "cvat --images {data}/images --annotations {data}/cvat.xml",
            1,
            f"{{data}}/cvat.xml: {message}",
        )
        for name, content, message in (
            (
                "a video of keyframes alone",
                '<annotations><track label="a">'
                + "".join(f'<box frame="{frame}" keyframe="1"/>' for frame in (0, 9))
                + "</track></annotations>",
                "only keyframes are listed (2, with 1 gaps between them), and nothing is computed "
                "here: export the task as `CVAT for images 1.1`",
            ),
            ("entities", _entity_bomb(), "line 1: entities (<!ENTITY ...>, &name;) are not read"),
            ("another root", "<annotation/>", "line 1: expected <annotations>, found <annotation>"),
            ("broken", "<annotations>\n<image>", "line 2, column 8: the XML is broken: no element"),
            ("empty", "", "the file is empty"),
            (
                "no image",
                "<annotations/>",
                "no <image> and no <track> found; expected CVAT for images 1.1",
            ),
            (
                "a subset that is no name",
                "<annotations><meta><task><subset>my set</subset></task></meta>"
                '<image name="a.jpg"/></annotations>',
                "subset: 'my set' cannot be a split",
            ),
        )
    ),
    BadInput(
        "voc: splits of the lists and of the config",
        small_voc(),
        "voc --root {data} --splits val --split x",
        2,
        "the config names the splits already, with splits",
    ),
    BadInput(
        "voc: an unknown list",
        small_voc(),
        "voc --root {data} --splits vla",
        1,
        "no list ImageSets/Main/vla.txt; did you mean 'val'?",
    ),
    BadInput(
        "yolo: a split that is not there",
        _ONLY_TRAIN,
        "yolo --root {data}",
        1,
        "{data}/data.yaml: test: '../test/images' is not there: tried test/images below the root",
    ),
    BadInput(
        "webdataset: a damaged tar",
        {"0.tar": tar_bytes({"1.jpg": b"1" * 5000})[:3000]},
        "webdataset --tars {data}",
        1,
        "{data}/0.tar: byte 0: the tar is truncated",
    ),
    *(
        BadInput(
            f"{name}: rows that name images",
            _IMAGE_ROWS,
            f"{name} --manifest {{data}}/m.{name}",
            1,
            f"{{data}}/m.{name}: the rows name images (column {column}): set image_root to their "
            "folder (--image-root), or no_images (--no-images) to write the rows alone",
        )
        for name, column in (
            ("csv", "'filename', such as 'a.jpg'"),
            ("jsonl", "'path', such as 'x/a.jpg'"),
        )
    ),
    BadInput(
        "csv: rows with images and without",
        _IMAGE_ROWS,
        "csv --manifest {data}/m.csv --image-root {data}/images --no-images",
        2,
        "not together with image_root; take one of them out",
    ),
    BadInput(
        "image-folder: splits that hold images",
        {"train/cat/1.jpg": plain_jpeg(), "test/1.jpg": plain_jpeg()},
        "image-folder --images {data}",
        1,
        "{data}: the top folders are splits, not classes, and images lie directly in test/: "
        "expected <split>/<class>/<image>",
    ),
    *(
        BadInput(
            f"{words.partition(' ')[0]}: folders of splits and others",
            {
                f"{folder}/1.{extension}": content
                for folder in ("test/cat", "train/cat", "cat/old", "dog", "empty/empty")
                for extension, content in (
                    ("jpg", b"" if "empty" in folder else plain_jpeg()),
                    ("json", _labelme(path="1.jpg")),
                )
                if (folder, extension) != ("empty/empty", "jpg")
            },
            words,
            2,
            message,
        )
        for words, message in (
            (
                "image-folder --images {data}",
                "config: splits.train.split_folders: {data} holds images in folders named like "
                "splits (train, test) and in others (cat, dog): --split-folders (split_folders: "
                "true) makes each of them a split, --no-split-folders (split_folders: false) makes "
                "none of them a split",
            ),
            (
                "labelme --root {data}",
                "config: source.root: {data} holds annotated images in folders named like splits "
                "(train, test) and in others (cat, dog): --split NAME puts all of them into one "
                "split, and `splits` of a config names a folder for each",
            ),
        )
    ),
    BadInput(
        "voc: lists of the same images",
        {
            **small_voc(),
            "README.md": "",
            "ImageSets/Main/train.txt": "a\nb\n",
            "ImageSets/Main/val.txt": "a\nb\n",
        },
        "voc --root {data}",
        1,
        "split 'val': has no examples: all inputs were rejected, 2 duplicate_key; the first: "
        "JPEGImages/a.jpg (duplicate_key: it is in split 'train' already, and in 'val' as well)",
    ),
    BadInput(
        "image-folder: no folders of splits",
        {"1.jpg": plain_jpeg()},
        "image-folder --images {data} --split-folders",
        1,
        "{data}: split_folders: there are no folders",
    ),
    BadInput(
        "webdataset: a folder without tars",
        {"a/1.jpg": plain_jpeg()},
        "webdataset --tars {data}",
        1,
        "{data}: no .tar file found, it holds 'a/1.jpg'; for images in folders there are",
    ),
    BadInput(
        "filename-label: a pattern that cannot work",
        {"a.jpg": b""},
        "filename-label --images {data} --pattern '('",
        2,
        "pattern: expected a regular expression",
    ),
)
