"""The cards of the gallery: a picture, what is drawn over it, and what is said of it."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.pipelines.draw import class_name, tag_name
from shardbeam.pipelines.logs import escape
from shardbeam.pipelines.report.sample import Sample
from shardbeam.pipelines.report.thumbnails import Thumbnail
from shardbeam.pipelines.show import describe_values
from shardbeam.transforms.dataset.read.pictures import Picture, PictureObject

# So many of one picture's objects are drawn and listed, and so many are labelled while it is small.
_OBJECTS = 300
_LABELLED = 8
_CAPTIONS = 10
_FEATURES = 200
# About as wide as a picture is in the gallery, in pixels, and a label's letters in it.
_CARD_PX = 300
_LETTERS_PX = 12
# Of a label, in heights of its letters (em).
_TAG_HEIGHT, _TAG_MARGIN, _BASELINE = 1.3, 0.3, 0.95
# Browsers read no path with much larger numbers.
_FAR_PX = 10_000_000.0
# A picture that has fewer pixels a side is shown with its pixels as squares.
_COARSE_PX = 128
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
    is_crowd: bool
    x: str
    y: str
    width: str
    height: str


class _Pose(NamedTuple):
    """Keypoints of an object, as SVG paths: lines between them, those seen, those hidden."""

    number: int
    bones: str
    seen: str
    hidden: str


class _Tag(NamedTuple):
    """A label at a box's corner; its own sizes are in letters' heights (em)."""

    number: int
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
    text: str


class _Row(NamedTuple):
    number: int
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
    """A picture of the gallery, as the template needs it."""

    key: str
    alt: str
    names: str
    split: int
    split_name: str
    shard: str
    number: int
    objects: int
    thumbnail: Thumbnail
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
    def has_more(self) -> bool:
        """Whether there is more to say of an object than its class and place."""
        return any(row.more for row in self.rows)


def class_numbers(sample: Sample) -> dict[str, int]:
    """Numbers the classes, the most frequent first; a class's colour is its number's."""
    ordered = sorted(sample.classes.items(), key=lambda item: (-item[1], item[0]))
    return {name: number for number, (name, _) in enumerate(ordered)}


def make_card(
    picture: Picture, thumbnail: Thumbnail, *, numbers: Mapping[str, int], split: int
) -> Card:
    """Makes the card of a picture.

    Args:
        picture: The picture.
        thumbnail: Its thumbnail.
        numbers: `{class: number}`, as `class_numbers` has them.
        split: Number of its split.
    """
    width, height = thumbnail.width, thumbnail.height
    drawn = picture.objects[:_OBJECTS]
    # The largest are drawn first, so that none hides another; and labelled first.
    by_size = sorted(drawn, key=_box_area, reverse=True)
    areas = [
        _Area(
            area.layer,
            numbers[area.name],
            *_rect(area.box, width=width, height=height),
            area.uri,
        )
        for area in thumbnail.overlays
    ]
    # Labels of the picture as a whole, and what the colours of its map stand for.
    of_maps = (area.name for area in thumbnail.overlays if area.layer != "masks")
    chips = dict.fromkeys((*picture.labels, *of_maps))
    names = {*picture.labels, *map(class_name, picture.objects)}
    shown = {numbers[name] for name in names} | {area.number for area in areas}
    return Card(
        key=_title(picture),
        alt=_alt(picture, width=width, height=height),
        names=_what(picture),
        split=split,
        split_name=picture.split,
        shard=picture.shard,
        number=picture.number,
        objects=len(picture.objects),
        thumbnail=thumbnail,
        font_size=_short(_LETTERS_PX * max(width / _CARD_PX, height / (0.7 * _CARD_PX))),
        is_coarse=max(width, height) < _COARSE_PX,
        class_numbers=" ".join(map(str, sorted(shown))),
        areas=areas,
        boxes=[
            _Box(
                numbers[class_name(item)],
                item.is_crowd,
                *_rect(item.box, width=width, height=height),
            )
            for item in by_size
            if item.box is not None
        ],
        poses=list(_poses(drawn, numbers=numbers, width=width, height=height)),
        tags=[
            _tag(
                item,
                numbers[class_name(item)],
                width=width,
                height=height,
                place=place,
            )
            for place, item in enumerate(by_size)
            if item.box is not None
        ],
        labels=[_Label(numbers[name], name) for name in chips],
        captions=picture.captions[:_CAPTIONS],
        # Without a thumbnail its problem stands in its place.
        problems=[
            *picture.problems,
            *([thumbnail.problem] if thumbnail.uri and thumbnail.problem else []),
        ],
        rows=[_row(item, numbers[class_name(item)], width=width, height=height) for item in drawn],
        features=[
            _Feature(key, _kind(values), len(values), describe_values(values))
            for key, values in sorted(picture.features.items())[:_FEATURES]
        ],
    )


def _short(value: float) -> str:
    """Writes a coordinate in as few digits as a screen can show; one far away, as far as counts."""
    return f"{min(max(value, -_FAR_PX), _FAR_PX):.2f}".rstrip("0").rstrip(".")


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


def _box_area(item: PictureObject) -> float:
    if item.box is None:
        return 0.0
    xmin, ymin, xmax, ymax = item.box
    return (xmax - xmin) * (ymax - ymin)


def _poses(
    items: Sequence[PictureObject], *, numbers: Mapping[str, int], width: int, height: int
) -> Iterator[_Pose]:
    for item in items:
        points = [
            (_short(x * width), _short(y * height), visibility)
            for x, y, visibility in item.keypoints
        ]
        if not any(visibility for _, _, visibility in points):
            continue
        number = numbers[class_name(item)]
        bones = [
            f"M{points[a][0]} {points[a][1]}L{points[b][0]} {points[b][1]}"
            for a, b in item.skeleton
            if max(a, b) < len(points) and points[a][2] and points[b][2]
        ]
        dots = {
            wanted: "".join(f"M{x} {y}h0" for x, y, visibility in points if visibility == wanted)
            for wanted in (1, 2)
        }
        yield _Pose(number, "".join(bones), seen=dots[2], hidden=dots[1])


def _tag(item: PictureObject, number: int, *, width: int, height: int, place: int) -> _Tag:
    assert item.box is not None
    xmin, ymin, xmax, _ = item.box
    text = escape(tag_name(item))
    letters = _text_width(text)
    width_em = letters + 2 * _TAG_MARGIN
    # Above the box where there is room, and at that side where more of the picture is.
    is_right = xmin > 0.6
    left = -width_em if is_right else 0.0
    top = -_TAG_HEIGHT if ymin > 0.08 else 0.0
    return _Tag(
        number=number,
        text=text,
        x=_short((xmax if is_right else xmin) * width),
        y=_short(ymin * height),
        left=_short(left),
        top=_short(top),
        width=_short(width_em),
        text_x=_short(left + _TAG_MARGIN),
        text_y=_short(top + _BASELINE),
        text_width=_short(letters),
        is_minor=place >= _LABELLED,
    )


def _text_width(text: str) -> float:
    """Estimates how wide a text is, in heights of its letters; the browser makes it that wide."""
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


def _row(item: PictureObject, number: int, *, width: int, height: int) -> _Row:
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
    return _Row(number, class_name(item), place, size, ", ".join(more))


def _kind(values: Sequence[bytes | int | float]) -> str:
    kinds = {bytes: "bytes", int: "int64", float: "float"}
    return kinds[type(values[0])] if values else ""


def _title(picture: Picture) -> str:
    return picture.key or f"example {picture.number:,}"


def _what(picture: Picture) -> str:
    """Names what is annotated, in a few words."""
    counts = Counter(map(class_name, picture.objects))
    parts = [f"{count} {name}" for name, count in counts.most_common(8)]
    if len(counts) > 8:
        parts.append(f"{len(counts) - 8} more classes")
    return ", ".join([*picture.labels, *parts])


def _alt(picture: Picture, *, width: int, height: int) -> str:
    """Describes a picture to those who do not see it."""
    described = f"{_title(picture)}, {width} by {height} pixels"
    what = _what(picture)
    return f"{described}: {what}" if what else described
