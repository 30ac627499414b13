"""The sample dataset: pictures of shapes with every kind of COCO annotation, made to try with.

In the folder that it is written to:

    images/000000000001.jpg …             the pictures; every sixteenth shows no shape, and has no
                                          annotation of any kind
    annotations/instances.json            boxes, polygons and, for crowds, RLE
    annotations/person_keypoints.json     the same with the shapes' corners; the name is COCO's
    annotations/captions.json             two captions an image
    annotations/panoptic.json             the segments of panoptic/000000000001.png …
    class_folders/<shape>/000000000001.jpg …
                                          as many pictures again, of one shape each and smaller
                                          (160 to 224 pixels a side)

`shardbeam.pipelines.shape_annotations` says what the annotations mean.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from shardbeam.pipelines.shape_annotations import (
    Json,
    describe_captions,
    describe_instances,
    describe_keypoints,
    describe_panoptic,
    instance_categories,
    keypoint_categories,
    panoptic_categories,
)
from shardbeam.pipelines.shapes import SHAPES, Picture, draw_picture
from shardbeam.pipelines.textures import Pixels

_FOLDERS = ("images", "annotations", "panoptic", "class_folders")
_SMALLEST_SIDE_PX, _LARGEST_SIDE_PX = 64, 4096
_CLASS_SIDES_PX = (160, 224)
_MOST_SHAPES = 6
_CROWD_PROBABILITY = 0.2
_EMPTY_EVERY = 16
# Random streams of a seed.
_SCENES, _CLASSES = range(2)
_FILES = {
    "instances": instance_categories,
    "person_keypoints": keypoint_categories,
    "captions": None,
    "panoptic": panoptic_categories,
}
_LICENSE = {
    "id": 1,
    "name": "CC0 1.0 Universal",
    "url": "https://creativecommons.org/publicdomain/zero/1.0/",
}
# Pictures that a worker draws between two exchanges with the program.
_CHUNK = 8

_ApplyToAll = Callable[[Callable[[int], "_Drawn"], Iterable[int]], Iterator["_Drawn"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSummary:
    """What was written.

    Attributes:
        output: The folder.
        images: Pictures in `images/`.
        image_bytes: Their size altogether.
        unannotated_images: Those of them without annotations.
        instances: Annotated shapes, crowds included.
        crowds: Annotated crowds.
        class_images: Pictures in each folder of `class_folders/`, by name.
    """

    output: Path
    images: int
    image_bytes: int
    unannotated_images: int
    instances: int
    crowds: int
    class_images: dict[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """What all pictures have in common; `write_shapes` describes its attributes."""

    output: Path
    seed: int
    width: int
    height: int
    quality: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Drawn:
    """What was drawn for one number.

    Attributes:
        image: Its entry in the annotation files, as JSON.
        annotations: Its annotations, `{file: [JSON]}`.
        image_bytes: Size of its picture in `images/`.
        crowds: Annotated crowds.
        class_name: The folder that its picture of one shape is in.
    """

    image: bytes
    annotations: dict[str, list[bytes]]
    image_bytes: int
    crowds: int
    class_name: str


def write_shapes(
    *,
    output: Path,
    images: int,
    seed: int,
    workers: int | None = None,
    width: int = 640,
    height: int = 480,
    quality: int = 95,
    report: Callable[[int], None] | None = None,
) -> SampleSummary:
    """Draws the sample dataset.

    The same arguments give the same bytes (with the same releases of NumPy and Pillow), whatever
    `workers` is; a picture and its annotations depend on its number, not on how many there are.
    At the default size and quality a JPEG has 139 KB (the mean of 1,000, seed 0).

    With several workers, a script that calls this must keep its main code under
    `if __name__ == "__main__":`, as everything that spawns processes.

    Args:
        output: The folder to write to: a new one, or an empty one.
        images: How many pictures.
        seed: Decides what is drawn; 0 or more.
        workers: Processes to draw with; one for each processor where None.
        width: Of the pictures, in pixels.
        height: Of the pictures, in pixels.
        quality: Of the JPEGs, 1 to 100.
        report: Called with the number of pictures done, after each.

    Raises:
        FileExistsError: `output` is not empty, or no folder.
        ValueError: A number is out of range.
    """
    _check_range("images", images, 1, None)
    _check_range("seed", seed, 0, None)
    _check_range("width", width, _SMALLEST_SIDE_PX, _LARGEST_SIDE_PX)
    _check_range("height", height, _SMALLEST_SIDE_PX, _LARGEST_SIDE_PX)
    _check_range("quality", quality, 1, 100)
    if workers is None:
        workers = os.cpu_count() or 1
    _check_range("workers", workers, 1, None)
    _check_empty(output)

    # Absolute, as a spawned process may start in another working directory.
    job = _Job(output=output.absolute(), seed=seed, width=width, height=height, quality=quality)
    try:
        for folder in _FOLDERS:
            (output / folder).mkdir(parents=True)
        drawn = []
        with _processes(min(workers, math.ceil(images / _CHUNK))) as apply_to_all:
            for result in apply_to_all(functools.partial(_draw, job), range(1, images + 1)):
                drawn.append(result)
                if report is not None:
                    report(len(drawn))
        _write_annotations(job, drawn)
    except BaseException:
        # Also when interrupted: half a sample would be mistaken for a whole one.
        for folder in _FOLDERS:
            shutil.rmtree(output / folder, ignore_errors=True)
        raise
    return SampleSummary(
        output=output,
        images=images,
        image_bytes=sum(result.image_bytes for result in drawn),
        unannotated_images=sum(not result.annotations["instances"] for result in drawn),
        instances=sum(len(result.annotations["instances"]) for result in drawn),
        crowds=sum(result.crowds for result in drawn),
        class_images=dict(sorted(Counter(result.class_name for result in drawn).items())),
    )


def _check_range(name: str, value: int, smallest: int, greatest: int | None) -> None:
    if value < smallest or (greatest is not None and value > greatest):
        upper = "or more" if greatest is None else f"to {greatest}"
        raise ValueError(f"{name} must be {smallest} {upper}, not {value}")


def _check_empty(output: Path) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise FileExistsError(f"{output} is a file; name a new or an empty folder")
    if any(output.iterdir()):
        raise FileExistsError(f"{output} is not empty; delete it, or name another folder")


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[_ApplyToAll]:
    """Provides a `map`, with results in order, that runs in so many processes."""
    if workers == 1:
        yield map
        return
    executor = concurrent.futures.ProcessPoolExecutor(
        workers,
        # The only way to start a process that is safe on every platform, and beside threads.
        mp_context=multiprocessing.get_context("spawn"),
        # An interrupt is the program's business.
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield functools.partial(executor.map, chunksize=_CHUNK)
    finally:
        executor.shutdown(cancel_futures=True)


def _draw(job: _Job, number: int) -> _Drawn:
    """Draws and describes the pictures of a number, which is also the image's id."""
    name = f"{number:012}"
    rng = _random(job.seed, _SCENES, number)
    picture = _draw_scene(job, number, rng=rng)
    image_bytes = _save_jpeg(
        picture.pixels, job.output / "images" / f"{name}.jpg", quality=job.quality
    )
    annotations: dict[str, list[Json]] = {file: [] for file in _FILES}
    if picture.things:
        panoptic, segments = describe_panoptic(
            picture, image_id=number, file_name=f"{name}.png", rng=rng
        )
        # The fastest level: the files are small at any.
        Image.fromarray(segments).save(job.output / "panoptic" / f"{name}.png", compress_level=1)
        annotations = {
            "instances": describe_instances(picture, image_id=number),
            "person_keypoints": describe_keypoints(picture, image_id=number),
            "captions": describe_captions(picture, image_id=number),
            "panoptic": [panoptic],
        }
    image = {
        "license": _LICENSE["id"],
        "file_name": f"{name}.jpg",
        "height": job.height,
        "width": job.width,
        "id": number,
    }
    return _Drawn(
        image=msgspec.json.encode(image),
        annotations={
            file: [msgspec.json.encode(entry) for entry in entries]
            for file, entries in annotations.items()
        },
        image_bytes=image_bytes,
        crowds=sum(thing.is_crowd for thing in picture.things),
        class_name=_draw_class_picture(job, number),
    )


def _draw_scene(job: _Job, number: int, *, rng: np.random.Generator) -> Picture:
    shapes: list[str] = []
    crowd = None
    if number % _EMPTY_EVERY:
        shapes = rng.choice(list(SHAPES), rng.integers(1, _MOST_SHAPES, endpoint=True)).tolist()
        if rng.random() < _CROWD_PROBABILITY:
            crowd = str(rng.choice(list(SHAPES)))
    return draw_picture(
        rng=rng,
        width=job.width,
        height=job.height,
        shapes=shapes,
        crowd=crowd,
        radius_range=(0.06, 0.3),
    )


def _draw_class_picture(job: _Job, number: int) -> str:
    """Draws a picture of one shape and returns the shape's name."""
    rng = _random(job.seed, _CLASSES, number)
    shape = list(SHAPES)[number % len(SHAPES)]
    width, height = rng.integers(*_CLASS_SIDES_PX, size=2, endpoint=True).tolist()
    picture = draw_picture(
        rng=rng, width=width, height=height, shapes=[shape], radius_range=(0.2, 0.45)
    )
    folder = job.output / "class_folders" / shape
    folder.mkdir(exist_ok=True)
    _save_jpeg(picture.pixels, folder / f"{number:012}.jpg", quality=job.quality)
    return shape


def _random(seed: int, stream: int, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, number)))


def _save_jpeg(pixels: Pixels, path: Path, *, quality: int) -> int:
    Image.fromarray(pixels).save(path, quality=quality)
    return path.stat().st_size


def _write_annotations(job: _Job, drawn: Sequence[_Drawn]) -> None:
    info = {
        "description": f"Shapes drawn by Shardbeam from seed {job.seed}",
        "version": "1.0",
        "contributor": "Shardbeam",
    }
    for file, categories in _FILES.items():
        content = {
            "info": info,
            "licenses": [_LICENSE],
            "images": [msgspec.Raw(result.image) for result in drawn],
            "annotations": [
                msgspec.Raw(entry) for result in drawn for entry in result.annotations[file]
            ],
        }
        # Captions have none.
        if categories is not None:
            content["categories"] = categories()
        path = job.output / "annotations" / f"{file}.json"
        path.write_bytes(msgspec.json.encode(content))
