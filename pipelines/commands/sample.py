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
  members' pixels, in uncompressed RLE. An image's instances are listed from front to back;
- keypoints are a shape's corners, clockwise. All categories have the same five, as in pose
  datasets of several species. Missing ones are (0, 0, 0), and ones that another shape covers are
  labelled but not visible (v = 1);
- a panoptic segment is the visible pixels of a thing, or of a part of the background.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor
from pycocotools import mask as coco_mask

from shardbeam.pipelines.cli.commands import SampleArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.interrupts import delay_interrupts, say_when_interrupted
from shardbeam.pipelines.overlap import check_outside_datasets
from shardbeam.pipelines.own_folders import FOLDER_INSIDE, folder_inside
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.cpus import usable_cpus
from shardbeam.transforms.core.map_ahead import map_many
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.storage.base import is_uri

Json = dict[str, Any]
Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]

# Category ids have gaps, and stuff comes after things, as in COCO.
_THINGS = [
    {"supercategory": "shape", "id": 1, "name": "circle"},
    {"supercategory": "shape", "id": 3, "name": "square"},
    {"supercategory": "shape", "id": 4, "name": "triangle"},
    {"supercategory": "shape", "id": 7, "name": "star"},
]
_STUFF = [
    {"supercategory": "background", "isthing": 0, "id": 92, "name": "sky"},
    {"supercategory": "background", "isthing": 0, "id": 95, "name": "sand"},
    {"supercategory": "background", "isthing": 0, "id": 99, "name": "grass"},
    {"supercategory": "background", "isthing": 0, "id": 106, "name": "water"},
]
_IDS = {category["name"]: category["id"] for category in [*_THINGS, *_STUFF]}
SHAPES = [str(thing["name"]) for thing in _THINGS]
_CORNERS = {"circle": 0, "square": 4, "triangle": 3, "star": 5}
_KEYPOINTS = ["corner_1", "corner_2", "corner_3", "corner_4", "corner_5"]
_CATEGORIES: dict[str, list[Json]] = {
    "instances": _THINGS,
    "person_keypoints": [
        {
            **thing,
            "keypoints": _KEYPOINTS,
            # Each line joins a corner to the next one.
            "skeleton": [(corner, corner % count + 1) for corner in range(1, count + 1)],
        }
        for thing, count in zip(_THINGS, _CORNERS.values(), strict=True)
    ],
    "panoptic": [*({**thing, "isthing": 1} for thing in _THINGS), *_STUFF],
}
_CC0 = "https://creativecommons.org/publicdomain/zero/1.0/"
_LICENSE = {"id": 1, "name": "CC0 1.0 Universal", "url": _CC0}
# Colours by their names in CSS.
_SHAPE_COLOURS = ("crimson", "gold", "blue", "purple", "pink", "white", "black")
_GROUND_COLOURS = {"sand": "tan", "grass": "olivedrab", "water": "steelblue"}
_FOLDERS = ("images", "annotations", "panoptic", "class_folders")
_EMPTY_EVERY = 16
_JPEG_QUALITY = 95


def run_sample(arguments: SampleArguments) -> None:
    """Draws the sample dataset.

    Raises:
        UsageError: The folder is not empty, lies in a dataset, or is not on disk.
    """
    if is_uri(arguments.output):
        raise UsageError(f"--output: {arguments.output}: expected a folder on disk; copy it then")
    check_outside_datasets(arguments.output, name="--output")
    output = Path(arguments.output)
    counters.pictures.expect(arguments.images)
    shapes = write_shapes(
        output=output,
        images=arguments.images,
        seed=arguments.seed,
        workers=arguments.workers,
        width=arguments.width,
        height=arguments.height,
    )
    write_stdout(
        f"wrote {arguments.images:,} images with {shapes:,} annotated shapes, and a class folder "
        f"for each kind of shape, to {escape(str(output))}\n"
    )


def write_shapes(
    *,
    output: Path,
    images: int,
    seed: int,
    workers: int | None = None,
    width: int = 640,
    height: int = 480,
) -> int:
    """Draws the sample dataset; after an interrupt, nothing of it is left.

    The same arguments give the same bytes (with the same releases of NumPy, Pillow and
    pycocotools) for any `workers`. An image and its annotations depend on its number, not on how
    many there are.

    Args:
        output: The folder to write to, new or empty.
        images: The number of images.
        seed: Decides what is drawn; 0 or more.
        workers: The number of threads; None for one per processor.
        width: Width of the images in pixels, at least 64.
        height: Height of the images in pixels, at least 64.

    Returns:
        The number of annotated shapes, in which a crowd is one.

    Raises:
        UsageError: `output` is not empty, or not a folder.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file; name a new or an empty folder")
    # A command that was killed may have left its folder.
    if any(not path.name.startswith(FOLDER_INSIDE) for path in output.glob("*")):
        raise UsageError(f"{output} is not empty; name a new folder")
    entries: dict[str, list[msgspec.Raw]] = defaultdict(list)
    with folder_inside(str(output)) as name:
        folder = Path(name)
        for made in (*_FOLDERS, *(f"class_folders/{shape}" for shape in SHAPES)):
            (folder / made).mkdir()
        draw = functools.partial(_draw_images, folder, seed, (width, height))
        for of_image in map_many(draw, range(1, images + 1), threads=workers or usable_cpus()):
            for section, added in of_image.items():
                # As JSON, they take half of the memory.
                entries[section] += [msgspec.Raw(msgspec.json.encode(entry)) for entry in added]
            counters.pictures.add()
        for file in ("instances", "person_keypoints", "captions", "panoptic"):
            content: Json = {
                "info": {"description": f"Shapes drawn by Shardbeam from seed {seed}"},
                "licenses": [_LICENSE],
                "images": entries["images"],
                "annotations": entries[file],
            }
            if file in _CATEGORIES:
                content["categories"] = _CATEGORIES[file]
            (folder / "annotations" / f"{file}.json").write_bytes(msgspec.json.encode(content))
        with delay_interrupts():
            for made in _FOLDERS:
                (folder / made).rename(output / made)
            say_when_interrupted(f"interrupted; the sample is complete: {output}")
    return len(entries["instances"])


def _draw_images(
    folder: Path, seed: int, size: tuple[int, int], number: int
) -> dict[str, list[Json]]:
    """Draws the two images with a number; returns what the annotation files say of the first."""
    rng = np.random.default_rng((seed, number))
    name = f"{number:012}"
    scene = _Scene(rng, size)
    if number % _EMPTY_EVERY:
        scene.add_things()
    scene.add_background()
    scene.render().save(folder / "images" / f"{name}.jpg", quality=_JPEG_QUALITY)

    # An image of one shape for the class folders.
    shape = SHAPES[number % len(SHAPES)]
    width, height = rng.integers(160, 224, size=2, endpoint=True).tolist()
    alone = _Scene(rng, (width, height))
    alone.add_thing(shape, radius=rng.uniform(0.2, 0.45) * min(width, height))
    alone.add_background()
    path = folder / "class_folders" / shape / f"{name}.jpg"
    alone.render().save(path, quality=_JPEG_QUALITY)

    image = {"id": number, "file_name": f"{name}.jpg", "width": size[0], "height": size[1]}
    entries = {"images": [{**image, "license": _LICENSE["id"]}]}
    if scene.instances:
        channels = np.stack([scene.ids, scene.ids >> 8, scene.ids >> 16], axis=-1)
        Image.fromarray(channels.astype(np.uint8)).save(folder / "panoptic" / f"{name}.png")
        entries |= scene.annotate(number, panoptic=f"{name}.png")
    return entries


class _Scene:
    """An image that is drawn from front to back: each part fills pixels that are still free.

    Attributes:
        ids: The panoptic segment that each pixel shows, 0 if it is free; of shape (height, width).
        instances: What `instances.json` says of the things that are seen, from front to back.
        keypoints: What `person_keypoints.json` adds to each.
    """

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self._rng = rng
        self._size = width, height = size
        self._pixels = np.zeros((height, width, 3), np.float32)
        self._segments: list[Json] = []
        self._names: list[str] = []
        self.ids = np.zeros((height, width), np.uint32)
        self.instances: list[Json] = []
        self.keypoints: list[Json] = []

    def add_things(self) -> None:
        """Adds one to six shapes, and in a fifth of all images a crowd behind them."""
        side = min(self._size)
        for shape in self._rng.choice(SHAPES, self._rng.integers(1, 6, endpoint=True)).tolist():
            # 6 to 30 % of the side; small ones are more frequent.
            self.add_thing(shape, radius=0.06 * side * 5 ** self._rng.random())
        if self._rng.random() < 0.2:
            shape = str(self._rng.choice(SHAPES))
            members = int(self._rng.integers(8, 16, endpoint=True))
            self.add_thing(shape, radius=0.03 * side, members=members, spread=0.2 * side)

    def add_thing(
        self, shape: str, *, radius: float, members: int = 1, spread: float = 0.0
    ) -> None:
        """Adds a shape, or a crowd of them, at a random place, unless other parts hide all of it.

        Args:
            shape: Its name.
            radius: Radius in pixels; of each member of a crowd.
            members: The number of shapes.
            spread: How far the members are from the middle of the crowd, in pixels.
        """
        margin = radius + spread + 1
        middle = self._rng.uniform(margin, np.subtract(self._size, margin))
        centres = middle + self._rng.uniform(-spread, spread, (members, 1, 2))
        turn = self._rng.uniform(-1, 1) * np.pi / 4
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        # In eighths of a pixel.
        outlines = np.round(8 * (centres + radius * _outline(shape) @ axes)) / 8
        polygons = outlines.reshape(members, -1).tolist()
        mask = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(polygons, *self.ids.shape)))

        is_crowd = members > 1
        count = 0 if is_crowd else _CORNERS[shape]
        # Every second vertex of a star lies inside.
        corners = outlines[0, :: 2 if shape == "star" else 1][:count]
        columns, rows = corners.astype(np.intp).T
        keypoints = np.zeros((len(_KEYPOINTS), 3))
        keypoints[:count, :2] = corners
        keypoints[:count, 2] = np.where(self.ids[rows, columns] > 0, 1, 2)

        colour = str(self._rng.choice(_SHAPE_COLOURS))
        name = f"a crowd of small {colour} {shape}s" if is_crowd else f"a {colour} {shape}"
        if self._fill(mask > 0, category=shape, colour=colour, name=name, is_crowd=is_crowd):
            instance = {
                "category_id": _IDS[shape],
                "iscrowd": int(is_crowd),
                "segmentation": _run_lengths(mask) if is_crowd else polygons,
                **_extent(mask),
            }
            self.instances.append(instance)
            self.keypoints.append({"num_keypoints": count, "keypoints": keypoints.ravel().tolist()})

    def add_background(self) -> None:
        """Fills what is free: in two of three images with a sky, and below it with ground."""
        rows = np.indices(self.ids.shape)[0] / len(self.ids)
        if self._rng.random() < 2 / 3:
            self._fill(rows < self._rng.uniform(0.25, 0.55), category="sky", colour="lightblue")
        ground = str(self._rng.choice(list(_GROUND_COLOURS)))
        self._fill(rows < 1, category=ground, colour=_GROUND_COLOURS[ground])

    def _fill(
        self, mask: Mask, *, category: str, colour: str, name: str = "", is_crowd: bool = False
    ) -> bool:
        """Adds a part with the pixels of a mask that are still free; returns whether any are."""
        is_seen = mask & (self.ids == 0)
        if not is_seen.any():
            return False
        self._names.append(name or category)
        # The lowest byte makes it unique in the image.
        segment_id = len(self._names) + 256 * int(self._rng.integers(256**2))
        segment = {"id": segment_id, "category_id": _IDS[category], "iscrowd": int(is_crowd)}
        self._segments.append({**segment, **_extent(is_seen)})
        self.ids[is_seen] = segment_id
        self._pixels[is_seen] = ImageColor.getrgb(colour) * self._rng.uniform(0.9, 1.1, 3)
        return True

    def render(self) -> Image.Image:
        """Adds uneven light and grain like those of a photograph."""
        width, height = self._size
        # With this grain, a JPEG of 640 x 480 pixels has 140 KB, like a photograph.
        noise = self._rng.standard_normal((height, width), np.float32) * 6
        for cell in (8, 64):
            coarse = self._rng.standard_normal((height // cell + 2, width // cell + 2), np.float32)
            noise += 9 * np.asarray(Image.fromarray(coarse).resize((width, height)))
        pixels = self._pixels + noise[..., np.newaxis]
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    def annotate(self, image_id: int, *, panoptic: str) -> dict[str, list[Json]]:
        """Returns the annotations for each file; `panoptic` is the name of the PNG of segments."""

        def number(entries: Iterable[Json]) -> list[Json]:
            # Within each image, so that they do not depend on other images.
            ids = itertools.count(100 * image_id + 1)
            return [{"id": next(ids), "image_id": image_id, **entry} for entry in entries]

        segments = {"image_id": image_id, "file_name": panoptic, "segments_info": self._segments}
        return {
            "instances": number(self.instances),
            "person_keypoints": number(map(operator.or_, self.instances, self.keypoints)),
            "captions": number({"caption": caption} for caption in self._captions()),
            "panoptic": [segments],
        }

    def _captions(self) -> Iterator[str]:
        """Yields two captions: where the frontmost thing is, and all that is seen."""
        left, _, width, _ = self.instances[0]["bbox"]
        third = int(3 * (left + width / 2) / self._size[0])
        side = ("on the left", "in the middle", "on the right")[third]
        yield f"{self._names[0]} {side}.".capitalize()
        *others, last = self._names
        yield f"{', '.join(others)} and {last}.".capitalize()


def _outline(shape: str) -> Points:
    """A polygon's vertices on a circle of radius 1, clockwise from the topmost."""
    vertices = {"circle": 48, "square": 4, "triangle": 3, "star": 10}[shape]
    angles = 2 * np.pi * np.arange(vertices) / vertices
    outline = np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    if shape == "star":
        outline[1::2] *= 0.45
    return outline


def _extent(mask: npt.NDArray[Any]) -> Json:
    """`bbox` (x, y, width, height) and `area` of a mask, in pixels."""
    runs = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {"bbox": coco_mask.toBbox(runs).tolist(), "area": int(coco_mask.area(runs))}


def _run_lengths(mask: npt.NDArray[np.uint8]) -> Json:
    """COCO's uncompressed RLE: runs of 0 and 1 in turn, column by column, starting with 0."""
    # A 0 before them lets all masks start with 0.
    ends = np.flatnonzero(np.diff(mask.ravel(order="F"), prepend=0, append=2))
    return {"counts": np.diff(ends, prepend=0).tolist(), "size": list(mask.shape)}
