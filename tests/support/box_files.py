"""Writes the same boxes in each format, with the format's own four numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.archive_files import write_files
from tests.support.builds import Json, write_coco
from tests.support.image_makers import photograph, save
from tests.support.making import write_lines
from tests.support.tfrecords import make_example, write_tfrecord
from tests.support.voc_files import voc_object, voc_xml

# {name of an image: four numbers of each box, and perhaps its outline}
Boxes = Mapping[str, Sequence[Sequence[object]]]

WIDTH, HEIGHT = 200, 100


def jpeg() -> bytes:
    return save(photograph(width=WIDTH, height=HEIGHT), "JPEG")


def _write_images(folder: Path, boxes: Boxes, *, below: str = "images") -> None:
    data = jpeg()
    write_files(folder / below, dict.fromkeys(boxes, data))


def coco(folder: Path, boxes: Boxes, **more: object) -> list[str | Path]:
    _write_images(folder, boxes)
    size = {"width": WIDTH, "height": HEIGHT}
    images = [{"id": number, "file_name": name, **size} for number, name in enumerate(boxes)]
    annotations: list[Json] = [
        {"image_id": number, "category_id": 1, "bbox": list(box), **more}
        for number, found in enumerate(boxes.values())
        for box in found
    ]
    for number, annotation in enumerate(annotations):
        annotation["id"] = number + 1
    categories = [{"id": 1, "name": "dog"}]
    document = {"images": images, "annotations": annotations, "categories": categories}
    path = write_coco(folder / "instances.json", document)
    return ["--images", folder / "images", "--annotations", path]


def voc(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes, below="JPEGImages")
    for name, found in boxes.items():
        objects = [
            voc_object(**dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)))
            for box in found
        ]
        xml = voc_xml(*objects, size=(WIDTH, HEIGHT))
        write_files(folder, {f"Annotations/{name.partition('.')[0]}.xml": xml})
    return ["--root", folder]


def cvat(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes)
    lines = ["<annotations>"]
    for name, found in boxes.items():
        lines.append(f'<image name="{name}" width="{WIDTH}" height="{HEIGHT}">')
        for xmin, ymin, xmax, ymax in found:
            corners = f'xtl="{xmin}" ytl="{ymin}" xbr="{xmax}" ybr="{ymax}"'
            lines.append(f'<box label="dog" {corners}/>')
        lines.append("</image>")
    write_files(folder, {"annotations.xml": "\n".join([*lines, "</annotations>"])})
    return ["--images", folder / "images", "--annotations", folder / "annotations.xml"]


def labelme(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes, below="")
    for name, found in boxes.items():
        shapes = [
            {"label": "dog", "shape_type": "rectangle", "points": [[*box[:2]], [*box[2:]]]}
            for box in found
        ]
        size = {"imageWidth": WIDTH, "imageHeight": HEIGHT}
        document = {"shapes": shapes, "imagePath": name, "imageData": None, **size}
        write_files(folder, {f"{name.partition('.')[0]}.json": json.dumps(document)})
    return ["--root", folder]


def open_images(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes)
    rows = [
        ",".join(map(str, (name.partition(".")[0], "dog", *box)))
        for name, found in boxes.items()
        for box in found
    ]
    table = "\n".join(["ImageID,LabelName,XMin,YMin,XMax,YMax", *rows])
    write_files(folder, {"boxes.csv": f"{table}\n"})
    return ["--images", folder / "images", "--boxes", folder / "boxes.csv"]


def csv(folder: Path, boxes: Boxes, *, header: str = "xmin,ymin,xmax,ymax") -> list[str | Path]:
    _write_images(folder, boxes)
    rows = [
        ",".join(map(str, (name, "dog", *box))) for name, found in boxes.items() for box in found
    ]
    table = "\n".join([f"image,label,{header}", *rows])
    write_files(folder, {"boxes.csv": f"{table}\n"})
    return ["--image-root", folder / "images", "--manifest", folder / "boxes.csv"]


def jsonl(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes)
    sides = ("xmin", "ymin", "xmax", "ymax")
    rows = [
        {"image": name, "label": "dog", **dict(zip(sides, box, strict=True))}
        for name, found in boxes.items()
        for box in found
    ]
    path = write_lines(folder / "boxes.jsonl", rows)
    return ["--image-root", folder / "images", "--manifest", path]


def tfrecord(folder: Path, boxes: Boxes) -> list[str | Path]:
    folder.mkdir(parents=True, exist_ok=True)
    data = jpeg()
    examples = []
    for name, found in boxes.items():
        features: dict[str, object] = {
            "image/encoded": data,
            "image/format": b"jpeg",
            "image/filename": name.encode(),
            "image/object/class/text": [b"dog"] * len(found),
        }
        for number, side in enumerate(("xmin", "ymin", "xmax", "ymax")):
            features[f"image/object/bbox/{side}"] = [float(str(box[number])) for box in found]
        examples.append(make_example(features))
    return ["--tfrecords", write_tfrecord(folder / "a.tfrecord", *examples)]


def keras_txt(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes)
    lines = [
        " ".join([name, *(f"{','.join(map(str, box))},0" for box in found)])
        for name, found in boxes.items()
    ]
    write_files(folder, {"train.txt": "\n".join(lines), "_classes.txt": "dog\n"})
    return ["--images", folder / "images", "--annotations", folder / "train.txt"]


def via(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes)
    document = {
        name: {
            "filename": name,
            "regions": [
                {
                    "shape_attributes": {
                        "name": "rect",
                        **dict(zip(("x", "y", "width", "height"), box, strict=True)),
                    },
                    "region_attributes": {"kind": "dog"},
                }
                for box in found
            ],
        }
        for name, found in boxes.items()
    }
    write_files(folder, {"via.json": json.dumps(document)})
    return ["--images", folder / "images", "--annotations", folder / "via.json"]


def yolo(folder: Path, boxes: Boxes) -> list[str | Path]:
    _write_images(folder, boxes)
    write_files(folder, {"classes.txt": "dog\n"})
    for name, found in boxes.items():
        lines = "".join(f"0 {' '.join(map(str, box))}\n" for box in found)
        write_files(folder, {f"labels/{name.partition('.')[0]}.txt": lines})
    return ["--root", folder]


WRITERS: Mapping[str, Callable[[Path, Boxes], list[str | Path]]] = {
    "coco": coco,
    "lvis": coco,
    "voc": voc,
    "cvat": cvat,
    "keras-txt": keras_txt,
    "labelme": labelme,
    "via": via,
    "open-images": open_images,
    "csv": csv,
    "jsonl": jsonl,
    "tfrecord": tfrecord,
    "yolo": yolo,
}

# Keys whose values are lists.
_LISTS = {"annotations", "boxes", "image_root", "manifest", "tfrecords"}


def source(name: str, words: Sequence[str | Path], **keys: str) -> Json:
    """The source of a config that has what a writer's flags say, and more keys."""
    given = {
        str(flag)[2:].replace("-", "_"): str(value)
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    files = {key: [value] if key in _LISTS else value for key, value in given.items()}
    return {"format": name, **files, **keys}
