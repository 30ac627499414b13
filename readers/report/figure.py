"""Makes the figure that is drawn over an image: areas, boxes, keypoints, labels and their styles.

Coordinates are pixels of the whole image, whatever the size at which it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.readers.report.styles import LINES, Classes, Line, Style, choose_styles, class_name
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from shardbeam.transforms.images.mask_file import IndexMap, read_indices

Size: TypeAlias = tuple[int, int]
Point: TypeAlias = tuple[float, float]
# Its ends.
Segment: TypeAlias = tuple[float, float, float, float]
# Left, top, right, bottom.
_Frame: TypeAlias = tuple[float, float, float, float]
# For each pixel an index of `OPACITIES`.
Levels: TypeAlias = npt.NDArray[np.uint8]

# Opacities of a pixel outside an area, inside it, and on its border.
OPACITIES = (0, 105, 240)
_OUTSIDE, _INSIDE, _BORDER = range(3)

# Sizes of a label in em: one em is the height of its letters.
TAG_HEIGHT, TAG_MARGIN = 1.3, 0.3
_TAG_CHARACTERS = 32
# Keypoints are moved to this distance if they lie further out, where nobody sees them.
_FAR = 3.0


class Area(NamedTuple):
    """The pixels of one class.

    Attributes:
        layer: `masks` of objects, `map` of classes, or `segments` of a panoptic map.
        name: The class.
        style: How it is drawn.
        levels: For each pixel of the drawn image an index of `OPACITIES`.
    """

    layer: str
    name: str
    style: Style
    levels: Levels


class BoxShape(NamedTuple):
    """The part of an object's box that lies in the image.

    Attributes:
        name: The class.
        text: What its label says.
        style: How it is drawn.
        x: Its left edge in pixels.
        y: Its top edge in pixels.
        width: Its width in pixels.
        height: Its height in pixels.
        number: The object's number in its image, from 0.
    """

    name: str
    text: str
    style: Style
    x: float
    y: float
    width: float
    height: float
    number: int = 0


class Pose(NamedTuple):
    """An object's keypoints: the visible ones, the hidden ones, and the lines between them."""

    name: str
    style: Style
    visible: tuple[Point, ...]
    hidden: tuple[Point, ...]
    bones: tuple[Segment, ...]


class Tag(NamedTuple):
    """A label beside a box.

    Attributes:
        box: The box.
        x: The point of the image at which a corner of the label lies, in pixels.
        y: The same, vertically.
        left: Where the label begins to the right of that point, in em.
        top: Where the label begins below that point, in em.
        width: Its width in em.
    """

    box: BoxShape
    x: float
    y: float
    left: float
    top: float
    width: float


class Figure(NamedTuple):
    """What is drawn over an image.

    Attributes:
        areas: The pixels of classes.
        boxes: Boxes, the largest first, so that large boxes do not hide small ones.
        poses: Keypoints.
        styles: `{class: how it is drawn}`.
        problems: What cannot be drawn, and why.
    """

    areas: tuple[Area, ...] = ()
    boxes: tuple[BoxShape, ...] = ()
    poses: tuple[Pose, ...] = ()
    styles: Mapping[str, Style] = {}
    problems: tuple[str, ...] = ()


def make_figure(
    image: Picture, *, classes: Classes, size: Size, scaled: Size, most_objects: int
) -> Figure:
    """Makes what is drawn over an image.

    Args:
        image: The image.
        classes: The dataset's classes.
        size: Its width and height in pixels.
        scaled: Its width and height as it is drawn.
        most_objects: How many objects are drawn at most.
    """
    objects = image.objects[:most_objects]
    problems: list[str] = []
    if len(image.objects) > most_objects:
        problems.append(f"only {most_objects:,} of {len(image.objects):,} objects are drawn")
    painted = _paint_areas(
        image, objects, classes=classes, size=size, scaled=scaled, problems=problems
    )
    names = (*map(class_name, objects), *(name for _, name in painted))
    styles = choose_styles(names, classes=classes)
    for (_, name), levels in painted.items():
        _break_border(levels, line=LINES[styles[name].line])
    boxes = [_make_box(item, n, styles=styles, size=size) for n, item in enumerate(objects)]
    return Figure(
        areas=tuple(
            Area(layer, name, styles[name], levels) for (layer, name), levels in painted.items()
        ),
        boxes=tuple(
            sorted(filter(None, boxes), key=lambda box: box.width * box.height, reverse=True)
        ),
        poses=tuple(
            _make_pose(item, style=styles[class_name(item)], size=size)
            for item in objects
            if item.keypoints
        ),
        styles=styles,
        problems=tuple(dict.fromkeys(problems)),
    )


def shorten(text: str, characters: int) -> str:
    """Cuts a text after a number of characters."""
    return text if len(text) <= characters else f"{text[:characters]}…"


class TagPlaces:
    """Finds room for labels on an image, so that no label covers another."""

    def __init__(self, *, size: Size, em: float, measure: Callable[[str], float]) -> None:
        """Starts with no labels.

        Args:
            size: Width and height of the image in pixels.
            em: How many pixels of the image a label's letters are high.
            measure: Returns the width of a text in em.
        """
        # In em, like the frames of labels.
        self._width, self._height = (side / em for side in size)
        self._em = em
        self._measure = measure
        self._taken: list[_Frame] = []

    def take(self, tag: Tag) -> None:
        """Keeps other labels out of the room that a label takes."""
        self._taken.append(self._frame(tag))

    def find(self, box: BoxShape) -> Tag | None:
        """Places a box's label above the box, or at another edge; None if there is no room.

        A label that is wider than the image begins at the image's left edge.
        """
        width = self._measure(box.text) + 2 * TAG_MARGIN
        left, right = box.x, box.x + box.width
        if left / self._em + width <= self._width or right / self._em >= width:
            sides = [(left, 0.0), (right, -width)]
        else:
            sides = [(0.0, 0.0) if width > self._width else (self._width * self._em, -width)]
        for y, top in (
            (box.y, -TAG_HEIGHT),
            (box.y, 0.0),
            (box.y + box.height, -TAG_HEIGHT),
            (box.y + box.height, 0.0),
        ):
            for x, start in sides:
                tag = Tag(box, x, y, start, top, width)
                frame = self._frame(tag)
                is_inside = (
                    frame[0] >= 0
                    and frame[1] >= 0
                    and frame[2] <= max(self._width, width)
                    and frame[3] <= self._height
                )
                if is_inside and not any(_overlap(frame, other) for other in self._taken):
                    self._taken.append(frame)
                    return tag
        return None

    def _frame(self, tag: Tag) -> _Frame:
        left, top = tag.x / self._em + tag.left, tag.y / self._em + tag.top
        return left, top, left + tag.width, top + TAG_HEIGHT


def _overlap(one: _Frame, other: _Frame) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _make_box(
    item: PictureObject, number: int, *, styles: Mapping[str, Style], size: Size
) -> BoxShape | None:
    """Makes the part of a box that lies in the image; None if there is none."""
    if item.box is None:
        return None
    left, right = sorted((item.box[0], item.box[2]))
    top, bottom = sorted((item.box[1], item.box[3]))
    if left > 1 or top > 1 or right < 0 or bottom < 0:
        return None
    left, top = max(0.0, left), max(0.0, top)
    right, bottom = min(1.0, right), min(1.0, bottom)
    name = class_name(item)
    text = shorten(name, _TAG_CHARACTERS)
    return BoxShape(
        name=name,
        text=f"{text}, crowd" if item.is_crowd else text,
        style=styles[name],
        x=left * size[0],
        y=top * size[1],
        width=(right - left) * size[0],
        height=(bottom - top) * size[1],
        number=number,
    )


def _make_pose(item: PictureObject, *, style: Style, size: Size) -> Pose:
    points = [
        (min(max(x, -_FAR), _FAR) * size[0], min(max(y, -_FAR), _FAR) * size[1])
        for x, y, _ in item.keypoints
    ]
    visibilities = [visibility for _, _, visibility in item.keypoints]
    return Pose(
        name=class_name(item),
        style=style,
        visible=tuple(at for at, seen in zip(points, visibilities, strict=True) if seen > 1),
        hidden=tuple(at for at, seen in zip(points, visibilities, strict=True) if seen == 1),
        bones=tuple(
            (*points[one], *points[other])
            for one, other in item.skeleton
            if visibilities[one] > 0 and visibilities[other] > 0
        ),
    )


def _paint_areas(
    image: Picture,
    objects: Iterable[PictureObject],
    *,
    classes: Classes,
    size: Size,
    scaled: Size,
    problems: list[str],
) -> dict[tuple[str, str], Levels]:
    """Paints the pixels of each class; adds masks and maps that cannot be read to `problems`.

    Returns:
        `{(layer, class): levels}`, without classes that have no pixels.
    """
    painted: dict[tuple[str, str], Levels] = {}

    def levels_of(layer: str, name: str) -> Levels:
        return painted.setdefault((layer, name), np.full(scaled[::-1], _OUTSIDE, np.uint8))

    for item in objects:
        found = _read(item.mask, what="a mask", size=size, problems=problems)
        if found is not None:
            mask = Image.fromarray(np.where(found, np.uint8(255), np.uint8(0)))
            # A pixel of the scaled image belongs to the mask if at least half of its area does.
            inside = np.asarray(mask.resize(scaled, Image.Resampling.BOX)) >= 128
            levels = levels_of("masks", class_name(item))
            levels[inside & (levels == _OUTSIDE)] = _INSIDE
            levels[inside & _edges(inside)] = _BORDER
    class_map = _read(image.class_map, what="the class map", size=size, problems=problems)
    if class_map is not None:
        values = _nearest(class_map, scaled)
        edges = _edges(values)
        instances = _read(image.instance_map, what="the instance map", size=size, problems=problems)
        if instances is not None:
            edges |= _edges(_nearest(instances, scaled))
        layer = "segments" if image.instance_map else "map"
        for value in np.unique(values).tolist():
            name = classes.name_value(value)
            if name:
                inside = values == value
                levels = levels_of(layer, name)
                levels[inside] = _INSIDE
                levels[inside & edges] = _BORDER
    return {which: levels for which, levels in painted.items() if levels.any()}


def _read(data: bytes, *, what: str, size: Size, problems: list[str]) -> IndexMap | None:
    """Reads a mask or a map; None if there is none, or it cannot be read."""
    if not data:
        return None
    try:
        found = read_indices(data, size=size)
        if found.shape != size[::-1]:
            raise RejectedError(Reason.MASK_MISMATCH, "its width and height are swapped")
    except RejectedError as error:
        problems.append(f"{what} cannot be drawn: {error.detail}")
        return None
    return found


def _nearest(values: IndexMap, size: Size) -> npt.NDArray[np.int32]:
    image = Image.fromarray(values.astype(np.int32))
    return np.asarray(image.resize(size, Image.Resampling.NEAREST))


def _edges(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Marks the pixels on both sides of each boundary between different values."""
    edges = np.zeros(values.shape, np.bool_)
    across = values[:, 1:] != values[:, :-1]
    down = values[1:] != values[:-1]
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    edges[1:] |= down
    edges[:-1] |= down
    return edges


def _break_border(levels: Levels, *, line: Line) -> None:
    """Breaks the border of an area into dashes, for a line that has them."""
    if line.dash:
        # Squares of a chessboard break a border in every direction.
        side = max(1, round(line.dash[0] * line.width))
        rows, columns = (np.arange(length) // side for length in levels.shape)
        gaps = (rows[:, np.newaxis] + columns) % 2 == 1
        levels[gaps & (levels == _BORDER)] = _INSIDE
