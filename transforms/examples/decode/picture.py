"""An Example as a picture to look at: its image, labels, objects and maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from shardbeam.transforms.core.records import Value
from shardbeam.transforms.examples.geometry.boxes import Box

# The id of an object or label that has none.
NO_ID = -1
# Values of the pixels without a class in a class map, unless a class of the dataset has that id.
NO_CLASS = (0, 255)
OBJECT = "image/object/"
ANNOTATION = "annotation/"
# x and y in fractions of the image; visibility.
Keypoint: TypeAlias = tuple[float, float, int]
# No image has a longer side.
MAX_SIDE_PX = (1 << 31) - 1
FeatureValues: TypeAlias = Sequence["bytes | int | float"]


class PictureObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a picture.

    Attributes:
        label: Name of its class; empty where it is not known.
        label_id: Id of its class; `NO_ID` where there is none.
        box: `(xmin, ymin, xmax, ymax)` in fractions of the image, as written: the box may reach
            beyond the image, or end before it begins; None if there is none.
        is_crowd: Whether it is a group of objects.
        area: In pixels² of the image; 0 where it is not written.
        mask: A PNG of the whole image with the values 0 and 1; empty if there is none.
        keypoints: `(x, y, visibility)` each: in fractions of the image, and 0 (not labelled), 1
            (hidden) or 2 (visible).
        skeleton: Pairs of indexes into `keypoints` that a line joins.
        attributes: Its other values, by their key without `image/object/`.
        annotation_id: Its id in `example_per: annotation`; 0 where there is none.
    """

    label: str = ""
    label_id: int = NO_ID
    box: Box | None = None
    is_crowd: bool = False
    area: float = 0.0
    mask: bytes = b""
    keypoints: tuple[Keypoint, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    attributes: Mapping[str, Value] = {}
    annotation_id: int = 0


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """An Example as a picture to be drawn.

    Attributes:
        key: The image's key (`image/filename`, or else `image/source_id`).
        split: Its split.
        shard: Name of its shard's file.
        number: Its number in the split, from 1.
        image: The encoded image; empty where there is none.
        format: Format of the image: `jpeg`, `png`, `raw`, or another one that its bytes show.
        width: Width of the image in pixels; 0 if it is not known.
        height: Height of the image in pixels; 0 if it is not known.
        labels: Classes of the image as a whole: their names, or their ids.
        label_ids: Their ids; `NO_ID` where there is none.
        captions: Texts that describe it.
        objects: Its objects.
        class_map: A PNG with the class id of each pixel, or one of `NO_CLASS`; the category mask of
            a panoptic map; empty if there is none.
        instance_map: A PNG with the segment number of each pixel of a panoptic map; empty if there
            is none.
        features: `{key as written: values}` of the whole Example.
        problems: The values that do not fit together, one line each.
        contradictions: Those of them that leave open what is annotated.
        is_of_annotation: Whether the Example holds one object of its image (`example_per:
            annotation`).
    """

    key: str
    split: str = ""
    shard: str = ""
    number: int = 1
    image: bytes = b""
    format: str = ""
    width: int = 0
    height: int = 0
    labels: tuple[str, ...] = ()
    label_ids: tuple[int, ...] = ()
    captions: tuple[str, ...] = ()
    objects: tuple[PictureObject, ...] = ()
    class_map: bytes = b""
    instance_map: bytes = b""
    features: Mapping[str, FeatureValues] = {}
    problems: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    is_of_annotation: bool = False
