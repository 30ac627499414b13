"""Renders one image with its annotations, and texts below it, as an SVG or HTML file.

The file holds the image itself, and has no script.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from shardbeam.readers.report.cards import ShownTag, make_card, text_width
from shardbeam.readers.report.figure import TagPlaces, shorten
from shardbeam.readers.report.styles import Classes, Style, class_name, drawing_rules, write_number
from shardbeam.readers.report.templates import asset, environment, policy
from shardbeam.readers.report.thumbnails import Thumbnail, fit_thumbnail
from shardbeam.transforms.core.text import Mark, escape
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture

# Pixels of the longer side. Small images are enlarged by a whole number to about the usual side,
# large ones are shrunk to the largest side.
_USUAL_SIDE, _MAX_SIDE = 960, 1600
_MIN_WIDTH = 480
# Size of the gray area in place of an image that is missing or cannot be decoded.
_PLACEHOLDER = (640, 160)
# Heights of letters and of a line, in pixels.
_EM, _LINE_HEIGHT = 16, 22
_MARGIN, _SWATCH = 8, 14
_TEXT_CHARACTERS, _OBJECTS = 400, 1000
# The most captions, and classes of objects and of a map, that are named.
_CAPTIONS, _CLASSES = 12, 24


class PictureFile(NamedTuple):
    """A file of one image.

    Attributes:
        content: Its text.
        width: The width of what it shows, in pixels.
        height: The height of that.
    """

    content: str
    width: int
    height: int


class _Text(NamedTuple):
    """A text below the image; `style` is that of the class it names."""

    text: str
    style: Style | None = None
    is_problem: bool = False


class _Line(NamedTuple):
    """A line of a text, and where it is in the file: the middle of its left end."""

    text: str
    x: int
    y: int
    style: Style | None
    is_problem: bool


def render_picture_file(
    image: Picture, *, feature_map: FeatureMap, mark: Mark, as_page: bool
) -> PictureFile:
    """Renders an image with its boxes, masks, keypoints and maps, and its texts below it.

    A class has the same colour in every image.

    Args:
        image: The image.
        feature_map: How the dataset's Examples are to be read.
        mark: The mark of the file.
        as_page: Whether it is a page (HTML) that holds the SVG.
    """
    classes = Classes(feature_map.class_names, numbered_maps=feature_map.numbered_maps)
    thumbnail = fit_thumbnail(image, classes=classes, max_side=_MAX_SIDE, most_objects=_OBJECTS)
    size = thumbnail.width, thumbnail.height
    drawn = _scale(*size) if thumbnail.uri else _PLACEHOLDER
    card = make_card(image, thumbnail, classes=classes, name="")
    em = _EM * max(1, size[0]) / drawn[0]
    places = TagPlaces(size=size, em=em, measure=text_width)
    tags = filter(None, map(places.find, thumbnail.figure.boxes))
    card = card._replace(
        font_size=write_number(em), tags=[ShownTag(tag, is_minor=False) for tag in tags]
    )
    width = max(drawn[0], _MIN_WIDTH)
    lines = list(_place(_describe(image, thumbnail), width=width, top=drawn[1]))
    height = lines[-1].y + _LINE_HEIGHT // 2 + _MARGIN
    rules = drawing_rules(thumbnail.figure.styles.values())
    drawing_style = asset("drawing.css").replace("var(--k)", "currentColor")
    style = f"{drawing_style}{asset('picture.css')}{rules}\n"
    content = (
        environment()
        .get_template("picture.svg.j2")
        .render(
            card=card,
            drawn=drawn,
            width=width,
            height=height,
            lines=lines,
            swatch=_SWATCH,
            style=Markup(style),
            mark=mark.text,
            policy=policy(style, script=""),
            as_page=as_page,
        )
    )
    return PictureFile(content, width, height)


def _scale(width: int, height: int) -> tuple[int, int]:
    """Returns the size at which an image is drawn."""
    side = max(width, height)
    scale: float = max(1, round(_USUAL_SIDE / side))
    if side > _MAX_SIDE:
        scale = _MAX_SIDE / side
    return max(1, round(width * scale)), max(1, round(height * scale))


def _describe(image: Picture, thumbnail: Thumbnail) -> Iterator[_Text]:
    """Yields what the image is, its captions and classes, and problems."""
    yield _Text(f"{image.split}, example {image.number:,}: {image.key or 'without a name'}")
    size = f"{image.format or 'image'}, {image.width}x{image.height} pixels"
    yield _Text(size if image.image else "no image")
    if image.labels:
        yield _Text(f"labels: {', '.join(image.labels)}")
    yield from _first([_Text(f'"{text}"') for text in image.captions], _CAPTIONS, "captions")
    counts = Counter(map(class_name, image.objects))
    shares = {area.name: area.share for area in thumbnail.overlays if area.layer != "masks"}
    styles = thumbnail.figure.styles
    for values, form, what in ((counts, ",", "classes"), (shares, ".1%", "classes in the map")):
        texts = [
            _Text(f"{name}, {value:{form}}", styles.get(name))
            for name, value in sorted(values.items(), key=lambda item: (-item[1], item[0]))
        ]
        yield from _first(texts, _CLASSES, what)
    undrawn = [thumbnail.problem] if thumbnail.problem and image.image else []
    for problem in dict.fromkeys((*undrawn, *image.problems, *thumbnail.figure.problems)):
        yield _Text(f"! {problem}", is_problem=True)


def _first(texts: Sequence[_Text], most: int, what: str) -> Sequence[_Text]:
    more = len(texts) - most
    return texts if more <= 0 else [*texts[:most], _Text(f"… and {more:,} more {what}")]


def _place(texts: Iterable[_Text], *, width: int, top: int) -> Iterator[_Line]:
    """Breaks texts into lines below an image; the names of classes share rows."""
    room = width - 2 * _MARGIN
    x, y = room, top + _MARGIN - _LINE_HEIGHT // 2
    for text in texts:
        indent = 0 if text.style is None else _MARGIN + _SWATCH * (3 if text.style.line else 1)
        for line in _wrap(escape(shorten(text.text, _TEXT_CHARACTERS)), width=room - indent):
            needed = indent + round(text_width(line) * _EM)
            if text.style is None or x + needed > room:
                x, y = 0, y + _LINE_HEIGHT
            yield _Line(line, x + _MARGIN, y, text.style, text.is_problem)
            x = room if text.style is None else x + needed + 2 * _MARGIN


def _wrap(text: str, *, width: int) -> list[str]:
    """Breaks a text into the longest lines that fit."""
    for characters in range(max(1, len(text)), 0, -1):
        lines = textwrap.wrap(text, characters)
        if all(text_width(line) * _EM <= width for line in lines):
            return lines
    return []
