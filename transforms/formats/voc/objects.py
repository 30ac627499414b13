"""Reads the objects of a Pascal VOC file: boxes, outlines, turned rectangles and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import Value
from shardbeam.transforms.examples.geometry.boxes import Box, box_around, turn_box
from shardbeam.transforms.formats.parsing.xml_file import NUMBER, XmlElement

Coordinates: TypeAlias = Literal["one_based", "as_given"]
DIFFICULT = "image/object/difficult"
TRUNCATED = "image/object/truncated"
VIEW = "image/object/view"
UNSPECIFIED = "Unspecified"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def _edges(first: float, last: float) -> tuple[float, float]:
    """Returns the edges before a box's first pixel and after its last, counted from 1.

    Numbers in the wrong order keep it: whether they are exchanged depends on the image's size. Then
    the smaller one is that of the first pixel; below 1 it is no pixel's number, and stays as it is.
    """
    if first <= last:
        return first - 1, last
    return first, last - 1 if last >= 1 else last


def read_pixels(sizes: Sequence[XmlElement], side: str) -> int:
    """Returns the first side above 0 pixels; 0 if there is none."""
    for size in sizes:
        value = size.one(side)
        if value is not None and value.text:
            return value.pixels()
    return 0


def label_of(element: XmlElement) -> str:
    """Returns the class of an object.

    Raises:
        InputError: It has none.
    """
    name = element.one("name")
    if name is None or not name.text:
        raise element.error("an <object> without <name>")
    return name.text


class Shape(NamedTuple):
    """What an object looks like.

    Attributes:
        box: Its box; None where it has none.
        outlines: `x, y, …` of each of its outlines.
        computed: How and from what the box was computed; None where it is as given.
        area: Its area in pixels², if that is not the box's; otherwise negative.
    """

    box: Box | None
    outlines: list[list[float]]
    computed: tuple[Correction, object] | None = None
    area: float = -1.0


def _number(element: XmlElement, tag: str) -> float:
    value = element.one(tag)
    if value is None:
        raise element.error(f"an <object> whose <{element.tag}> has no <{tag}>")
    return value.number()


def _read_turned(element: XmlElement) -> Shape:
    """Reads roLabelImg's turned rectangle: its centre, its sides and its angle in radians.

    The angle is clockwise as one sees the image: https://github.com/cgvict/roLabelImg.
    """
    x, y, width, height, angle = (_number(element, tag) for tag in ("cx", "cy", "w", "h", "angle"))
    box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    corners = turn_box(box, angle=angle)
    return Shape(
        box_around(corners), [corners], (Correction.BOX_TURNED, (*box, angle)), abs(width * height)
    )


def _read_outline(element: XmlElement) -> list[float]:
    """Reads an outline: LabelMe's `<pt><x>…</x><y>…</y></pt>`, or `<x1>…</x1><y1>…</y1><x2>…`."""
    points = element.all("pt")
    if points:
        return [_number(point, tag) for point in points for tag in ("x", "y")]
    coordinates = {child.tag: child for child in element.children}
    outline: list[float] = []
    while (x := coordinates.get(f"x{len(outline) // 2 + 1}")) is not None:
        y = coordinates.get(f"y{x.tag[1:]}")
        if y is None:
            raise element.error(f"a <polygon> with <{x.tag}> has no <y{x.tag[1:]}>")
        outline += (x.number(), y.number())
    return outline


def read_attributes(element: XmlElement) -> dict[str, Value]:
    """Reads what an object says besides its box, without zeros and empty texts."""
    pose = element.one("pose")
    found: dict[str, Value] = {
        DIFFICULT: read_flag(element.one("difficult")),
        TRUNCATED: read_flag(element.one("truncated")),
        VIEW: "" if pose is None or pose.text == UNSPECIFIED else pose.text,
    }
    return {key: value for key, value in found.items() if value}


def read_flag(value: XmlElement | None) -> int:
    """Reads 0 or 1; other texts that tools write, such as "Unspecified", count as 0."""
    if value is None:
        return 0
    if NUMBER.fullmatch(value.text):
        return int(float(value.text) > 0)
    return int(value.text.casefold() in ("true", "yes"))


def read_shape(element: XmlElement, *, coordinates: Coordinates) -> Shape:
    """Reads an object's box and outlines; the numbers of outlines are taken as they are."""
    turned = element.one("robndbox")
    if turned is not None:
        return _read_turned(turned)
    outlines = [_read_outline(polygon) for polygon in element.all("polygon")]
    box = _read_box(element, coordinates=coordinates)
    if box is not None:
        return Shape(box, outlines)
    usable = [value for outline in outlines if len(outline) >= 6 for value in outline]
    if usable:
        return Shape(box_around(usable), outlines, (Correction.BOX_FROM_POLYGONS, None))
    segments = element.one("segm")
    drawn = None if segments is None else segments.one("box")
    if drawn is None:
        return Shape(None, [])
    xmin, ymin, xmax, ymax = (_number(drawn, tag) for tag in _CORNERS)
    return Shape((xmin, ymin, xmax, ymax), [])


def _read_box(element: XmlElement, *, coordinates: Coordinates) -> Box | None:
    """Reads an object's `bndbox`; returns None where it has none."""
    box = element.one("bndbox")
    if box is None:
        return None
    xmin, ymin, xmax, ymax = (_number(box, tag) for tag in _CORNERS)
    if coordinates == "as_given":
        return xmin, ymin, xmax, ymax
    xmin, xmax = _edges(xmin, xmax)
    ymin, ymax = _edges(ymin, ymax)
    return xmin, ymin, xmax, ymax
