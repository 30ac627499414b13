"""What the sample says about a picture, in the forms of COCO's four annotation files.

The structure is that of https://cocodataset.org/#format-data. Of what that leaves open:

- Instances hold a shape as it was drawn, within the picture, also where another covers it: polygon,
  box and area are exact. A crowd is the set of pixels that its members take, in uncompressed RLE.
- Keypoints are a shape's corners, clockwise from the topmost. All categories have the same five,
  as in pose datasets of several species; those that a shape lacks, or that lie outside the
  picture, are not labelled (0, 0, 0); those covered by another shape are labelled but not
  visible (v = 1).
- Panoptic segments hold the pixels in which a thing, or a texture of the background, is seen.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from shardbeam.pipelines.polygons import Mask, polygon_area, polygon_box
from shardbeam.pipelines.shape_captions import write_captions
from shardbeam.pipelines.shapes import SHAPES, Picture, Thing
from shardbeam.pipelines.textures import Pixels

Json = dict[str, object]

# Annotation ids are numbered within each image, so that no image's depend on another's.
_IDS_PER_IMAGE = 100
_NUM_KEYPOINTS = max(len(shape.corners) for shape in SHAPES.values())
# With gaps, and stuff after things, as in COCO.
THING_IDS = {"circle": 1, "square": 3, "triangle": 4, "star": 7}
STUFF_IDS = {"sky": 92, "sand": 95, "grass": 99, "water": 106, "gravel": 109}


def instance_categories() -> list[Json]:
    """`categories` of an instances file."""
    return [
        {"supercategory": "shape", "id": category_id, "name": name}
        for name, category_id in THING_IDS.items()
    ]


def keypoint_categories() -> list[Json]:
    """`categories` of a keypoints file."""
    names = [f"corner_{number}" for number in range(1, _NUM_KEYPOINTS + 1)]
    return [
        {**category, "keypoints": names, "skeleton": _skeleton(len(shape.corners))}
        for category, shape in zip(instance_categories(), SHAPES.values(), strict=True)
    ]


def _skeleton(corners: int) -> list[tuple[int, int]]:
    """The edges from each corner to the next, as pairs of numbers from 1."""
    return [(number, number % corners + 1) for number in range(1, corners + 1)]


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
    return [
        {
            "id": image_id * _IDS_PER_IMAGE + number,
            "image_id": image_id,
            "category_id": THING_IDS[thing.shape],
            "iscrowd": int(thing.is_crowd),
            **(_crowd_region(thing, picture) if thing.is_crowd else _region(thing)),
        }
        for number, thing in enumerate(picture.things, start=1)
    ]


def _region(thing: Thing) -> Json:
    (outline,) = thing.outlines
    xmin, ymin, xmax, ymax = polygon_box(outline)
    return {
        "segmentation": [outline.ravel().tolist()],
        "area": polygon_area(outline),
        "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
    }


def _crowd_region(thing: Thing, picture: Picture) -> Json:
    mask = np.zeros(picture.segments.shape, np.bool_)
    mask[thing.patch.window] = thing.patch.mask
    return {
        "segmentation": {"counts": _run_lengths(mask), "size": list(mask.shape)},
        "area": int(mask.sum()),
        "bbox": _mask_box(mask),
    }


def _run_lengths(mask: Mask) -> list[int]:
    """COCO's uncompressed RLE: runs of 0 and 1 in turn, column by column, first of 0."""
    pixels = mask.ravel(order="F")
    starts = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    runs: list[int] = np.diff(starts, prepend=0, append=pixels.size).tolist()
    return [0, *runs] if pixels[0] else runs


def _mask_box(mask: Mask) -> list[int]:
    """`[x, y, width, height]` of a mask that is not empty."""
    rows = np.flatnonzero(mask.any(axis=1))
    columns = np.flatnonzero(mask.any(axis=0))
    x, y = int(columns[0]), int(rows[0])
    return [x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y]


def describe_keypoints(picture: Picture, *, image_id: int) -> list[Json]:
    """Makes the `annotations` of an image in a keypoints file: its instances, and keypoints."""
    instances = describe_instances(picture, image_id=image_id)
    annotations = []
    for number, (thing, instance) in enumerate(zip(picture.things, instances, strict=True)):
        keypoints = [_keypoint(corner, number, picture) for corner in thing.corners]
        missing = _NUM_KEYPOINTS - len(keypoints)
        annotations.append(
            {
                **instance,
                "num_keypoints": sum(keypoint[2] > 0 for keypoint in keypoints),
                "keypoints": [*itertools.chain(*keypoints), *(0, 0, 0) * missing],
            }
        )
    return annotations


def _keypoint(
    corner: npt.NDArray[np.float64], number: int, picture: Picture
) -> tuple[float, float, int]:
    """`(x, y, v)` of a corner of the thing of that number."""
    x, y = corner.tolist()
    height, width = picture.segments.shape
    if not (0 <= x < width and 0 <= y < height):
        return 0, 0, 0
    # A pixel at a shape's tip is often not its own, as it covers less than half of it.
    seen = int(picture.segments[int(y), int(x)]) - len(picture.textures)
    return x, y, 1 if seen > number else 2


def describe_panoptic(
    picture: Picture, *, image_id: int, file_name: str, rng: np.random.Generator
) -> tuple[Json, Pixels]:
    """Makes the annotation of an image in a panoptic file, and its PNG.

    Args:
        picture: The picture.
        image_id: Its image's id.
        file_name: The PNG's.
        rng: Decides the segments' ids.

    Returns:
        The annotation, and the PNG's pixels: RGB, uint8 of shape (height, width, 3), with
        segment id = R + 256·G + 256²·B.
    """
    categories = [(STUFF_IDS[texture.name], False) for texture in picture.textures]
    categories += [(THING_IDS[thing.shape], thing.is_crowd) for thing in picture.things]
    # 0 is what belongs to no segment.
    ids = 1 + rng.choice(256**3 - 1, size=len(categories), replace=False, shuffle=False)
    segments = []
    for number, (category_id, is_crowd) in enumerate(categories):
        mask = picture.segments == number
        if not mask.any():
            continue
        segments.append(
            {
                "id": int(ids[number]),
                "category_id": category_id,
                "iscrowd": int(is_crowd),
                "bbox": _mask_box(mask),
                "area": int(mask.sum()),
            }
        )
    colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=1).astype(np.uint8)
    annotation = {"image_id": image_id, "file_name": file_name, "segments_info": segments}
    return annotation, colours.take(picture.segments, axis=0)


def describe_captions(picture: Picture, *, image_id: int) -> list[Json]:
    """Makes the `annotations` of an image in a captions file: two captions."""
    return [
        {"id": image_id * _IDS_PER_IMAGE + number, "image_id": image_id, "caption": caption}
        for number, caption in enumerate(write_captions(picture), start=1)
    ]
