"""Draws a picture with its annotations and texts. Neither Beam nor TensorFlow is needed."""

from __future__ import annotations

import bisect
import functools
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from shardbeam.configs.schema import ImageConfig
from shardbeam.readers.report.figure import (
    LINES,
    OPACITIES,
    PALETTE,
    BoxShape,
    Classes,
    Colour,
    Figure,
    Line,
    Look,
    Pose,
    TagPlaces,
    class_name,
    ink_on,
    make_figure,
    shorten,
)
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.examples.decode.decode import Picture
from shardbeam.transforms.examples.decode.feature_map import Legend
from shardbeam.transforms.images.check import CIFAR_BYTES, cifar_pixels
from shardbeam.transforms.images.convert import shrink, to_rgb
from shardbeam.transforms.images.decode import open_image
from shardbeam.transforms.images.sniff import FileFormat, sniff_format

_Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"
_Point: TypeAlias = tuple[float, float]

# Pixels of the longer side. Small pictures are enlarged by a whole number to about the usual side,
# large ones are shrunk to the largest side. Below the coarse side, pixels are enlarged to squares.
_USUAL_SIDE, _MAX_SIDE, _COARSE_SIDE = 960, 1600, 128
_MIN_WIDTH = 480
# Size of the gray area in place of a picture that is missing or cannot be decoded.
_PLACEHOLDER = (640, 160)
_FONT_SIZE = 16
_MARGIN, _LINE_HEIGHT = 8, 22
_TAG_HEIGHT, _TAG_MARGIN = 20, 4
_PAPER, _INK, _WARNING = (250, 250, 248), (30, 30, 34), (180, 30, 30)
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)
_SWATCH = 14
_TEXT_CHARACTERS = 400
_LEGEND_CLASSES, _CAPTIONS, _OBJECTS = 24, 12, 1000
_TIMES = "\N{MULTIPLICATION SIGN}"
# Fonts of usual systems; Pillow's own has little more than ASCII.
_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf")
# No font has a glyph for this character.
_NONCHARACTER = "\U0010ffff"
_IMAGE = ImageConfig()


class _Line(NamedTuple):
    """A line of text below the picture; `look` adds a sample of a class's colour and line."""

    text: str
    ink: Colour = _INK
    look: Look | None = None


class _Canvas(NamedTuple):
    """The image to paint on.

    Attributes:
        image: The picture, scaled.
        size: Width and height of the picture in pixels before it was scaled; masks have this size.
        stroke: Width of lines, in pixels.
        problems: Why the picture cannot be decoded; empty if it can.
    """

    image: Image.Image
    size: tuple[int, int]
    stroke: int
    problems: tuple[str, ...] = ()


def draw_picture(picture: Picture, *, legend: Legend) -> Image.Image:
    """Draws a picture with its boxes, masks, keypoints and maps, and its texts below it.

    A class has the same colour in every picture. The same picture gives the same pixels if the same
    fonts are installed.

    Args:
        picture: The picture.
        legend: How the dataset's Examples are to be read.
    """
    canvas = _decode(picture)
    figure = make_figure(
        picture,
        classes=Classes(legend.class_names, numbered_maps=legend.numbered_maps),
        size=canvas.size,
        scaled=canvas.image.size,
        most_objects=_OBJECTS,
    )
    _paint_areas(figure, canvas=canvas)
    for box in figure.boxes:
        _paint_box(box, look=figure.looks[box.name], canvas=canvas)
    for pose in figure.poses:
        _paint_pose(pose, look=figure.looks[pose.name], canvas=canvas)
    _paint_tags(figure, canvas=canvas)
    lines = [*_describe(picture, figure), *_describe_maps(figure)]
    problems = dict.fromkeys((*canvas.problems, *figure.problems))
    return _add_text(canvas.image, [*lines, *map(_problem, problems)])


def encode_png(image: Image.Image, *, mark: str) -> bytes:
    """Encodes an image as a PNG file whose text chunk holds the mark of our files."""
    file = io.BytesIO()
    text = PngInfo()
    text.add_text("Software", mark)
    image.save(file, "PNG", pnginfo=text)
    return file.getvalue()


def _decode(picture: Picture) -> _Canvas:
    problems: tuple[str, ...] = ()
    try:
        image = decode_pixels(picture.image, image_format=picture.format)
    except RejectedError as error:
        image = Image.new("RGB", _PLACEHOLDER, (200, 200, 200))
        if picture.image:
            problems = (f"the image cannot be decoded: {error.detail}",)
    size = image.size
    longest = max(size)
    if longest > _MAX_SIDE:
        image = shrink(image, max_side=_MAX_SIDE)
    elif (factor := round(_USUAL_SIDE / longest)) > 1:
        is_coarse = longest < _COARSE_SIDE
        resampling = Image.Resampling.NEAREST if is_coarse else Image.Resampling.BICUBIC
        image = image.resize((size[0] * factor, size[1] * factor), resampling)
    return _Canvas(image, size, stroke=max(2, max(image.size) // 400), problems=problems)


def decode_pixels(data: bytes, *, image_format: str = "") -> Image.Image:
    """Decodes an image as it is stored, without turning it, because annotations refer to that.

    Args:
        data: An image of any format, or the bare pixels of a CIFAR batch.
        image_format: `raw` if the data may be bare pixels.

    Raises:
        RejectedError: It cannot be decoded, or would take too much memory.
    """
    return decode_small(data, image_format=image_format)[0]


def decode_small(
    data: bytes, *, image_format: str = "", side: int = 0
) -> tuple[Image.Image, tuple[int, int]]:
    """Decodes an image that is going to be shrunk.

    A JPEG file is decoded at a half, a quarter or an eighth of its size, which takes a part of the
    time and of the memory.

    Args:
        data: See `decode_pixels`.
        image_format: See `decode_pixels`.
        side: The longer side that the pixels must have at least, if the image has it; 0 for all of
            its pixels.

    Returns:
        The image, and the width and height of the whole image.

    Raises:
        RejectedError: See `decode_pixels`.
    """
    file_format = sniff_format(data)
    if file_format is not None:
        opened = open_image(data, file_format=file_format, settings=_IMAGE)
        size = opened.image.size
        is_reduced = side > 0 and file_format is FileFormat.JPEG
        if is_reduced:
            # Pillow rounds a size up to what the decoder can do.
            longest = max(side, *size)
            opened.image.draft(None, (-(-size[0] * side // longest), -(-size[1] * side // longest)))
        with opened.decode() as decoded:
            image = to_rgb(decoded.image, background=_IMAGE.background)
        return image, size if is_reduced else image.size
    if image_format == "raw" and len(data) == CIFAR_BYTES:
        image = Image.fromarray(cifar_pixels(data))
        return image, image.size
    raise RejectedError(Reason.NOT_AN_IMAGE, "it is not an image file")


def _paint_areas(figure: Figure, *, canvas: _Canvas) -> None:
    opacities = np.array(OPACITIES, np.uint8)
    for area in figure.areas:
        colour = PALETTE[figure.looks[area.name].colour]
        canvas.image.paste(
            colour, (0, 0, *canvas.image.size), Image.fromarray(opacities[area.levels])
        )


def _paint_box(box: BoxShape, *, look: Look, canvas: _Canvas) -> None:
    draw = ImageDraw.Draw(canvas.image)
    left, top, right, bottom = (
        round(value * (side - 1))
        for value, side in zip(box.frame, canvas.image.size * 2, strict=True)
    )
    line = LINES[look.line]
    width = canvas.stroke * line.width
    # A black line on both sides makes the box visible on every background.
    if min(right - left, bottom - top) > 2 * width + 2:
        inner = (left + width, top + width, right - width, bottom - width)
        draw.rectangle(inner, outline=_BLACK)
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_BLACK)
    # Each side is a line whose middle lies half its width inside the box.
    near, far = (width - 1) // 2, width // 2
    x0, y0, x1, y1 = left + near, top + near, right - far, bottom - far
    if not line.dash or x1 <= x0 or y1 <= y0:
        draw.rectangle((left, top, right, bottom), outline=PALETTE[look.colour], width=width)
        return
    draw.rectangle((left, top, right, bottom), outline=_BLACK, width=width)
    # Draw each side to the right or down: Pillow shifts lines of even width that run left or up.
    for one, other in (
        ((left, y0), (right, y0)),
        ((left, y1), (right, y1)),
        ((x0, top), (x0, bottom)),
        ((x1, top), (x1, bottom)),
    ):
        _paint_line(draw, one, other, line=line, ink=PALETTE[look.colour], width=width)


def _paint_line(
    draw: ImageDraw.ImageDraw, one: _Point, other: _Point, *, line: Line, ink: Colour, width: int
) -> None:
    """Paints a line between two points, with its dashes."""
    length = math.dist(one, other)
    if not line.dash or not length:
        draw.line((*one, *other), fill=ink, width=width)
        return
    step = itertools.cycle(zip(line.dash, itertools.cycle((True, False)), strict=False))
    start = 0.0
    while start < length:
        dash, is_drawn = next(step)
        end = min(start + dash * width, length)
        if is_drawn:
            ends = [
                tuple(a + (b - a) * share / length for a, b in zip(one, other, strict=True))
                for share in (start, end)
            ]
            draw.line((*ends[0], *ends[1]), fill=ink, width=width)
        start = end


def _paint_pose(pose: Pose, *, look: Look, canvas: _Canvas) -> None:
    draw = ImageDraw.Draw(canvas.image)
    width, height = canvas.image.size
    colour, line = PALETTE[look.colour], LINES[look.line]
    stroke = canvas.stroke * line.width
    for x0, y0, x1, y1 in pose.bones:
        one, other = (x0 * width, y0 * height), (x1 * width, y1 * height)
        draw.line((*one, *other), fill=_BLACK, width=stroke + 2)
        _paint_line(draw, one, other, line=line, ink=colour, width=stroke)
    radius = canvas.stroke + 2
    for points, fill in ((pose.visible, colour), (pose.hidden, _WHITE)):
        for x, y in points:
            left, top = x * width - radius, y * height - radius
            frame = (left, top, left + 2 * radius, top + 2 * radius)
            draw.ellipse(frame, fill=fill, outline=_BLACK)


def _paint_tags(figure: Figure, *, canvas: _Canvas) -> None:
    draw = ImageDraw.Draw(canvas.image)
    width, height = canvas.image.size
    places = TagPlaces(size=(width, height), height=_TAG_HEIGHT, measure=_tag_width)
    for tag in filter(None, map(places.find, figure.boxes)):
        colour = PALETTE[figure.looks[tag.name].colour]
        left = round(tag.x * (width - 1)) + tag.dx * _tag_width(tag.text)
        top = round(tag.y * (height - 1)) + tag.dy * _TAG_HEIGHT
        frame = (left, top, left + _tag_width(tag.text), top + _TAG_HEIGHT)
        draw.rectangle(frame, fill=colour)
        middle = (left + _TAG_MARGIN, top + _TAG_HEIGHT // 2)
        draw.text(middle, _readable(tag.text), font=_font(), fill=ink_on(colour), anchor="lm")


def _tag_width(text: str) -> int:
    return _length(_readable(text)) + 2 * _TAG_MARGIN


def _describe(picture: Picture, figure: Figure) -> Iterator[_Line]:
    """Yields the texts below a picture."""
    yield _Line(f"{picture.split}, example {picture.number:,}: {picture.key or 'without a name'}")
    if picture.image:
        yield _Line(
            f"{picture.format or 'image'}, {picture.width} {_TIMES} {picture.height} pixels"
        )
    else:
        yield _Line("no image")
    if picture.labels:
        yield _Line(f"labels: {', '.join(picture.labels)}")
    for caption in picture.captions[:_CAPTIONS]:
        yield _Line(f"\N{LEFT DOUBLE QUOTATION MARK}{caption}\N{RIGHT DOUBLE QUOTATION MARK}")
    yield from _and_more(len(picture.captions) - _CAPTIONS, "captions")
    counts = Counter(map(class_name, picture.objects))
    ordered = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    for name, count in ordered[:_LEGEND_CLASSES]:
        yield _Line(f"{name}, {count:,}", look=figure.looks.get(name))
    yield from _and_more(len(ordered) - _LEGEND_CLASSES, "classes")
    if len(picture.objects) > _OBJECTS:
        yield _problem(f"only {_OBJECTS:,} of {len(picture.objects):,} objects are drawn")
    yield from map(_problem, picture.problems)


def _describe_maps(figure: Figure) -> Iterator[_Line]:
    """Yields the share of the picture that each class of a map covers, the largest first."""
    shares = {
        area.name: np.count_nonzero(area.levels) / area.levels.size
        for area in figure.areas
        if area.layer != "masks"
    }
    ordered = sorted(shares.items(), key=lambda share: (-share[1], share[0]))
    for name, share in ordered[:_LEGEND_CLASSES]:
        yield _Line(f"{name}, {share:.1%}", look=figure.looks[name])
    yield from _and_more(len(ordered) - _LEGEND_CLASSES, "classes in the map")


def _and_more(number: int, what: str) -> list[_Line]:
    return [_Line(f"… and {number:,} more {what}")] if number > 0 else []


def _problem(text: str) -> _Line:
    return _Line(f"! {text}", ink=_WARNING)


def _add_text(image: Image.Image, lines: Sequence[_Line]) -> Image.Image:
    """Adds lines of text below a picture; lines with a colour sample share rows."""
    width = max(image.width, _MIN_WIDTH)
    placed: list[tuple[int, int, _Line]] = []
    x, y = _MARGIN, image.height + _MARGIN
    for line in lines:
        indent = _swatch_width(line.look) + _MARGIN if line.look else 0
        text = _readable(shorten(line.text, _TEXT_CHARACTERS))
        for part in _wrap(text, width=width - 2 * _MARGIN - indent):
            needed = indent + _length(part) + 2 * _MARGIN
            if x > _MARGIN and (not line.look or x + needed > width):
                x, y = _MARGIN, y + _LINE_HEIGHT
            placed.append((x, y, line._replace(text=part)))
            x += needed
            if not line.look:
                x, y = _MARGIN, y + _LINE_HEIGHT
    height = y + _MARGIN + (_LINE_HEIGHT if x > _MARGIN else 0)
    page = Image.new("RGB", (width, height), _PAPER)
    page.paste(image)
    draw = ImageDraw.Draw(page)
    for left, top, line in placed:
        middle = top + _LINE_HEIGHT // 2
        if line.look:
            _paint_swatch(draw, (left, middle), look=line.look)
            left += _swatch_width(line.look) + _MARGIN
        draw.text((left, middle), line.text, font=_font(), fill=line.ink, anchor="lm")
    return page


def _swatch_width(look: Look) -> int:
    return _SWATCH if look.line == 0 else 3 * _SWATCH


def _paint_swatch(draw: ImageDraw.ImageDraw, place: tuple[int, int], *, look: Look) -> None:
    """Paints a square of a class's colour, and a sample of its line if that is special."""
    left, middle = place
    half = _SWATCH // 2
    frame = (left, middle - half, left + _SWATCH, middle + half)
    draw.rectangle(frame, fill=PALETTE[look.colour], outline=_INK)
    if look.line:
        line = LINES[look.line]
        width = 2 * line.width
        one, other = (left + _SWATCH, middle), (left + 3 * _SWATCH, middle)
        draw.line((*one, *other), fill=_BLACK, width=width + 2)
        _paint_line(draw, one, other, line=line, ink=PALETTE[look.colour], width=width)


def _wrap(text: str, *, width: int) -> Iterator[str]:
    """Breaks a text into lines of a width in pixels: at spaces, and within longer words."""
    rest = text
    while _length(rest) > width:
        # The number of characters that fit, at least one.
        fitting = bisect.bisect_right(
            range(1, len(rest)), width, key=lambda count: _length(rest[:count])
        )
        fitting = max(1, fitting)
        end = rest.rfind(" ", 1, fitting + 1)
        end = fitting if end < 0 else end
        yield rest[:end]
        rest = rest[end:].lstrip(" ")
    yield rest


def _length(text: str) -> int:
    return math.ceil(_font().getlength(text))


def _readable(text: str) -> str:
    r"""Writes control characters, and those without a glyph in the font, as `\x1b` or `\u81c9`."""
    return "".join(
        character if character == " " or _has_glyph(character) else _escaped(character)
        for character in escape(text)
    )


def _escaped(character: str) -> str:
    if character == "…":
        return "..."
    return character.encode("unicode_escape").decode() if character != _TIMES else "x"


@functools.lru_cache(maxsize=4096)
def _has_glyph(character: str) -> bool:
    return character.isascii() or _glyph(character) != _glyph(_NONCHARACTER)


def _glyph(character: str) -> bytes:
    return bytes(_font().getmask(character))


@functools.cache
def _font() -> _Font:
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, _FONT_SIZE)
        except OSError:
            continue
    return ImageFont.load_default(_FONT_SIZE)
