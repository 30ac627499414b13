"""Makes objects of outlines: polygons and ellipses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.examples.geometry.boxes import box_around, turn_points
from shardbeam.transforms.examples.geometry.segmentation import outline_ellipse

_encoder = msgspec.json.Encoder()


def polygon_object(polygon: Sequence[float]) -> ObjectAnnotation:
    """Makes an object without a class of a polygon, `x, y, …`, and the box around it."""
    return ObjectAnnotation(
        label="", bbox=box_around(polygon), segmentation=_encoder.encode([polygon])
    )


def ellipse_object(
    center: tuple[float, float],
    radii: tuple[float, float],
    *,
    angle: float = 0.0,
    corners: int,
) -> ObjectAnnotation:
    """Makes an object of an ellipse, drawn as a polygon, and the box around that.

    Args:
        center: The centre.
        radii: The radii, across and down, before the ellipse is turned.
        angle: By how much it is turned clockwise, in radians.
        corners: The number of the polygon's corners.
    """
    across, down = radii
    # The box around a turned line would have an area.
    angle = angle if across and down else 0.0
    outline = outline_ellipse(center, radii, corners=corners)
    found = polygon_object(turn_points(outline, center=center, angle=angle))
    return msgspec.structs.replace(found, area=math.pi * abs(across * down))
