"""A stand-in for COCO train2017: an instances file like its own, and a tiny image for each entry.

Counts are those of instances_train2017.json (https://cocodataset.org), which is 470 MB
(448 MiB) long: 118,287 images, 1,021 of them without annotations, and 860,001 annotations
of 80 categories with ids up to 90, about 1 % of them crowds in run-length encoding.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt
from PIL import Image

TRAIN2017_IMAGES = 118_287
WIDTH, HEIGHT = 640, 480

_ANNOTATIONS_PER_IMAGE = 860_001 / TRAIN2017_IMAGES
_UNANNOTATED_SHARE = 1_021 / TRAIN2017_IMAGES
_CROWD_SHARE = 0.01
_FIRST_CROWD_ID = 900_100_000_000
_UNUSED_CATEGORY_IDS = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
_CATEGORY_IDS = tuple(set(range(1, 91)) - _UNUSED_CATEGORY_IDS)
_CHUNK = 5_000

# Polygons have 24 points on the average, most have fewer and some have hundreds: that makes the
# file as long as COCO's.
_POINTS_LOG_MEAN, _POINTS_LOG_SIGMA = 2.83, 0.85
_MIN_POINTS, _MAX_POINTS = 4, 400
_SECOND_POLYGON_SHARE = 0.12
_CROWD_RUNS = 300

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

# The decimal text of every hundredth of a pixel: much faster than formatting each number.
_HUNDREDTHS = tuple(repr(hundredth / 100) for hundredth in range(WIDTH * 100 + 1))


def write_coco_like(folder: Path, *, images: int) -> None:
    """Writes `folder/images/*.jpg` and `folder/annotations/instances.json`.

    Deterministic; memory is bounded, but for a few bytes an image.

    Args:
        folder: Where to; it must not exist.
        images: How many images; the annotations are in proportion.
    """
    rng = np.random.default_rng(0)
    image_ids = _image_ids(images, rng=rng)
    (folder / "images").mkdir(parents=True)
    stand_in = _stand_in_jpeg()
    for image_id in image_ids:
        (folder / "images" / _file_name(image_id)).write_bytes(stand_in)

    (folder / "annotations").mkdir()
    _write_instances(folder / "annotations" / "instances.json", image_ids, rng=rng)


def write_instances(path: Path, *, images: int) -> None:
    """Writes only the file of annotations; for 4 GB, a million images."""
    rng = np.random.default_rng(0)
    _write_instances(path, _image_ids(images, rng=rng), rng=rng)


def _image_ids(images: int, *, rng: np.random.Generator) -> _Integers:
    return np.sort(rng.choice(6 * images, size=images, replace=False) + 1)


def _write_instances(path: Path, image_ids: _Integers, *, rng: np.random.Generator) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write('{"info": {"description": "stand-in", "year": 2017},"licenses": [],"images": [')
        _write_joined(file, map(_image_text, image_ids))
        file.write('],"annotations": [')
        _write_joined(file, _annotation_texts(image_ids, rng=rng))
        categories = [
            {"supercategory": "thing", "id": category_id, "name": f"category {category_id}"}
            for category_id in sorted(_CATEGORY_IDS)
        ]
        file.write(f'],"categories": {json.dumps(categories)}}}')


def _stand_in_jpeg() -> bytes:
    # Of the annotated size, so that boxes fit; a flat gray takes next to nothing.
    buffer = io.BytesIO()
    Image.new("L", (WIDTH, HEIGHT), 128).save(buffer, "JPEG", optimize=True)
    return buffer.getvalue()


def _file_name(image_id: int) -> str:
    return f"{image_id:012d}.jpg"


def _image_text(image_id: int) -> str:
    name = _file_name(image_id)
    return (
        f'{{"license": 3,"file_name": "{name}",'
        f'"coco_url": "http://images.example.org/train2017/{name}",'
        f'"height": {HEIGHT},"width": {WIDTH},"date_captured": "2013-11-14 11:18:45",'
        f'"flickr_url": "http://farm9.example.org/8186/{image_id:010d}_8aa0d48b2f_z.jpg",'
        f'"id": {image_id}}}'
    )


def _annotation_texts(image_ids: _Integers, *, rng: np.random.Generator) -> Iterator[str]:
    # As in COCO's file, an image's annotations do not stand together.
    annotated = rng.permutation(image_ids)[round(_UNANNOTATED_SHARE * len(image_ids)) :]
    total = max(len(annotated), round(_ANNOTATIONS_PER_IMAGE * len(image_ids)))
    popularity = np.cumsum(rng.gamma(1.0, size=len(annotated)))
    for start in range(0, total, _CHUNK):
        count = min(_CHUNK, total - start)
        drawn = np.searchsorted(popularity, rng.random(count) * popularity[-1], side="right")
        owners = annotated[np.minimum(drawn, len(annotated) - 1)]
        # Each annotated image gets one for certain.
        first = annotated[start : start + count]
        owners[: len(first)] = first
        yield from _chunk_texts(owners, first_id=start + 1, rng=rng)


def _chunk_texts(owners: _Integers, *, first_id: int, rng: np.random.Generator) -> Iterator[str]:
    count = len(owners)
    crowds = rng.random(count) < _CROWD_SHARE
    category_ids = rng.choice(_CATEGORY_IDS, size=count)
    polygons = 1 + (rng.random(count) < _SECOND_POLYGON_SHARE)
    first_polygons = np.cumsum(polygons) - polygons
    points = np.clip(
        rng.lognormal(_POINTS_LOG_MEAN, _POINTS_LOG_SIGMA, size=polygons.sum()).astype(np.int64),
        _MIN_POINTS,
        _MAX_POINTS,
    )
    starts = np.cumsum(points) - points
    xs, ys = _polygon_points(points, starts=starts, rng=rng)
    areas = np.add.reduceat(_polygon_areas(xs, ys, points=points, starts=starts), first_polygons)
    first_points = starts[first_polygons]
    xmins, ymins = (np.minimum.reduceat(axis, first_points) for axis in (xs, ys))
    xmaxs, ymaxs = (np.maximum.reduceat(axis, first_points) for axis in (xs, ys))
    hundredths = np.stack([xs, ys], axis=1).ravel().tolist()

    for row in range(count):
        if crowds[row]:
            segmentation = f'{{"counts": {_run_lengths(rng)},"size": [{HEIGHT},{WIDTH}]}}'
            annotation_id = _FIRST_CROWD_ID + first_id + row
        else:
            lists = []
            for polygon in range(first_polygons[row], first_polygons[row] + polygons[row]):
                begin = 2 * starts[polygon]
                values = hundredths[begin : begin + 2 * points[polygon]]
                lists.append(f"[{','.join([_HUNDREDTHS[value] for value in values])}]")
            segmentation = f"[{','.join(lists)}]"
            annotation_id = first_id + row
        xmin, ymin = xmins[row], ymins[row]
        box = (xmin, ymin, xmaxs[row] - xmin, ymaxs[row] - ymin)
        yield (
            f'{{"segmentation": {segmentation},"area": {areas[row]},"iscrowd": {crowds[row]:d},'
            f'"image_id": {owners[row]},"bbox": [{",".join(_HUNDREDTHS[side] for side in box)}],'
            f'"category_id": {category_ids[row]},"id": {annotation_id}}}'
        )


def _polygon_points(
    points: _Integers, *, starts: _Integers, rng: np.random.Generator
) -> tuple[_Integers, _Integers]:
    """Draws ragged ovals: the x and y of all points of all polygons, in hundredths of a pixel."""
    number = len(points)
    radii_x, radii_y = rng.uniform(4, WIDTH / 3, number), rng.uniform(4, HEIGHT / 3, number)
    centres_x = rng.uniform(radii_x, WIDTH - radii_x)
    centres_y = rng.uniform(radii_y, HEIGHT - radii_y)
    turns = (np.arange(points.sum()) - np.repeat(starts, points)) / np.repeat(points, points)
    raggedness = rng.uniform(0.7, 1.0, len(turns))

    def axis(centres: _Floats, radii: _Floats, directions: _Floats) -> _Integers:
        pixels = np.repeat(centres, points) + np.repeat(radii, points) * raggedness * directions
        return (pixels * 100).round().astype(np.int64)

    angles = 2 * np.pi * turns
    return axis(centres_x, radii_x, np.cos(angles)), axis(centres_y, radii_y, np.sin(angles))


def _polygon_areas(
    xs: _Integers, ys: _Integers, *, points: _Integers, starts: _Integers
) -> _Floats:
    """The polygons' areas in pixels², by the shoelace formula."""
    following = np.arange(len(xs)) + 1
    following[starts + points - 1] = starts
    doubled: _Floats = np.add.reduceat(xs * ys[following] - xs[following] * ys, starts) / 10_000
    return np.abs(doubled) / 2


def _run_lengths(rng: np.random.Generator) -> str:
    cuts = np.unique(rng.integers(1, WIDTH * HEIGHT, size=_CROWD_RUNS))
    runs = np.diff(cuts, prepend=0, append=WIDTH * HEIGHT)
    return f"[{','.join(map(str, runs.tolist()))}]"


def _write_joined(file: TextIO, texts: Iterator[str]) -> None:
    separator = ""
    for text in texts:
        file.write(separator)
        file.write(text)
        separator = ",\n"
