"""`shardbeam init` recognizes datasets, and the configs that it writes can be built."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardbeam.configs.yaml_text import parse_yaml
from shardbeam.pipelines.commands import init as init_command
from shardbeam.pipelines.config_file import load_config
from tests.support.archive_files import Files, write_files
from tests.support.builds import coco_document, write_coco
from tests.support.dataset import Run, run
from tests.support.format_samples import SAMPLES, FormatSample, SharedData
from tests.support.hub_files import BOXES, IMAGE, classes, hub_image, hub_parquet, list_of, value
from tests.support.image_makers import plain_jpeg, save
from tests.support.label_studio_files import region, task
from tests.support.screens import check_screen
from tests.support.voc_files import small_voc, voc_object, voc_xml

JPEG = plain_jpeg()
MASK = save(Image.new("L", (32, 24), 1), "PNG")
VOC = {**small_voc(), "Annotations/a.xml": voc_xml(voc_object(ymin=2), size=(32, 24))}

# Samples whose folder alone does not show what the table of samples says about them:
# {sample: what is recognized, and the examples}.
OTHERWISE = {
    # No name says where the labels are in the names.
    "filename-label": ("image-folder", {"train": 7}),
    # The images of a split without rows are not read.
    "open-images": ("open-images", {"train": 2, "test": 1}),
    # An image that shows only a line has lost its objects, which the plan does not foresee.
    "cvat-video": ("cvat", {"train": 2}),
}


@pytest.fixture
def no_preview(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the preview of rejects, for which the command runs a pipeline."""
    monkeypatch.setattr(init_command, "_foresee", lambda *_, **__: init_command._Foreseen(()))


def init(folder: Path, *words: str) -> tuple[str, str]:
    """Runs the command; returns the config, and what it says."""
    result = run("init", str(folder), *words, exit_code=0)
    return result.stdout, result.stderr


@pytest.mark.usefixtures("no_preview")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_every_sample_is_recognized_and_its_config_builds(
    sample: FormatSample, tmp_path: Path, find_shared_data: SharedData
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    if sample.name == "csv":
        # Two tables name the same images.
        result = run("init", str(data), exit_code=1)
        assert f"{data}/ann.csv and {data}/ann_wo_ext.csv both name images" in result.stderr
        shutil.copytree(data, data := tmp_path / "one", ignore=lambda *_: {"ann_wo_ext.csv"})
    name, counts = OTHERWISE.get(sample.name, (sample.format_name, sample.counts))
    path = str(tmp_path / "d.yaml")

    _, told = init(data, "--output", path)

    assert told.startswith(f"{name}: ")
    planned = run("plan", path, "--set", f"output.path={tmp_path}/out", "--json", exit_code=0)
    splits = json.loads(planned.stdout)["splits"]
    assert {split: each["examples"] for split, each in splits.items() if split} == counts
    assert f"splits {', '.join(counts)}" in told or f"split {', '.join(counts)}" in told


def coco(*names: str, segmentation: object = (), **more: object) -> str:
    """A COCO file of images, with a box in each."""
    box = {"bbox": [1, 1, 9, 9], "segmentation": segmentation}
    return json.dumps({**coco_document(dict.fromkeys(names, (box,)), size=(32, 24)), **more})


def images(*names: str) -> Files:
    return dict.fromkeys(names, JPEG)


def zipped(files: Files) -> bytes:
    """A zip of files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


_ROBOFLOW = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n"
_OUTLINE = [[1, 1, 10, 1, 10, 10, 1, 10]]
_VOC = voc_xml(voc_object(ymin=2), size=(32, 24))
# Of Label Studio, in percent.
_SIDES = {"x": 1, "y": 1, "width": 9, "height": 9}

_METADATA = '{"file_name": "1.jpg", "text": "a photo of a cat"}\n'


def hub(image: dict[str, str], *, compression: str = "NONE", **columns: object) -> bytes:
    """A Parquet file of one image, and columns of objects."""
    objects = {"bbox": BOXES, "label": list_of(value("int64"))}
    features = {"image": image, **dict.fromkeys(columns, objects)}
    row = {"image": hub_image(JPEG), **columns}
    return hub_parquet([row], features, compression=compression)


LAYOUTS: dict[str, Files] = {
    "folders of splits without classes": {**images("train/1.jpg", "val/2.jpg"), "README": "x"},
    "images in a zip": {"a.zip": zipped(images("x/images/1.jpg")), "LICENSE.md": "x"},
    "masks beside images": {
        **images("train/a.jpg", "train/b.jpg"),
        "train/a_mask.png": MASK,
        "train/b_mask.png": MASK,
        "train/_classes.csv": "Pixel Value, Class\n0, background\n1, road\n",
    },
    "Pascal VOC without XML": {
        **images("JPEGImages/a.jpg"),
        "SegmentationClass/a.png": MASK,
        "ImageSets/Segmentation/train.txt": "a",
    },
    "COCO": {
        **images("train2017/1.jpg", "val2017/1.jpg"),
        "annotations/instances_train2017.json": coco("1.jpg"),
        "annotations/captions_train2017.json": coco(
            "1.jpg", annotations=[{"id": 1, "image_id": 1, "caption": "a cat"}]
        ),
        "annotations/instances_val2017.json": coco("1.jpg"),
    },
    "COCO of Roboflow": {
        **images("train/a.jpg", "valid/b.jpg"),
        "train/_annotations.coco.json": coco("a.jpg"),
        "valid/_annotations.coco.json": coco("b.jpg"),
        "README.txt": "x",
    },
    "names that were given elsewhere, and a picture that no annotation names": {
        **images("pictures/a.jpg", "other.png"),
        "a.json": coco("C:\\data\\A.JPEG"),
    },
    "VOC": {f"voc/{path}": data for path, data in VOC.items()},
    "VOC of Roboflow, without lists": {
        **images("train/a.jpg", "test/b.jpg"),
        "train/a.xml": voc_xml(voc_object(ymin=2)),
        "test/b.xml": voc_xml(voc_object(ymin=2)),
    },
    "YOLO": {
        **images("x/images/train/a.jpg", "x/images/val/b.jpg"),
        "x/labels/train/a.txt": "0 0.5 0.5 0.1 0.1\n",
        "x/labels/val/b.txt": "",
        "x/data.yaml": "{train: images/train, val: images/val, names: [cat]}",
    },
    "folders of classes": {**images("cat/1.jpg", "dog/2.jpg"), "LICENSE": "free"},
    "folders of splits and classes": {
        **images("Train/cat/1.jpg", "Train/dog/2.jpg", "Val/cat/3.jpg")
    },
    "a table with splits": {
        **images("img/a.jpg", "img/b.jpg"),
        "rows.csv": "image,label,split\na.jpg,cat,train\nb.jpg,dog,test\n",
    },
    "JSON Lines with paths that were given elsewhere": {
        **images("a/1.jpg", "b/2.jpg"),
        "rows.jsonl": '{"image": "/data/1.jpg", "label": "cat"}\n',
    },
    "a table of Kaggle": {
        **images("train/1.jpg", "train/2.jpg"),
        "train.csv": "id,label\n1,cat\n2,dog\n",
    },
    "semicolons": {
        **images("img/a.jpg", "img/b.jpg"),
        "rows.csv": "image;label\na.jpg;cat\nb.jpg;dog\n",
    },
    "a column of any name, and an example of the table to hand in": {
        **images("train/1.jpg", "train/2.jpg", "test/3.jpg"),
        "train.csv": "n,what,label\n10,1,cat\n11,2,dog\n",
        "sample_submission.csv": "id,label\n3,cat\n",
    },
    "several labels in a cell": {
        **images("1.jpg", "2.jpg", "3.jpg"),
        "a.csv": "image,label\n1.jpg,apple\n2.jpg,plum\n3.jpg,apple|plum\n",
    },
    "a column a class": {
        **images("1.jpg", "2.jpg"),
        "a.csv": "image,cat,dog,cow\n1.jpg,1,0,0\n2.jpg,0,1,1\n",
    },
    "columns that may be classes": {
        **images("1.jpg", "2.jpg"),
        "a.csv": "image,cat,dog,n\n1.jpg,1,0,7\n2.jpg,0,1,8\n",
    },
    "captions of Flickr8k": {
        **images("Images/1.jpg", "Images/2.jpg"),
        "captions.txt": "image,caption\n1.jpg,A cat, a dog .\n1.jpg,Pets .\n2.jpg,A .\n",
    },
    "captions under a name that means other things elsewhere": {
        **images("1.jpg", "2.jpg"),
        "metadata.jsonl": '{"file_name": "1.jpg", "text": "a photo of a cat"}\n'
        '{"file_name": "2.jpg", "text": "a cat on a mat"}\n',
    },
    "VOC beside a folder of images": {
        "pics/a.jpg": JPEG,
        "boxes/a.xml": voc_xml(voc_object(ymin=2), size=(32, 24)),
    },
    "VOC in folders of labels": {
        **images("train/images/a.jpg", "valid/images/b.jpg"),
        **dict.fromkeys(
            ("train/labels/a.xml", "valid/labels/b.xml"),
            voc_xml(voc_object(ymin=2), size=(32, 24)),
        ),
    },
    "captions without a header": {
        **images("1.jpg", "2.jpg"),
        "token.txt": "1.jpg#0\tA cat, with a dog .\n2.jpg#0\tA cow on a meadow .\n",
    },
    "a list with spaces": {**images("images/1.jpg", "images/2.jpg"), "a.txt": "1 dog\n2 cat\n"},
    "COCO with zipped images": {
        "train2017.zip": zipped(images("train2017/1.jpg")),
        "annotations/instances_train2017.json": coco("1.jpg"),
    },
    "VOC in a zip": {"voc.zip": zipped({f"x/{path}": data for path, data in VOC.items()})},
    "a zip a split": {
        "train.zip": zipped(images("cat/1.jpg", "dog/2.jpg")),
        "val.zip": zipped(images("val/cat/3.jpg", "val/dog/4.jpg")),
    },
    "folders of classes in a zip": {"a.zip": zipped(images("a/1.jpg", "b/2.jpg")), "README": "x"},
    "splits with folders of classes in a zip": {
        "a.zip": zipped(images("train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "val/b/4.jpg")),
    },
    "an imagefolder in a zip": {"a.zip": zipped({**images("1.jpg"), "metadata.jsonl": _METADATA})},
    "a table of Hugging Face beside a zip": {
        "a.zip": zipped(images("1.jpg")),
        "metadata.jsonl": '{"file_name": "1.jpg", "label": "cat"}\n',
    },
    "a table of Hugging Face beside its folder": {
        **images("images/1.jpg"),
        "metadata.csv": "file_name,label\n1.jpg,cat\n",
    },
    "Parquet of Hugging Face in a zip": {
        "a.zip": zipped({"data/train-00000-of-00001.parquet": hub(IMAGE)}),
    },
    "Parquet with images in a column of bytes": {
        "a.parquet": hub_parquet(
            [{"photo": JPEG, "audio": b"RIFF", "label": 0}],
            {"photo": value("binary"), "audio": value("binary"), "label": value("int64")},
        )
    },
    "Parquet with objects under another name": {
        "a.parquet": hub(IMAGE, digits={"bbox": [[20, 12, 31, 23]], "label": [7]}),
    },
    "folders of classes in several zips": {
        "data_part1.zip": zipped(images("cat/1.jpg")),
        "data_part2.zip": zipped(images("dog/2.jpg")),
    },
    "COCO with images in several zips": {
        "img1.zip": zipped(images("x/1.jpg")),
        "img2.zip": zipped(images("x/2.jpg")),
        "more.zip": zipped({"notes.txt": "x"}),
        "a.json": coco("1.jpg", "2.jpg"),
    },
    "two tables of the same images": {
        **images("1.jpg", "2.jpg"),
        "a.csv": "image,label\n1.jpg,cat\n2.jpg,dog\n",
        "b.csv": "image,label\n2.jpg,x\n1.jpg,y\n",
    },
    "COCO of CVAT, whose subset is named default": {
        **images("images/default/a.jpg"),
        "annotations/instances_default.json": coco("a.jpg"),
    },
    "folders of splits below another folder": {
        **images("x/train/a.jpg", "x/val/b.jpg"),
        "x/trainannot/a.png": MASK,
        "x/valannot/b.png": MASK,
        "readme.png": MASK,
    },
    "a COCO file about folders of splits": {
        **images("train/a.jpg", "val/b.jpg"),
        "all.json": coco("train/a.jpg", "val/b.jpg"),
    },
    "of formats about the same images the richer one": {
        **images("a.jpg"),
        "a.json": coco("a.jpg", segmentation=_OUTLINE),
        "a.xml": _VOC,
        "_annotations.txt": "a.jpg 1,2,3,4,0\n",
        "_classes.txt": "dog\n",
    },
    # Each source has it.
    "a list that two sources share": {
        **images("train/a.jpg", "valid/a.jpg"),
        **dict.fromkeys(
            ("train/_annotations.csv", "valid/_annotations.csv"), "a.jpg,1,2,3,4,cat\n"
        ),
    },
    "a table sorted by class, with folders of classes": {
        **images(*(f"x/train/cat/{i}.jpg" for i in range(60))),
        **images(*(f"x/train/dog/{i}.jpg" for i in range(60, 120))),
        **images("x/copies/cat/1.jpg"),
        "x/train.csv": "image,label\n"
        + "".join(f"{i}.jpg,{'cat' if i < 60 else 'dog'}\n" for i in range(120)),
    },
    "folders of classes with the same names": {
        **images("train/cat/1.jpg", "train/cat/2.jpg", "train/dog/1.jpg", "train/dog/3.jpg"),
        "train.csv": "image,label\n1.jpg,cat\n2.jpg,cat\n3.jpg,dog\n",
    },
    "damaged files beside good ones": {
        **images(*(f"{split}/{split}.jpg" for split in ("train", "val", "test"))),
        "train/ann.json": coco("train.jpg"),
        "val/ann.json": coco("val.jpg").encode("utf-16"),
        "test/ann.json": "",
        "notes.json": '{"images": [',
    },
    "a damaged table beside a good one": {
        **images("train.jpg", "val.jpg"),
        "train.csv": "image,label\ntrain.jpg,cat\n",
        "val.csv": "image,label\nval.jpg,cat\n".encode("utf-16"),
        "notes.csv": "",
    },
    "VOC whose first file is damaged": {
        **images("a.jpg", "b.jpg", "c.jpg", "d.jpg"),
        "a.xml": "",
        "b.xml": voc_xml(voc_object(ymin=2))[:20],
        **{f"{name}.xml": voc_xml(voc_object(ymin=2)) for name in "cd"},
    },
    "Label Studio with a folder of images for each split": {
        **images("train/a.jpg", "val/b.jpg"),
        "train.json": json.dumps([task("a.jpg", region("rectangle", "cat", **_SIDES))]),
        "val.json": json.dumps([task("b.jpg", region("rectangle", "cat", **_SIDES))]),
    },
    "two COCO files about the same images": {
        **images("images/a.jpg"),
        "a.json": coco("a.jpg"),
        "b.json": coco("a.jpg", categories=[{"id": 1, "name": "dog"}]),
    },
}


# Layouts with rejects; the preview of the others says nothing.
REJECTED = {"folders of classes with the same names", "VOC whose first file is damaged"}


def show_each(
    folders: dict[str, Files], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[tuple[str, Run]]:
    """Runs the command in each folder; without what it proposes to add to a config."""
    for number, (title, files) in enumerate(folders.items()):
        (folder / str(number) / "d").mkdir(parents=True)
        monkeypatch.chdir(folder / str(number))
        write_files(Path("d"), files)
        result = run("init", "d")
        config = result.stdout.partition("\n# More keys")[0]
        told = result.stderr.replace(f"{Path.cwd()}/", "")
        yield f"--- {title}\n{config}\n{told}", result


def test_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preview, shown = init_command._foresee, ""
    for title, files in LAYOUTS.items():
        ours = preview if title in REJECTED else lambda *_, **__: init_command._Foreseen(())
        monkeypatch.setattr(init_command, "_foresee", ours)
        ((screen, result),) = show_each({title: files}, monkeypatch, tmp_path / title)
        assert result.exit_code == 0, screen
        shown += screen
    check_screen("init_layouts", shown)


@pytest.mark.usefixtures("no_preview")
def test_outlines_are_recognized(tmp_path: Path) -> None:
    shape = {"label": "dog", "points": [[1, 1], [9, 1], [9, 9]], "shape_type": "polygon"}
    region = {"name": "polygon", "all_points_x": [1, 9, 9], "all_points_y": [1, 1, 9]}
    regions = [{"shape_attributes": region, "region_attributes": {"class": "dog"}}]
    via = {"filename": "a.jpg", "size": 1, "regions": regions, "file_attributes": {}}
    labelme = {"version": "5.0", "imagePath": "a.jpg", "shapes": [shape]}
    cvat = '<annotations><image id="0" name="a.jpg" width="32" height="24">{}</image></annotations>'
    outlined: dict[str, Files] = {
        "yolo": {"a.txt": "0 0.1 0.1 0.5 0.1 0.5 0.5\n", "classes.txt": "dog\n"},
        "labelme": {"a.json": json.dumps(labelme)},
        "via": {"v.json": json.dumps({"a.jpg1": via})},
        "cvat": {"c.xml": cvat.format('<polygon label="dog" points="1,1;9,1;9,9"/>')},
        "coco": {"a.json": coco("a.jpg", segmentation=_OUTLINE)},
    }
    for name, files in outlined.items():
        folder = tmp_path / name
        write_files(folder, {**images("a.jpg"), **files})
        write_files(folder, {"x.txt": "a.jpg 1,2,3,4,0\n", "_classes.txt": "dog\n"})
        config, said = init(folder)
        assert f"format: {name}" in config, said
    plain = {"c.xml": cvat.format('<box label="dog" xtl="1" ytl="1" xbr="9" ybr="9"/>')}
    write_files(tmp_path / "cvat", plain)
    assert run("init", str(tmp_path / "cvat")).exit_code == 1


_KITTI_LINE = "Car 0.00 0 -1.57 614.24 181.78 727.31 284.77 1.57 1.73 4.15 1.00 1.75 13.22 -1.62\n"
_DOTA_LINE = "2753.0 2408 2861 2385 2888 2468 2805.5 2502 small-vehicle 0\n"

UNREAD: dict[str, Files] = {
    "CreateML": {
        "t.json": '[{"image": "a.jpg", "annotations": [{"label": "x", "coordinates": {"x": 1}}]}]'
    },
    "SageMaker": {"output.manifest": '{"source-ref":"s3://b/a.jpg","job":{"annotations":[]}}\n'},
    "Labelbox": {
        "export.ndjson": '{"data_row": {"id": "c"}, "media_attributes": {}, "projects": {}}'
    },
    "Labelbox (before 2023)": {
        "l.json": '[{"ID": "c", "Labeled Data": "https://x/a.jpg", "External ID": null}]'
    },
    "KITTI": {"training/label_2/000001.txt": _KITTI_LINE, "testing/image_2/a.jpg": JPEG},
    "DOTA": {"labelTxt/a.txt": f"imagesource:GoogleEarth\ngsd:0.14\n{_DOTA_LINE}"},
}


_VIA_REGION = {
    "shape_attributes": {"name": "rect", "x": 1, "y": 1, "width": 9, "height": 9},
    "region_attributes": {"class": "cat"},
}
_VIA_FILE = {"filename": "a.jpg", "size": 1, "regions": [_VIA_REGION]}
_VIA = {"a.jpg1": _VIA_FILE}


def _via_file(image: str) -> str:
    return json.dumps({image: {**_VIA_FILE, "filename": image}})


UNCERTAIN: dict[str, Files] = {
    **{f"a file of {tool}": files for tool, files in UNREAD.items()},
    **{
        f"a file of {tool} with images": {**files, **images("training/image_2/a.jpg", "x/b.jpg")}
        for tool, files in UNREAD.items()
    },
    "two formats of boxes alone": {
        **images("a.jpg", "b.jpg"),
        "a.json": coco("a.jpg", "b.jpg"),
        **dict.fromkeys(("a.xml", "b.xml"), _VOC),
    },
    "outlines about fewer images": {
        **images("a.jpg", "b.jpg"),
        "a.json": coco("a.jpg", segmentation=_OUTLINE),
        **dict.fromkeys(("a.xml", "b.xml"), _VOC),
    },
    "outlines that cannot be read": {
        **images("a.jpg", "b.jpg"),
        "a.json": coco("a.jpg", "x.jpg", segmentation=_OUTLINE)[:-2] + "x",
        "a.xml": _VOC,
    },
    "an empty folder": {},
    "files of no format": {"a.jpg": JPEG, "b.JPG": JPEG, "notes": "x"},
    "several formats": {
        **images("a.jpg"),
        "a.json": coco("a.jpg"),
        "a.xml": voc_xml(voc_object(ymin=2)),
    },
    "COCO without its images": {"a.json": coco("a.jpg")},
    "two COCO files of boxes": {
        **images("a.jpg", "b.jpg"),
        "a.json": coco("a.jpg"),
        "b.json": coco("b.jpg"),
    },
    "files of boxes of which some name a split": {
        **images("a.jpg", "b.jpg"),
        "boxes.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\na,Dog,0,1,0,1\n",
        "test-boxes.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\nb,Dog,0,1,0,1\n",
    },
    **{
        f"{name} of which some name a split": {
            **images("a.jpg", "b.jpg"),
            f"ann.{ending}": content("a.jpg"),
            f"test.{ending}": content("b.jpg"),
        }
        for name, ending, content in (
            ("COCO files", "json", coco),
            ("VIA's files", "json", _via_file),
            ("keras-txt's files", "txt", "{} 1,2,9,9,0\n".format),
            ("tables", "csv", "image,label\n{},cat\n".format),
        )
    },
    "zips of folders of classes of which some name a split": {
        name: zipped(images("cat/1.jpg", "dog/2.jpg")) for name in ("a.zip", "test.zip")
    },
    "files whose images are in several folders": {
        **images("x/a.jpg", "y/b.jpg"),
        "boxes.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\na,Dog,0,1,0,1\n",
        "others.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\nb,Dog,0,1,0,1\n",
    },
    "folders of classes with a JSON file": {**images("a/1.jpg", "b/2.jpg"), "a/x.json": "{}"},
    "a few images outside of the folders of classes": {
        **images("stray.jpg", *(f"{name}/{i}.jpg" for name in "ab" for i in range(5))),
        "a/x.json": "{}",
    },
    "images outside of folders of classes": images("a/1.jpg", "b/2.jpg", "cover.jpg", "e.jpg"),
    "folders of classes, two folders down": images("x/flowers/a/1.jpg", "x/flowers/b/2.jpg"),
    "images in two zips": {f"{name}.zip": zipped(images("x/images/1.jpg")) for name in "ab"},
    "a table with unknown columns": {**images("img/1.jpg"), "a.csv": "id,breed\n1,pug\n"},
    "several tables with unknown columns": {
        **images("train/1.jpg", "test/2.jpg"),
        "a_sample_submission.csv": "id,pug,collie\n2,0.5,0.5\n",
        "b.csv": "name,n\npug,7\n",
        "labels.csv": "id,breed\n/x/1.jpg,pug\n",
    },
    "a table with spaces and unknown columns": {
        **images("img/1.jpg"),
        "a.csv": "id breed age\n1 pug 3\n",
    },
    "four columns that look like boxes": {
        **images("1.jpg"),
        "a.csv": "image,label,x,y,width,height\n1.jpg,cat,1,2,3,4\n",
        "b.csv": "x,y\n1,2\n",
    },
    "lists of Pascal VOC without annotations": {
        **images("JPEGImages/1.jpg", "JPEGImages/2.jpg"),
        "ImageSets/Main/cat_train.txt": "1  1\n2 -1\n",
        "ImageSets/Main/train.txt": "1\n2\n",
    },
    "a column of run lengths": {
        **images("img/1.jpg"),
        "train.csv": "ImageId,EncodedPixels\n1.jpg,1 2 30 4\n",
    },
    "a table with CR as ends of lines": {**images("a.jpg"), "t.csv": "image,label\ra.jpg,cat\r"},
    "a column that occurs twice": {**images("a.jpg"), "t.csv": "image,label,label\na.jpg,x,y\n"},
    "a column that looks like boxes": {
        **images("img/1.jpg"),
        "a.csv": 'image_id;label;bbox\n1;cat;"[1, 2, 3, 4]"\n',
        "sample_submission.csv": "image_id,label\n",
    },
    "boxes without labels": {**images("1.jpg"), "a.csv": "image,w,h,x,y\n1.jpg,1,2,3,4\n"},
    "a hint of Excel": {**images("a.jpg"), "a.csv": "sep=,\nimage,label\na.jpg,x\n"},
    "escapes of URLs": {**images("a.jpg"), "a.csv": "image,label\nmy%20b.jpg,x\n"},
    "URLs": {**images("a.jpg"), "a.csv": "image,label\nhttps://x/b.jpg,x\n"},
    "JSON Lines with NaN": {**images("a.jpg"), "a.jsonl": '{"image": "a.jpg", "x": NaN}\n'},
    "JSON Lines with data URLs": {
        **images("a.jpg"),
        "a.jsonl": '{"image": "data:image/png;base64,?"}',
    },
    "results of COCO": {**images("a.jpg"), "a.json": '[{"image_id": 1, "score": 0.5}]'},
    "JSON of Supervisely": {
        **images("a.jpg"),
        "a.json": '{"objects": [{"geometryType": "bitmap", "classTitle": "x"}]}',
    },
    "an empty tar": {"a.tar": b"\0" * 100},
    "splits with folders of classes in a folder in a zip": {
        "a.zip": zipped(images("x/train/a/1.jpg", "x/train/b/2.jpg", "x/val/a/3.jpg")),
    },
    "folders of classes in a zip beside a table": {
        "a.zip": zipped(images("a/1.jpg", "b/2.jpg")),
        "a.csv": "id,breed\n1,pug\n",
    },
    "captions of Hugging Face beside a zip": {
        "a.zip": zipped(images("1.jpg")),
        "metadata.jsonl": _METADATA.replace("a photo of a cat", "cat"),
    },
    "captions of Hugging Face beside their folder": {
        **images("images/1.jpg"),
        "metadata.jsonl": _METADATA.replace("a photo of a cat", "cat"),
    },
    "two imagefolders in zips": {
        f"{split}.zip": zipped({**images("1.jpg"), "metadata.jsonl": _METADATA.replace("a ", "")})
        for split in ("train", "test")
    },
    "Parquet of Hugging Face beside its README in a zip": {
        "a.zip": zipped({"README.md": "x", "data/train.parquet": hub(IMAGE)}),
    },
    "compressed Parquet of Hugging Face in a zip": {
        "a.zip": zipped({"data/train.parquet": hub(IMAGE, compression="SNAPPY")}),
    },
    "Parquet with several columns of bytes that are images": {
        "a.parquet": hub_parquet(
            [{"photo": JPEG, "thumb": JPEG}], dict.fromkeys(("photo", "thumb"), value("binary"))
        ),
    },
    "Parquet with a column of bytes that are no images": {
        "a.parquet": hub_parquet([{"audio": b"RIFF"}], {"audio": value("binary")}),
    },
    "objects under another name with boxes that fit several orders": {
        "a.parquet": hub(IMAGE, digits={"bbox": [[2, 3, 4, 4]], "label": [7]}),
    },
    "data.yaml without images": {"data.yaml": _ROBOFLOW},
    "data.yaml without labels": {**images("train/images/1.jpg"), "data.yaml": _ROBOFLOW},
    "labels of YOLO without images": {
        "data.yaml": _ROBOFLOW,
        "train/labels/1.txt": "0 0.5 0.5 0.1 0.1\n",
    },
    "WIDER FACE": {
        **images("WIDER_train/images/0--Parade/1.jpg", "WIDER_train/images/1--Riot/2.jpg"),
        "wider_face_split/a_readme.txt": "x",
        "wider_face_split/a_test_filelist.txt": "x",
        "wider_face_split/wider_face_train_bbx_gt.txt": (
            "0--Parade/1.jpg\n1\n1 2 9 9 0 0 0 0 0 0 \n"
        ),
    },
    "COCO of CVAT, one file without a subset": {
        **images("images/1.jpg", "images/2.jpg"),
        "annotations/instances_Train.json": coco("1.jpg"),
        "annotations/instances_default.json": coco("2.jpg"),
    },
    "a tgz": {"a.tgz": b"x"},
    "a zip that is cut off": {"a.zip": zipped(images("a/1.jpg"))[:-30]},
    "only a text": {"a.txt": b"x"},
    "TFRecord files in a zip": {"a.zip": zipped({"train/b.tfrecord": "x"})},
    "Parquet files": {"a/b.parquet": b"x"},
    "JSON of Label Studio": {
        **images("a.jpg"),
        "a.json": '[{"data": {}, "annotations": [{"result": [{"from_name": "label"}]}]}]',
    },
    "labels of YOLO without a list of classes": {
        **images("a.jpg"),
        "labels/a.txt": "0 0.5 0.5 0.1 0.1\n",
    },
    "XML of CVAT for video": {
        **images("a.jpg"),
        "a.xml": "<annotations><meta/><track id='1'/></annotations>",
    },
    "COCO that is cut off": {**images("a.jpg"), "a.json": coco("a.jpg")[:30]},
    "VIA that is cut off": {
        **images("train/a.jpg", "val/b.jpg"),
        "train/via.json": json.dumps(_VIA),
        "val/via.json": json.dumps(_VIA)[:-20],
    },
    "COCO with odd images": {**images("a.jpg"), "a.json": '{"images": [1, [2]]}'},
    "JSON of other bytes": {**images("a.jpg"), "a.json": b"{\xff\xfe\0"},
    "tables that are cut off or empty": {
        **images("a.jpg"),
        "a.csv": 'image,label\n"a.jpg',
        "b.csv": "",
    },
    "an empty tar beside an image": {**images("a.jpg"), "a.tar": b"\0" * 100},
    "XML of no format": {**images("a.jpg"), "x.xml": "<?xml version='1.0'?><root><pic/></root>"},
}


def test_what_is_not_certain_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ""
    for screen, result in show_each(UNCERTAIN, monkeypatch, tmp_path):
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1), screen
        shown += screen
    check_screen("init_uncertain", shown)


@pytest.mark.usefixtures("no_preview")
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


@pytest.mark.usefixtures("no_preview")
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


@pytest.mark.usefixtures("no_preview")
def test_each_comment_is_a_key_that_may_be_set(tmp_path: Path) -> None:
    write_files(tmp_path / "d", {**images("a.jpg"), "a.json": coco("a.jpg")})
    text, _ = init(tmp_path / "d")
    comments = text.partition("# More keys")[2].splitlines()[1:]
    assert len(comments) == 5
    path = tmp_path / "d.yaml"
    for comment in comments:
        path.write_text(f"{text}{comment.removeprefix('# ')}\n")
        load_config(path)


@pytest.mark.usefixtures("no_preview")
@pytest.mark.parametrize(
    "name", ["a: #b", "'quoted\"", "- ü {x}", "no", "new\nline", "1.5", "[0..9]*", "x" * 200]
)
def test_strange_names(name: str, tmp_path: Path) -> None:
    root = tmp_path / name
    write_files(root, {f"{name}/{file}": JPEG for file in ("1.jpg", "2.jpg")})
    write_coco(root / f"{name}.json", json.loads(coco("1.jpg", "2.jpg")))
    path = tmp_path / "d.yaml"
    init(root, "--output", str(path))
    planned = run("plan", str(path), "--set", f"output.path={tmp_path}/out", "--json", exit_code=0)
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
    assert told == "coco: 2 annotation files, 2 images; splits train, val\n2 classes: a, b\n"


_TABLES = {
    "a.csv": "image,label\n1.jpg,cat\n2.jpg,dog\n",
    "b.csv": "image,label\n1.jpg,cow\n2.jpg,dog\n",
}


@pytest.mark.usefixtures("no_preview")
@pytest.mark.parametrize(
    ("files", "file", "said", "source"),
    [
        (_TABLES, "b.csv", "csv: 1 table", {"manifest": ["{d}/b.csv"]}),
        # Tables that say something else about other keys, and one in the way.
        (
            {**_TABLES, "a.csv": "image,label,more\n1.jpg,cat,1\n2.jpg,dog,2\n"},
            "b.csv",
            "csv: 1 table",
            {"manifest": ["{d}/b.csv"]},
        ),
        (
            {"annotations/x.json": coco("1.jpg"), "a.csv": _TABLES["a.csv"]},
            "annotations/x.json",
            "coco: 1 annotation file",
            {"annotations": ["{d}/annotations/x.json"]},
        ),
        (
            {"annotations/x.json": coco("1.jpg"), "a.csv": _TABLES["a.csv"]},
            "a.csv",
            "csv: 1 table",
            {"manifest": ["{d}/a.csv"]},
        ),
        (
            {"data.yaml": "names: [cat]\n", "1.txt": "0 .5 .5 .2 .2\n"},
            "data.yaml",
            "yolo: 1 file of labels",
            {"root": "{d}"},
        ),
        (_TABLES, "1.jpg", "csv: 1 table", {"manifest": ["{d}/a.csv"]}),
    ],
)
def test_a_file_is_taken_for_its_folder(
    files: Files, file: str, said: str, source: dict[str, object], tmp_path: Path
) -> None:
    write_files(tmp_path / "d", {**images("1.jpg", "2.jpg"), **files})
    text, told = init(tmp_path / "d" / file)
    assert said in told
    assert f"{tmp_path}/d/{file} is a file; this is about its folder, {tmp_path}/d\n" in told
    config = yaml.safe_load(text)
    expected = json.loads(json.dumps(source).replace("{d}", f"{tmp_path}/d"))
    assert expected.items() <= config["source"].items()


def test_advice_is_a_whole_command(tmp_path: Path) -> None:
    via = {"filename": "a.jpg", "size": 1, "regions": [region_of_via()], "file_attributes": {}}
    write_files(tmp_path / "My Data", {**images("a.jpg"), "v.json": json.dumps({"a.jpg1": via})})
    result = run("init", str(tmp_path / "My Data"), exit_code=1)
    command = result.stderr.partition("add that to this command: `shardbeam ")[2].partition("`")[0]
    words = shlex.split(command)
    assert words == [
        *("build", "via", "--images", f"{tmp_path}/My Data"),
        *("--annotations", f"{tmp_path}/My Data/v.json", "--output", "tfrecords/my_data"),
    ]
    words[-1] = str(tmp_path / "out")
    run(*words, "--class-name", "balloon", exit_code=0)


def test_advice_about_hugging_face_is_a_whole_command(tmp_path: Path) -> None:
    row = {"image": hub_image(JPEG), "objects": {"bbox": [[2.0, 2.0, 9.0, 9.0]], "category": [0]}}
    features = {"image": IMAGE, "objects": {"bbox": BOXES, "category": list_of(classes("cat"))}}
    write_files(tmp_path / "d", {"train-0.parquet": hub_parquet([row] * 6, features)})
    result = run("init", str(tmp_path / "d"), exit_code=1)
    command = f"shardbeam build huggingface --data {tmp_path}/d --output tfrecords/d"
    assert f"(they look like px); add that to this command: `{command}`\n" in result.stderr
    words = command.replace("tfrecords/d", f"{tmp_path}/out").split()[1:]
    run(*words, "--box-format", "xywh", "--box-units", "px", exit_code=0)


def region_of_via() -> dict[str, object]:
    shape = {"name": "rect", "x": 1, "y": 1, "width": 9, "height": 9}
    return {"shape_attributes": shape, "region_attributes": {}}


_LABELS = {"1.txt": "0 .5 .5 .2 .2\n"}
_CVAT = """<annotations><version>1.1</version><image id="0" name="1.jpg" width="32" height="24">
<box label="cat" xtl="1" ytl="1" xbr="9" ybr="9" occluded="0"/></image></annotations>"""
_KERAS = {"_annotations.txt": "1.jpg 1,1,9,9,0\n", "_classes.txt": "cat\n"}


@pytest.mark.usefixtures("no_preview")
@pytest.mark.parametrize(
    ("files", "said", "unread"),
    [
        # What cannot be built is no other choice.
        ({**_LABELS, "a.xml": _CVAT}, "cvat: 1 XML file", "yolo (1 file of labels)"),
        ({**_LABELS, **_KERAS}, "keras-txt: 1 annotation file", "yolo (1 file of labels)"),
        (
            {"a.json": coco("1.jpg"), "b.json": coco("gone.jpg"), "a.xml": _CVAT},
            "cvat: 1 XML file",
            "coco (2 annotation files)",
        ),
        # Files that name YOLO's classes.
        ({**_LABELS, "_darknet.labels": "cat\n"}, "yolo: 1 file of labels", ""),
        ({**_LABELS, "cfg/obj.names": "cat\n"}, "yolo: 1 file of labels", ""),
        (
            {**_LABELS, "cfg/obj.names": "a\nb\n", "cfg/obj.data": "names = cfg/obj.names\n"},
            "yolo: 1 file of labels",
            "",
        ),
    ],
)
def test_a_format_that_cannot_be_built_is_no_other_choice(
    files: Files, said: str, unread: str, tmp_path: Path
) -> None:
    write_files(tmp_path / "d", {**images("1.jpg"), **files})
    _, told = init(tmp_path / "d")
    assert told.startswith(said)
    assert (f"not read: {unread}: " in told) == bool(unread)


@pytest.mark.parametrize("folder", ["", "train/"])
def test_darknet_labels_and_files_for_keras_are_no_labels_of_yolo(
    folder: str, tmp_path: Path
) -> None:
    files = {**images("1.jpg"), **_LABELS, **_KERAS, "_darknet.labels": "dog\ncat\n"}
    write_files(tmp_path / "d", {f"{folder}{name}": data for name, data in files.items()})
    words = ("--root", f"{tmp_path}/d", "--output", f"{tmp_path}/out")
    result = run("build", "yolo", *words, "--json", exit_code=0)
    assert (tmp_path / "out" / "labels.txt").read_text().split() == ["dog", "cat"]
    assert json.loads(result.stdout)["splits"]["train"]["rejected"] == {}


def test_several_files_of_darknet_are_not_chosen_among(tmp_path: Path) -> None:
    files = {**images("1.jpg"), **_LABELS, "a/obj.names": "cat\n", "b/obj.names": "dog\n"}
    write_files(tmp_path / "d", files)
    result = run("init", str(tmp_path / "d"), exit_code=1)
    assert "a/obj.names and b/obj.names may name the classes; name one with `data`" in result.stderr
