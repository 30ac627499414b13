"""Paints an image with its annotations, and texts below it, for a PNG file."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from shardbeam.readers.report.figure import (
    OPACITIES,
    TAG_HEIGHT,
    TAG_MARGIN,
    Figure,
    Segment,
    TagPlaces,
    Text,
    describe,
    make_figure,
    shorten,
)
from shardbeam.readers.report.styles import LINES, Classes, Style, ink_on
from shardbeam.readers.report.thumbnails import decode_small, fit
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture

# Pixels of the longer side. Small images are enlarged by a whole number to about the usual side,
# large ones are shrunk to the largest side. Below the coarse side, pixels are enlarged to squares.
_USUAL_SIDE, _MAX_SIDE, _COARSE_SIDE = 960, 1600, 128
_MIN_WIDTH = 480
# Size of the gray area in place of an image that is missing or cannot be decoded.
_PLACEHOLDER = (640, 160)
# Heights of letters and of a line, in pixels.
_EM, _LINE_HEIGHT = 16, 22
_MARGIN, _SWATCH = 8, 14
_PAPER, _INK, _WARNING = (250, 250, 248), (30, 30, 34), (180, 30, 30)
_TEXT_CHARACTERS, _OBJECTS = 400, 1000
# Fonts of usual systems; Pillow's own has little more than ASCII.
_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf")
# No font has a glyph for this character.
_UNKNOWN = "\U0010ffff"


def draw_image(image: Picture, *, feature_map: FeatureMap) -> Image.Image:
    """Draws an image with its boxes, masks, keypoints and maps, and its texts below it.

    A class has the same colour in every image. The same image gives the same pixels if the same
    fonts are installed.

    Args:
        image: The image.
        feature_map: How the dataset's Examples are to be read.
    """
    problem = None
    try:
        canvas, size = decode_small(image.image, image_format=image.format)
    except RejectedError as error:
        canvas, size = Image.new("RGB", _PLACEHOLDER, (200, 200, 200)), _PLACEHOLDER
        problem = f"the image cannot be decoded: {error.detail}" if image.image else None
    factor = round(_USUAL_SIDE / max(size))
    if factor > 1:
        is_coarse = max(size) < _COARSE_SIDE
        resampling = Image.Resampling.NEAREST if is_coarse else Image.Resampling.BICUBIC
        canvas = canvas.resize((size[0] * factor, size[1] * factor), resampling)
    canvas = fit(canvas, max_side=_MAX_SIDE)
    classes = Classes(feature_map.class_names, numbered_maps=feature_map.numbered_maps)
    figure = make_figure(
        image, classes=classes, size=size, scaled=canvas.size, most_objects=_OBJECTS
    )
    if problem is not None:
        figure = figure._replace(problems=(problem, *figure.problems))
    _paint(figure, canvas=canvas, size=size)
    return _add_texts(canvas, describe(image, figure))


def encode_png(image: Image.Image, *, mark: str) -> bytes:
    """Encodes an image as a PNG file whose text chunk holds the mark of our files."""
    file = io.BytesIO()
    text = PngInfo()
    text.add_text("Software", mark)
    image.save(file, "PNG", pnginfo=text)
    return file.getvalue()


def _paint(figure: Figure, *, canvas: Image.Image, size: tuple[int, int]) -> None:
    """Paints the figure of an image whose own size is `size`."""
    across, down = ((drawn - 1) / side for drawn, side in zip(canvas.size, size, strict=True))
    stroke = max(2, max(canvas.size) // 400)
    for area in figure.areas:
        opacity = Image.fromarray(np.array(OPACITIES, np.uint8)[area.levels])
        canvas.paste(area.style.rgb, (0, 0, *canvas.size), opacity)
    draw = ImageDraw.Draw(canvas)
    for box in figure.boxes:
        left, right = round(box.x * across), round((box.x + box.width) * across)
        top, bottom = round(box.y * down), round((box.y + box.height) * down)
        # Each side is a line whose middle lies half its width inside the box.
        width = stroke * LINES[box.style.line].width
        near, far = (width - 1) // 2, width // 2
        x0, y0, x1, y1 = left + near, top + near, right - far, bottom - far
        sides = [(left, y0, right, y0), (left, y1, right, y1)]
        sides += [(x0, top, x0, bottom), (x1, top, x1, bottom)]
        _paint_lines(draw, sides, style=box.style, stroke=stroke)
    for pose in figure.poses:
        bones = [(x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in pose.bones]
        _paint_lines(draw, bones, style=pose.style, stroke=stroke)
        for points, fill in ((pose.visible, pose.style.rgb), (pose.hidden, (255, 255, 255))):
            for x, y in points:
                draw.circle((x * across, y * down), stroke + 2, fill=fill, outline=0)
    em = _EM * size[0] / canvas.width
    places = TagPlaces(size=size, em=em, measure=lambda text: _length(_readable(text)) / _EM)
    for tag in filter(None, map(places.find, figure.boxes)):
        style = tag.box.style
        left, top = round(tag.x * across + tag.left * _EM), round(tag.y * down + tag.top * _EM)
        right, bottom = left + round(tag.width * _EM), top + round(TAG_HEIGHT * _EM)
        draw.rectangle((left, top, right, bottom), fill=style.rgb)
        place = left + TAG_MARGIN * _EM, (top + bottom) / 2
        text, ink = _readable(tag.box.text), ink_on(style.rgb)
        draw.text(place, text, font=_font(), fill=ink, anchor="lm")


def _paint_lines(
    draw: ImageDraw.ImageDraw, lines: Sequence[Segment], *, style: Style, stroke: int
) -> None:
    """Paints lines with black rims, so that they are visible on every background."""
    line = LINES[style.line]
    width = stroke * line.width
    for ends in lines:
        draw.line(ends, fill="black", width=width + 2)
    for x0, y0, x1, y1 in lines:
        length = max(1.0, math.dist((x0, y0), (x1, y1)))
        parts = (part * width / length for part in itertools.cycle(line.dash or (length / width,)))
        stops = itertools.accumulate(parts, initial=0.0)
        shares = [*itertools.takewhile(lambda share: share < 1, stops), 1.0]
        # Dashes and gaps take turns.
        for start, end in zip(shares[::2], shares[1::2], strict=False):
            dash = [
                at + (to - at) * share for share in (start, end) for at, to in ((x0, x1), (y0, y1))
            ]
            draw.line(dash, fill=style.rgb, width=width)


def _add_texts(image: Image.Image, texts: Iterable[Text]) -> Image.Image:
    """Adds texts below an image; the names of classes share rows."""
    width = max(image.width, _MIN_WIDTH) - 2 * _MARGIN
    placed: list[tuple[int, int, str, Text]] = []
    x, y = width, image.height + _MARGIN - _LINE_HEIGHT
    for text in texts:
        indent = _swatch_width(text.style)
        for line in _wrap(_readable(shorten(text.text, _TEXT_CHARACTERS)), width=width - indent):
            needed = indent + _length(line)
            if text.style is None or x + needed > width:
                x, y = 0, y + _LINE_HEIGHT
            placed.append((x + _MARGIN, y + _LINE_HEIGHT // 2, line, text))
            x = width if text.style is None else x + needed + 2 * _MARGIN
    page = Image.new("RGB", (width + 2 * _MARGIN, y + _LINE_HEIGHT + _MARGIN), _PAPER)
    page.paste(image)
    draw = ImageDraw.Draw(page)
    for left, middle, line, text in placed:
        start = left + _swatch_width(text.style)
        if text.style is not None:
            if text.style.line:
                sample = (left, middle, start - _MARGIN, middle)
                _paint_lines(draw, [sample], style=text.style, stroke=2)
            square = (left, middle - _SWATCH // 2, left + _SWATCH, middle + _SWATCH // 2)
            draw.rectangle(square, fill=text.style.rgb, outline=_INK)
        ink = _WARNING if text.is_problem else _INK
        draw.text((start, middle), line, font=_font(), fill=ink, anchor="lm")
    return page


def _swatch_width(style: Style | None) -> int:
    """Returns the room for a square of a class's colour, and a sample of a special line."""
    return 0 if style is None else _MARGIN + _SWATCH * (3 if style.line else 1)


def _wrap(text: str, *, width: int) -> list[str]:
    """Breaks a text into the longest lines that fit."""
    # No line has twice as many characters as fit on average.
    most = min(len(text), 1 + 2 * len(text) * width // max(1, _length(text)))
    for characters in range(most, 0, -1):
        lines = textwrap.wrap(text, characters)
        if all(_length(line) <= width for line in lines):
            return lines
    return []


def _length(text: str) -> int:
    return math.ceil(_font().getlength(text))


def _readable(text: str) -> str:
    r"""Writes control characters, and those without a glyph in the font, as `\x1b` or `\u81c9`."""
    unknown = bytes(_font().getmask(_UNKNOWN))
    return "".join(
        each
        if each.isascii() or bytes(_font().getmask(each)) != unknown
        else each.encode("unicode_escape").decode()
        for each in escape(text)
    )


@functools.cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    for name in _FONTS:
        with contextlib.suppress(OSError):
            return ImageFont.truetype(name, _EM)
    return ImageFont.load_default(_EM)
