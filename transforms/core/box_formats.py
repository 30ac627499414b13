"""The ways to write a box in four numbers.

The keys `box_format` and `box_units` mean the same in every format that has them.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

import msgspec

from shardbeam.configs.keys import named

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
