"""One picture of the sample: shapes on a background, and the annotations that COCO has for them.

The pixels of a shape are those that pycocotools draws of its polygon, so that polygon, area, box
and picture agree to the pixel. Annotations have the structure of
https://cocodataset.org/#format-data. Of what that leaves open:

- Instances hold a whole shape, also where another covers it. A crowd is the set of pixels that
  its members take, in uncompressed RLE.
- Keypoints are a shape's corners, clockwise. All categories have the same five, as in pose
  datasets of several species; those that a shape lacks are (0, 0, 0), and those that another shape
  covers are labelled but not visible (v = 1).
- Panoptic segments hold the pixels in which a thing, or a part of the background, is seen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco_mask

Json = dict[str, object]
Pixels = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]

# Category ids have gaps, and stuff comes after things, as in COCO.
THING_IDS = {"circle": 1, "square": 3, "triangle": 4, "star": 7}
STUFF_IDS = {"sky": 92, "sand": 95, "grass": 99, "water": 106}
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
_STUFF_COLOURS = {
    "sky": (150, 186, 220),
    "sand": (204, 174, 128),
    "grass": (84, 120, 42),
    "water": (60, 112, 136),
}
_NUM_KEYPOINTS = 5
# Annotation ids are numbered within each image, so that no image's depend on another's.
_IDS_PER_IMAGE = 100
# No shape hides more than this part of one below it.
_MOST_HIDDEN = 0.5
_PLACING_TRIES = 20
_SMALLEST_RADIUS_PX = 3
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


def _outline(vertices: int, *, inner_radius: float = 1.0) -> Points:
    """Vertices on a circle of radius 1, clockwise from the topmost, of shape (vertices, 2)."""
    angles = 2 * np.pi * np.arange(vertices) / vertices
    outline = np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    outline[1::2] *= inner_radius
    return outline


# Each shape's outline, and which of its vertices are corners. A circle is a polygon too.
_OUTLINES = {
    "circle": (_outline(48), slice(0)),
    "square": (_outline(4), slice(None)),
    "triangle": (_outline(3), slice(None)),
    "star": (_outline(10, inner_radius=0.45), slice(None, None, 2)),
}
SHAPES = tuple(_OUTLINES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thing:
    """A shape in a picture, or a crowd of small ones.

    Attributes:
        shape: Its name in `SHAPES`.
        colour: Its name in `COLOURS`.
        outline: The polygon's vertices in pixels, of shape (vertices, 2); None for a crowd.
        mask: The pixels that it takes, bool of shape (height, width).
    """

    shape: str
    colour: str
    outline: Points | None
    mask: Mask


class Picture:
    """A picture and what is in it.

    Attributes:
        things: The shapes, each before those that may cover it.
        stuff: Names of the background's parts.
        segments: What is seen at each pixel, as an index into `stuff` followed by `things`; uint8
            of shape (height, width).
    """

    def __init__(self, *, rng: np.random.Generator, width: int, height: int) -> None:
        """Draws the background: a ground, in two of three pictures below a sky."""
        self._rng = rng
        self._size = np.array([width, height])
        self.things: list[Thing] = []
        self.segments = np.zeros((height, width), np.uint8)
        self.stuff = [str(rng.choice([name for name in STUFF_IDS if name != "sky"]))]
        if rng.random() < 2 / 3:
            self.stuff.append("sky")
            self.segments[: int(rng.uniform(0.25, 0.55) * height)] = 1

    def add_shape(self, name: str, *, radius_range: tuple[float, float]) -> None:
        """Adds a shape at a random place; one that would hide too much of others is left out.

        Args:
            name: The shape's name.
            radius_range: The smallest and greatest radius, relative to the shorter side.
        """
        for _ in range(_PLACING_TRIES):
            # As many small ones as large ones, by ratio.
            radius = math.exp(self._rng.uniform(*np.log(radius_range))) * self._size.min()
            margin = max(radius, _SMALLEST_RADIUS_PX) + 1
            centre = self._rng.uniform(margin, self._size - margin)
            outline = self._place(name, centre=centre, radius=radius)
            mask = self._fill([outline])
            if self._hides_little(mask):
                self._add(Thing(shape=name, colour=self._colour(), outline=outline, mask=mask))
                return

    def add_crowd(self, name: str) -> None:
        """Adds a crowd of 8 to 16 small shapes of one colour."""
        side = self._size.min()
        middle = self._rng.uniform(0.3 * side, self._size - 0.3 * side)
        members = []
        for _ in range(self._rng.integers(8, 16, endpoint=True)):
            angle = self._rng.uniform(0, 2 * np.pi)
            away = 0.2 * side * math.sqrt(self._rng.random())
            centre = middle + away * np.array([np.cos(angle), np.sin(angle)])
            radius = self._rng.uniform(0.015, 0.03) * side
            members.append(self._place(name, centre=centre, radius=radius))
        mask = self._fill(members)
        self._add(Thing(shape=name, colour=self._colour(), outline=None, mask=mask))

    def render(self) -> Image.Image:
        """Colours the picture, with the unevenness and the grain of a photograph."""
        width, height = self._size.tolist()
        # So much grain that a JPEG of 640 x 480 pixels has the 140 KB of a photograph.
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

    def _colour(self) -> str:
        return str(self._rng.choice(list(COLOURS)))

    def _place(self, name: str, *, centre: Points, radius: float) -> Points:
        """Turns, scales and moves a shape's outline, in eighths of a pixel."""
        outline, _ = _OUTLINES[name]
        turn = self._rng.uniform(-1, 1) * np.pi / 4
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        points: Points = centre + max(radius, _SMALLEST_RADIUS_PX) * outline @ axes
        return np.round(points * 8) / 8

    def _fill(self, outlines: Sequence[Points]) -> Mask:
        height, width = self.segments.shape
        polygons = [outline.ravel().tolist() for outline in outlines]
        runs = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
        return np.asarray(coco_mask.decode(runs), np.bool_)

    def _hides_little(self, mask: Mask) -> bool:
        for index, thing in enumerate(self.things, start=len(self.stuff)):
            seen = (self.segments == index) & ~mask
            if seen.sum() < (1 - _MOST_HIDDEN) * thing.mask.sum():
                return False
        return True

    def _add(self, thing: Thing) -> None:
        self.segments[thing.mask] = len(self.stuff) + len(self.things)
        self.things.append(thing)


def instance_categories() -> list[Json]:
    """`categories` of an instances file."""
    return [
        {"supercategory": "shape", "id": category_id, "name": name}
        for name, category_id in THING_IDS.items()
    ]


def keypoint_categories() -> list[Json]:
    """`categories` of a keypoints file; a skeleton joins each corner to the next."""
    names = [f"corner_{number}" for number in range(1, _NUM_KEYPOINTS + 1)]
    counts = [len(outline[corners]) for outline, corners in _OUTLINES.values()]
    return [
        {
            **category,
            "keypoints": names,
            "skeleton": [(number, number % corners + 1) for number in range(1, corners + 1)],
        }
        for category, corners in zip(instance_categories(), counts, strict=True)
    ]


def panoptic_categories() -> list[Json]:
    """`categories` of a panoptic file."""
    things = [{**category, "isthing": 1} for category in instance_categories()]
    stuff = [
        {"supercategory": "background", "isthing": 0, "id": category_id, "name": name}
        for name, category_id in STUFF_IDS.items()
    ]
    return things + stuff


def describe_instances(picture: Picture, *, image_id: int) -> list[Json]:
    """Makes the `annotations` of an image in an instances file."""
    annotations = []
    for number, thing in enumerate(picture.things, start=1):
        segmentation: object
        if thing.outline is None:
            segmentation = {"counts": _run_lengths(thing.mask), "size": list(thing.mask.shape)}
        else:
            segmentation = [thing.outline.ravel().tolist()]
        annotations.append(
            {
                "id": image_id * _IDS_PER_IMAGE + number,
                "image_id": image_id,
                "category_id": THING_IDS[thing.shape],
                "iscrowd": int(thing.outline is None),
                "segmentation": segmentation,
                **_extent(thing.mask),
            }
        )
    return annotations


def describe_keypoints(picture: Picture, *, image_id: int) -> list[Json]:
    """Makes the `annotations` of an image in a keypoints file: its instances, and keypoints."""
    annotations = describe_instances(picture, image_id=image_id)
    indexes = range(len(picture.stuff), 256)
    for annotation, thing, index in zip(annotations, picture.things, indexes, strict=False):
        points = np.zeros((_NUM_KEYPOINTS, 3))
        if thing.outline is not None:
            corners = thing.outline[_OUTLINES[thing.shape][1]]
            columns, rows = corners.astype(np.intp).T
            points[: len(corners), :2] = corners
            points[: len(corners), 2] = np.where(picture.segments[rows, columns] > index, 1, 2)
        annotation["num_keypoints"] = int((points[:, 2] > 0).sum())
        annotation["keypoints"] = points.ravel().tolist()
    return annotations


def describe_panoptic(
    picture: Picture, *, image_id: int, rng: np.random.Generator
) -> tuple[list[Json], Pixels]:
    """Makes `segments_info` of an image in a panoptic file, and the pixels of its PNG.

    Returns:
        The segments, and RGB, uint8 of shape (height, width, 3), with segment id
        = R + 256·G + 256²·B.
    """
    categories = [(STUFF_IDS[name], False) for name in picture.stuff]
    categories += [(THING_IDS[thing.shape], thing.outline is None) for thing in picture.things]
    # 0 is what belongs to no segment.
    ids = 1 + rng.choice(256**3 - 1, size=len(categories), replace=False)
    segments: list[Json] = [
        {
            "id": int(ids[index]),
            "category_id": category_id,
            "iscrowd": int(is_crowd),
            **_extent(picture.segments == index),
        }
        for index, (category_id, is_crowd) in enumerate(categories)
        if (picture.segments == index).any()
    ]
    colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=1).astype(np.uint8)
    return segments, colours[picture.segments]


def describe_captions(picture: Picture, *, image_id: int) -> list[Json]:
    """Makes the `annotations` of an image in a captions file: where one is, and what there is."""
    groups: dict[tuple[str, bool], list[Thing]] = {}
    for thing in picture.things:
        groups.setdefault((thing.shape, thing.outline is None), []).append(thing)
    *others, last = [_name(group) for group in groups.values()]
    what = f"{', '.join(others)} and {last}" if others else last
    first = picture.things[0]
    middle = np.nonzero(first.mask)[1].mean() / first.mask.shape[1]
    side = ("on the left", "in the middle", "on the right")[int(3 * middle)]
    captions = (f"{_name([first])} {side}", f"{what} and {' below '.join(picture.stuff)}")
    return [
        {
            "id": image_id * _IDS_PER_IMAGE + number,
            "image_id": image_id,
            "caption": f"{caption[0].upper()}{caption[1:]}.",
        }
        for number, caption in enumerate(captions, start=1)
    ]


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
    """COCO's uncompressed RLE: runs of 0 and 1 in turn, column by column, first of 0."""
    pixels = mask.ravel(order="F")
    starts = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    runs: list[int] = np.diff(starts, prepend=0, append=pixels.size).tolist()
    return [0, *runs] if pixels[0] else runs
