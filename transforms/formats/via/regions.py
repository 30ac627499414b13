"""The regions of an image: their classes and their outlines."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.formats.outlines import ellipse_object, polygon_object
from shardbeam.transforms.formats.via.via_file import Region, Shape, ViaImage

_CORNERS = 64
_CLOSED = ("polygon", "polyline")


class Attributes(NamedTuple):
    """The attributes that the regions of a file have.

    Attributes:
        regions: The number of regions.
        counts: `{attribute: regions that have a value of it}`.
    """

    regions: int
    counts: Mapping[str, int]

    def describe(self) -> str:
        """Names the attributes in an error."""
        named = [f"{name!r} ({count:,} of {self.regions:,})" for name, count in self.counts.items()]
        return ", ".join(named[:8]) or "none"


def count_attributes(images: Iterable[ViaImage]) -> Attributes:
    """Counts the attributes of a file's regions that may be their class."""
    counts: Counter[str] = Counter()
    regions = 0
    for region in (region for image in images for region in image.regions):
        regions += 1
        for name, value in (region.region_attributes or {}).items():
            with contextlib.suppress(ValueError):
                counts[name] += bool(_classes(value))
    return Attributes(regions, dict(sorted((+counts).items())))


def find_class_attribute(
    files: Mapping[str, Attributes], *, given: str | None, class_name: str | None
) -> str:
    """Finds the attribute that is the class: the given one, or the one that all files share.

    Args:
        files: `{file: its attributes}`.
        given: The key `label_attribute`.
        class_name: The key `class_name`.

    Returns:
        Its name; empty if no region has an attribute.

    Raises:
        Problem: No region has a class, or several attributes may be it.
    """
    drawn = {name: each for name, each in files.items() if each.regions}
    named = [each for each in drawn.values() if each.counts]
    shared = set(named[0].counts).intersection(*(each.counts for each in named)) if named else set()
    found = "; ".join(f"{name}: {each.describe()}" for name, each in drawn.items())
    found = f"; attributes of the regions: {found}" if named else ""
    if given is None and named and len(shared) != 1:
        fix = "name the attribute that is the class: --label-attribute NAME (label_attribute: NAME)"
        raise Problem(("label_attribute",), f"{fix}{found}")
    attribute = given if given is not None else next(iter(shared), "")
    without = [name for name, each in drawn.items() if attribute not in each.counts]
    if without and class_name is None:
        value = f"value of {attribute!r}" if attribute else "class"
        raise Problem(
            ("class_name",),
            f"no region in {', '.join(without[:3])} has a {value}: name the class of such regions "
            f"with --class-name NAME (class_name: NAME){found}",
        )
    return attribute


def read_regions(
    regions: Sequence[Region], *, attribute: str, class_name: str | None, wants_masks: bool
) -> ImageAnnotations:
    """Reads the objects of an image.

    Raises:
        ValueError: A region lacks what its shape needs, or its class is neither a text nor
            options.
    """
    corrections = Corrections()
    objects: list[ObjectAnnotation] = []
    for index, region in enumerate(regions):
        try:
            labels = _classes((region.region_attributes or {}).get(attribute))
            item = _read_shape(region.shape_attributes)
        except ValueError as error:
            raise ValueError(f"regions[{index}]: {error}") from error
        if not labels and class_name is not None:
            labels = [class_name]
        if not labels:
            unknown = f"{region.shape_attributes.name} without a class"
            corrections.note(Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED, unknown)
        for label in labels[1:]:
            corrections.note(Correction.OBJECT_OF_SEVERAL_CLASSES_REPEATED, labels[0], label)
        for label in labels:
            if item is None:
                corrections.note_lost(label, region.shape_attributes.name)
                continue
            segmentation = item.segmentation if wants_masks else b""
            objects.append(msgspec.structs.replace(item, label=label, segmentation=segmentation))
    return ImageAnnotations(
        image_id="",
        objects=tuple(objects),
        corrections=corrections.counts(),
        changes=corrections.changes,
        lost=corrections.lost,
    )


def _classes(value: object) -> list[str]:
    """Returns the classes that a value names: the text itself, or the options that are checked."""
    if isinstance(value, dict):
        names = [name for name, is_set in value.items() if is_set in (True, "true")]
    elif value is None or isinstance(value, str):
        names = [value or ""]
    elif isinstance(value, int) and not isinstance(value, bool):
        names = [str(value)]
    else:
        raise ValueError(f"region_attributes: expected a text as class, got {str(value)[:40]!r}")
    return [name for name in (" ".join(name.split()) for name in names) if name]


def _read_shape(shape: Shape) -> ObjectAnnotation | None:
    """Reads an outline; returns None where it has no area."""
    if shape.name == "rect":
        x, y, width, height = _numbers(shape, "x", "y", "width", "height")
        return ObjectAnnotation(label="", bbox=(x, y, x + width, y + height))
    if shape.name in _CLOSED:
        xs, ys = shape.all_points_x or [], shape.all_points_y or []
        if len(xs) != len(ys):
            raise ValueError(f"{len(xs)} all_points_x and {len(ys)} all_points_y")
        polygon = [_finite(value) for point in zip(xs, ys, strict=True) for value in point]
        # A point, or a line between two.
        return polygon_object(polygon) if len(xs) > 2 else None
    if shape.name == "circle":
        x, y, radius = _numbers(shape, "cx", "cy", "r")
        return ellipse_object((x, y), (radius, radius), corners=_CORNERS)
    if shape.name == "ellipse":
        x, y, across, down = _numbers(shape, "cx", "cy", "rx", "ry")
        angle = _finite(shape.theta) % (2 * math.pi)
        return ellipse_object((x, y), (across, down), angle=angle, corners=_CORNERS)
    if shape.name == "point":
        return None
    raise ValueError(f"unknown shape {shape.name[:40]!r}")


def _numbers(shape: Shape, *names: str) -> list[float]:
    values = [getattr(shape, name) for name in names]
    if None in values:
        raise ValueError(f"a {shape.name} without {names[values.index(None)]}")
    return [*map(_finite, values)]


def _finite(value: float) -> float:
    if not abs(value) <= MAX_FLOAT32:
        raise ValueError(f"expected a number of pixels, got {value}")
    return value
