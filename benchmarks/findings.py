"""Plants errors in a dataset, builds it, and counts which of them are found.

`python -m benchmarks.findings`, or `make bench-findings`, plants them in drawn pictures. With
`--images DIR --annotations FILE` they are planted in those of a COCO file; `shardbeam export` makes
such a file of other datasets. Each error goes into a picture of its own. The last column counts
the pictures that have such a finding before errors are planted.

A second table counts the errors that are among the first 20 pictures of the list in which a
simulated detector should show them.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
from PIL import Image, ImageFilter

import shardbeam
from benchmarks.detectors import DETECTORS
from benchmarks.report import markdown_table
from shardbeam.pipelines.commands.sample import write_shapes
from shardbeam.readers.open.find_findings import read_findings, strongest_images
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.readers.predictions.find_by_predictions import (
    BADLY_PLACED,
    MISSING_OBJECT,
    WRONG_CLASS,
    find_by_predictions,
)
from shardbeam.transforms.dataset.findings import KINDS

_SPLITS = ("train", "validation")
# Stands for a row of `duplicates.parquet`; and the columns of the file that are findings.
_NEAR, _COLUMNS = "duplicates", ("leak", "contradiction")
# Pictures without objects are findings only where there are few.
_MOST_EMPTY = 1 / 200


@dataclasses.dataclass
class Picture:
    """A picture, its split, and its objects as COCO writes them."""

    name: str
    split: str
    data: bytes
    objects: list[dict[str, Any]]

    def choose(self, rng: random.Random) -> dict[str, Any]:
        """Chooses an object that is no crowd."""
        return rng.choice([each for each in self.objects if not each.get("iscrowd")])

    def open(self) -> Image.Image:
        """Decodes the picture."""
        return Image.open(io.BytesIO(self.data)).convert("RGB")

    def copy(self, share: float = 1.0, *, place: tuple[float, float] = (0, 0)) -> Picture:
        """Returns a smaller copy of a part of it, with the objects whose centres are there."""
        image = self.open()
        width, height = round(share * image.width), round(share * image.height)
        left, top = (int(at * most) for at, most in zip(place, image.size, strict=True))
        part = image.crop((left, top, left + width, top + height))
        part = part.resize((max(1, width * 3 // 4), max(1, height * 3 // 4)))
        objects = [
            {**each, "bbox": [0.75 * (x - left), 0.75 * (y - top), 0.75 * w, 0.75 * h]}
            for each in self.objects
            for x, y, w, h in [each["bbox"]]
            if 0 < x + w / 2 - left < width and 0 < y + h / 2 - top < height
        ]
        for each in objects:
            each.pop("segmentation", None)
        return Picture(f"copy-{self.name}", self.split, _encode(part), objects)


# Changes a picture, or returns another one to add; the classes are those of the dataset.
Change: TypeAlias = Callable[[Picture, random.Random, Sequence[int]], "Picture | None"]
# A box of another one and the size of the picture.
MakeBox: TypeAlias = Callable[..., Sequence[float]]


def _encode(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _move(make: MakeBox, *, keep_mask: bool = False) -> Change:
    def change(picture: Picture, rng: random.Random, _: Sequence[int]) -> None:
        chosen = picture.choose(rng)
        chosen["bbox"] = make(*chosen["bbox"], picture.open().size)
        if not keep_mask:
            chosen.pop("segmentation", None)

    return change


def _add(make: MakeBox, *, swap: bool = False) -> Change:
    def change(picture: Picture, rng: random.Random, classes: Sequence[int]) -> None:
        added = dict(picture.choose(rng))
        added["bbox"] = make(*added["bbox"], picture.open().size)
        added.pop("segmentation", None)
        picture.objects.append(added)
        if swap:
            _swap_class(added, rng, classes)

    return change


def _levels(level: Callable[[int], float]) -> Change:
    def change(picture: Picture, *_: object) -> None:
        picture.data = _encode(picture.open().point([int(level(each)) for each in range(256)] * 3))

    return change


def _swap_class(chosen: dict[str, Any], rng: random.Random, classes: Sequence[int]) -> None:
    chosen["category_id"] = rng.choice([one for one in classes if one != chosen["category_id"]])


def _swap(picture: Picture, rng: random.Random, classes: Sequence[int]) -> None:
    _swap_class(picture.choose(rng), rng, classes)


def _miss(picture: Picture, rng: random.Random, _: Sequence[int]) -> None:
    picture.objects.remove(picture.choose(rng))


def _merge(picture: Picture, rng: random.Random, _: Sequence[int]) -> None:
    one = picture.choose(rng)
    picture.objects.remove(one)
    other = picture.choose(rng)
    (x, y, w, h), (x2, y2, w2, h2) = one["bbox"], other.pop("bbox")
    left, top = min(x, x2), min(y, y2)
    other["bbox"] = [left, top, max(x + w, x2 + w2) - left, max(y + h, y2 + h2) - top]
    other.pop("segmentation", None)


def _mask_like_a_line(picture: Picture, rng: random.Random, _: Sequence[int]) -> None:
    chosen = picture.choose(rng)
    x, y, w, h = chosen["bbox"]
    chosen["segmentation"] = [[x, y, x + w, y + h - 1, x + w, y + h]]


def _fill(picture: Picture, rng: random.Random, classes: Sequence[int]) -> None:
    for number in range(400):
        box = [number % 20 * 5, number // 20 * 5, 9, 9]
        picture.objects.append({"category_id": rng.choice(classes), "bbox": box})


def _blur(picture: Picture, *_: object) -> None:
    image = picture.open()
    picture.data = _encode(image.filter(ImageFilter.GaussianBlur(max(image.size) / 100)))


def _crop(picture: Picture, rng: random.Random, _: Sequence[int], *, at: float = 0.5) -> Picture:
    share = rng.uniform(0.75, 0.95)
    return picture.copy(share, place=((1 - share) * at, (1 - share) * at))


def _leak(picture: Picture, *_: object) -> Picture:
    (other,) = {*_SPLITS} - {picture.split}
    return dataclasses.replace(picture.copy(), split=other)


def _contradict(picture: Picture, rng: random.Random, classes: Sequence[int]) -> Picture:
    objects = [dict(each) for each in picture.objects]
    _swap_class(objects[0], rng, classes)
    return dataclasses.replace(picture, name=f"copy-{picture.name}", objects=objects)


def _lack(picture: Picture, *_: object) -> Picture:
    copy = picture.copy()
    copy.objects.pop()
    return copy


def _rename_all(picture: Picture, rng: random.Random, classes: Sequence[int]) -> Picture:
    copy = picture.copy()
    for each, name in zip((picture, copy), rng.sample(classes, 2), strict=True):
        each.objects = [{**one, "category_id": name} for one in each.objects]
    return copy


# {error: (the kind of finding, empty if no rule looks for it; the change)}
ERRORS: Mapping[str, tuple[str, Change]] = {
    "an object twice": ("duplicate_box", _add(lambda x, y, w, h, _: (x + w / 20, y, w, h))),
    "an object in two classes": ("same_box", _add(lambda *box: box[:4], swap=True)),
    "a box over all of the picture": ("large_box", _add(lambda *box: (0, 0, *box[4]))),
    "a box of 3 x 3 pixels": ("tiny_box", _add(lambda x, y, *_: (x, y, 3, 3))),
    "a box like a line": ("thin_box", _add(lambda x, y, w, h, size: (0, y, size[0] / 2, 4))),
    "a mask like a line": ("sparse_mask", _mask_like_a_line),
    "a box around half of its mask": (
        "box_off_mask",
        _move(lambda x, y, w, h, _: (x, y, w / 2, h), keep_mask=True),
    ),
    "400 more objects": ("many_objects", _fill),
    "no objects": ("no_objects", lambda picture, *_: picture.objects.clear()),
    "almost black": ("dark_picture", _levels(lambda level: level / 5)),
    "almost white": ("bright_picture", _levels(lambda level: 255 - level / 6)),
    "hardly any contrast": ("low_contrast", _levels(lambda level: 110 + level / 10)),
    "a smaller copy": (_NEAR, lambda picture, *_: picture.copy()),
    "a cropped copy (75 to 95 % of each side)": (_NEAR, _crop),
    "the same, cut off at two sides only": (_NEAR, lambda *each: _crop(*each, at=0)),
    "a smaller copy in another split": ("leak", _leak),
    "an equal file with another class": ("contradiction", _contradict),
    "a smaller copy with classes of its own": ("same_picture", _rename_all),
    "a smaller copy that lacks an object": ("unequal_objects", _lack),
    "another class": ("", _swap),
    "a shifted box": ("", _move(lambda x, y, w, h, _: (x + w / 3, y, w, h))),
    "a loose box": ("", _move(lambda x, y, w, h, _: (x - w / 4, y - h / 4, w * 1.5, h * 1.5))),
    "a tight box": ("", _move(lambda x, y, w, h, _: (x + w / 4, y + h / 4, w / 2, h / 2))),
    "a missing object": ("", _miss),
    "two objects in one box": ("", _merge),
    "width and height exchanged": ("", _move(lambda x, y, w, h, _: (x, y, h, w))),
    "blur": ("", _blur),
}
# {error: the list in which predictions show it}
PREDICTED: Mapping[str, str] = {
    "another class": WRONG_CLASS,
    "a missing object": MISSING_OBJECT,
    "a shifted box": BADLY_PLACED,
}
_FIRST = 20


def read_pictures(images: Path, annotations: Path) -> tuple[list[Picture], dict[int, str]]:
    """Reads a COCO file: its pictures with objects, and `{id of a class: name}`."""
    file = json.loads(annotations.read_bytes())
    objects: dict[int, list[dict[str, Any]]] = {each["id"]: [] for each in file["images"]}
    for each in file["annotations"]:
        kept = ("category_id", "bbox", "segmentation", "iscrowd")
        objects[each["image_id"]].append({key: each[key] for key in kept if key in each})
    pictures = []
    for number, each in enumerate(sorted(file["images"], key=lambda each: each["file_name"])):
        path, split = Path(each["file_name"]), _SPLITS[number % 5 == 0]
        if found := objects[each["id"]]:
            name, data = "-".join(path.parts), (images / path).read_bytes()
            pictures.append(Picture(name, split, data, found))
    return pictures, {each["id"]: each["name"] for each in file["categories"]}


def plant(
    pictures: Sequence[Picture],
    *,
    classes: Sequence[int],
    each: int,
    seed: int,
    errors: Mapping[str, tuple[str, Change]] = ERRORS,
) -> tuple[list[Picture], dict[str, list[str]]]:
    """Plants errors: returns all pictures, and `{error: names of the pictures that have it}`.

    Raises:
        SystemExit: There are not enough pictures with two objects, or no two classes.
    """
    rng = random.Random(seed)
    planted = [dataclasses.replace(one, objects=list(map(dict, one.objects))) for one in pictures]
    usable = [one for one in planted if sum(not box.get("iscrowd") for box in one.objects) > 1]
    rng.shuffle(usable)
    each = min(each, len(usable) // len(errors))
    if not each or len(classes) < 2:
        raise SystemExit(
            f"at least {len(errors)} pictures with two objects, and two classes, needed"
        )
    names: dict[str, list[str]] = {}
    for error, (kind, change) in errors.items():
        most = max(1, int(_MOST_EMPTY * len(planted))) if kind == "no_objects" else each
        for chosen in [usable.pop() for _ in range(min(each, most))]:
            copy = change(chosen, rng, classes)
            planted += [copy] if copy else []
            names.setdefault(error, []).append(copy.name if copy else chosen.name)
    return planted, names


def find(
    pictures: Sequence[Picture], *, names: Mapping[int, str], folder: Path
) -> set[tuple[str, str]]:
    """Builds a dataset, and returns all of its findings: `(name of a picture, kind)`."""
    splits: dict[str, Any] = {}
    for split in _SPLITS:
        chosen = [each for each in pictures if each.split == split]
        (folder / split).mkdir(parents=True)
        file: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
        file["categories"] = [{"id": number, "name": name} for number, name in names.items()]
        for number, each in enumerate(chosen, 1):
            (folder / split / each.name).write_bytes(each.data)
            width, height = each.open().size
            size = {"width": width, "height": height}
            file["images"].append({"id": number, "file_name": each.name, **size})
            for box in each.objects:
                place = {"id": len(file["annotations"]) + 1, "image_id": number}
                file["annotations"].append({"iscrowd": 0, **box, **place})
        path = folder / f"{split}.json"
        path.write_text(json.dumps(file))
        source = {"images": str(folder / split), "annotations": [str(path)]}
        splits[split] = {"format": "coco", "tasks": ["detection"], **source}
    output = {"path": str(folder / "dataset")}
    image = {"crop_hashes": True}
    has_masks = any("segmentation" in box for each in pictures for box in each.objects)
    masks = "png" if has_masks else "none"
    config = {"name": "planted", "splits": splits, "masks": masks, "image": image, "output": output}
    shardbeam.build(config, processes=1)
    found = {
        (each.key, each.kind)
        for each in read_findings(open_dataset(output["path"]), splits=_SPLITS, kinds=KINDS)
    }
    duplicates = folder / "dataset" / "duplicates.parquet"
    for row in pq.read_table(duplicates).to_pylist() if duplicates.exists() else ():
        found.add((row["key"], _NEAR))
        found |= {(row["key"], name) for name in _COLUMNS if row[name]}
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Plants, builds and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.findings", description=__doc__)
    parser.add_argument("--images", type=Path, help="folder of a COCO file's pictures")
    parser.add_argument("--annotations", type=Path, help="the COCO file")
    parser.add_argument("--draw", type=int, default=1_000, metavar="N", help="pictures to draw")
    parser.add_argument("--each", type=int, default=9, metavar="N", help="errors of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if (arguments.images is None) != (arguments.annotations is None):
        parser.error("--images and --annotations go together")
    with tempfile.TemporaryDirectory() as temporary:
        print(measure(folder=Path(temporary), **vars(arguments)), end="")


def measure(
    *, images: Path | None, annotations: Path | None, draw: int, each: int, seed: int, folder: Path
) -> str:
    """Returns the table, for the arguments of the command; it works in an empty folder."""
    if images is None or annotations is None:
        write_shapes(output=folder / "drawn", images=draw, seed=seed)
        images = folder / "drawn/images"
        annotations = folder / "drawn/annotations/instances.json"
    pictures, names = read_pictures(images, annotations)
    planted, changed = plant(pictures, classes=list(names), each=each, seed=seed)
    clean = find(pictures, names=names, folder=folder / "clean")
    found = find(planted, names=names, folder=folder / "planted")
    alarms = Counter(kind for _, kind in clean)
    rows = []
    for error, (kind, _) in ERRORS.items():
        # An error that no rule looks for may still be a finding of another kind.
        hits = [
            name
            for name in changed[error]
            if ((name, kind) in found if kind else any(name == key for key, _ in found - clean))
        ]
        false = f"{alarms[kind]:,}" if kind else ""
        rows.append((error, kind or "no rule", f"{len(changed[error])}", f"{len(hits)}", false))
    headings = (
        "error",
        "kind",
        "planted",
        "found",
        f"in {len(pictures):,} pictures without errors",
    )
    predicted = predict(pictures, names=names, each=each, seed=seed, folder=folder / "predicted")
    return f"{markdown_table(headings, rows)}\n{predicted}"


def predict(
    pictures: Sequence[Picture], *, names: Mapping[int, str], each: int, seed: int, folder: Path
) -> str:
    """Returns the table of errors that simulated detectors show, which see the true objects."""
    classes = list(names)
    planted, changed = plant(
        pictures,
        classes=classes,
        each=each,
        seed=seed,
        errors={error: ERRORS[error] for error in PREDICTED},
    )
    find(planted, names=names, folder=folder)
    hits: dict[str, list[str]] = {error: [] for error in PREDICTED}
    for name, detector in DETECTORS.items():
        rng, file = random.Random(seed), folder / f"{name}.json"
        results = [
            {"image_id": one.name, **seen}
            for one in pictures
            for seen in detector.see(one.objects, size=one.open().size, classes=classes, rng=rng)
        ]
        file.write_text(json.dumps(results))
        found, _ = find_by_predictions(open_dataset(str(folder / "dataset")), uri=str(file))
        first = {(one.key, one.kind) for one in strongest_images(iter(found), limit=_FIRST)}
        for error, kind in PREDICTED.items():
            hits[error].append(f"{sum((key, kind) in first for key in changed[error])}")
    headings = ("error", "list", "planted", *(f"{name} detector" for name in DETECTORS))
    rows = [
        (error, kind, f"{len(changed[error])}", *hits[error]) for error, kind in PREDICTED.items()
    ]
    return markdown_table(headings, rows)


if __name__ == "__main__":
    main()
