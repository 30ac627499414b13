"""One sample of each built-in format: the command that builds it, and the expected dataset.

The expected values were read off the sources by hand, or with pycocotools and NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.images.mask_file import voc_colour_map
from tests.support.archive_files import write_files, write_tar
from tests.support.cifar_files import write_cifar10, write_cifar100
from tests.support.hub_files import BOXES, IMAGE, classes, hub_image, hub_parquet, list_of, value
from tests.support.idx_files import write_idx
from tests.support.image_makers import Pixels, pixels, save
from tests.support.making import draw, vertex, write_lines
from tests.support.table_reading import write_parquet
from tests.support.voc_files import small_voc, voc_xml

# Returns the folder of the real samples, or skips the test.
SharedData = Callable[[], Path]
Writer = Callable[[Path, SharedData], object]

LABELSTUDIO = "labelstudio-yolo/test_import_yolo_data_unif_dims"


# An Example's values, by key.
Features = Mapping[str, list[Any]]


def observe(features: Features, key: str, *, decode: Callable[[bytes], Pixels] = pixels) -> object:
    """Returns the value of a key in the form that samples use.

    For an image this is its first pixel, for object masks the number of pixels in each, and for a
    class map `{value: pixels}`; None if the Example has no such key.
    """
    if key not in features:
        return None
    found = features[key]
    if key == "image/object/mask":
        return [int(decode(mask).sum()) for mask in found]
    if key == "image/segmentation/class/encoded":
        numbers, counts = np.unique(decode(found[0]), return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    if key == "image/encoded":
        first_pixel: list[int] = decode(found[0])[0, 0].tolist()
        return first_pixel
    return found


class FormatSample(NamedTuple):
    """A sample and its expected dataset.

    Attributes:
        format_name: Its format.
        data: A folder of the real samples, which is read in place; or a function that writes the
            input into a folder.
        words: The rest of the command line; `{data}` stands for the folder.
        counts: Examples by split.
        key: The key of one image.
        split: The image's split.
        values: The values of its Example by key, in the form of `observe`.
        rejects: Rejects by reason.
        variant: A name for this sample if the format has several.
    """

    format_name: str
    data: str | Writer
    words: tuple[str, ...]
    counts: Mapping[str, int]
    key: str
    values: Mapping[str, Any]
    split: str = "train"
    rejects: Mapping[str, int] = {}
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.format_name}-{self.variant}" if self.variant else self.format_name

    def command(self, data: Path | str) -> tuple[str, ...]:
        """Returns the words after `shardbeam build` for the sample at a path or URI."""
        return (self.format_name, *(word.format(data=data) for word in self.words))

    def place(self, folder: Path, *, shared_data: SharedData) -> Path:
        """Returns the sample's folder; writes the sample into `folder` if it is not a real one."""
        if isinstance(self.data, str):
            return shared_data() / self.data
        folder.mkdir()
        self.data(folder, shared_data)
        return folder


def _write_lvis(folder: Path, shared_data: SharedData) -> None:
    """Writes the real annotations, and gray images, because the sample has none."""
    data = (shared_data() / "lvis" / "lvis_val_100.json").read_bytes()
    (folder / "lvis.json").write_bytes(data)
    for image in json.loads(data)["images"]:
        draw(folder / "images", image, image["file_name"])


def _write_voc_maps(folder: Path, _: SharedData) -> None:
    numbers = np.zeros((24, 32), np.uint8)
    numbers[2:10, 1:9] = 1
    numbers[12:20, 10:30] = 2
    classes = numbers.copy()
    classes[numbers == 2] = 3
    classes[10, 1:9] = 255
    objects: tuple[dict[str, object], ...] = (
        {"name": "aeroplane", "xmin": 2, "ymin": 3, "xmax": 9, "ymax": 10},
        {"name": "bird", "xmin": 11, "ymin": 13, "xmax": 30, "ymax": 20},
    )
    write_files(folder, small_voc(**{"Annotations/a.xml": voc_xml(*objects, size=(32, 24))}))
    for name, values in (("SegmentationObject", numbers), ("SegmentationClass", classes)):
        (folder / name).mkdir()
        _write_palette_png(folder / name / "a.png", values)


def _write_palette_png(path: Path, values: npt.NDArray[np.uint8]) -> None:
    image = Image.fromarray(values)
    image.putpalette(voc_colour_map().ravel().tolist())
    image.save(path)


def _write_vertex(folder: Path, shared_data: SharedData) -> None:
    """Writes the boxes of Label Studio's YOLO export in Vertex AI's format."""
    source = shared_data() / LABELSTUDIO
    (folder / "images").mkdir()
    names = (source / "classes.txt").read_text().split()
    rows = []
    for image in sorted((source / "images").iterdir()):
        (folder / "images" / image.name).write_bytes(image.read_bytes())
        boxes = []
        for line in (source / "labels" / f"{image.stem}.txt").read_text().splitlines():
            number, x, y, width, height = line.split()
            left, top = float(x) - float(width) / 2, float(y) - float(height) / 2
            boxes.append(
                {
                    "displayName": names[int(number)],
                    "xMin": left,
                    "yMin": top,
                    "xMax": left + float(width),
                    "yMax": top + float(height),
                }
            )
        use = "test" if image.stem == "img_5" else "training"
        rows.append(vertex(image.name, use=use, boundingBoxAnnotations=boxes))
    write_lines(folder / "import.jsonl", rows)


def _write_via(folder: Path, shared_data: SharedData) -> None:
    """Writes real outlines as VIA has them, some as the dict of VIA 1."""
    source = shared_data() / "labelme" / "instance_segmentation" / "data_annotated"
    document = {}
    for number, path in enumerate(sorted(source.glob("*.json"))):
        image = path.with_suffix(".jpg")
        regions = [
            {
                "shape_attributes": {
                    "name": "polygon",
                    "all_points_x": [x for x, _ in shape["points"]],
                    "all_points_y": [y for _, y in shape["points"]],
                },
                "region_attributes": {"what": f" {shape['label']} "},
            }
            for shape in json.loads(path.read_bytes())["shapes"]
        ]
        size = image.stat().st_size
        document[f"{image.name}{size}"] = {
            "filename": image.name,
            "size": size,
            "regions": regions if number else {str(k): it for k, it in enumerate(regions)},
            "file_attributes": {},
        }
        (folder / image.name).write_bytes(image.read_bytes())
    (folder / "via_region_data.json").write_text(json.dumps(document))


def _write_keras_txt(folder: Path, shared_data: SharedData) -> None:
    """Writes a real table of corners as keras-yolo3 has them: a line for each image."""
    source = shared_data() / "facemask" / "csv" / "valid"
    names: dict[str, int] = {}
    lines: dict[str, list[str]] = {}
    for row in (source / "_annotations.csv").read_text().splitlines():
        image, *corners, name = row.split(",")
        number = names.setdefault(name, len(names))
        lines.setdefault(image, []).append(",".join([*corners, str(number)]))
    text = "".join(f"C:\\my images\\valid\\{name} {' '.join(it)}\n" for name, it in lines.items())
    (folder / "_annotations.txt").write_text(text)
    (folder / "_classes.txt").write_text("\n".join(names))
    (folder / "valid").mkdir()
    for image in lines:
        (folder / "valid" / image).write_bytes((source / image).read_bytes())


def _write_label_studio(folder: Path, shared_data: SharedData) -> None:
    """Writes Label Studio's own export of turned boxes, and images of these sizes."""
    source = shared_data() / "labelstudio-yolo"
    tasks = json.loads((source / "test_export_yolo" / "data_obb.json").read_bytes())[:2]
    for number, task in enumerate(tasks):
        result = task["annotations"][0]["result"][0]
        size = {side: result[f"original_{side}"] for side in ("width", "height")}
        task["data"] = {"image": f"/data/upload/1/1234567{number}-{number}.jpg"}
        draw(folder / "images", size, f"{number}.jpg")
    (folder / "project-1.json").write_text(json.dumps(tasks))


def _write_parquet(folder: Path, shared_data: SharedData) -> None:
    """Writes the boxes of a table without a header, an object a row, in several groups."""
    source = shared_data() / "facemask" / "csv" / "valid"
    rows: list[dict[str, object]] = []
    for line in (source / "_annotations.csv").read_text().split():
        image, *sides, label = line.split(",")
        box = dict(zip(("xmin", "ymin", "xmax", "ymax"), map(int, sides), strict=True))
        rows.append({"filename": image, "class": label, **box})
    for path in source.glob("*.jpg"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "boxes.parquet").write_bytes(write_parquet(rows))


def _write_png_masks(folder: Path, _: SharedData) -> None:
    """Writes masks of gray indices beside the images, as Roboflow exports them."""
    values = np.zeros((24, 32), np.uint8)
    values[2:10, 1:9] = 1
    values[12:20, 10:30] = 3
    for split, count in (("train", 2), ("valid", 1)):
        for number in range(count):
            stem = f"{split}/{number}_jpg.rf.1c2d"
            image = Image.new("RGB", (32, 24), (9, 8, number))
            mask = Image.fromarray(values + np.uint8(number))
            files = {f"{stem}.jpg": save(image, "JPEG"), f"{stem}_mask.png": save(mask, "PNG")}
            write_files(folder, files)
        classes = "Pixel Value, Class\n0, background\n1, cat\n2, dog\n3, cow\n4, sky\n"
        write_files(folder, {f"{split}/_classes.csv": classes})


def _write_captioned_tars(folder: Path, shared_data: SharedData) -> None:
    source = shared_data() / "clipscore-captions"
    captions = json.loads((source / "refs.json").read_bytes())
    for number, (name, texts) in enumerate(sorted(captions.items())):
        image = (source / "images" / f"{name}.jpg").read_bytes()
        files = {
            f"{name}.jpg": image,
            f"{name}.txt": texts[0].encode(),
            f"{name}.cls": str(number).encode(),
        }
        write_tar(folder / f"{number:05}.tar", files)


def _write_hub(folder: Path, shared_data: SharedData) -> None:
    """Writes real images and boxes in rows, with the columns of cppe-5, and captions."""
    source = shared_data() / "facemask" / "coco"
    (folder / "data").mkdir()
    for split, part in (("train", "val"), ("test", "train")):
        document = json.loads((source / f"annotations/custom_{part}.json").read_bytes())
        rows = []
        for each in document["images"]:
            found = [it for it in document["annotations"] if it["image_id"] == each["id"]]
            objects = {
                key: [it[name] for it in found]
                for key, name in {"id": "id", "area": "area", "bbox": "bbox"}.items()
            }
            data = (source / f"{part}2017" / each["file_name"]).read_bytes()
            rows.append(
                {
                    "image_id": each["id"],
                    "image": hub_image(data, each["file_name"]),
                    "objects": {**objects, "category": [it["category_id"] for it in found]},
                    "caption": f"picture {each['id']}",
                }
            )
        features = {
            "image_id": value("int64"),
            "image": IMAGE,
            "objects": {
                "id": list_of(value("int64")),
                "area": list_of(value("float32")),
                "bbox": BOXES,
                "category": list_of(classes(*(it["name"] for it in document["categories"]))),
            },
            "caption": value("string"),
        }
        data = hub_parquet(rows, features)
        (folder / "data" / f"{split}-00000-of-00001.parquet").write_bytes(data)


SAMPLES = (
    FormatSample(
        "coco",
        "dali/coco_pixelwise",
        (
            *("--images", "{data}/images", "--annotations", "{data}/instances.json"),
            *("--set", "masks=png"),
        ),
        {"train": 6},
        "eat-1237431_1280.jpg",
        {
            "image/object/class/text": [b"Pizza", b"Table"],
            "image/object/class/label": [2, 3],
            "image/object/bbox/xmin": [62 / 1280, 0],
            "image/object/bbox/xmax": [(62 + 905) / 1280, 1],
            "image/object/bbox/ymin": [494 / 815, 482 / 815],
            "image/object/mask": [182_379, 161_448],
        },
        variant="masks",
    ),
    FormatSample(
        "lvis",
        _write_lvis,
        ("--images", "{data}/images", "--annotations", "{data}/lvis.json"),
        {"train": 100},
        "COCO_val2014_000000266409.jpg",
        {
            "image/object/class/text": [b"ski", b"ski", b"ski_pole", b"ski_pole"],
            "image/object/class/label": [982, 982, 985, 985],
            "image/object/bbox/xmin": [372.46 / 640, 400.21 / 640, 440.81 / 640, 318.77 / 640],
            "image/neg_category_ids": [284, 53, 754, 299, 654, 541, 566],
        },
    ),
    FormatSample(
        "voc",
        "bccd-voc/BCCD",
        # The lists name many images that are not in the sample.
        ("--root", "{data}", "--set", "rejects.max_ratio=1"),
        {"train": 12, "val": 5, "test": 7},
        "JPEGImages/BloodImage_00343.jpg",
        {
            "image/object/class/text": [*[b"RBC"] * 9, *[b"Platelets"] * 2, b"WBC"],
            "image/object/bbox/xmin": [
                *(483 / 640, 524 / 640, 95 / 640, 180 / 640, 255 / 640, 522 / 640),
                *(31 / 640, 131 / 640, 337 / 640, 0, 69 / 640, 182 / 640),
            ],
            "image/object/bbox/ymax": [
                *(303 / 480, 396 / 480, 244 / 480, 329 / 480, 307 / 480, 119 / 480),
                *(98 / 480, 145 / 480, 444 / 480, 410 / 480, 255 / 480, 153 / 480),
            ],
        },
        rejects={"missing_image": 193 + 82 + 65},
    ),
    FormatSample(
        "voc",
        _write_voc_maps,
        ("--root", "{data}", "--semantic", "--set", "masks=png"),
        {"train": 1, "val": 1},
        "JPEGImages/a.jpg",
        {
            "image/object/class/text": [b"aeroplane", b"bird"],
            "image/object/bbox/xmin": [1 / 32, 10 / 32],
            "image/object/mask": [8 * 8, 8 * 20],
            "image/segmentation/class/encoded": {0: 768 - 64 - 160 - 8, 1: 64, 3: 160, 255: 8},
        },
        variant="maps",
    ),
    FormatSample(
        "masks",
        _write_png_masks,
        ("--images", "{data}"),
        {"train": 2, "valid": 1},
        "train/1_jpg.rf.1c2d.jpg",
        {"image/segmentation/class/encoded": {1: 768 - 64 - 160, 2: 64, 4: 160}},
    ),
    FormatSample(
        "masks",
        "datumaro/kaggle_dataset/image_mask_with_labelmap",
        ("--images", "{data}"),
        {"train": 3},
        "images/001.png",
        {"image/segmentation/class/encoded": {0: 1, 1: 2, 2: 2}},
        variant="of-16-bits",
    ),
    FormatSample(
        "images",
        "datumaro/image_dir_dataset",
        ("--images", "{data}"),
        {"train": 2},
        "2.jpg",
        {"image/width": [10], "image/height": [5]},
    ),
    FormatSample(
        "yolo",
        LABELSTUDIO,
        ("--root", "{data}"),
        {"train": 5},
        "images/img_1.jpg",
        {
            "image/object/class/text": [b"bus", b"number", b"closed_door", b"closed_door"],
            "image/object/bbox/xmin": [0.015625, 0.253125, 0.3703125, 0.7453125],
            "image/object/bbox/ymin": [0.0273556, 0.0972644, 0.1793313, 0.2097264],
        },
    ),
    FormatSample(
        "yolo",
        "ultralytics-hub/coco8-pose",
        ("--data", "{data}/coco8-pose.yaml"),
        {"train": 4, "val": 4},
        "images/train/000000000086.jpg",
        {
            "image/object/class/text": [b"person"],
            "image/object/bbox/xmin": [0.423213 - 0.252246 / 2],
            "image/object/keypoint/num": [16],
            "image/object/keypoint/visibility": [2, 2, 2, 0, *[2] * 9, 1, 2, 1, 2],
            "image/object/keypoint/x": [
                *(0.455078, 0.462891, 0.435547, 0, 0.406250, 0.498047, 0.363281, 0.515625),
                *(0.310547, 0.484375, 0.386719, 0.482422, 0.414062, 0.556641, 0.425781),
                *(0.482422, 0.398438),
            ],
            "image/object/keypoint/text": [b"keypoint_%d" % number for number in range(1, 18)],
        },
        variant="pose",
    ),
    FormatSample(
        "yolo",
        "ultralytics-hub/dota8",
        ("--root", "{data}"),
        # Four images have corners outside their borders, up to 1.057 and down to -0.072.
        {"train": 4, "val": 4},
        "images/train/P1142__1024__0___824.jpg",
        {
            "image/object/class/text": [b"plane"],
            "image/object/bbox/xmin": [0.625976],
            "image/object/bbox/ymin": [0.266601],
            "image/object/bbox/xmax": [1.0],
            "image/object/bbox/ymax": [0.690429],
        },
        variant="obb",
    ),
    FormatSample(
        "cvat",
        "datumaro/cvat_dataset/for_images/export_project",
        (
            *("--images", "{data}/images", "--annotations", "{data}/annotations.xml"),
            *("--set", "masks=png"),
        ),
        {"Train": 2, "Test": 2, "Validation": 2},
        "Test/img1.jpg",
        {
            "image/object/class/text": [b"label1"],
            "image/object/bbox/xmin": [1 / 10],
            "image/object/bbox/ymin": [2 / 10],
            "image/object/bbox/xmax": [6 / 10],
            "image/object/bbox/ymax": [5 / 10],
            "image/object/occluded": [0],
        },
        split="Test",
    ),
    FormatSample(
        "cvat",
        "datumaro/cvat_dataset/for_video",
        (
            *("--images", "{data}/images", "--annotations", "{data}/annotations.xml"),
            *("--set", "objects_lost=drop"),
        ),
        {"train": 1},
        "frame_000010.png",
        {
            "image/object/class/text": [b"II"],
            "image/object/bbox/xmin": [3 / 25],
            "image/object/bbox/ymin": [4 / 20],
            "image/object/bbox/xmax": [10 / 25],
            "image/object/bbox/ymax": [5 / 20],
            "image/object/occluded": [1],
            "image/object/track/label": [0],
        },
        variant="video",
    ),
    FormatSample(
        "labelme",
        "labelme/primitives",
        ("--root", "{data}"),
        {"train": 1},
        "primitives.jpg",
        {
            "image/object/class/text": [
                *(b"rectangle", b"circle", b"rectangle", b"polygon", b"octagon")
            ],
            # The circle's radius is the hypotenuse of a triangle with sides of 30 and 41 pixels.
            "image/object/bbox/xmin": [
                *(32 / 560, (195 - 2581**0.5) / 560, 391 / 560, 45 / 560, 417 / 560)
            ],
            "image/object/bbox/ymax": [
                *(135 / 450, (84 + 2581**0.5) / 450, 135 / 450, 406 / 450, 405 / 450)
            ],
        },
    ),
    FormatSample(
        "labelme",
        "labelme/classification/data_annotated",
        ("--root", "{data}"),
        {"train": 2},
        "0002.jpg",
        {"image/class/text": [b"dog"]},
        variant="flags",
    ),
    FormatSample(
        "via",
        _write_via,
        (
            "--images",
            "{data}",
            "--annotations",
            "{data}/via_region_data.json",
            "--set",
            "masks=png",
        ),
        {"train": 3},
        "2011_000025.jpg",
        {
            "image/object/class/text": [b"bus", b"bus", b"car"],
            "image/object/bbox/xmin": [0.1638723, 0.0, 0.8178723],
            "image/object/bbox/ymax": [0.9982215, 0.7561702, 0.6905292],
        },
    ),
    FormatSample(
        "keras-txt",
        _write_keras_txt,
        (
            *("--images", "{data}", "--annotations", "{data}/_annotations.txt"),
            *("--match", "suffix"),
        ),
        {"train": 15},
        "valid/maksssksksss45_png.rf.8775a3d45dc5b046a2dfc31a737e107f.jpg",
        {
            "image/object/class/text": [b"without_mask", b"with_mask", b"without_mask"],
            "image/object/bbox/xmin": [64 / 416, 230 / 416, 259 / 416],
            "image/object/bbox/ymax": [114 / 416, 153 / 416, 372 / 416],
        },
    ),
    FormatSample(
        "open-images",
        "datumaro/open_images_dataset/v6",
        (
            *("--images", "{data}/images"),
            *("--boxes", "{data}/annotations/oidv6-train-annotations-bbox.csv"),
            *("--boxes", "{data}/annotations/test-annotations-bbox.csv"),
            *("--classes", "{data}/annotations/oidv6-class-descriptions.csv"),
            *("--image-labels", "{data}/annotations/test-annotations-human-imagelabels.csv"),
        ),
        # No row of these files names the other two images.
        {"train": 2},
        "test/c.jpg",
        {
            "image/source_id": [b"c"],
            "image/object/class/text": [b"Generic label #3"],
            "image/object/bbox/xmin": [0.7],
            "image/object/bbox/xmax": [0.8],
            "image/object/bbox/ymin": [0],
            "image/object/bbox/ymax": [0.5],
            "image/object/group_of": [1],
            "image/class/text": [b"Generic label #1", b"Generic label #3"],
        },
    ),
    FormatSample(
        "csv",
        "datumaro/kaggle_dataset/image_csv",
        ("--manifest", "{data}/ann.csv", "--image-root", "{data}/images"),
        {"train": 5},
        "3.jpg",
        {"image/class/text": [b"dog"], "image/class/label": [1]},
    ),
    FormatSample(
        "csv",
        "facemask/csv/valid",
        (
            *("--manifest", "{data}/_annotations.csv", "--image-root", "{data}"),
            *("--header", "image,xmin,ymin,xmax,ymax,class"),
        ),
        {"train": 15},
        "maksssksksss45_png.rf.8775a3d45dc5b046a2dfc31a737e107f.jpg",
        {
            "image/object/class/text": [b"without_mask", b"with_mask", b"without_mask"],
            "image/object/bbox/xmin": [64 / 416, 230 / 416, 259 / 416],
            "image/object/bbox/ymax": [114 / 416, 153 / 416, 372 / 416],
        },
        variant="without-header",
    ),
    FormatSample(
        "csv",
        "datumaro/roboflow_dataset/multiclass/val",
        ("--manifest", "{data}/_classes.csv", "--image-root", "{data}"),
        {"train": 1},
        "val_001.jpg",
        {"image/class/text": [b"label_0", b"label_1"], "image/class/label": [0, 1]},
        variant="one-hot",
    ),
    FormatSample(
        "jsonl",
        _write_vertex,
        ("--manifest", "{data}/import.jsonl", "--image-root", "{data}/images"),
        {"train": 4, "test": 1},
        "img_1.jpg",
        {
            "image/object/class/text": [b"bus", b"number", b"closed_door", b"closed_door"],
            "image/object/bbox/xmin": [0.015625, 0.253125, 0.3703125, 0.7453125],
            "image/object/bbox/ymin": [0.0273556, 0.0972644, 0.1793313, 0.2097264],
        },
    ),
    FormatSample(
        "label-studio",
        _write_label_studio,
        ("--images", "{data}/images", "--annotations", "{data}/project-1.json"),
        {"train": 2},
        "1.jpg",
        {
            "image/object/class/text": [b"Butterfly"],
            "image/object/bbox/xmin": [0.0569522],
            "image/object/bbox/xmax": [0.8818372],
            "image/object/bbox/ymin": [0.3291612],
            "image/object/bbox/ymax": [0.6721313],
        },
    ),
    FormatSample(
        "parquet",
        _write_parquet,
        ("--manifest", "{data}/boxes.parquet", "--image-root", "{data}"),
        {"train": 15},
        "maksssksksss45_png.rf.8775a3d45dc5b046a2dfc31a737e107f.jpg",
        {
            "image/object/class/text": [b"without_mask", b"with_mask", b"without_mask"],
            "image/object/bbox/xmin": [64 / 416, 230 / 416, 259 / 416],
            "image/object/bbox/ymax": [114 / 416, 153 / 416, 372 / 416],
        },
    ),
    FormatSample(
        "filename-label",
        "bigdl-cifar/cifar",
        ("--images", "{data}", "--pattern", r"(?P<label>[a-z]+)_s_(?P<number>\d+)\.png$"),
        {"train": 7},
        "deer/alces_alces_s_000625.png",
        {"image/class/text": [b"alces"], "image/class/label": [2], "number": [b"000625"]},
    ),
    FormatSample(
        "image-folder",
        "bigdl-cifar/cifar",
        ("--images", "{data}"),
        {"train": 7},
        "airplane/airbus_s_000034.png",
        {
            "image/class/text": [b"airplane"],
            "image/class/label": [0],
            "image/encoded": [137, 166, 199],
        },
    ),
    FormatSample(
        "cifar10",
        lambda folder, _: write_cifar10(folder),
        ("--root", "{data}"),
        {"train": 50, "test": 12},
        "data_batch_1.bin/00007",
        {
            "image/class/text": [b"horse"],
            "image/class/label": [7],
            "image/encoded": [243, 49, 108],
        },
    ),
    FormatSample(
        "cifar100",
        lambda folder, _: write_cifar100(folder),
        ("--root", "{data}"),
        {"train": 120, "test": 15},
        "test.bin/00007",
        {
            "image/class/text": [b"fine 7"],
            "image/class/label": [7],
            "image/class/coarse/text": [b"super 7"],
            "image/encoded": [185, 13, 1],
        },
        split="test",
    ),
    FormatSample(
        "idx",
        lambda folder, _: write_idx(folder),
        ("--root", "{data}"),
        {"train": 30, "test": 12},
        "t10k-images-idx3-ubyte/00007",
        {"image/class/text": [b"7"], "image/class/label": [7]},
        split="test",
    ),
    FormatSample(
        "huggingface",
        _write_hub,
        ("--data", "{data}"),
        {"train": 10, "test": 10},
        "data/train-00000-of-00001.parquet/000000002",
        {
            "image/source_id": [b"2"],
            "image/object/class/text": [b"with_mask", b"with_mask"],
            "image/object/bbox/xmin": [123 / 400, 247 / 400],
            "image/object/bbox/ymax": [(113 + 98) / 282, (51 + 88) / 282],
            "image/caption": [b"picture 2"],
        },
    ),
    FormatSample(
        "webdataset",
        _write_captioned_tars,
        ("--tars", "{data}/*.tar"),
        {"train": 2},
        "00001.tar/image2.jpg",
        {
            "image/caption": [b"a dog is wearing ear muffs as it lies on a carpet."],
            "image/class/label": [1],
        },
    ),
    FormatSample(
        "tfrecord",
        "datumaro/tf_detection_api_dataset",
        ("--tfrecords", "{data}"),
        {"test": 1, "train": 1, "val": 1},
        "1.jpg",
        {
            "image/object/class/text": [b"label_2", b"label_3"],
            "image/object/class/label": [3, 4],
            "image/object/bbox/xmin": [0, 0],
            "image/object/bbox/xmax": [0.25, 0.25],
            "image/object/bbox/ymin": [0.25, 0.25],
            "image/object/bbox/ymax": [0.75, 0.5],
            "image/object/area": [32, 16],
            "image/source_id": [b"1"],
        },
    ),
)
