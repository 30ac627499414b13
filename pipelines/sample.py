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

`shardbeam.pipelines.shapes` says what the annotations mean.
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
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from shardbeam.pipelines.shapes import (
    SHAPES,
    Json,
    Picture,
    describe_captions,
    describe_instances,
    describe_keypoints,
    describe_panoptic,
    instance_categories,
    keypoint_categories,
    panoptic_categories,
)

_FOLDERS = ("images", "annotations", "panoptic", "class_folders")
_SMALLEST_SIDE_PX, _LARGEST_SIDE_PX = 64, 4096
_EMPTY_EVERY = 16
_JPEG_QUALITY = 95
# Random streams of a seed.
_SCENES, _CLASSES = range(2)
_CATEGORIES: dict[str, list[Json] | None] = {
    "instances": instance_categories(),
    "person_keypoints": keypoint_categories(),
    "captions": None,
    "panoptic": panoptic_categories(),
}
_LICENSE = {
    "id": 1,
    "name": "CC0 1.0 Universal",
    "url": "https://creativecommons.org/publicdomain/zero/1.0/",
}
# Pictures that a worker process draws between two exchanges with the program.
_CHUNK = 8

_ApplyToAll = Callable[[Callable[[int], "_Drawn"], Iterable[int]], Iterator["_Drawn"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """What all pictures have in common; `write_shapes` describes its attributes."""

    output: Path
    seed: int
    width: int
    height: int


# The entries of a picture in the annotation files, as JSON: of the image, and by file.
_Drawn = tuple[bytes, dict[str, list[bytes]]]


def write_shapes(
    *,
    output: Path,
    images: int,
    seed: int,
    workers: int | None = None,
    width: int = 640,
    height: int = 480,
    report: Callable[[int], None] | None = None,
) -> int:
    """Draws the sample dataset.

    The same arguments give the same bytes (with the same releases of NumPy, Pillow and
    pycocotools), whatever `workers` is; a picture and its annotations depend on its number, not on
    how many there are.

    With several workers, a script that calls this must keep its main code under
    `if __name__ == "__main__":`, as everything that spawns processes.

    Args:
        output: The folder to write to: a new one, or an empty one.
        images: How many pictures.
        seed: Decides what is drawn; 0 or more.
        workers: Processes to draw with; one for each processor where None.
        width: Of the pictures, in pixels.
        height: Of the pictures, in pixels.
        report: Called with the number of pictures done, after each.

    Returns:
        The number of annotated shapes, in which a crowd is one.

    Raises:
        FileExistsError: `output` is not empty, or no folder.
        ValueError: A number is out of range.
    """
    _check_range("images", images, 1, None)
    _check_range("seed", seed, 0, None)
    _check_range("width", width, _SMALLEST_SIDE_PX, _LARGEST_SIDE_PX)
    _check_range("height", height, _SMALLEST_SIDE_PX, _LARGEST_SIDE_PX)
    if workers is None:
        workers = os.cpu_count() or 1
    _check_range("workers", workers, 1, None)
    _check_empty(output)

    # Absolute, as a spawned process may start in another working directory.
    job = _Job(output=output.absolute(), seed=seed, width=width, height=height)
    try:
        for folder in (*_FOLDERS, *(f"class_folders/{shape}" for shape in SHAPES)):
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
    return sum(len(annotations["instances"]) for _, annotations in drawn)


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
        yield functools.partial(_start_and_map, executor)
    finally:
        executor.shutdown(cancel_futures=True)


def _start_and_map(
    executor: concurrent.futures.ProcessPoolExecutor,
    function: Callable[[int], _Drawn],
    numbers: Iterable[int],
) -> Iterator[_Drawn]:
    """Starts the processes with SIGINT blocked, which a terminal sends to them, too."""
    # Which ends by unblocking it, when it starts with the first of them.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return executor.map(function, numbers, chunksize=_CHUNK)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _draw(job: _Job, number: int) -> _Drawn:
    """Draws and describes the pictures of a number, which is also the image's id."""
    name = f"{number:012}"
    rng = _random(job.seed, _SCENES, number)
    picture = Picture(rng=rng, width=job.width, height=job.height)
    if number % _EMPTY_EVERY:
        if rng.random() < 0.2:
            picture.add_crowd(str(rng.choice(SHAPES)))
        for shape in rng.choice(SHAPES, rng.integers(1, 6, endpoint=True)).tolist():
            picture.add_shape(shape, radius_range=(0.06, 0.3))
    _save_jpeg(picture, job.output / "images" / f"{name}.jpg")
    annotations: dict[str, list[Json]] = {file: [] for file in _CATEGORIES}
    if picture.things:
        segments, pixels = describe_panoptic(picture, image_id=number, rng=rng)
        Image.fromarray(pixels).save(job.output / "panoptic" / f"{name}.png")
        annotations = {
            "instances": describe_instances(picture, image_id=number),
            "person_keypoints": describe_keypoints(picture, image_id=number),
            "captions": describe_captions(picture, image_id=number),
            "panoptic": [
                {"image_id": number, "file_name": f"{name}.png", "segments_info": segments}
            ],
        }
    _draw_class_picture(job, number)
    image = {
        "license": _LICENSE["id"],
        "file_name": f"{name}.jpg",
        "height": job.height,
        "width": job.width,
        "id": number,
    }
    return msgspec.json.encode(image), {
        file: [msgspec.json.encode(entry) for entry in entries]
        for file, entries in annotations.items()
    }


def _draw_class_picture(job: _Job, number: int) -> None:
    """Draws the picture of one shape for the class folders."""
    rng = _random(job.seed, _CLASSES, number)
    shape = SHAPES[number % len(SHAPES)]
    width, height = rng.integers(160, 224, size=2, endpoint=True).tolist()
    picture = Picture(rng=rng, width=width, height=height)
    picture.add_shape(shape, radius_range=(0.2, 0.45))
    _save_jpeg(picture, job.output / "class_folders" / shape / f"{number:012}.jpg")


def _random(seed: int, stream: int, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, number)))


def _save_jpeg(picture: Picture, path: Path) -> None:
    picture.render().save(path, quality=_JPEG_QUALITY)


def _write_annotations(job: _Job, drawn: list[_Drawn]) -> None:
    for file, categories in _CATEGORIES.items():
        content: Json = {
            "info": {
                "description": f"Shapes drawn by Shardbeam from seed {job.seed}",
                "version": "1.0",
                "contributor": "Shardbeam",
            },
            "licenses": [_LICENSE],
            "images": [msgspec.Raw(image) for image, _ in drawn],
            "annotations": [
                msgspec.Raw(entry) for _, annotations in drawn for entry in annotations[file]
            ],
        }
        if categories is not None:
            content["categories"] = categories
        path = job.output / "annotations" / f"{file}.json"
        path.write_bytes(msgspec.json.encode(content))
