"""The sample dataset: images of shapes with every kind of COCO annotation, to try things with.

The folder contains:

    images/000000000001.jpg …             the images; every sixteenth has no shape and no
                                          annotations
    annotations/instances.json            boxes, polygons and, for crowds, RLE
    annotations/person_keypoints.json     the same with the shapes' corners, under COCO's name
    annotations/captions.json             two captions per image
    annotations/panoptic.json             the segments of panoptic/000000000001.png …
    class_folders/<shape>/000000000001.jpg …
                                          the same number of smaller images, with one shape
                                          each (sides of 160 to 224 pixels)

The pixels of a shape are those that pycocotools draws for its polygon, so that polygon, area, box
and image agree to the pixel. Annotations have the structure of
https://cocodataset.org/#format-data. It leaves some points open; here

- an instance is a whole shape, even if another covers part of it. A crowd is the set of its
  members' pixels, in uncompressed RLE;
- keypoints are a shape's corners, clockwise. All categories have the same five, as in pose
  datasets of several species. Missing ones are (0, 0, 0), and ones that another shape covers are
  labelled but not visible (v = 1);
- a panoptic segment is the visible pixels of a thing, or of a part of the background.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import math
import multiprocessing
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco_mask

from shardbeam.pipelines.cli.commands import SampleArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.interrupts import NOTHING_WRITTEN, say_when_interrupted
from shardbeam.pipelines.overlap import check_outside_datasets
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.resources import usable_cpus
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.shards.worker import without_interrupts
from shardbeam.transforms.storage.base import is_uri
from shardbeam.transforms.storage.local import make_folders, remove_empty

Json = dict[str, object]
Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]
# The entries of an image in the annotation files, as JSON: of the image, and by file.
_Drawn = tuple[bytes, dict[str, list[bytes]]]

COLOURS = {
    "red": (200, 40, 36),
    "orange": (232, 130, 32),
    "yellow": (238, 206, 56),
    "blue": (40, 84, 196),
    "purple": (122, 52, 156),
    "pink": (236, 134, 172),
    "white": (238, 236, 230),
    "black": (36, 36, 40),
}
# Category ids have gaps, and stuff comes after things, as in COCO.
_STUFF_IDS = {"sky": 92, "sand": 95, "grass": 99, "water": 106}
_STUFF_COLOURS = {
    "sky": (150, 186, 220),
    "sand": (204, 174, 128),
    "grass": (84, 120, 42),
    "water": (60, 112, 136),
}
_NUM_KEYPOINTS = 5
# Annotation ids are numbered within each image, so that they do not depend on other images.
_IDS_PER_IMAGE = 100
# No shape hides more than this part of another one.
_MOST_HIDDEN = 0.5
_PLACING_TRIES = 20
_SMALLEST_RADIUS_PX = 3
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
_FOLDERS = ("images", "annotations", "panoptic", "class_folders")
_EMPTY_EVERY = 16
_JPEG_QUALITY = 95
# Numbers of the random streams of a seed.
_SCENES, _CLASSES = range(2)
_LICENSE = {
    "id": 1,
    "name": "CC0 1.0 Universal",
    "url": "https://creativecommons.org/publicdomain/zero/1.0/",
}
# Images that a worker process draws between two exchanges with the program.
_CHUNK = 8


class _Shape(NamedTuple):
    """A kind of thing.

    Attributes:
        category_id: Its id.
        outline: A polygon's vertices on a circle of radius 1, clockwise from the topmost, of shape
            (vertices, 2). A circle is a polygon, too.
        corners: Which of the vertices are corners.
    """

    category_id: int
    outline: Points
    corners: slice


def _outline(vertices: int, *, inner_radius: float = 1.0) -> Points:
    angles = 2 * np.pi * np.arange(vertices) / vertices
    outline = np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    outline[1::2] *= inner_radius
    return outline


_SHAPES = {
    "circle": _Shape(1, _outline(48), slice(0)),
    "square": _Shape(3, _outline(4), slice(None)),
    "triangle": _Shape(4, _outline(3), slice(None)),
    "star": _Shape(7, _outline(10, inner_radius=0.45), slice(None, None, 2)),
}
SHAPES = tuple(_SHAPES)


def _categories() -> dict[str, list[Json] | None]:
    """Returns `categories` for each annotation file; captions have none."""
    things: list[Json] = [
        {"supercategory": "shape", "id": shape.category_id, "name": name}
        for name, shape in _SHAPES.items()
    ]
    stuff: list[Json] = [
        {"supercategory": "background", "isthing": 0, "id": category_id, "name": name}
        for name, category_id in _STUFF_IDS.items()
    ]
    corners = [len(shape.outline[shape.corners]) for shape in _SHAPES.values()]
    names = [f"corner_{number}" for number in range(1, _NUM_KEYPOINTS + 1)]
    # Each line joins a corner to the next one.
    skeletons = [
        [(number, number % count + 1) for number in range(1, count + 1)] for count in corners
    ]
    return {
        "instances": things,
        "person_keypoints": [
            {**thing, "keypoints": names, "skeleton": skeleton}
            for thing, skeleton in zip(things, skeletons, strict=True)
        ],
        "captions": None,
        "panoptic": [{**thing, "isthing": 1} for thing in things] + stuff,
    }


def run_sample(arguments: SampleArguments) -> None:
    """Draws the sample dataset.

    Raises:
        UsageError: The folder is not empty, lies in a dataset, or is not on disk.
    """
    if is_uri(arguments.output):
        raise UsageError(f"--output: {arguments.output}: expected a folder on disk; copy it then")
    check_outside_datasets(arguments.output, name="--output")
    output = Path(arguments.output)

    def describe_interrupt() -> str:
        if not (output / "images").exists():
            return NOTHING_WRITTEN
        # Exiting workers may already have made the program clean up.
        return f"interrupted; {output} may hold a part of the sample: delete it, and draw again"

    say_when_interrupted("interrupted", ask=describe_interrupt)
    try:
        counters.pictures.expect(arguments.images)
        shapes = write_shapes(
            output=output,
            images=arguments.images,
            seed=arguments.seed,
            workers=arguments.workers,
            width=arguments.width,
            height=arguments.height,
        )
    except FileExistsError as error:
        raise UsageError(str(error)) from error
    write_stdout(
        f"wrote {arguments.images:,} images with {shapes:,} annotated shapes, and a class folder "
        f"for each kind of shape, to {escape(str(output))}\n"
    )
    say_when_interrupted(f"interrupted; the sample is complete: {output}")


def write_shapes(
    *,
    output: Path,
    images: int,
    seed: int,
    workers: int | None = None,
    width: int = 640,
    height: int = 480,
) -> int:
    """Draws the sample dataset.

    The same arguments give the same bytes (with the same releases of NumPy, Pillow and
    pycocotools) for any `workers`. An image and its annotations depend on its number, not on how
    many there are.

    With several workers, a script that calls this needs `if __name__ == "__main__":` around its
    main code, because processes are spawned.

    Args:
        output: The folder to write to, new or empty.
        images: The number of images.
        seed: Decides what is drawn; 0 or more.
        workers: The number of processes; None for one per processor.
        width: Width of the images in pixels, at least 64.
        height: Height of the images in pixels, at least 64.

    Returns:
        The number of annotated shapes, in which a crowd is one.

    Raises:
        FileExistsError: `output` is not empty, or not a folder.
    """
    if output.exists() and not output.is_dir():
        raise FileExistsError(f"{output} is a file; name a new or an empty folder")
    if output.exists() and any(output.iterdir()):
        raise FileExistsError(f"{output} is not empty; name a new folder")
    workers = min(workers or usable_cpus(), math.ceil(images / _CHUNK))
    # Absolute, because a spawned process may start in another working directory.
    draw = functools.partial(_draw, output.absolute(), seed, (width, height))
    drawn: list[_Drawn] = []
    made = make_folders(str(output))
    try:
        for folder in (*_FOLDERS, *(f"class_folders/{shape}" for shape in SHAPES)):
            (output / folder).mkdir()
        with contextlib.closing(_draw_all(draw, images=images, workers=workers)) as entries:
            for each in entries:
                drawn.append(each)
                counters.pictures.add()
        _write_annotations(output, drawn, seed=seed)
    except BaseException:
        # Clean up even when interrupted: half a sample could be mistaken for a whole one.
        for folder in _FOLDERS:
            shutil.rmtree(output / folder, ignore_errors=True)
        remove_empty(made)
        raise
    return sum(len(annotations["instances"]) for _, annotations in drawn)


def _draw_all(
    draw: Callable[[int], _Drawn], *, images: int, workers: int
) -> Generator[_Drawn, None, None]:
    """Draws images in several processes, and yields their entries in order."""
    numbers = range(1, images + 1)
    if workers == 1:
        yield from map(draw, numbers)
        return
    # Only spawning is safe on every platform, and beside threads.
    context = multiprocessing.get_context("spawn")
    executor = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    try:
        with without_interrupts():
            drawn = executor.map(draw, numbers, chunksize=_CHUNK)
        yield from drawn
    finally:
        executor.shutdown(cancel_futures=True)


def _draw(output: Path, seed: int, size: tuple[int, int], number: int) -> _Drawn:
    """Draws the two images with a number, and returns the first one's annotation entries."""
    width, height = size
    name = f"{number:012}"
    scene = Scene(_random(seed, _SCENES, number), width=width, height=height)
    if number % _EMPTY_EVERY:
        scene.add_things()
    scene.render().save(output / "images" / f"{name}.jpg", quality=_JPEG_QUALITY)
    annotations: dict[str, list[Json]] = {file: [] for file in _categories()}
    if scene.things:
        segments, ids = scene.describe_segments()
        colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)
        Image.fromarray(colours).save(output / "panoptic" / f"{name}.png")
        objects = [
            scene.describe_thing(index, image_id=number) for index in range(len(scene.things))
        ]
        annotations = {
            "instances": [instance for instance, _ in objects],
            "person_keypoints": [instance | keypoints for instance, keypoints in objects],
            "captions": [
                {"id": number * _IDS_PER_IMAGE + index, "image_id": number, "caption": caption}
                for index, caption in enumerate(scene.captions(), start=1)
            ],
            "panoptic": [
                {"image_id": number, "file_name": f"{name}.png", "segments_info": segments}
            ],
        }
    image = {
        "license": _LICENSE["id"],
        "file_name": f"{name}.jpg",
        "height": height,
        "width": width,
        "id": number,
    }
    # An image of one shape for the class folders.
    rng = _random(seed, _CLASSES, number)
    shape = SHAPES[number % len(SHAPES)]
    width, height = rng.integers(160, 224, size=2, endpoint=True).tolist()
    alone = Scene(rng, width=width, height=height)
    alone.add_shape(shape, radius_range=(0.2, 0.45))
    path = output / "class_folders" / shape / f"{name}.jpg"
    alone.render().save(path, quality=_JPEG_QUALITY)
    encode = msgspec.json.encode
    return encode(image), {file: list(map(encode, of)) for file, of in annotations.items()}


def _random(seed: int, stream: int, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, number)))


def _write_annotations(output: Path, drawn: Sequence[_Drawn], *, seed: int) -> None:
    for file, categories in _categories().items():
        content: Json = {
            "info": {
                "description": f"Shapes drawn by Shardbeam from seed {seed}",
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
        (output / "annotations" / f"{file}.json").write_bytes(msgspec.json.encode(content))


class Thing(NamedTuple):
    """A shape in an image, or a crowd of small ones.

    Attributes:
        shape: Its name in `SHAPES`.
        colour: Its name in `COLOURS`.
        outline: The polygon's vertices in pixels, of shape (vertices, 2); None for a crowd.
        mask: Its pixels, bool of shape (height, width).
    """

    shape: str
    colour: str
    outline: Points | None
    mask: Mask


class Scene:
    """What an image shows.

    Attributes:
        things: The shapes; each may be covered by later ones.
        stuff: Names of the background's parts.
        segments: What each pixel shows, as an index into `stuff` followed by `things`; uint8 of
            shape (height, width).
    """

    def __init__(self, rng: np.random.Generator, *, width: int, height: int) -> None:
        """Draws the background: a ground, in two of three images below a sky."""
        self._rng = rng
        self._size = np.array([width, height])
        self.things: list[Thing] = []
        self.segments = np.zeros((height, width), np.uint8)
        self.stuff = [str(rng.choice([name for name in _STUFF_IDS if name != "sky"]))]
        if rng.random() < 2 / 3:
            self.stuff.append("sky")
            self.segments[: int(rng.uniform(0.25, 0.55) * height)] = 1

    def add_things(self) -> None:
        """Adds one to six shapes, in a fifth of all images before a crowd of one colour."""
        if self._rng.random() < 0.2:
            self._add_crowd(str(self._rng.choice(SHAPES)))
        for shape in self._rng.choice(SHAPES, self._rng.integers(1, 6, endpoint=True)).tolist():
            self.add_shape(shape, radius_range=(0.06, 0.3))

    def add_shape(self, name: str, *, radius_range: tuple[float, float]) -> None:
        """Adds a shape at a random place, unless it would hide too much of another shape.

        Args:
            name: The shape's name.
            radius_range: The smallest and greatest radius, relative to the shorter side.
        """
        for _ in range(_PLACING_TRIES):
            # On a logarithmic scale, all radii are equally frequent.
            radius = math.exp(self._rng.uniform(*np.log(radius_range))) * self._size.min()
            margin = max(radius, _SMALLEST_RADIUS_PX) + 1
            centre = self._rng.uniform(margin, self._size - margin)
            outline = self._place(name, centre=centre, radius=radius)
            mask = self._fill([outline])
            if self._hides_little(mask):
                self._add(name, outline, mask)
                return

    def _add_crowd(self, name: str) -> None:
        """Adds a crowd of 8 to 16 small shapes."""
        side = self._size.min()
        middle = self._rng.uniform(0.3 * side, self._size - 0.3 * side)
        members = []
        for _ in range(self._rng.integers(8, 16, endpoint=True)):
            angle = self._rng.uniform(0, 2 * np.pi)
            away = 0.2 * side * math.sqrt(self._rng.random())
            centre = middle + away * np.array([np.cos(angle), np.sin(angle)])
            radius = self._rng.uniform(0.015, 0.03) * side
            members.append(self._place(name, centre=centre, radius=radius))
        self._add(name, None, self._fill(members))

    def _place(self, name: str, *, centre: Points, radius: float) -> Points:
        """Turns, scales and moves a shape's outline, in eighths of a pixel."""
        turn = self._rng.uniform(-1, 1) * np.pi / 4
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        outline = max(radius, _SMALLEST_RADIUS_PX) * _SHAPES[name].outline @ axes
        points: Points = centre + outline
        return np.round(points * 8) / 8

    def _fill(self, outlines: Sequence[Points]) -> Mask:
        height, width = self.segments.shape
        polygons = [outline.ravel().tolist() for outline in outlines]
        runs = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
        return np.asarray(coco_mask.decode(runs), np.bool_)

    def _hides_little(self, mask: Mask) -> bool:
        return all(
            ((self.segments == index) & ~mask).sum() >= (1 - _MOST_HIDDEN) * thing.mask.sum()
            for index, thing in enumerate(self.things, start=len(self.stuff))
        )

    def _add(self, name: str, outline: Points | None, mask: Mask) -> None:
        colour = str(self._rng.choice(list(COLOURS)))
        self.segments[mask] = len(self.stuff) + len(self.things)
        self.things.append(Thing(name, colour, outline, mask))

    def render(self) -> Image.Image:
        """Colours the image, with uneven light and grain like those of a photograph."""
        width, height = self._size.tolist()
        # With this grain, a JPEG of 640 x 480 pixels has 140 KB, like a photograph.
        noise = self._rng.standard_normal((height, width), np.float32) * 6
        for cell in (8, 64):
            coarse = self._rng.standard_normal((height // cell + 2, width // cell + 2), np.float32)
            noise += 9 * np.asarray(Image.fromarray(coarse).resize((width, height)))
        colours = [_STUFF_COLOURS[name] for name in self.stuff]
        colours += [COLOURS[thing.colour] for thing in self.things]
        light = self._rng.uniform(0.9, 1.1, (len(colours), 3))
        pixels = (np.array(colours) * light).astype(np.float32)[self.segments]
        pixels += noise[..., np.newaxis]
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    def describe_thing(self, index: int, *, image_id: int) -> tuple[Json, Json]:
        """Returns the entry of a thing in the file of instances, and its keypoints."""
        thing = self.things[index]
        segmentation: object
        points = np.zeros((_NUM_KEYPOINTS, 3))
        if thing.outline is None:
            segmentation = {"counts": _run_lengths(thing.mask), "size": list(thing.mask.shape)}
        else:
            segmentation = [thing.outline.ravel().tolist()]
            corners = thing.outline[_SHAPES[thing.shape].corners]
            columns, rows = corners.astype(np.intp).T
            is_covered = self.segments[rows, columns] > len(self.stuff) + index
            points[: len(corners), :2] = corners
            points[: len(corners), 2] = np.where(is_covered, 1, 2)
        instance = {
            "id": image_id * _IDS_PER_IMAGE + index + 1,
            "image_id": image_id,
            "category_id": _SHAPES[thing.shape].category_id,
            "iscrowd": int(thing.outline is None),
            "segmentation": segmentation,
            **_extent(thing.mask),
        }
        return instance, {
            "num_keypoints": int((points[:, 2] > 0).sum()),
            "keypoints": points.ravel().tolist(),
        }

    def describe_segments(self) -> tuple[list[Json], npt.NDArray[np.int64]]:
        """Returns `segments_info` of a panoptic file, and the segment's id at each pixel."""
        categories = [(_STUFF_IDS[name], False) for name in self.stuff]
        categories += [
            (_SHAPES[thing.shape].category_id, thing.outline is None) for thing in self.things
        ]
        # 0 stands for pixels without a segment.
        ids = 1 + self._rng.choice(256**3 - 1, size=len(categories), replace=False)
        segments: list[Json] = [
            {
                "id": int(ids[index]),
                "category_id": category_id,
                "iscrowd": int(is_crowd),
                **_extent(self.segments == index),
            }
            for index, (category_id, is_crowd) in enumerate(categories)
            if (self.segments == index).any()
        ]
        return segments, ids[self.segments]

    def captions(self) -> Iterator[str]:
        """Yields two captions: where the first thing is, and everything that the image shows."""
        groups: dict[tuple[str, bool], list[Thing]] = {}
        for thing in self.things:
            groups.setdefault((thing.shape, thing.outline is None), []).append(thing)
        *others, last = map(_name, groups.values())
        what = f"{', '.join(others)} and {last}" if others else last
        first = self.things[0]
        middle = np.nonzero(first.mask)[1].mean() / first.mask.shape[1]
        side = ("on the left", "in the middle", "on the right")[int(3 * middle)]
        for caption in (f"{_name([first])} {side}", f"{what} and {' below '.join(self.stuff)}"):
            yield f"{caption[0].upper()}{caption[1:]}."


def _name(group: Sequence[Thing]) -> str:
    """Names things of one shape: `a red star`, `two squares`, `a crowd of small blue circles`."""
    thing = group[0]
    if thing.outline is None:
        return f"a crowd of small {thing.colour} {thing.shape}s"
    if len(group) > 1:
        return f"{_NUMBERS[len(group)]} {thing.shape}s"
    return f"{'an' if thing.colour == 'orange' else 'a'} {thing.colour} {thing.shape}"


def _extent(mask: Mask) -> Json:
    """`bbox` (x, y, width, height) and `area` of a mask, in pixels."""
    runs = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {"bbox": coco_mask.toBbox(runs).tolist(), "area": int(coco_mask.area(runs))}


def _run_lengths(mask: Mask) -> list[int]:
    """COCO's uncompressed RLE: runs of 0 and 1 in turn, column by column, starting with 0."""
    pixels = mask.ravel(order="F")
    starts = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    runs: list[int] = np.diff(starts, prepend=0, append=pixels.size).tolist()
    return [0, *runs] if pixels[0] else runs
