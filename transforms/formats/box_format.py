"""The keys `box_format` and `box_units`, and how a format reads boxes.

The keys mean the same in every format that has them.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from shardbeam.configs.keys import named
from shardbeam.transforms.examples.box_readings import BoxFormat

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
        first_pixel: The number of an image's first pixel, if boxes are in pixels; None if they are
            fractions of the image's sides, or may be.
        has_keys: Whether the format has the keys `box_format` and `box_units`.
    """

    format: BoxFormat = "xyxy"
    first_pixel: float | None = None
    has_keys: bool = False
