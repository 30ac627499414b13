"""Makes the figure that is drawn over a picture: shapes, colours, lines, and places of labels.

`show --output` paints the figure with Pillow, `report` writes it as SVG. Places are fractions of
the picture's width and height.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.decode.decode import NO_CLASS, NO_ID, Picture, PictureObject
from shardbeam.transforms.examples.geometry.boxes import Box
from shardbeam.transforms.images.mask_file import IndexMap, read_indices

Colour: TypeAlias = tuple[int, int, int]
Size: TypeAlias = tuple[int, int]
Frame: TypeAlias = tuple[float, float, float, float]
# For each pixel an index of `OPACITIES`.
Levels: TypeAlias = npt.NDArray[np.uint8]

# A class has one of these colours. The first twelve are easy to tell apart on photographs. Each of
# the others is the colour that is furthest from those before it (`are_close`), without grays and
# without what is nearly black or white.
_COLOURS = (
    "ff4d5e 2f9bff 22c373 ffb31a b57bff 00c4cc ff76c3 9fd310 ff8243 6f7dff d39a5c f2e33a "
    "4b2d00 7800a5 a5ffe1 ff00ff 001eff 004b78 00ff00 d20000 2d9600 a56900 ffd2b4 78ff78 "
    "964b69 e10087 3cffff 872dff 4b87a5 69964b 87003c 3c3cc3 78c3c3 005a1e 00ff96 4be12d "
    "d23cd2 ff3c00 b4d287 e1b4ff 4b1e69 0069e1 00875a 9669b4 00ff4b 4b00f0 00c32d b400e1 "
    "c33c2d ff0f3c 4bffb4 b4ff4b 5a691e d2ff00 0096a5 961e00 78a500 c3a500 d26987 78ff00 "
    "96b4ff 69c378 4b4bff 00e1ff a50f78 ff2da5 ff4bff 962db4 783c2d a5784b e17800 78e1ff "
    "694b96 0fffd2 f0a596 3cf069 3cd2e1 002da5 96c34b e1f078 d22d69 3c0fa5 3cd2a5 4b69d2 "
    "8796d2 78ff3c b4ffa5 3cb43c f087ff 1ed200 c30f3c 0f69a5 ffc369 691ed2 784bd2 e10fc3 "
)


def _rgb(digits: str) -> Colour:
    red, green, blue = bytes.fromhex(digits)
    return red, green, blue


PALETTE = tuple(map(_rgb, _COLOURS.split()))
# Two colours with a smaller distance are easily confused, such as blue and indigo.
_CLOSE = 120

# Opacities of a pixel outside an area, inside it, and on its border.
OPACITIES = (0, 105, 240)
_OUTSIDE, _INSIDE, _BORDER = range(3)

# The class of objects that have neither a name nor an id.
OBJECT = "object"

_TAG_CHARACTERS = 32
_ELLIPSIS = "…"
# Keypoints are moved to this distance if they lie further out, where nobody sees them.
_FAR = 3.0


class Line(NamedTuple):
    """A kind of line.

    Attributes:
        dash: Lengths of its dashes and gaps in turn, in widths of the line; empty if it is solid.
        width: Its width, in widths of the usual line.
    """

    dash: tuple[float, ...] = ()
    width: int = 1


LINES = tuple(Line(dash, width) for width in (1, 2) for dash in ((), (5, 3), (1, 2), (6, 2, 1, 2)))


class Look(NamedTuple):
    """How a class is drawn in one picture.

    Attributes:
        colour: Index of its colour in `PALETTE`, which is the same in every picture.
        line: Index of its line in `LINES`; classes with close colours have different lines.
    """

    colour: int
    line: int = 0


class Area(NamedTuple):
    """The pixels of one class.

    Attributes:
        layer: `masks` of objects, `map` of classes, or `segments` of a panoptic map.
        name: The class.
        levels: For each pixel of the drawn picture an index of `OPACITIES`.
    """

    layer: str
    name: str
    levels: Levels


class BoxShape(NamedTuple):
    """The part of an object's box that lies in the picture, and what its label says.

    `number` is the object's number in its picture, from 0.
    """

    name: str
    text: str
    frame: Frame
    number: int = 0


class Pose(NamedTuple):
    """An object's keypoints: the visible ones, the hidden ones, and the lines between them."""

    name: str
    visible: tuple[tuple[float, float], ...]
    hidden: tuple[tuple[float, float], ...]
    bones: tuple[Frame, ...]


class Tag(NamedTuple):
    """A label beside a box.

    Attributes:
        name: The class.
        text: What it says.
        x: The point of the picture at which a corner of the label lies.
        y: The same, vertically.
        dx: Where the label begins to the right of that point, in label widths: 0 or -1.
        dy: Where the label begins below that point, in label heights: 0 or -1.
        number: The object's number in its picture.
    """

    name: str
    text: str
    x: float
    y: float
    dx: int
    dy: int
    number: int = 0


class Figure(NamedTuple):
    """What is drawn over a picture.

    Attributes:
        areas: The pixels of classes.
        boxes: Boxes, the largest first, so that large boxes do not hide small ones.
        poses: Keypoints.
        looks: `{class: how it is drawn}`.
        problems: What cannot be drawn, and why.
    """

    areas: tuple[Area, ...] = ()
    boxes: tuple[BoxShape, ...] = ()
    poses: tuple[Pose, ...] = ()
    looks: Mapping[str, Look] = {}
    problems: tuple[str, ...] = ()


class Classes:
    """The classes of a dataset: their names in maps, and their colours."""

    def __init__(self, names: Mapping[int, str], *, numbered_maps: bool = False) -> None:
        """Keeps `{id: name}`, and whether the values of maps are numbers instead of ids."""
        self._names = {} if numbered_maps else names
        self._ids = {name: class_id for class_id, name in names.items()}

    def look(self, name: str) -> Look:
        """Returns the look of a class that is alone in a picture.

        Its colour follows from its id, or from its name if the dataset gives it none.
        """
        number = self._ids.get(name)
        if number is None:
            digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=4).digest()
            number = int.from_bytes(digest, "big")
        return Look(number % len(PALETTE))

    def name_value(self, value: int) -> str:
        """Names the class of a map's value; empty for a value without a class."""
        if value in self._names:
            return self._names[value]
        return "" if value in NO_CLASS else f"class {value}"

    def name_map(self, data: bytes, *, size: Size) -> set[str]:
        """Names the classes that a map shows.

        Raises:
            RejectedError: It cannot be read, or belongs to an image of another size.
        """
        values = np.unique(read_indices(data, size=size)).tolist()
        return set(map(self.name_value, values)) - {""}


def make_figure(
    picture: Picture, *, classes: Classes, size: Size, scaled: Size, most_objects: int
) -> Figure:
    """Makes what is drawn over a picture.

    Args:
        picture: The picture.
        classes: The dataset's classes.
        size: Width and height of its image in pixels.
        scaled: Width and height of the image as it is drawn.
        most_objects: How many objects are drawn at most.
    """
    objects = picture.objects[:most_objects]
    problems: list[str] = []
    areas = _find_areas(
        picture, objects, classes=classes, size=size, scaled=scaled, problems=problems
    )
    looks = choose_looks(
        (*map(class_name, objects), *(area.name for area in areas)), classes=classes
    )
    for area in areas:
        _break_border(area.levels, line=LINES[looks[area.name].line])
    boxes = [
        BoxShape(class_name(item), tag_name(item), frame, number)
        for number, item in enumerate(objects)
        if (frame := _visible_frame(item.box)) is not None
    ]
    return Figure(
        areas=tuple(areas),
        boxes=tuple(sorted(boxes, key=_frame_area, reverse=True)),
        poses=tuple(_make_pose(item) for item in objects if item.keypoints),
        looks=looks,
        problems=tuple(dict.fromkeys(problems)),
    )


def class_name(item: PictureObject) -> str:
    """Names an object's class, by its id if it has no name."""
    return item.label or (OBJECT if item.label_id == NO_ID else f"class {item.label_id}")


def tag_name(item: PictureObject) -> str:
    """Returns what an object's label says: its class, shortened so that it fits beside a box."""
    text = shorten(class_name(item), _TAG_CHARACTERS)
    return f"{text}, crowd" if item.is_crowd else text


def shorten(text: str, characters: int) -> str:
    """Cuts a text after a number of characters."""
    return text if len(text) <= characters else f"{text[:characters]}{_ELLIPSIS}"


def ink_on(colour: Colour) -> Colour:
    """Returns the colour of text on a colour: black or white, whichever has more contrast."""
    red, green, blue = ((value / 255) ** 2.2 for value in colour)
    # Both have the same contrast with a relative luminance of 0.179 (WCAG 2.2).
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def choose_looks(names: Iterable[str], *, classes: Classes) -> dict[str, Look]:
    """Chooses how the classes of one picture are drawn.

    If several classes have close colours, the first has a solid line, and the others have different
    lines, as far as there are enough.
    """
    looks: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        colour = classes.look(name).colour
        taken = [look.line for look in looks.values() if are_close(colour, look.colour)]
        looks[name] = Look(colour, line=min(range(len(LINES)), key=taken.count))
    return looks


@functools.cache
def are_close(one: int, other: int) -> bool:
    """Whether two colours of the palette are easily confused."""
    first, second = PALETTE[one], PALETTE[other]
    red, green, blue = ((a - b) ** 2 for a, b in zip(first, second, strict=True))
    # The weights of https://www.compuphase.com/cmetric.htm.
    mean_red = (first[0] + second[0]) / 512
    return math.sqrt((2 + mean_red) * red + 4 * green + (3 - mean_red) * blue) < _CLOSE


class TagPlaces:
    """Finds room for labels on a picture, so that no label covers another."""

    def __init__(self, *, size: Size, height: float, measure: Callable[[str], float]) -> None:
        """Starts with no labels.

        Args:
            size: Width and height of the drawn picture.
            height: Height of a label, in the same unit.
            measure: Returns the width of a text as a label, in the same unit.
        """
        self._size = size
        self._height = height
        self._measure = measure
        self._taken: list[Frame] = []

    def take(self, tag: Tag) -> None:
        """Keeps other labels out of the room that a label takes."""
        self._taken.append(self._frame(tag, width=self._measure(tag.text)))

    def find(self, box: BoxShape) -> Tag | None:
        """Places a box's label above the box, or at another edge; None if there is no room.

        A label that is wider than the picture begins at the picture's left edge.
        """
        width = self._measure(box.text)
        picture_width, picture_height = self._size
        left, top, right, bottom = box.frame
        if left * picture_width + width <= picture_width or right * picture_width - width >= 0:
            sides = [(left, 0), (right, -1)]
        else:
            sides = [(0.0, 0) if width > picture_width else (1.0, -1)]
        for y, dy in ((top, -1), (top, 0), (bottom, -1), (bottom, 0)):
            for x, dx in sides:
                tag = Tag(box.name, box.text, x, y, dx, dy, box.number)
                frame = self._frame(tag, width=width)
                is_inside = (
                    frame[0] >= 0
                    and frame[1] >= 0
                    and frame[2] <= max(picture_width, width)
                    and frame[3] <= picture_height
                )
                if is_inside and not any(_overlap(frame, other) for other in self._taken):
                    self._taken.append(frame)
                    return tag
        return None

    def _frame(self, tag: Tag, *, width: float) -> Frame:
        left = tag.x * self._size[0] + tag.dx * width
        top = tag.y * self._size[1] + tag.dy * self._height
        return left, top, left + width, top + self._height


def _overlap(one: Frame, other: Frame) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _visible_frame(box: Box | None) -> Frame | None:
    """Returns the part of a box that lies in the picture; None if there is none."""
    if box is None:
        return None
    left, right = sorted((box[0], box[2]))
    top, bottom = sorted((box[1], box[3]))
    if left > 1 or top > 1 or right < 0 or bottom < 0:
        return None
    return max(0.0, left), max(0.0, top), min(1.0, right), min(1.0, bottom)


def _frame_area(box: BoxShape) -> float:
    left, top, right, bottom = box.frame
    return (right - left) * (bottom - top)


def _make_pose(item: PictureObject) -> Pose:
    points = [
        (min(max(x, -_FAR), _FAR), min(max(y, -_FAR), _FAR), visibility)
        for x, y, visibility in item.keypoints
    ]
    return Pose(
        name=class_name(item),
        visible=tuple((x, y) for x, y, visibility in points if visibility > 1),
        hidden=tuple((x, y) for x, y, visibility in points if visibility == 1),
        bones=tuple(
            (*points[one][:2], *points[other][:2])
            for one, other in item.skeleton
            if points[one][2] > 0 and points[other][2] > 0
        ),
    )


def _find_areas(
    picture: Picture,
    objects: Iterable[PictureObject],
    *,
    classes: Classes,
    size: Size,
    scaled: Size,
    problems: list[str],
) -> list[Area]:
    """Finds the pixels of each class; adds masks and maps that cannot be read to `problems`."""
    painted: dict[tuple[str, str], Levels] = {}

    def levels_of(layer: str, name: str) -> Levels:
        return painted.setdefault((layer, name), np.full(scaled[::-1], _OUTSIDE, np.uint8))

    for item in objects:
        found = _read(item.mask, what="a mask", size=size, problems=problems)
        if found is not None:
            mask = Image.fromarray(np.where(found, np.uint8(255), np.uint8(0)))
            # A pixel of the scaled picture belongs to the mask if at least half of its area does.
            inside = np.asarray(mask.resize(scaled, Image.Resampling.BOX)) >= 128
            levels = levels_of("masks", class_name(item))
            levels[inside & (levels == _OUTSIDE)] = _INSIDE
            levels[inside & _edges(inside)] = _BORDER
    class_map = _read(picture.class_map, what="the class map", size=size, problems=problems)
    if class_map is not None:
        values = _nearest(class_map, scaled)
        edges = _edges(values)
        instances = _read(
            picture.instance_map, what="the instance map", size=size, problems=problems
        )
        if instances is not None:
            edges |= _edges(_nearest(instances, scaled))
        layer = "segments" if picture.instance_map else "map"
        for value in np.unique(values).tolist():
            name = classes.name_value(value)
            if name:
                inside = values == value
                levels = levels_of(layer, name)
                levels[inside] = _INSIDE
                levels[inside & edges] = _BORDER
    return [Area(layer, name, levels) for (layer, name), levels in painted.items() if levels.any()]


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
