"""Counts how many planted annotation errors are found, and how many false alarms there are.

`python -m benchmarks.findings [FOLDER]` plants errors of each kind among the photographs of the
COCO files below FOLDER, or among drawn pictures. It builds the set without and with the errors, and
reads the findings from the datasets' indexes.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter, UnidentifiedImageError

import shardbeam
from benchmarks.datasets import make_shapes
from benchmarks.report import markdown_table
from shardbeam.readers.open.find_findings import list_kinds, read_findings
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.dataset.findings import (
    KINDS,
    SIMILAR_NAMES,
    UNUSED_CLASS,
    KindFound,
)
from shardbeam.transforms.dataset.statistics_file import read_statistics

_FOLDER = Path(__file__).parent
IMAGES = 2_000
# Smaller pictures in the samples are drawings and icons; larger ones take too long.
_SIDES_PX = (100, 2500)
_LARGEST_JSON_BYTES = 100_000_000
# One error of each kind is planted for this many images, so that no kind is usual.
_IMAGES_PER_ERROR = 200
# One image in 16 from `shardbeam sample shapes` is empty.
_SHARE_WITH_OBJECTS = 15 / 16
# Errors about objects are planted where an object has sides of at least this length.
_LARGE_PX = 32.0
# An object is left out if less than this share of its box is in the crop.
_LEAST_LEFT = 0.5
_QUALITY, _LOW_QUALITY = 92, 50
_UNUSED = "okapi"

_Box = tuple[float, float, float, float]
_Random = np.random.Generator
# `{what is planted: (kind of finding, class)}`
_Names = Mapping[str, tuple[str, str]]


class _Object(NamedTuple):
    """An object.

    Attributes:
        label: Its class.
        box: x, y, width and height in pixels.
        polygons: Its mask, as COCO's polygons.
    """

    label: str
    box: _Box
    polygons: Sequence[Sequence[float]] = ()


class _Picture(NamedTuple):
    """An image with its annotations.

    Attributes:
        file: Its name.
        width: Its width in pixels.
        height: Its height in pixels.
        objects: Its objects.
    """

    file: str
    width: int
    height: int
    objects: tuple[_Object, ...]


def run_findings(*, data: Path, images: int, photographs: Path) -> str:
    """Plants errors among drawn pictures, and among photographs if there are any.

    Args:
        data: Folder of the benchmarks' data.
        images: How many images each set has.
        photographs: A folder with COCO files and their images, at any depth.

    Returns:
        Markdown.
    """
    drawn = make_shapes(data, images=math.ceil(images / _SHARE_WITH_OBJECTS))
    parts = [
        "## Findings\n",
        "Errors are planted in a set of images, one in an image, and well beyond the rules' "
        "thresholds. An error is found if the dataset's index names the image with the error's "
        "kind. Images that have the kind before anything is planted are counted apart; all others "
        "without an error are false alarms.\n",
        f"In {images:,} pictures from `shardbeam sample shapes`:\n",
        plant_and_find(drawn.folder, images=images),
    ]
    if photographs.is_dir() and (count := sum(1 for _ in _read_photographs(photographs))):
        parts += [
            f"In {images:,} pictures cut out of the {count:,} photographs with objects of the real "
            "samples' COCO files:\n",
            plant_and_find(photographs, images=images),
        ]
    return "\n".join(parts)


def plant_and_find(folder: Path, *, images: int, seed: int = 0) -> str:
    """Plants errors among the pictures of COCO files, and reads back what is found.

    Args:
        folder: A folder with COCO files and their images, at any depth.
        images: How many images the set has: whole pictures first, then parts of them.
        seed: Decides the parts, and where errors are planted.

    Returns:
        A table in Markdown.

    Raises:
        ValueError: No picture has objects.
    """
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as temporary:
        clean, changed = Path(temporary) / "clean", Path(temporary) / "changed"
        pictures = _write_pictures(clean, folder=folder, images=images, rng=rng)
        _write_annotations(clean, pictures=pictures, classes=_classes(pictures))
        planted, names = _plant(pictures, source=clean, folder=changed, rng=rng)
        before, after = _build(clean), _build(changed)
    rows = [
        *(_image_row(name, planted=planted, before=before, after=after) for name in _ERRORS),
        *(_class_row(name, planted=names, before=before, after=after) for name in names),
    ]
    headings = ["planted", "errors", "found", "found before", "false alarms", "usual here"]
    return markdown_table(headings, rows)


class _Found(NamedTuple):
    """What is worth a look in a dataset.

    Attributes:
        images: `{kind: images}`.
        kinds: Its findings.
    """

    images: Mapping[str, set[str]]
    kinds: Sequence[KindFound]


def _build(folder: Path) -> _Found:
    output = folder / "output"
    annotations = folder / "instances.json"
    objects = json.loads(annotations.read_bytes())["annotations"]
    shardbeam.build(
        {
            "name": "planted",
            "splits": {
                "train": {
                    "format": "coco",
                    "images": str(folder / "images"),
                    "annotations": [str(annotations)],
                }
            },
            # A build of objects without any mask refuses to write masks.
            "masks": "png" if any(each.get("segmentation") for each in objects) else "none",
            "output": {"path": str(output)},
        }
    )
    dataset = open_dataset(str(output))
    images: dict[str, set[str]] = {}
    for each in read_findings(dataset, splits=["train"], kinds=KINDS):
        images.setdefault(each.kind, set()).add(each.key)
    statistics = read_statistics(str(output)) or {}
    return _Found(images, list_kinds(statistics, manifest=dataset.read_manifest()))


def _image_row(
    name: str, *, planted: Mapping[str, set[str]], before: _Found, after: _Found
) -> tuple[str, ...]:
    kind, files = _ERRORS[name].kind, planted[name]
    if not kind:
        return name, f"{len(files):,}", "no rule", "", "", ""
    known, found = before.images.get(kind, set()), after.images.get(kind, set())
    return (
        f"{name} (`{kind}`)",
        f"{len(files):,}",
        f"{len(found & files):,}",
        f"{len(known):,}",
        # An error may be found as another kind, too: a dark picture has little contrast.
        f"{len(found.difference(known, *planted.values())):,}",
        "yes" if any(each.usual for each in after.kinds if each.kind == kind) else "",
    )


def _class_row(name: str, *, planted: _Names, before: _Found, after: _Found) -> tuple[str, ...]:
    """Makes the row of an error in names of classes; it is found if a finding names the class."""
    kind, label = planted[name]
    known, found = (
        {each.text for each in seen.kinds if each.kind == kind} for seen in (before, after)
    )
    others = {
        text for text in found - known if not any(each in text for _, each in planted.values())
    }
    return (
        f"{name} (`{kind}`)",
        "1",
        f"{int(any(label in text for text in found)):,}",
        f"{len(known):,}",
        f"{len(others):,}",
        "",
    )


# Pictures


def _read_photographs(folder: Path) -> Iterator[tuple[Path, tuple[_Object, ...]]]:
    """Yields the images with objects of all COCO files below a folder, each file once."""
    paths: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        paths.setdefault(path.name, []).append(path)
    seen = set()
    for name in sorted(name for name in paths if name.endswith(".json")):
        for path in paths[name]:
            for file_name, size, objects in _read_coco(path):
                images = paths.get(file_name, []) if objects else []
                # Of several images with this name, take the one nearest to the JSON file.
                images = sorted(images, key=lambda image: -len(os.path.commonpath([path, image])))
                image = next((image for image in images if _is_photograph(image, size)), None)
                if image is None:
                    continue
                digest = hashlib.sha256(image.read_bytes()).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield image, objects


def _is_photograph(path: Path, size: tuple[int, int]) -> bool:
    try:
        with Image.open(path) as image:
            smallest, largest = _SIDES_PX
            is_good = smallest <= min(image.size) <= max(image.size) <= largest
            return is_good and size in (image.size, (0, 0))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return False


def _read_coco(path: Path) -> Iterator[tuple[str, tuple[int, int], tuple[_Object, ...]]]:
    """Yields name, size and objects of each image in a COCO file; nothing of any other file."""
    if path.stat().st_size > _LARGEST_JSON_BYTES:
        return
    try:
        document = json.loads(path.read_bytes())
        labels = {each["id"]: each["name"] for each in document["categories"]}
        images = {
            each["id"]: (each["file_name"], (each.get("width", 0), each.get("height", 0)))
            for each in document["images"]
        }
        objects: dict[Any, list[_Object]] = {}
        for each in document["annotations"]:
            box = list(each.get("bbox") or [])
            if len(box) == 4 and min(box[2:]) > 0 and not each.get("iscrowd"):
                polygons = each.get("segmentation")
                objects.setdefault(each["image_id"], []).append(
                    _Object(
                        labels[each["category_id"]],
                        (box[0], box[1], box[2], box[3]),
                        polygons if isinstance(polygons, list) else (),
                    )
                )
    except (ValueError, TypeError, KeyError, AttributeError):
        return
    for number, (file, size) in images.items():
        yield os.path.basename(file), size, tuple(objects.get(number, ()))


def _write_pictures(target: Path, *, folder: Path, images: int, rng: _Random) -> list[_Picture]:
    """Writes a set of images below `target`, made of the pictures below `folder`."""
    (target / "images").mkdir(parents=True)
    sources = list(_read_photographs(folder))
    if not sources:
        raise ValueError(f"{folder}: no COCO file lists an image with objects that is there")
    pictures: list[_Picture] = []
    number = 0
    while len(pictures) < images:
        path, objects = sources[number % len(sources)]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        if number >= len(sources):
            image, objects = _cut_out(image, objects, rng=rng)
        number += 1
        if objects:
            name = f"{len(pictures):06d}.jpg"
            image.save(target / "images" / name, quality=_QUALITY)
            pictures.append(_Picture(name, image.width, image.height, objects))
    return pictures


def _cut_out(
    image: Image.Image, objects: Iterable[_Object], *, rng: _Random
) -> tuple[Image.Image, tuple[_Object, ...]]:
    """Cuts a part out of a picture, and perhaps mirrors it."""
    width, height = (round(side * rng.uniform(0.6, 0.95)) for side in image.size)
    left = int(rng.integers(image.width - width + 1))
    top = int(rng.integers(image.height - height + 1))
    part = image.crop((left, top, left + width, top + height))
    is_mirrored = rng.random() < 0.5
    if is_mirrored:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    def move(x: float, y: float) -> tuple[float, float]:
        x, y = (float(np.clip(x - left, 0, width)), float(np.clip(y - top, 0, height)))
        return (width - x if is_mirrored else x), y

    kept = []
    for each in objects:
        x, y, across, down = each.box
        corners = move(x, y), move(x + across, y + down)
        (xmin, xmax), (ymin, ymax) = (sorted(sides) for sides in zip(*corners, strict=True))
        if (xmax - xmin) * (ymax - ymin) >= _LEAST_LEFT * across * down:
            polygons = [
                [
                    side
                    for point in zip(line[::2], line[1::2], strict=False)
                    for side in move(*point)
                ]
                for line in each.polygons
            ]
            kept.append(_Object(each.label, (xmin, ymin, xmax - xmin, ymax - ymin), polygons))
    return part, tuple(kept)


def _classes(pictures: Iterable[_Picture]) -> list[str]:
    return sorted({each.label for picture in pictures for each in picture.objects})


def _write_annotations(
    folder: Path, *, pictures: Sequence[_Picture], classes: Sequence[str]
) -> None:
    ids = {name: number for number, name in enumerate(classes, 1)}
    annotations = [
        {
            "image_id": number,
            "category_id": ids[each.label],
            "bbox": each.box,
            "iscrowd": 0,
            "segmentation": each.polygons,
        }
        for number, picture in enumerate(pictures)
        for each in picture.objects
    ]
    document = {
        "images": [
            {
                "id": number,
                "file_name": picture.file,
                "width": picture.width,
                "height": picture.height,
            }
            for number, picture in enumerate(pictures)
        ],
        "annotations": [{"id": number, **each} for number, each in enumerate(annotations)],
        "categories": [{"id": number, "name": name} for name, number in ids.items()],
    }
    (folder / "instances.json").write_text(json.dumps(document))


# Errors


def _change_object(
    change: Callable[[_Picture, _Object, _Random], Iterable[_Object]],
) -> Callable[[_Picture, Sequence[str], _Random], _Picture]:
    """Turns a change of an object into a change of a picture: of its largest object."""

    def change_picture(picture: _Picture, classes: Sequence[str], rng: _Random) -> _Picture:
        del classes
        largest = _largest(picture)
        others = [each for each in picture.objects if each is not largest]
        return picture._replace(objects=(*others, *change(picture, largest, rng)))

    return change_picture


def _largest(picture: _Picture) -> _Object:
    return max(picture.objects, key=lambda each: each.box[2] * each.box[3])


def _nearly(box: _Box) -> _Box:
    """Returns a box that is nearly the same."""
    x, y, across, down = box
    return x, y, across * 0.99, down * 0.99


def _add_of_other_class(picture: _Picture, classes: Sequence[str], rng: _Random) -> _Picture:
    largest = _largest(picture)
    label = _other_class([largest.label], classes, rng)
    return picture._replace(objects=(*picture.objects, _Object(label, _nearly(largest.box))))


def _other_class(labels: Iterable[str], classes: Sequence[str], rng: _Random) -> str:
    return str(rng.choice(sorted({*classes} - {*labels})))


def _swap_class(picture: _Picture, classes: Sequence[str], rng: _Random) -> _Picture:
    largest = _largest(picture)
    others = [each for each in picture.objects if each is not largest]
    label = _other_class([largest.label], classes, rng)
    return picture._replace(objects=(*others, largest._replace(label=label)))


def _swap_all_classes(picture: _Picture, classes: Sequence[str], rng: _Random) -> _Picture:
    label = _other_class([each.label for each in picture.objects], classes, rng)
    return picture._replace(objects=tuple(each._replace(label=label) for each in picture.objects))


def _add_many(picture: _Picture, classes: Sequence[str], rng: _Random) -> _Picture:
    """Adds a grid of boxes."""
    del rng
    steps = 15
    across, down = picture.width / steps, picture.height / steps
    boxes = [
        _Object(classes[0], (column * across, row * down, across * 0.9, down * 0.9))
        for column in range(steps)
        for row in range(steps)
    ]
    return picture._replace(objects=(*picture.objects, *boxes))


def _remove_objects(picture: _Picture, classes: Sequence[str], rng: _Random) -> _Picture:
    del classes, rng
    return picture._replace(objects=())


def _keep(picture: _Picture, classes: Sequence[str], rng: _Random) -> _Picture:
    del classes, rng
    return picture


def _unchanged(image: Image.Image) -> Image.Image:
    return image


def _levels(scale: float, offset: float) -> Callable[[Image.Image], Image.Image]:
    def change(image: Image.Image) -> Image.Image:
        levels: npt.NDArray[np.float64] = np.asarray(image, np.float64) * scale + offset
        return Image.fromarray(levels.astype(np.uint8))

    return change


def _blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(max(image.size) / 100))


class _Error(NamedTuple):
    """An error that is planted in a picture.

    Attributes:
        kind: The kind of finding that it should be; empty if no rule finds it.
        annotate: Changes the annotations.
        paint: Changes the pixels.
        is_copy: Whether it is planted in a copy of the picture, which stays as it is.
    """

    kind: str
    annotate: Callable[[_Picture, Sequence[str], _Random], _Picture] = _keep
    paint: Callable[[Image.Image], Image.Image] = _unchanged
    is_copy: bool = False


def _thin(picture: _Picture, largest: _Object, rng: _Random) -> Iterator[_Object]:
    yield largest
    across = picture.width * 0.9
    y = rng.uniform(0, picture.height * 0.9)
    yield _Object(largest.label, (0, y, across, across / 30))


def _tiny(picture: _Picture, largest: _Object, rng: _Random) -> Iterator[_Object]:
    yield largest
    x, y = rng.uniform(0, picture.width - 4), rng.uniform(0, picture.height - 4)
    yield _Object(largest.label, (x, y, 3, 4))


def _sparse(picture: _Picture, largest: _Object, rng: _Random) -> Iterator[_Object]:
    """Cuts a mask down to a corner of its box."""
    del picture, rng
    x, y, across, down = largest.box
    right, bottom = x + across * 0.12, y + down * 0.12
    yield largest._replace(polygons=[[x, y, right, y, right, bottom, x, bottom]])


def _huge(picture: _Picture, largest: _Object, rng: _Random) -> Iterator[_Object]:
    del rng
    box = 0, 0, picture.width, picture.height * 0.95
    yield largest._replace(box=box, polygons=())


def _shifted(picture: _Picture, largest: _Object, rng: _Random) -> Iterator[_Object]:
    del rng
    x, y, across, down = largest.box
    x += across * (0.3 if x + across * 1.3 <= picture.width else -0.3)
    yield largest._replace(box=(x, y, across, down), polygons=())


# {what is planted: how}
_ERRORS: Mapping[str, _Error] = {
    "a box twice": _Error(
        "duplicate_box",
        _change_object(lambda _, each, __: (each, each._replace(box=_nearly(each.box)))),
    ),
    "a box of two classes": _Error("same_box", _add_of_other_class),
    "a box over the whole image": _Error("large_box", _change_object(_huge)),
    "a box of 3 x 4 pixels": _Error("tiny_box", _change_object(_tiny)),
    "a box of 30 to 1": _Error("thin_box", _change_object(_thin)),
    "a mask in a corner of its box": _Error("sparse_mask", _change_object(_sparse)),
    "225 boxes": _Error("many_objects", _add_many),
    "all objects left out": _Error("no_objects", _remove_objects),
    "a copy with other classes": _Error("same_picture", _swap_all_classes, is_copy=True),
    "a picture in the dark": _Error("dark_picture", paint=_levels(0.2, 0)),
    "a picture that is overexposed": _Error("bright_picture", paint=_levels(0.18, 209)),
    "a picture in the fog": _Error("low_contrast", paint=_levels(0.1, 110)),
    "one object with another class": _Error("", _swap_class),
    "a box shifted by a third": _Error("", _change_object(_shifted)),
    "one object left out": _Error("", _change_object(lambda *_: ())),
    "a blurred picture": _Error("", paint=_blurred),
}


def _plant(
    pictures: Sequence[_Picture], *, source: Path, folder: Path, rng: _Random
) -> tuple[Mapping[str, set[str]], _Names]:
    """Writes the set again with errors.

    Returns:
        `{what is planted: names of its images}`, and the classes that were added.
    """
    (folder / "images").mkdir(parents=True)
    classes = _classes(pictures)
    # Pictures with large objects, and with a class that the picture lacks.
    eligible = [
        number
        for number, picture in enumerate(pictures)
        if min(_largest(picture).box[2:]) >= _LARGE_PX
        and len({each.label for each in picture.objects}) < len(classes)
    ]
    count = max(1, len(pictures) // _IMAGES_PER_ERROR)
    chosen = iter(rng.permutation(eligible).tolist())
    errors = {number: name for name in _ERRORS for number in itertools.islice(chosen, count)}
    planted: dict[str, set[str]] = {name: set() for name in _ERRORS}
    written: list[_Picture] = []
    for number, picture in enumerate(pictures):
        old = source / "images" / picture.file
        if number not in errors:
            os.link(old, folder / "images" / picture.file)
            written.append(picture)
            continue
        error = _ERRORS[errors[number]]
        changed = error.annotate(picture, classes, rng)
        if error.is_copy:
            os.link(old, folder / "images" / picture.file)
            written.append(picture)
            planted[errors[number]].add(picture.file)
            changed = changed._replace(file=f"copy-{picture.file}")
        with Image.open(old) as image:
            quality = _LOW_QUALITY if error.is_copy else _QUALITY
            error.paint(image).save(folder / "images" / changed.file, quality=quality)
        written.append(changed)
        planted[errors[number]].add(changed.file)
    names = _misspell(written)
    _write_annotations(
        folder,
        pictures=written,
        classes=sorted({*classes, *_classes(written), *(name for _, name in names.values())}),
    )
    return planted, names


def _misspell(pictures: list[_Picture]) -> _Names:
    """Misspells the most frequent class of two objects, each in another way, and adds a class."""
    counts = Counter(each.label for picture in pictures for each in picture.objects)
    label = max(counts, key=lambda name: (counts[name], name))
    middle = next(
        at for at in range(len(label) - 1) if label[at].casefold() != label[at + 1].casefold()
    )
    swapped = f"{label[:middle]}{label[middle + 1]}{label[middle]}{label[middle + 2 :]}"
    names = {
        "a class in capitals": (SIMILAR_NAMES, label.swapcase()),
        "a class with two letters exchanged": (SIMILAR_NAMES, swapped),
        "a class that never occurs": (UNUSED_CLASS, _UNUSED),
    }
    owners = [
        number
        for number, picture in enumerate(pictures)
        if any(each.label == label for each in picture.objects)
    ]
    for number, (_, name) in zip(owners, list(names.values())[:2], strict=False):
        objects = list(pictures[number].objects)
        at = next(at for at, each in enumerate(objects) if each.label == label)
        objects[at] = objects[at]._replace(label=name)
        pictures[number] = pictures[number]._replace(objects=tuple(objects))
    return names


def main(argv: Sequence[str] | None = None) -> None:
    """Plants errors, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.findings", description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", help="a folder with COCO files and their images"
    )
    parser.add_argument("--images", type=int, default=IMAGES, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--data", type=Path, default=_FOLDER / "data", help="for drawn pictures")
    arguments = parser.parse_args(argv)
    folder = arguments.folder
    if folder is None:
        arguments.data.mkdir(parents=True, exist_ok=True)
        images = math.ceil(arguments.images / _SHARE_WITH_OBJECTS)
        folder = make_shapes(arguments.data, images=images).folder
    print(plant_and_find(folder, images=arguments.images, seed=arguments.seed))


if __name__ == "__main__":
    main()
