"""The groups of Example keys that a format can fill, and the ways to write a box.

The keys `box_format` and `box_units` mean the same in every format that has them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec

from shardbeam.configs.keys import named


class Kind(str, enum.Enum):
    """A group of Example keys that a format fills.

    Attributes:
        CLASSIFICATION: Labels of the image.
        LABEL_CONFIDENCE: A confidence for each label of the image.
        DETECTION: Objects with boxes and labels.
        INSTANCE_MASKS: A mask for each object.
        KEYPOINTS: Keypoints of each object.
        CAPTIONS: Texts that describe the image.
        SEMANTIC: A map of classes.
        PANOPTIC: A map of segments.
        ROWS: Rows of a table without images; no other kind goes with it.
    """

    CLASSIFICATION = "classification"
    LABEL_CONFIDENCE = "label_confidence"
    DETECTION = "detection"
    INSTANCE_MASKS = "instance_masks"
    KEYPOINTS = "keypoints"
    CAPTIONS = "captions"
    SEMANTIC = "semantic"
    PANOPTIC = "panoptic"
    ROWS = "rows"


def present_kinds(found: Mapping[Kind, object]) -> frozenset[Kind]:
    """Returns the kinds whose value is true."""
    return frozenset(kind for kind, is_present in found.items() if is_present)


# The ways to write a box in four numbers: corner and sides, two corners, centre and sides, two
# corners with rows first.
BoxFormat: TypeAlias = Literal["xywh", "xyxy", "cxcywh", "yxyx"]
BOX_FORMATS: tuple[BoxFormat, ...] = get_args(BoxFormat)
BoxUnits: TypeAlias = Literal["px", "fraction"]

BoxFormatKey = Annotated[
    BoxFormat,
    named(
        "numbers of a box: corner and sides (xywh), two corners (xyxy, yxyx), or centre and sides "
        "(cxcywh)"
    ),
]
BoxUnitsKey = Annotated[BoxUnits, named("units of boxes: pixels, or fractions of the image")]


class BoxReading(msgspec.Struct, frozen=True):
    """How a format reads the numbers of boxes, which may be wrong for a source.

    Attributes:
        format: What the four numbers mean.
        has_keys: Whether the format has the keys `box_format` and `box_units`.
        fitting: The readings that agree with the outlines of objects; all if there are none.
    """

    format: BoxFormat = "xyxy"
    has_keys: bool = False
    fitting: tuple[BoxFormat, ...] = BOX_FORMATS
