"""The cards of the page: each has a picture, the shapes drawn over it, and texts about it."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from shardbeam.readers.report.describe_values import describe_values
from shardbeam.readers.report.figure import (
    LINES,
    PALETTE,
    Classes,
    Figure,
    Line,
    Look,
    Tag,
    TagPlaces,
    class_name,
    ink_on,
)
from shardbeam.readers.report.finding_cards import Note
from shardbeam.readers.report.thumbnails import MOST_OBJECTS, Thumbnail
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.examples.decode.decode import Picture, PictureObject

_CAPTIONS = 10
_FEATURES = 200
# In pixels: the room for a picture on a card and for an enlarged one, and the height of letters.
_CARD_PX, _ENLARGED_PX, _LETTERS_PX = (230, 195), (720, 600), 12
# The most objects with a label on a card; the enlarged picture labels the others.
_LABELLED = 8
# Sizes of a label in em: one em is the height of its letters.
_TAG_HEIGHT, _TAG_MARGIN, _BASELINE = 1.3, 0.3, 0.95
# Width of the usual line.
_LINE_PX = 2
# A picture with fewer pixels a side is shown with its pixels as squares.
_COARSE_PX = 128
# A longer key cannot be marked.
_LINE_CHARACTERS = 4000
_TIMES = " \N{MULTIPLICATION SIGN} "


class _Area(NamedTuple):
    layer: str
    number: int
    x: str
    y: str
    width: str
    height: str
    uri: str


class _Box(NamedTuple):
    number: int
    object: int
    look: str
    x: str
    y: str
    width: str
    height: str


class _Pose(NamedTuple):
    """Keypoints of an object, as SVG paths: lines between them, visible ones, hidden ones."""

    number: int
    look: str
    bones: str
    visible: str
    hidden: str


class _Tag(NamedTuple):
    """A label at a box's corner; its sizes are in em.

    A minor label is shown only when the picture is enlarged.
    """

    number: int
    object: int
    look: str
    text: str
    x: str
    y: str
    left: str
    top: str
    width: str
    text_x: str
    text_y: str
    text_width: str
    is_minor: bool


class _Label(NamedTuple):
    number: int
    look: str
    text: str


class _Row(NamedTuple):
    number: int
    object: int
    look: str
    name: str
    place: str
    size: str
    more: str


class _Feature(NamedTuple):
    key: str
    kind: str
    length: int
    values: str


class Card(NamedTuple):
    """A picture, as the template needs it.

    Attributes:
        name: Its id in the page.
        key: Its key, or its number.
        line: Its key as a line of a file for `exclude`; empty if no line can name it.
        notes: What is worth a look in it.
        odd: Numbers of the objects that are worth a look, from 0.
        kinds: The kinds of findings in it, separated by spaces.
        bars: Numbers of the bars that count it, separated by spaces.
        class_numbers: Numbers of its classes in the page, separated by spaces.
        font_size: Font size of the labels on a card, in pixels of the picture.
    """

    name: str
    key: str
    line: str
    notes: Sequence[Note]
    odd: Collection[int]
    kinds: str
    bars: str
    alt: str
    names: str
    split: int
    split_name: str
    shard: str
    number: int
    objects: int
    thumbnail: Thumbnail
    has_picture: bool
    font_size: str
    is_coarse: bool
    class_numbers: str
    areas: Sequence[_Area]
    boxes: Sequence[_Box]
    poses: Sequence[_Pose]
    tags: Sequence[_Tag]
    labels: Sequence[_Label]
    captions: Sequence[str]
    problems: Sequence[str]
    rows: Sequence[_Row]
    features: Sequence[_Feature]

    @property
    def layers(self) -> frozenset[str]:
        """The layers that it has."""
        found = {
            "boxes": self.boxes,
            "labels": self.tags or self.labels,
            "keypoints": self.poses,
            "captions": self.captions,
        }
        return frozenset(
            (*(area.layer for area in self.areas), *(name for name in found if found[name]))
        )

    @property
    def has_more(self) -> bool:
        """Whether an object has details besides its class, place and size."""
        return any(row.more for row in self.rows)


class ClassNumbers(dict[str, int]):
    """`{class: its number in the page}`; a class that is new gets the next number."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def style_looks() -> str:
    """Returns the CSS rules of the classes that `look_class` names."""
    colours = (
        f".k{number} {{ --k: #{bytes(colour).hex()}; --i: #{bytes(ink_on(colour)).hex()}; }}"
        for number, colour in enumerate(PALETTE)
    )
    return "\n".join((*colours, *_style_lines()))


def _style_lines() -> Iterator[str]:
    for number, line in enumerate(LINES):
        width = _LINE_PX * line.width
        dash = " ".join(f"{_short(length * width)}px" for length in line.dash)
        yield (
            f".l{number} {{ stroke-width: {width}px; stroke-dasharray: {dash or 'none'}; }}\n"
            f".l{number} .swatch {{ {_sample_line(line)} }}"
        )


def _sample_line(line: Line) -> str:
    """Returns the CSS of a swatch that shows a line; empty for the usual line."""
    if line == LINES[0]:
        return ""
    width = _LINE_PX * line.width
    ends = [f"{_short(end * width)}px" for end in itertools.accumulate((0, *line.dash))]
    inks = itertools.cycle(("var(--k)", "transparent"))
    parts = ", ".join(
        f"{ink} {start} {end}"
        for ink, (start, end) in zip(inks, itertools.pairwise(ends), strict=False)
    )
    background = f"repeating-linear-gradient(90deg, {parts})" if parts else "var(--k)"
    return (
        f"width: 2.4em; height: {width + 1}px; border-radius: 0; vertical-align: middle; "
        f"background: {background};"
    )


def look_class(look: Look) -> str:
    """Returns the CSS classes of a look."""
    return f"k{look.colour} l{look.line}"


def make_card(
    picture: Picture,
    thumbnail: Thumbnail,
    *,
    classes: Classes,
    numbers: ClassNumbers,
    name: str,
    split: int = 0,
    notes: Sequence[Note] = (),
    bars: Collection[int] = (),
) -> Card:
    """Makes the card of a picture.

    Args:
        picture: The picture.
        thumbnail: Its thumbnail.
        classes: The dataset's classes.
        numbers: `{class: number}`.
        name: The card's id in the page.
        split: Number of its split.
        notes: What is worth a look in it.
        bars: Numbers of the bars that count it.
    """
    width, height = thumbnail.width, thumbnail.height
    figure = thumbnail.figure

    def look_of(name: str) -> str:
        return look_class(figure.looks.get(name) or classes.look(name))

    areas = [
        _Area(
            area.layer,
            numbers[area.name],
            *_rect(area.box, width=width, height=height),
            area.uri,
        )
        for area in thumbnail.overlays
    ]
    # Labels of the picture as a whole, and the classes of its map.
    of_maps = (area.name for area in thumbnail.overlays if area.layer != "masks")
    chips = dict.fromkeys((*picture.labels, *of_maps))
    names = {*picture.labels, *map(class_name, picture.objects)}
    shown = {numbers[name] for name in names} | {area.number for area in areas}
    return Card(
        name=name,
        key=_title(picture),
        # A line that would have to be escaped names another image.
        line=picture.key if _fits_a_line(picture.key) else "",
        notes=notes,
        odd=frozenset(number for note in notes for number in note.objects),
        kinds=" ".join(dict.fromkeys(note.kind for note in notes)),
        bars=" ".join(map(str, bars)),
        alt=_alt(picture, width=width, height=height),
        names=_what(picture),
        split=split,
        split_name=picture.split,
        shard=picture.shard,
        number=picture.number,
        objects=len(picture.objects),
        thumbnail=thumbnail,
        has_picture=bool(thumbnail.uri),
        font_size=_short(_LETTERS_PX / _scale(_CARD_PX, width=width, height=height)),
        is_coarse=max(width, height) < _COARSE_PX,
        class_numbers=" ".join(map(str, sorted(shown))),
        areas=areas,
        boxes=[
            _Box(
                numbers[box.name],
                box.number,
                look_of(box.name),
                *_rect(box.frame, width=width, height=height),
            )
            for box in figure.boxes
        ],
        poses=[
            _Pose(
                numbers[pose.name],
                look_of(pose.name),
                bones="".join(
                    f"M{_point(x0, y0, width, height)}L{_point(x1, y1, width, height)}"
                    for x0, y0, x1, y1 in pose.bones
                ),
                visible=_dots(pose.visible, width=width, height=height),
                hidden=_dots(pose.hidden, width=width, height=height),
            )
            for pose in figure.poses
            if pose.visible or pose.hidden
        ],
        tags=[
            _tag(
                tag,
                is_minor=is_minor,
                number=numbers[tag.name],
                look=look_of(tag.name),
                width=width,
                height=height,
            )
            for tag, is_minor in _place_tags(figure, width=width, height=height)
        ],
        labels=[_Label(numbers[name], look_of(name), name) for name in chips],
        captions=picture.captions[:_CAPTIONS],
        # If there is no thumbnail, the page says why in its place.
        problems=[*picture.problems, *figure.problems],
        rows=[
            _row(
                item,
                number=numbers[class_name(item)],
                index=index,
                look=look_of(class_name(item)),
                width=width,
                height=height,
            )
            for index, item in enumerate(picture.objects[:MOST_OBJECTS])
        ],
        features=[
            _Feature(key, _kind(values), len(values), describe_values(values))
            for key, values in sorted(picture.features.items())[:_FEATURES]
        ],
    )


def _fits_a_line(key: str) -> bool:
    return len(key) <= _LINE_CHARACTERS and escape(key) == key


def _short(value: float) -> str:
    """Writes a coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _rect(
    box: tuple[float, float, float, float], *, width: int, height: int
) -> tuple[str, str, str, str]:
    """Returns x, y, width and height of a box in pixels of the picture."""
    xmin, ymin, xmax, ymax = box
    return (
        _short(xmin * width),
        _short(ymin * height),
        _short(max(0.0, xmax - xmin) * width),
        _short(max(0.0, ymax - ymin) * height),
    )


def _point(x: float, y: float, width: int, height: int) -> str:
    return f"{_short(x * width)} {_short(y * height)}"


def _dots(points: Sequence[tuple[float, float]], *, width: int, height: int) -> str:
    return "".join(f"M{_point(x, y, width, height)}h0" for x, y in points)


def _scale(room: tuple[int, int], *, width: int, height: int) -> float:
    """Returns the screen's pixels for each pixel of a picture that fills `room`."""
    return min(room[0] / max(1, width), room[1] / max(1, height))


def _place_tags(figure: Figure, *, width: int, height: int) -> Iterator[tuple[Tag, bool]]:
    """Yields the labels of a card, then minor ones, which fit only on the enlarged picture."""
    on_card, enlarged = (
        TagPlaces(
            size=(round(scale * width), round(scale * height)),
            height=_TAG_HEIGHT * _LETTERS_PX,
            measure=_tag_width_px,
        )
        for scale in (_scale(room, width=width, height=height) for room in (_CARD_PX, _ENLARGED_PX))
    )
    rest = []
    for number, box in enumerate(figure.boxes):
        tag = on_card.find(box) if number < _LABELLED else None
        if tag is None:
            rest.append(box)
        else:
            enlarged.take(tag)
            yield tag, False
    for tag in filter(None, map(enlarged.find, rest)):
        yield tag, True


def _tag_width_px(text: str) -> float:
    return _LETTERS_PX * (_text_width(escape(text)) + 2 * _TAG_MARGIN)


def _tag(tag: Tag, *, is_minor: bool, number: int, look: str, width: int, height: int) -> _Tag:
    text = escape(tag.text)
    letters = _text_width(text)
    width_em = letters + 2 * _TAG_MARGIN
    left, top = tag.dx * width_em, tag.dy * _TAG_HEIGHT
    return _Tag(
        number=number,
        object=tag.number,
        look=look,
        text=text,
        x=_short(tag.x * width),
        y=_short(tag.y * height),
        left=_short(left),
        top=_short(top),
        width=_short(width_em),
        text_x=_short(left + _TAG_MARGIN),
        text_y=_short(top + _BASELINE),
        text_width=_short(letters),
        is_minor=is_minor,
    )


def _text_width(text: str) -> float:
    """Estimates the width of a text in em; the browser stretches the text to this width."""
    width = 0.0
    for character in text:
        if unicodedata.east_asian_width(character) in "WF":
            width += 1.0
        elif character in "iljtfrI.,:;'|!() ":
            width += 0.4
        elif character.isupper() or character in "mwMW@%…":
            width += 0.82
        else:
            width += 0.64
    return width


def _row(
    item: PictureObject, *, number: int, index: int, look: str, width: int, height: int
) -> _Row:
    place = size = ""
    if item.box is not None:
        xmin, ymin, xmax, ymax = item.box
        place = f"{xmin * width:.0f}, {ymin * height:.0f}"
        size = f"{(xmax - xmin) * width:.0f}{_TIMES}{(ymax - ymin) * height:.0f}"
    seen = sum(visibility > 0 for _, _, visibility in item.keypoints)
    more = [
        *(["crowd"] if item.is_crowd else []),
        *([f"{seen} keypoints"] if item.keypoints else []),
        *(["mask"] if item.mask else []),
        *(f"{name}: {value}" for name, value in sorted(item.attributes.items())),
    ]
    return _Row(number, index, look, class_name(item), place, size, ", ".join(more))


def _kind(values: Sequence[bytes | int | float]) -> str:
    kinds = {bytes: "bytes", int: "int64", float: "float"}
    return kinds[type(values[0])] if values else ""


def _title(picture: Picture) -> str:
    return picture.key or f"example {picture.number:,}"


def _what(picture: Picture) -> str:
    """Lists labels and counts of objects in a few words."""
    counts = Counter(map(class_name, picture.objects))
    parts = [f"{count} {name}" for name, count in counts.most_common(8)]
    if len(counts) > 8:
        parts.append(f"{len(counts) - 8} more classes")
    return ", ".join([*picture.labels, *parts])


def _alt(picture: Picture, *, width: int, height: int) -> str:
    """Returns the text that screen readers read for a picture."""
    described = f"{_title(picture)}, {width} by {height} pixels"
    what = _what(picture)
    return f"{described}: {what}" if what else described
