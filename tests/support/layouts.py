"""Datasets as people lay them out, made from the real samples, with the expected result.

Each is modelled on a public dataset, or on a mistake that once made a wrong dataset silently.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from shardbeam.transforms.images.mask_file import voc_colour_map
from tests.support.archive_files import write_files, write_tar

# {split: {key of an image: class names of its objects, then of the image}}
Written = Mapping[str, Mapping[str, Sequence[str]]]

_DUMMY = "dali/coco_dummy"
_FACES = "facemask/coco"
_IMAGENET = "ultralytics-hub/imagenet10"
_LABELME = "labelme/bbox_detection/data_annotated"
_VOC = "labelme/bbox_detection/data_dataset_voc"


class Expected(NamedTuple):
    """The expected result of building a layout.

    Attributes:
        words: The words after `shardbeam build`.
        written: The dataset's content; empty if none is committed.
        says: Texts that the command must print on stdout or stderr.
        exit_code: Its exit code.
        boxes: `{key: boxes in fractions of the image}`, for layouts about frames.
    """

    words: Sequence[str | Path]
    written: Written
    says: Sequence[str] = ()
    exit_code: int = 0
    boxes: Mapping[str, Sequence[Sequence[float]]] = {}


# Lays a dataset out in a folder, from the real samples in another.
Layout = Callable[[Path, Path], Expected]


def _copy(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, folder / file.name)


def _coco_classes(document: Any) -> dict[str, list[str]]:  # noqa: ANN401  # JSON.
    """The class names of each image, read without our code."""
    names = {category["id"]: category["name"] for category in document["categories"]}
    files = {image["id"]: image["file_name"] for image in document["images"]}
    written: dict[str, list[str]] = {name: [] for name in files.values()}
    for annotation in document.get("annotations", ()):
        written[files[annotation["image_id"]]].append(names[annotation["category_id"]])
    return written


def _part(document: Any, images: list[Any]) -> Any:  # noqa: ANN401  # JSON.
    ids = {image["id"] for image in images}
    annotations = [each for each in document["annotations"] if each["image_id"] in ids]
    return {**document, "images": images, "annotations": annotations}


def _write_coco(folder: Path, documents: Mapping[str, Any]) -> list[str | Path]:
    for name, document in documents.items():
        write_files(folder, {f"{name}.json": json.dumps(document)})
    return ["coco", "--images", folder / "images"]


def _dummy(folder: Path, data: Path) -> Any:  # noqa: ANN401  # JSON.
    _copy((data / _DUMMY / "images").iterdir(), folder / "images")
    return json.loads((data / _DUMMY / "instances.json").read_bytes())


def coco_of_one_split(folder: Path, data: Path) -> Expected:
    """Two files share a folder of images, and one of them is built."""
    document = _dummy(folder, data)
    part = _part(document, document["images"][:40])
    words = _write_coco(folder, {"train": part})
    return Expected(
        [*words, "--annotations", folder / "train.json"],
        {"train": _coco_classes(part)},
        [
            "24 of 64 images of train are named by no row or annotation file and left out",
            "--unannotated keep writes them as negatives",
        ],
    )


def coco_of_both_splits(folder: Path, data: Path) -> Expected:
    """Two files share a folder of images, each for a split of its own."""
    document = _dummy(folder, data)
    parts = {
        name: _part(document, document["images"][images])
        for name, images in (("train", slice(40)), ("val", slice(40, 60)))
    }
    _write_coco(folder, parts)
    splits = {
        name: {
            "format": "coco",
            "images": str(folder / "images"),
            "annotations": [str(folder / f"{name}.json")],
        }
        for name in parts
    }
    config = {"name": "both", "splits": splits}
    write_files(folder, {"both.yaml": json.dumps(config)})
    return Expected(
        [folder / "both.yaml"],
        {name: _coco_classes(part) for name, part in parts.items()},
        ["24 of 64 images of train are named by no row", "44 of 64 images of val are named by no"],
    )


def coco_with_drawings(folder: Path, data: Path) -> Expected:
    """A README's picture and pictures of the annotations lie among the images."""
    source = data / "labelme/instance_segmentation/data_dataset_coco"
    for name in ("JPEGImages", "Visualization"):
        _copy((source / name).iterdir(), folder / "images" / name)
    _copy([data / "clipscore-captions/images/image1.jpg"], folder / "images")
    document = json.loads((source / "annotations.json").read_bytes())
    words = _write_coco(folder, {"a": document})
    return Expected(
        [*words, "--annotations", folder / "a.json"],
        {"train": _coco_classes(document)},
        ["4 of 7 images of train are named by no row or annotation file and left out"],
    )


def coco_without_annotations(folder: Path, data: Path) -> Expected:
    """As in COCO's files for its tests, which list images alone."""
    document = _dummy(folder, data)
    del document["annotations"]
    words = _write_coco(folder, {"image_info": document})
    return Expected(
        [*words, "--annotations", folder / "image_info.json"],
        {"train": _coco_classes(document)},
        ["annotations", "expect.max_unannotated", "80 of 80 declared classes never occur"],
    )


def coco_classes_that_never_occur(folder: Path, data: Path) -> Expected:
    document = _dummy(folder, data)
    words = _write_coco(folder, {"a": document})
    written = _coco_classes(document)
    declared = {category["name"] for category in document["categories"]}
    missing = len(declared - {name for names in written.values() for name in names})
    return Expected(
        [*words, "--annotations", folder / "a.json"],
        {"train": written},
        [f"{missing} of {len(declared)} declared classes never occur"],
    )


def _resized(folder: Path, data: Path, *, shift: float, scale: float) -> Expected:
    """Images that are larger than their annotations say."""
    document = json.loads((data / _FACES / "annotations/custom_train.json").read_bytes())
    images = [each for each in document["images"] if each["width"] == 400][:3]
    document = _part(document, images)
    (folder / "images").mkdir(parents=True)
    boxes: dict[str, list[list[float]]] = {image["file_name"]: [] for image in images}
    names = {image["id"]: image for image in images}
    for image in images:
        size = image["width"], image["height"]
        picture = Image.open(next((data / _FACES).glob(f"*/{image['file_name']}")))
        picture.resize((size[0] * 4, size[1] * 4)).save(folder / "images" / image["file_name"])
    for each in document["annotations"]:
        image = names[each["image_id"]]
        left, top, width, height = each["bbox"]
        box = [left, top, left + width, top + height]
        sides = [image["width"], image["height"]] * 2
        parts = [min(max(value / side, 0), 1) for value, side in zip(box, sides, strict=True)]
        boxes[image["file_name"]].append(parts)
        each["bbox"] = [scale * left + shift, scale * top, scale * width, scale * height]
    words = _write_coco(folder, {"a": document})
    return Expected(
        [*words, "--annotations", folder / "a.json"],
        {"train": _coco_classes(document)},
        boxes=boxes,
    )


def coco_annotated_four_times_smaller(folder: Path, data: Path) -> Expected:
    says = ["annotated_size_scaled", "image.annotated_size"]
    return _resized(folder, data, shift=0, scale=1)._replace(says=says)


def coco_whose_sizes_are_wrong(folder: Path, data: Path) -> Expected:
    """The sizes are four times too small, and the boxes are right."""
    says = ["size_mismatch", "image.annotated_size"]
    return _resized(folder, data, shift=0, scale=4)._replace(
        written={}, boxes={}, says=says, exit_code=3
    )


def _categories(folder: Path, data: Path, categories: list[Any]) -> Expected:
    document = json.loads((data / _FACES / "annotations/custom_train.json").read_bytes())
    _copy((data / _FACES / "train2017").iterdir(), folder / "images")
    document["categories"] = categories
    words = _write_coco(folder, {"a": document})
    written = {
        name: [each for each in names if each not in ("background", "faces")]
        for name, names in _coco_classes(document).items()
    }
    listed = {file.name for file in (folder / "images").iterdir()}
    return Expected(
        [*words, "--annotations", folder / "a.json", "--set", "rejects.max_ratio=1"],
        {"train": {name: names for name, names in written.items() if name in listed}},
    )


def coco_of_roboflow(folder: Path, data: Path) -> Expected:
    """Category 0 stands for all others."""
    categories = [
        {"id": 0, "name": "faces", "supercategory": "none"},
        {"id": 1, "name": "with_mask", "supercategory": "faces"},
        {"id": 2, "name": "without_mask", "supercategory": "faces"},
    ]
    expected = _categories(folder, data, categories)
    return expected._replace(
        says=["2 classes: with_mask, without_mask", "labels.first_id: 0 keeps it"]
    )


def coco_with_a_background(folder: Path, data: Path) -> Expected:
    categories = [
        {"id": 0, "name": "background"},
        {"id": 1, "name": "with_mask"},
        {"id": 2, "name": "without_mask"},
    ]
    expected = _categories(folder, data, categories)
    return expected._replace(says=["2 classes: with_mask, without_mask", "background"])


def coco_with_a_class_of_id_0(folder: Path, data: Path) -> Expected:
    names = ("mask_weared_incorrect", "with_mask", "without_mask")
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    expected = _categories(folder, data, categories)
    return expected._replace(says=["class 'mask_weared_incorrect' has the id 0"])


def _labelme_classes(file: Path) -> list[str]:
    return [shape["label"] for shape in json.loads(file.read_bytes())["shapes"]]


def labelme_with_paths_elsewhere(folder: Path, data: Path) -> Expected:
    """The files name the folder in which the annotator's machine had the pictures."""
    written = {}
    for file in sorted((data / _LABELME).glob("*.json")):
        document = json.loads(file.read_bytes())
        document["imagePath"] = f"..\\test-2\\{file.stem}.jpg"
        write_files(folder, {f"all/{file.name}": json.dumps(document)})
        _copy([file.with_suffix(".jpg")], folder / "all")
        written[f"all/{file.stem}.jpg"] = _labelme_classes(file)
    return Expected(["labelme", "--root", folder], {"train": written})


def labelme_in_folders_of_splits(folder: Path, data: Path) -> Expected:
    """A third folder holds pictures without annotations."""
    written: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for number, file in enumerate(sorted((data / _LABELME).glob("*.json"))):
        split = "test" if number == 2 else "train"
        _copy([file, file.with_suffix(".jpg")], folder / split)
        written[split][f"{split}/{file.stem}.jpg"] = _labelme_classes(file)
    _copy((data / "clipscore-captions/images").iterdir(), folder / "overview")
    return Expected(
        ["labelme", "--root", folder],
        written,
        ["2 of 2 images of no split are named by no row or annotation file and left out"],
    )


def _voc(folder: Path, data: Path) -> dict[str, list[str]]:
    for name in ("Annotations", "AnnotationsVisualization", "JPEGImages"):
        _copy((data / _VOC / name).iterdir(), folder / name)
    return {
        f"JPEGImages/{file.stem}.jpg": _labelme_classes(file)
        for file in sorted((data / _LABELME).glob("*.json"))
    }


def voc_with_drawings(folder: Path, data: Path) -> Expected:
    """The pictures of the annotations are named as the images are."""
    written = _voc(folder, data)
    lists = {"train": ["2011_000003", "2011_000006"], "val": ["2011_000025"]}
    write_files(folder, {f"ImageSets/Main/{name}.txt": "\n".join(lists[name]) for name in lists})
    splits = {
        name: {key: written[key] for key in (f"JPEGImages/{stem}.jpg" for stem in lists[name])}
        for name in lists
    }
    return Expected(["voc", "--root", folder], splits)


def voc_whose_lists_are_the_same(folder: Path, data: Path) -> Expected:
    _voc(folder, data)
    names = "2011_000003\n2011_000006\n2011_000025\n"
    write_files(folder, {f"ImageSets/Main/{name}.txt": names for name in ("train", "val")})
    return Expected(
        ["voc", "--root", folder],
        {},
        ["split 'val': has no examples", "3 duplicate_key", "it is in split 'train' already"],
        exit_code=1,
    )


def voc_maps_of_lions(folder: Path, data: Path) -> Expected:
    """Numbers 0 and 1 in a palette that is not VOC's, and no labelmap."""
    _voc(folder, data)
    (folder / "SegmentationClass").mkdir()
    written = {}
    for file in sorted((folder / "JPEGImages").iterdir()):
        size = Image.open(file).size
        values = np.zeros((size[1], size[0]), np.uint8)
        values[10:50, 10:50] = 1
        mask = Image.fromarray(values)
        mask.putpalette([0, 0, 0, 255, 255, 255])
        mask.save(folder / "SegmentationClass" / f"{file.stem}.png")
        written[f"JPEGImages/{file.name}"] = list[str]()
    shutil.rmtree(folder / "Annotations")
    return Expected(
        ["voc", "--root", folder, "--semantic", "--split", "train"],
        {"train": written},
        ["labelmap"],
    )


def voc_maps_of_voc(folder: Path, data: Path) -> Expected:
    """The same numbers in VOC's own palette have VOC's names."""
    expected = voc_maps_of_lions(folder, data)
    for file in (folder / "SegmentationClass").iterdir():
        mask = Image.open(file)
        mask.putpalette(voc_colour_map().ravel().tolist())
        mask.save(file)
    return expected._replace(says=["its colours look like VOC's"])


def folders_with_one_of_annotations(folder: Path, data: Path) -> Expected:
    """The third folder holds no image."""
    written: dict[str, dict[str, list[str]]] = {}
    for source, split in (("train", "train"), ("val", "test")):
        shutil.copytree(data / _IMAGENET / source, folder / split)
        written[split] = {
            file.relative_to(folder).as_posix(): [file.parent.name]
            for file in sorted((folder / split).glob("*/*"))
        }
    write_files(folder, {"annotations/all.csv": "image,label\n", "annotations/old/x.txt": ""})
    return Expected(
        ["image-folder", "--images", folder],
        written,
        ["10 classes: cock, electric_ray, goldfish, great_white_shark, hammerhead"],
    )


def folders_of_splits_and_others(folder: Path, data: Path) -> Expected:
    folders_with_one_of_annotations(folder, data)
    _copy((data / _IMAGENET / "val" / "hen").iterdir(), folder / "extra" / "hen")
    return Expected(
        ["image-folder", "--images", folder],
        {},
        ["named like splits (train, test) and in others (extra)", "--no-split-folders"],
        exit_code=2,
    )


def folders_in_one_called_images(folder: Path, data: Path) -> Expected:
    """All pictures have one class, which is no class."""
    _copy((data / _IMAGENET / "val").glob("*/*"), folder / "set" / "images")
    written = {
        f"images/{file.name}": ["images"] for file in sorted((folder / "set/images").iterdir())
    }
    return Expected(
        ["image-folder", "--images", folder / "set"],
        {"train": written},
        ["1 class: images", "warning: all images have the same class, 'images'"],
    )


def folders_and_a_name_that_none_has(folder: Path, data: Path) -> Expected:
    shutil.copytree(data / "bigdl-cifar/cifar", folder / "cifar")
    write_files(folder, {"classes.txt": "airplanes\ndeer\n"})
    written = {f"deer/{file.name}": ["deer"] for file in sorted((folder / "cifar/deer").iterdir())}
    return Expected(
        ["image-folder", "--images", folder / "cifar", "--classes", folder / "classes.txt"],
        {"train": written},
        ["1 of 2 classes have no folder: 'airplanes' (did you mean 'airplane'?)"],
    )


def folders_of_the_same_pictures(folder: Path, data: Path) -> Expected:
    """The same photographs lie in two classes, encoded again in one."""
    written = {}
    for number, file in enumerate(sorted((data / _IMAGENET / "val").glob("*/*"))[:5]):
        for name, quality in (("cat", 95), ("dog", 70)):
            (folder / "set" / name).mkdir(parents=True, exist_ok=True)
            picture = Image.open(file).convert("RGB")
            picture.save(folder / "set" / name / f"{number}.jpg", quality=quality)
            written[f"{name}/{number}.jpg"] = [name]
    return Expected(
        ["image-folder", "--images", folder / "set"],
        {"train": written},
        ["5 with different classes of nearly equal ones", "warning: 5 groups of nearly equal"],
    )


def yolo_without_a_file_of_labels(folder: Path, data: Path) -> Expected:
    """The documented way to say that a picture shows nothing."""
    source = data / "ultralytics-hub/coco8"
    shutil.copytree(source, folder / "coco8")
    gone = folder / "coco8/labels/train/000000000009.txt"
    gone.unlink()
    yaml = (source / "coco8.yaml").read_text()
    names = {
        int(number): name.strip()
        for number, _, name in (line.strip().partition(":") for line in yaml.splitlines())
        if number.isdigit()
    }
    written: dict[str, dict[str, list[str]]] = {"train": {}, "val": {}}
    for image in sorted((folder / "coco8/images").glob("*/*.jpg")):
        split = image.parent.name
        labels = folder / "coco8/labels" / split / f"{image.stem}.txt"
        lines = labels.read_text().splitlines() if labels.exists() else []
        written[split][f"images/{split}/{image.name}"] = [
            names[int(each.split()[0])] for each in lines
        ]
    return Expected(
        ["yolo", "--data", folder / "coco8/coco8.yaml"],
        written,
        ["1 of 4 images of train have no annotations and are written as negatives"],
    )


def yolo_boxes_that_overhang(folder: Path, data: Path) -> Expected:
    shutil.copytree(data / "ultralytics-hub/dota8", folder / "dota8")
    yaml = (folder / "dota8/dota8.yaml").read_text()
    names = {
        number.strip(): name.split("#")[0].strip()
        for number, _, name in (line.partition(":") for line in yaml.splitlines())
        if number.strip().isdigit()
    }
    written: dict[str, dict[str, list[str]]] = {"train": {}, "val": {}}
    for labels in sorted((folder / "dota8/labels").glob("*/*.txt")):
        split = labels.parent.name
        lines = labels.read_text().splitlines()
        written[split][f"images/{split}/{labels.stem}.jpg"] = [
            names[each.split()[0]] for each in lines
        ]
    return Expected(["yolo", "--root", folder / "dota8"], written, ["box_clipped"])


def webdataset_with_one_odd_class(folder: Path, data: Path) -> Expected:
    """Four samples have numbers for classes, one a name."""
    files: dict[str, bytes | str] = {}
    written = {}
    for number, file in enumerate(sorted((data / _IMAGENET / "val").glob("*/*"))[:5]):
        files[f"{number}.jpg"] = file.read_bytes()
        files[f"{number}.cls"] = "cat" if number == 3 else str(number)
        if number != 3:
            written[f"0.tar/{number}.jpg"] = [str(number)]
    folder.mkdir()
    write_tar(folder / "0.tar", files)
    return Expected(
        ["webdataset", "--tars", folder, "--set", "rejects.max_ratio=0.5"],
        {"train": written},
        ["annotation_malformed"],
    )


def _table(folder: Path, data: Path, rows: list[dict[str, object]], name: str) -> None:
    _copy((data / "clipscore-captions/images").iterdir(), folder / "images")
    if name.endswith("l"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue()
    write_files(folder, {name: text})


def csv_of_via(folder: Path, data: Path) -> Expected:
    """The VGG Image Annotator writes its classes as JSON in a column."""
    rows: list[dict[str, object]] = [
        {
            "filename": f"image{number}.jpg",
            "file_size": 1,
            "file_attributes": "{}",
            "region_count": 1,
            "region_id": 0,
            "region_shape_attributes": '{"name":"rect","x":1,"y":2,"width":5,"height":6}',
            "region_attributes": '{"class":"cat"}',
        }
        for number in (1, 2)
    ]
    _table(folder, data, rows, "via.csv")
    words: list[str | Path] = [
        "csv",
        "--manifest",
        folder / "via.csv",
        "--image-root",
        folder / "images",
    ]
    return Expected(
        words,
        {"train": {"image1.jpg": [], "image2.jpg": []}},
        ["region_shape_attributes", "label_column"],
    )


def jsonl_of_hugging_face(folder: Path, data: Path) -> Expected:
    """Objects lie one below the other in a column of their own."""
    rows: list[dict[str, object]] = [
        {
            "file_name": f"image{number}.jpg",
            "objects": {"bbox": [[1, 2, 5, 6]], "categories": [0]},
        }
        for number in (1, 2)
    ]
    _table(folder, data, rows, "metadata.jsonl")
    words: list[str | Path] = [
        "jsonl",
        "--manifest",
        folder / "metadata.jsonl",
        "--image-root",
        folder / "images",
    ]
    return Expected(words, {"train": {"image1.jpg": [], "image2.jpg": []}}, ["objects"])


def csv_that_names_some_images(folder: Path, data: Path) -> Expected:
    _table(folder, data, [{"image": "image1.jpg", "label": "cat"}], "t.csv")
    words: list[str | Path] = [
        "csv",
        "--manifest",
        folder / "t.csv",
        "--image-root",
        folder / "images",
    ]
    return Expected(
        words,
        {"train": {"image1.jpg": ["cat"]}},
        ["1 of 2 images of train are named by no row or annotation file and left out"],
    )


def open_images_of_one_split(folder: Path, data: Path) -> Expected:
    source = data / "datumaro/open_images_dataset/v6"
    shutil.copytree(source / "images", folder / "images")
    annotations = source / "annotations"
    return Expected(
        [
            *("open-images", "--images", folder / "images"),
            *("--boxes", annotations / "oidv6-train-annotations-bbox.csv"),
            *("--classes", annotations / "oidv6-class-descriptions.csv"),
        ],
        {"train": {"train/b.jpg": ["Generic label #0"]}},
        ["3 of 4 images of train are named by no row or annotation file and left out"],
    )


def cvat_with_pictures_of_another_task(folder: Path, data: Path) -> Expected:
    """Lines and points, which have no area, are no objects."""
    source = data / "datumaro/cvat_dataset/for_images/export_project"
    shutil.copytree(source / "images", folder / "images")
    _copy((data / "clipscore-captions/images").iterdir(), folder / "images")
    written: dict[str, dict[str, list[str]]] = {}
    for image in ElementTree.parse(source / "annotations.xml").iter("image"):
        split = image.attrib["subset"]
        key = f"{split}/{image.attrib['name']}"
        written.setdefault(split, {})[key] = [
            shape.attrib["label"] for shape in image if shape.tag in ("box", "polygon")
        ]
    return Expected(
        ["cvat", "--images", folder / "images", "--annotations", source / "annotations.xml"],
        written,
        ["2 of 2 images of no split are named by no row or annotation file and left out"],
    )


LAYOUTS: tuple[Layout, ...] = (
    coco_of_one_split,
    coco_of_both_splits,
    coco_with_drawings,
    coco_without_annotations,
    coco_classes_that_never_occur,
    coco_annotated_four_times_smaller,
    coco_whose_sizes_are_wrong,
    coco_of_roboflow,
    coco_with_a_background,
    coco_with_a_class_of_id_0,
    labelme_with_paths_elsewhere,
    labelme_in_folders_of_splits,
    voc_with_drawings,
    voc_whose_lists_are_the_same,
    voc_maps_of_lions,
    voc_maps_of_voc,
    folders_with_one_of_annotations,
    folders_of_splits_and_others,
    folders_in_one_called_images,
    folders_and_a_name_that_none_has,
    folders_of_the_same_pictures,
    yolo_without_a_file_of_labels,
    yolo_boxes_that_overhang,
    webdataset_with_one_odd_class,
    csv_of_via,
    jsonl_of_hugging_face,
    csv_that_names_some_images,
    open_images_of_one_split,
    cvat_with_pictures_of_another_task,
)
# One of each kind of mistake, for every run of the tests.
QUICK = (
    coco_of_both_splits,
    coco_annotated_four_times_smaller,
    labelme_with_paths_elsewhere,
    voc_maps_of_lions,
    folders_of_splits_and_others,
)
