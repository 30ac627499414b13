"""`shardbeam init` recognizes datasets, and the configs that it writes can be built."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.yaml_text import parse_yaml
from shardbeam.pipelines.config_file import load_config
from tests.support.archive_files import Files, write_files
from tests.support.builds import write_coco
from tests.support.dataset import run
from tests.support.format_samples import SAMPLES, FormatSample, SharedData
from tests.support.image_makers import plain_jpeg
from tests.support.voc_files import small_voc, voc_object, voc_xml

JPEG = plain_jpeg()
VOC = {**small_voc(), "Annotations/a.xml": voc_xml(voc_object(ymin=2), size=(32, 24))}

# Samples whose folder alone does not show what the table of samples says about them:
# {sample: what is recognized, and the examples}.
OTHERWISE = {
    # No name says where the labels are in the names.
    "filename-label": ("image-folder", {"train": 7}),
    # The images of a split without rows are not read.
    "open-images": ("open-images", {"train": 2, "test": 1}),
}


def init(folder: Path, *words: str) -> tuple[str, str]:
    """Runs the command; returns the config, and what it says."""
    result = run("init", str(folder), *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout, result.stderr


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_every_sample_is_recognized_and_its_config_builds(
    sample: FormatSample, tmp_path: Path, find_shared_data: SharedData
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    if sample.name == "csv":
        # Two tables name the same images.
        result = run("init", str(data))
        assert result.exit_code == 1
        assert f"{data}/ann.csv and {data}/ann_wo_ext.csv both name images" in result.stderr
        shutil.copytree(data, data := tmp_path / "one", ignore=lambda *_: {"ann_wo_ext.csv"})
    name, counts = OTHERWISE.get(sample.name, (sample.format_name, sample.counts))
    path = str(tmp_path / "d.yaml")

    _, told = init(data, "--output", path)

    assert told.startswith(f"{name}: ")
    planned = run("plan", path, "--set", f"output.path={tmp_path}/out", "--json")
    assert planned.exit_code == 0, planned.stderr
    splits = json.loads(planned.stdout)["splits"]
    assert {split: each["examples"] for split, each in splits.items() if split} == counts
    assert f"splits {', '.join(counts)}" in told or f"split {', '.join(counts)}" in told


def coco(*names: str, **more: object) -> str:
    """A COCO file of images, with a box in each."""
    return json.dumps(
        {
            "images": [
                {"id": number, "file_name": name, "width": 32, "height": 24}
                for number, name in enumerate(names, 1)
            ],
            "annotations": [
                {"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 9, 9]}
                for number in range(1, len(names) + 1)
            ],
            "categories": [{"id": 1, "name": "cat"}],
            **more,
        }
    )


def images(*names: str) -> Files:
    return dict.fromkeys(names, JPEG)


def zipped(files: Files) -> bytes:
    """A zip of files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize(
    ("files", "told", "config"),
    [
        (
            {
                **images("train2017/1.jpg", "val2017/1.jpg"),
                "annotations/instances_train2017.json": coco("1.jpg"),
                "annotations/captions_train2017.json": coco(
                    "1.jpg", annotations=[{"id": 1, "image_id": 1, "caption": "a cat"}]
                ),
                "annotations/instances_val2017.json": coco("1.jpg"),
            },
            "coco: 3 annotation files, 2 images; splits train, val",
            {
                "splits": {
                    "train": {
                        "format": "coco",
                        "images": "d/train2017",
                        "annotations": [
                            "d/annotations/captions_train2017.json",
                            "d/annotations/instances_train2017.json",
                        ],
                    },
                    "val": {
                        "format": "coco",
                        "images": "d/val2017",
                        "annotations": ["d/annotations/instances_val2017.json"],
                    },
                }
            },
        ),
        (
            # Roboflow's.
            {
                **images("train/a.jpg", "valid/b.jpg"),
                "train/_annotations.coco.json": coco("a.jpg"),
                "valid/_annotations.coco.json": coco("b.jpg"),
                "README.txt": "x",
            },
            "coco: 2 annotation files, 2 images; splits train, valid",
            {
                "splits": {
                    split: {
                        "format": "coco",
                        "images": f"d/{split}",
                        "annotations": [f"d/{split}/_annotations.coco.json"],
                    }
                    for split in ("train", "valid")
                }
            },
        ),
        (
            # Names that were given elsewhere; a picture that no annotation names.
            {
                **images("pictures/a.jpg", "other.png"),
                "a.json": coco("C:\\data\\A.JPEG"),
            },
            "coco: 1 annotation file, 1 image; split train\n"
            "not read: 1 other image file, such as other.png",
            {
                "source": {
                    "format": "coco",
                    "images": "d/pictures",
                    "match": "name",
                    "annotations": ["d/a.json"],
                }
            },
        ),
        (
            {f"voc/{path}": data for path, data in VOC.items()},
            "voc: 2 XML files, 2 images; splits train, val",
            {"source": {"format": "voc", "root": "d/voc"}},
        ),
        (
            # Without lists, as Roboflow exports it.
            {
                **images("train/a.jpg", "test/b.jpg"),
                "train/a.xml": voc_xml(voc_object(ymin=2)),
                "test/b.xml": voc_xml(voc_object(ymin=2)),
            },
            "voc: 2 XML files, 2 images; splits test, train",
            {
                "splits": {
                    split: {"format": "voc", "root": f"d/{split}"} for split in ("test", "train")
                }
            },
        ),
        (
            {
                **images("x/images/train/a.jpg", "x/images/val/b.jpg"),
                "x/labels/train/a.txt": "0 0.5 0.5 0.1 0.1\n",
                "x/labels/val/b.txt": "",
                "x/data.yaml": "{train: images/train, val: images/val, names: [cat]}",
            },
            "yolo: 1 file of labels, 2 images; splits train, val",
            {"source": {"format": "yolo", "root": "d/x"}},
        ),
        (
            {**images("cat/1.jpg", "dog/2.jpg"), "LICENSE": "free"},
            "image-folder: 2 folders of classes, 2 images; split train",
            {"source": {"format": "image-folder", "images": "d"}},
        ),
        (
            {**images("Train/cat/1.jpg", "Train/dog/2.jpg", "Val/cat/3.jpg")},
            "image-folder: 2 folders of classes, 3 images; splits Train, Val",
            {"source": {"format": "image-folder", "images": "d"}},
        ),
        (
            {
                **images("img/a.jpg", "img/b.jpg"),
                "rows.csv": "image,label,split\na.jpg,cat,train\nb.jpg,dog,test\n",
            },
            "csv: 1 table, 2 images; splits train, test",
            {"source": {"format": "csv", "manifest": ["d/rows.csv"], "image_root": ["d/img"]}},
        ),
        (
            {
                **images("a/1.jpg", "b/2.jpg"),
                "rows.jsonl": '{"image": "/data/1.jpg", "label": "cat"}\n',
            },
            "jsonl: 1 table, 1 image; split train\nnot read: 1 other image file, such as b/2.jpg",
            {
                "source": {
                    "format": "jsonl",
                    "manifest": ["d/rows.jsonl"],
                    "image_root": ["d/a"],
                    "match": "name",
                }
            },
        ),
        (
            # Kaggle's.
            {**images("train/1.jpg", "train/2.jpg"), "train.csv": "id,label\n1,cat\n2,dog\n"},
            "csv: 1 table, 2 images; split train",
            {
                "splits": {
                    "train": {
                        "format": "csv",
                        "manifest": ["d/train.csv"],
                        "image_root": ["d/train"],
                        "image_column": "id",
                    }
                }
            },
        ),
        (
            {**images("img/a.jpg", "img/b.jpg"), "rows.csv": "image;label\na.jpg;cat\nb.jpg;dog\n"},
            "csv: 1 table, 2 images; split train",
            {
                "source": {
                    "format": "csv",
                    "manifest": ["d/rows.csv"],
                    "image_root": ["d/img"],
                    "delimiter": ";",
                }
            },
        ),
        (
            # A column of any name, and an example of the table to hand in.
            {
                **images("train/1.jpg", "train/2.jpg", "test/3.jpg"),
                "train.csv": "n,what,label\n10,1,cat\n11,2,dog\n",
                "sample_submission.csv": "id,label\n3,cat\n",
            },
            "csv: 1 table, 2 images; split train\n"
            "not read: 1 other image file, such as test/3.jpg\n"
            "not read: sample_submission.csv, whose labels are examples",
            {
                "splits": {
                    "train": {
                        "format": "csv",
                        "manifest": ["d/train.csv"],
                        "image_root": ["d/train"],
                        "image_column": "what",
                    }
                }
            },
        ),
        (
            {
                **images("1.jpg", "2.jpg", "3.jpg"),
                "a.csv": "image,label\n1.jpg,apple\n2.jpg,plum\n3.jpg,apple|plum\n",
            },
            "csv: 1 table, 3 images; split train",
            {
                "source": {
                    "format": "csv",
                    "manifest": ["d/a.csv"],
                    "image_root": ["d"],
                    "label_separator": "|",
                }
            },
        ),
        (
            {**images("1.jpg", "2.jpg"), "a.csv": "image,cat,dog,cow\n1.jpg,1,0,0\n2.jpg,0,1,1\n"},
            "csv: 1 table, 2 images; split train",
            {
                "source": {
                    "format": "csv",
                    "manifest": ["d/a.csv"],
                    "image_root": ["d"],
                    "one_hot": True,
                }
            },
        ),
        (
            {**images("1.jpg", "2.jpg"), "a.csv": "image,cat,dog,n\n1.jpg,1,0,7\n2.jpg,0,1,8\n"},
            "csv: 1 table, 2 images; split train\n"
            "a.csv: no column was recognized as classes or boxes; these are written as features of "
            "images: cat, dog, n; if there are classes, name their column in label_column "
            "(box_columns for boxes, caption_column for captions); if there are none, give these "
            "columns types in `columns`; cat, dog hold only 0 and 1: if each is a class, set "
            "one_hot",
            {"source": {"format": "csv", "manifest": ["d/a.csv"], "image_root": ["d"]}},
        ),
        (
            # Flickr8k's.
            {
                **images("Images/1.jpg", "Images/2.jpg"),
                "captions.txt": "image,caption\n1.jpg,A cat, a dog .\n1.jpg,Pets .\n2.jpg,A .\n",
            },
            "csv: 1 table, 2 images; split train",
            {
                "source": {
                    "format": "csv",
                    "manifest": ["d/captions.txt"],
                    "image_root": ["d/Images"],
                }
            },
        ),
        # Captions under a name that means other things elsewhere.
        (
            {
                **images("1.jpg", "2.jpg"),
                "metadata.jsonl": '{"file_name": "1.jpg", "text": "a photo of a cat"}\n'
                '{"file_name": "2.jpg", "text": "a cat on a mat"}\n',
            },
            "jsonl: 1 table, 2 images; split train",
            {
                "source": {
                    "format": "jsonl",
                    "manifest": ["d/metadata.jsonl"],
                    "image_root": ["d"],
                    "caption_column": "text",
                }
            },
        ),
        (
            {
                "pics/a.jpg": JPEG,
                "boxes/a.xml": voc_xml(voc_object(ymin=2), size=(32, 24)),
            },
            "voc: 1 XML file, 1 image; split train",
            {"source": {"format": "voc", "root": "d", "match": "name"}},
        ),
        (
            {
                **images("train/images/a.jpg", "valid/images/b.jpg"),
                **dict.fromkeys(
                    ("train/labels/a.xml", "valid/labels/b.xml"),
                    voc_xml(voc_object(ymin=2), size=(32, 24)),
                ),
            },
            "voc: 2 XML files, 2 images; splits train, valid",
            {
                "splits": {
                    split: {"format": "voc", "root": f"d/{split}"} for split in ("train", "valid")
                }
            },
        ),
        (
            {
                **images("1.jpg", "2.jpg"),
                "token.txt": "1.jpg#0\tA cat, with a dog .\n2.jpg#0\tA cow on a meadow .\n",
            },
            "csv: 1 table, 2 images; split train",
            {
                "source": {
                    "format": "csv",
                    "manifest": ["d/token.txt"],
                    "image_root": ["d"],
                    "delimiter": "\\t",
                    "header": ["image", "caption"],
                    "caption_column": "caption",
                }
            },
        ),
        (
            {**images("images/1.jpg", "images/2.jpg"), "a.txt": "1 dog\n2 cat\n"},
            "csv: 1 table, 2 images; split train",
            {
                "source": {
                    "format": "csv",
                    "manifest": ["d/a.txt"],
                    "image_root": ["d/images"],
                    "delimiter": " ",
                    "header": ["image", "label"],
                }
            },
        ),
        (
            {
                "train2017.zip": zipped(images("train2017/1.jpg")),
                "annotations/instances_train2017.json": coco("1.jpg"),
            },
            "coco: 1 annotation file, 1 image; split train",
            {
                "splits": {
                    "train": {
                        "format": "coco",
                        "images": "d/train2017.zip/train2017",
                        "annotations": ["d/annotations/instances_train2017.json"],
                    }
                }
            },
        ),
        (
            {"voc.zip": zipped({f"x/{path}": data for path, data in VOC.items()})},
            "voc: 2 XML files, 2 images; splits train, val",
            {"source": {"format": "voc", "root": "d/voc.zip/x"}},
        ),
        (
            {
                "train.zip": zipped(images("cat/1.jpg", "dog/2.jpg")),
                "val.zip": zipped(images("val/cat/3.jpg", "val/dog/4.jpg")),
            },
            "image-folder: 2 zips with 2 folders of classes, 4 images; splits train, val",
            {
                "splits": {
                    "train": {"format": "image-folder", "images": "d/train.zip"},
                    "val": {"format": "image-folder", "images": "d/val.zip/val"},
                }
            },
        ),
        (
            {
                "data_part1.zip": zipped(images("cat/1.jpg")),
                "data_part2.zip": zipped(images("dog/2.jpg")),
            },
            "image-folder: 2 zips with 2 folders of classes, 2 images; split train",
            {"source": {"format": "image-folder", "images": "d/data_part*.zip"}},
        ),
        (
            {
                "img1.zip": zipped(images("x/1.jpg")),
                "img2.zip": zipped(images("x/2.jpg")),
                "more.zip": zipped({"notes.txt": "x"}),
                "a.json": coco("1.jpg", "2.jpg"),
            },
            "coco: 1 annotation file, 2 images; split train",
            {
                "source": {
                    "format": "coco",
                    "images": "d/img*.zip/x",
                    "annotations": ["d/a.json"],
                }
            },
        ),
        (
            {
                **images("1.jpg", "2.jpg"),
                "a.csv": "image,label\n1.jpg,cat\n2.jpg,dog\n",
                "b.csv": "image,label\n2.jpg,x\n1.jpg,y\n",
            },
            "csv: 1 table, 2 images; split train\nd/a.csv and d/b.csv are about the same images, "
            "and the first is read; to read the other one instead: manifest: [d/b.csv]",
            {"source": {"format": "csv", "manifest": ["d/a.csv"], "image_root": ["d"]}},
        ),
    ],
)
def test_layouts(
    files: Files, told: str, config: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "d", files)
    text, said = init(Path("d"))
    assert said == f"{told}\n"
    assert isinstance(config, dict)
    # Images of class folders are never without annotations.
    unannotated = {} if said.startswith("image-folder") else {"unannotated": "auto"}
    assert yaml.safe_load(text) == {
        "name": "d",
        "version": "1.0.0",
        **config,
        "output": {"path": "tfrecords/d"},
        **unannotated,
    }
    comment = "writes" if said.startswith("yolo") else "leaves out"
    assert bool(unannotated) == (f"\nunannotated: auto  # {comment} images that no" in text)


_CSV = "it holds 1 .csv, 1 .jpg; a.csv: "
_JSON = "it holds 1 .jpg, 1 .json; a.json: "
_JSONL = "it holds 1 .jpg, 1 .jsonl; a.jsonl: "


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({}, "", "d: the folder is empty; is this the dataset's folder?"),
        (
            {"a.jpg": JPEG, "b.JPG": JPEG, "notes": "x"},
            "",
            "d: no dataset is recognized here; it holds 2 .jpg, 1 without extension; init knows no "
            "format of notes, and the images lie directly in it: if they have ",
        ),
        (
            {**images("a.jpg"), "a.json": coco("a.jpg"), "a.xml": voc_xml(voc_object(ymin=2))},
            "",
            "d: several formats fit; choose one with --format, or name a folder inside: "
            "coco (1 annotation file); voc (1 XML file)",
        ),
        ({**images("a.jpg"), "a.json": coco("a.jpg")}, "--format voc", "d: no voc dataset is"),
        ({"a.jpg": JPEG}, "--format cocoo", "unknown format 'cocoo': expected "),
        (
            {"a.json": coco("a.jpg")},
            "",
            "d: it looks like coco (1 annotation file), but none of the images that a.json names "
            "is there: 'a.jpg'; to write the config yourself",
        ),
        (
            {**images("a.jpg", "b.jpg"), "a.json": coco("a.jpg"), "b.json": coco("b.jpg")},
            "",
            "d: it looks like coco (2 annotation files), but a.json and b.json both hold "
            "detection;",
        ),
        (
            {**images("a/1.jpg", "b/2.jpg"), "a/x.json": "{}"},
            "",
            "d: it looks like image-folder (2 folders of classes), but a/x.json may say more than",
        ),
        # A few images outside of the folders of classes do not hide what else is there.
        (
            {
                **images("stray.jpg", *(f"{name}/{i}.jpg" for name in "ab" for i in range(5))),
                "a/x.json": "{}",
            },
            "",
            "d: it looks like image-folder (2 folders of classes), but a/x.json may say more than",
        ),
        (
            {**images("train/1.jpg", "val/2.jpg")},
            "",
            "d: no dataset is recognized here; it holds 2 .jpg; there are only images, and "
            "the images lie directly in train/, val/: if they have classes",
        ),
        # The problem and the fix.
        (
            images("a/1.jpg", "b/2.jpg", "cover.jpg", "e.jpg"),
            "",
            "d: it looks like image-folder (2 folders of classes), but 2 images lie outside of "
            "these, such as cover.jpg: move each image into the folder of its class, or elsewhere",
        ),
        (
            images("x/flowers/a/1.jpg", "x/flowers/b/2.jpg"),
            "",
            "d: it looks like image-folder (2 folders of images), but all are in x/flowers: "
            "`shardbeam init d/x/flowers` looks there; ",
        ),
        (
            {f"{name}.zip": zipped(images("x/images/1.jpg")) for name in "ab"},
            "",
            "d: no dataset is recognized here; it holds 2 .zip with 2 .jpg; the images are in 2 "
            "zips: `shardbeam init d/a.zip` looks into one",
        ),
        (
            {"a.zip": zipped(images("a/1.jpg", "b/2.jpg"))},
            "",
            "d: it looks like image-folder (2 folders of images), but all are in a.zip: `shardbeam "
            "init d/a.zip` looks there; ",
        ),
        (
            {**images("img/1.jpg"), "a.csv": "id,breed\n1,pug\n"},
            "",
            "d: no dataset is recognized here; it holds 1 .csv, 1 .jpg; the columns of a.csv are "
            "not known, or name other images: id,breed; say what they are: `shardbeam build csv "
            "--manifest d/a.csv --image-root d/img --image-column id --label-column breed --output "
            "tfrecords`",
        ),
        (
            # The table whose values are listed files.
            {
                **images("train/1.jpg", "test/2.jpg"),
                "a_sample_submission.csv": "id,pug,collie\n2,0.5,0.5\n",
                "b.csv": "name,n\npug,7\n",
                "labels.csv": "id,breed\n/x/1.jpg,pug\n",
            },
            "",
            "d: no dataset is recognized here; it holds 3 .csv, 2 .jpg; the columns of labels.csv "
            "are not known, or name other images: id,breed; say what they are: `shardbeam build "
            "csv --manifest d/labels.csv --image-root d/train --image-column id --label-column "
            "breed --match name --output tfrecords`",
        ),
        (
            {**images("img/1.jpg"), "a.csv": "id breed age\n1 pug 3\n"},
            "",
            "d: no dataset is recognized here; it holds 1 .csv, 1 .jpg; the columns of a.csv are "
            "not known, or name other images: id breed age; say what they are: `shardbeam build "
            "csv --manifest d/a.csv --image-root d/img --image-column id --label-column NAME "
            "--delimiter ' ' --output tfrecords`",
        ),
        (
            {
                **images("1.jpg"),
                "a.csv": "image,label,x,y,width,height\n1.jpg,cat,1,2,3,4\n",
                "b.csv": "x,y\n1,2\n",
            },
            "",
            "d: it looks like csv (2 tables), but d/a.csv: the columns x, y, width, height look "
            "like boxes: set box_format to xywh if ",
        ),
        # Why a table cannot be read.
        *(
            (
                {**images("a.jpg"), "t.csv": content},
                "",
                f"d: no dataset is recognized here; it holds 1 .jpg, 1 .csv; t.csv: {problem}",
            )
            for content, problem in (
                ("image,label\ra.jpg,cat\r", "no header: a CR without LF is in the line; if li"),
                ("image,label,label\na.jpg,x,y\n", "the column 'label' occurs twice; is the hea"),
            )
        ),
        # The command only lacks what is not certain.
        (
            {
                **images("img/1.jpg"),
                "a.csv": 'image_id;label;bbox\n1;cat;"[1, 2, 3, 4]"\n',
                "sample_submission.csv": "image_id,label\n",
            },
            "",
            "d: it looks like csv (1 table), but d/a.csv: the cells of the column bbox look like "
            "boxes, such as [1.0, 2.0, 3.0, 4.0]: set box_format to xyxy if they are two corners, "
            "xywh for the top left corner and the sides, cxcywh for the centre and the sides; to "
            "write them as features, give them types in `columns`; add that to this command: "
            "`shardbeam build csv --manifest d/a.csv --image-root d/img --delimiter ';' --output "
            "tfrecords/d`\n",
        ),
        (
            {**images("1.jpg"), "a.csv": "image,w,h,x,y\n1.jpg,1,2,3,4\n"},
            "",
            "d: it looks like csv (1 table), but d/a.csv: the rows have boxes, and no column has a "
            "usual name for labels; set label_column to one of image, w, h, x, y",
        ),
        # What the files are, and the fix.
        *(
            ({**images("a.jpg"), name: text}, "", f"d: no dataset is recognized here; {said}")
            for name, text, said in (
                (
                    "a.csv",
                    "sep=,\nimage,label\na.jpg,x\n",
                    _CSV + "the first line, 'sep=,', is a hint",
                ),
                ("a.csv", "image,label\nmy%20b.jpg,x\n", _CSV + "'my%20b.jpg': %20 stands for ' '"),
                (
                    "a.csv",
                    "image,label\nhttps://x/b.jpg,x\n",
                    _CSV + "'https://x/b.jpg': that is a U",
                ),
                ("a.jsonl", '{"image": "a.jpg", "x": NaN}\n', _JSONL + "line 1: NaN is no JSON"),
                ("a.jsonl", '{"image": "data:image/png;base64,?"}', _JSONL + "'data:image/png"),
                ("a.json", '[{"image_id": 1, "score": 0.5}]', _JSON + "a list of results, without"),
                (
                    "a.json",
                    '{"objects": [{"geometryType": "bitmap", "classTitle": "x"}]}',
                    _JSON[:-2] + " is a file of Supervisely, which is not read: export as COCO",
                ),
            )
        ),
        (
            {"a.tar": b"\0" * 100},
            "",
            "d: no dataset is recognized here; it holds 1 .tar; name an archive of images "
            "itself: shardbeam init d/a.tar",
        ),
        (
            {"a.tgz": b"x"},
            "",
            "d: no dataset is recognized here; it holds 1 .tgz; init does not "
            "look into a.tgz; unpack it if",
        ),
        ({"a.txt": b"x"}, "", "d: no dataset is recognized here; it holds 1 .txt; there are no im"),
        (
            {"a.zip": zipped({"train/b.tfrecord": "x"})},
            "",
            "d: no dataset is recognized here; it holds 1 .zip with 1 .tfrecord; TFRecord files in "
            "an archive, such as a.zip/train/b.tfrecord, are not read: unpack it",
        ),
        (
            {"a/b.parquet": b"x"},
            "",
            "d: no dataset is recognized here; it holds 1 .parquet; images in rows, as in "
            "a/b.parquet, are not read: save each as a file (docs/guide/from-your-tool.md)",
        ),
        (
            {
                **images("a.jpg"),
                "a.json": '[{"data": {}, "annotations": [{"result": [{"from_name": "label"}]}]}]',
            },
            "",
            "d: no dataset is recognized here; it holds 1 .jpg, 1 .json; a.json is a file of Label "
            "Studio, which is not read: export as COCO, YOLO or Pascal VOC instead (docs/guide",
        ),
        (
            {**images("a.jpg"), "labels/a.txt": "0 0.5 0.5 0.1 0.1\n"},
            "",
            "d: it looks like yolo (1 file of labels), but ",
        ),
        (
            {**images("a.jpg"), "a.xml": "<annotations><meta/><track id='1'/></annotations>"},
            "",
            "d: it looks like cvat (1 XML file), but a.xml is of CVAT for video; export it as",
        ),
        # A broken file is not recognized.
        ({**images("a.jpg"), "a.json": coco("a.jpg")[:30]}, "", "d: no dataset is recognized"),
        ({**images("a.jpg"), "a.json": '{"images": [1, [2]]}'}, "", "d: no dataset is recognized"),
        ({**images("a.jpg"), "a.json": b"{\xff\xfe\0"}, "", "d: no dataset is recognized here"),
        ({**images("a.jpg"), "a.csv": 'image,label\n"a.jpg', "b.csv": ""}, "", "d: no dataset is"),
        ({**images("a.jpg"), "a.tar": b"\0" * 100}, "", "d: no dataset is recognized here"),
    ],
)
def test_what_is_not_certain_is_said(
    files: Files, words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    write_files(tmp_path / "d", files)
    result = run("init", "d", *words.split())
    assert result.exit_code == (2 if "cocoo" in words else 1)
    assert result.stdout == ""
    assert result.stderr.startswith(f"shardbeam: error: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (
            {**images("a.jpg"), "a.json": coco("a.jpg"), "a.xml": voc_xml(voc_object(ymin=2))},
            "voc",
        ),
        ({**images("a/1.jpg", "b/2.jpg"), "a/x.json": "{}"}, "image-folder"),
    ],
)
def test_a_format_decides(files: Files, name: str, tmp_path: Path) -> None:
    write_files(tmp_path / "d", files)
    _, told = init(tmp_path / "d", "--format", name)
    assert told.startswith(f"{name}: ")


def test_sources_that_share_a_list_write_it_twice(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {}
    for split in ("train", "valid"):
        files[f"{split}/a.jpg"] = JPEG
        files[f"{split}/_annotations.csv"] = "a.jpg,1,2,3,4,cat\n"
    write_files(tmp_path / "d", files)
    text, _ = init(tmp_path / "d")
    assert text.count("header: [image, xmin, ymin, xmax, ymax, class]") == 2


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    write_files(tmp_path / "d", images("cat/1.jpg", "dog/1.jpg"))
    path = tmp_path / "d.yaml"
    path.write_text("mine")
    result = run("init", str(tmp_path / "d"), "--output", str(path))
    assert (result.exit_code, path.read_text()) == (2, "mine")
    assert result.stderr.endswith(f"{path}: exists already; --overwrite replaces it\n")
    text, told = init(tmp_path / "d", "--output", str(path), "--overwrite")
    assert text == ""
    assert told.endswith(f"wrote {path}; next: shardbeam plan {path}\n")
    assert load_config(path).name == "d"


def test_each_comment_is_a_key_that_may_be_set(tmp_path: Path) -> None:
    write_files(tmp_path / "d", {**images("a.jpg"), "a.json": coco("a.jpg")})
    text, _ = init(tmp_path / "d")
    comments = text.partition("# More keys")[2].splitlines()[1:]
    assert len(comments) == 5
    path = tmp_path / "d.yaml"
    for comment in comments:
        path.write_text(f"{text}{comment.removeprefix('# ')}\n")
        load_config(path)


@pytest.mark.parametrize(
    "name", ["a: #b", "'quoted\"", "- ü {x}", "no", "new\nline", "1.5", "[0..9]*", "x" * 200]
)
def test_strange_names(name: str, tmp_path: Path) -> None:
    root = tmp_path / name
    write_files(root, {f"{name}/{file}": JPEG for file in ("1.jpg", "2.jpg")})
    write_coco(root / f"{name}.json", json.loads(coco("1.jpg", "2.jpg")))
    path = tmp_path / "d.yaml"
    init(root, "--output", str(path))
    planned = run("plan", str(path), "--set", f"output.path={tmp_path}/out", "--json")
    assert planned.exit_code == 0, planned.stderr
    assert json.loads(planned.stdout)["splits"]["train"]["examples"] == 2


@given(text=st.text())
def test_texts_are_read_as_they_were_written(text: str) -> None:
    dumped = yaml.safe_dump({"key": [text]}, allow_unicode=True, default_flow_style=None)
    assert parse_yaml(dumped) == {"key": [text]}


def test_the_sample_that_the_command_draws(shapes: Path) -> None:
    _, told = init(shapes)
    assert told.startswith("coco: ")
    assert "; split train\nnot read: " in told


def test_masks_are_read_although_they_are_no_inputs(shared_data: Path) -> None:
    _, told = init(shared_data / "datumaro/coco_dataset/coco_panoptic")
    assert told == "coco: 2 annotation files, 2 images; splits train, val\n"
