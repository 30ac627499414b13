"""A picture with its annotations drawn over it. Neither Beam nor TensorFlow is needed."""

from __future__ import annotations

import bisect
import colorsys
import functools
import hashlib
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont
from PIL.PngImagePlugin import PngInfo

from shardbeam.configs.schema import ImageConfig
from shardbeam.pipelines.logs import escape
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.dataset.read.legend import Legend
from shardbeam.transforms.dataset.read.pictures import NO_CLASS, NO_ID, Picture, PictureObject
from shardbeam.transforms.images.check import CIFAR_BYTES, CIFAR_SIDE_PX
from shardbeam.transforms.images.convert import shrink, to_rgb
from shardbeam.transforms.images.decode import decode_image
from shardbeam.transforms.images.mask_file import IndexMap, read_indices
from shardbeam.transforms.images.sniff import sniff_format

Colour: TypeAlias = tuple[int, int, int]
_Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"
_Frame: TypeAlias = tuple[int, int, int, int]

# Smaller pictures are drawn a whole number of times as large, about as large as the first of these,
# larger ones than the second are reduced. Where there are very few pixels, they are drawn as
# squares. All in pixels of the longer side.
_USUAL_SIDE, _MAX_SIDE, _COARSE_SIDE = 960, 1600, 128
_MIN_WIDTH = 480
# Of a picture that cannot be decoded, or of a row that has none.
_PLACEHOLDER = (640, 160)
_FONT_SIZE = 16
_MARGIN, _LINE_HEIGHT = 8, 22
_TAG_HEIGHT = 20
_PAPER, _INK, _WARNING = (250, 250, 248), (30, 30, 34), (180, 30, 30)
_MASK_OPACITY, _MAP_OPACITY = 110, 140
# Golden ratio: however many ids there are, their hues stay apart.
_HUE_STEP = 0.6180339887
_LIGHTNESSES = (0.5, 0.65, 0.4)
_VISIBLE = 2
_TAG_CHARACTERS, _TEXT_CHARACTERS = 32, 400
_LEGEND_CLASSES, _CAPTIONS, _OBJECTS = 24, 12, 1000
_ELLIPSIS = "…"
_TIMES = "\N{MULTIPLICATION SIGN}"
# Those of usual systems with more than ASCII; the one that Pillow brings has no more.
_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf")
# No font has a glyph for it.
_NONCHARACTER = "\U0010ffff"
_IMAGE = ImageConfig()


class _Line(NamedTuple):
    """A line of text below the picture, beside a square of colour where there is one."""

    text: str
    ink: Colour = _INK
    swatch: Colour | None = None


class _Canvas(NamedTuple):
    """What is drawn on.

    Attributes:
        image: The picture, scaled.
        size: Width and height of the picture before, in pixels, as masks have them.
        stroke: Width of lines, in pixels.
        problems: What could not be drawn.
    """

    image: Image.Image
    size: tuple[int, int]
    stroke: int
    problems: list[str]


def draw_picture(picture: Picture, *, legend: Legend) -> Image.Image:
    """Draws a picture with its boxes, masks, keypoints and maps, and below it what is text.

    A class has the same colour in every picture. The same picture gives the same pixels, where the
    same fonts are installed.

    Args:
        picture: What to draw.
        legend: How the dataset's Examples are to be read.
    """
    canvas = _decode(picture)
    lines: list[_Line] = []
    if picture.class_map:
        lines += _draw_class_map(picture, canvas=canvas, legend=legend)
    drawn = picture.objects[:_OBJECTS]
    for item in drawn:
        _draw_mask(item, canvas=canvas)
    # The smallest last, so that none is hidden.
    for item in sorted(drawn, key=_area, reverse=True):
        _draw_box(item, canvas=canvas)
    for item in drawn:
        _draw_keypoints(item, canvas=canvas)
    _draw_tags(sorted(drawn, key=_area), canvas=canvas)
    return _add_text(
        canvas.image, [*_describe(picture), *lines, *map(_problem, dict.fromkeys(canvas.problems))]
    )


def class_colour(label: str, label_id: int = NO_ID) -> Colour:
    """Returns the colour of a class: that of its id, or of its name where it has none."""
    number = label_id
    if number == NO_ID:
        number = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=4).digest(), "big")
    lightness = _LIGHTNESSES[number % len(_LIGHTNESSES)]
    channels = colorsys.hls_to_rgb(number * _HUE_STEP % 1, lightness, 0.9)
    red, green, blue = (round(255 * channel) for channel in channels)
    return red, green, blue


def encode_png(image: Image.Image, *, mark: str) -> bytes:
    """Encodes an image as a PNG file whose text chunk holds the mark of our files."""
    file = io.BytesIO()
    text = PngInfo()
    text.add_text("Software", mark)
    image.save(file, "PNG", pnginfo=text)
    return file.getvalue()


def _decode(picture: Picture) -> _Canvas:
    problems: list[str] = []
    try:
        image = decode_pixels(picture.image, image_format=picture.format)
    except RejectedError as error:
        image = Image.new("RGB", _PLACEHOLDER, (200, 200, 200))
        if picture.image:
            problems.append(f"the image cannot be decoded: {error.detail}")
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
    """Decodes an image as it is stored, as annotations refer to it: it is not turned.

    Args:
        data: An image of any format, or the bare pixels of a CIFAR batch.
        image_format: `raw` where it may be these.

    Raises:
        RejectedError: It cannot be decoded, or would take too much memory.
    """
    file_format = sniff_format(data)
    if file_format is not None:
        with decode_image(data, file_format=file_format, settings=_IMAGE) as decoded:
            return to_rgb(decoded.image, background=_IMAGE.background)
    if image_format == "raw" and len(data) == CIFAR_BYTES:
        planes = np.frombuffer(data, np.uint8).reshape(3, CIFAR_SIDE_PX, CIFAR_SIDE_PX)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))
    raise RejectedError(Reason.NOT_AN_IMAGE, "it is no image file")


def _draw_class_map(picture: Picture, *, canvas: _Canvas, legend: Legend) -> list[_Line]:
    """Lays the colours of classes over the picture; returns a line a class."""
    found = _read_map(picture.class_map, what="the class map", canvas=canvas)
    if found is None:
        return []
    segments = found.astype(np.uint32)
    if picture.instance_map:
        instances = _read_map(picture.instance_map, what="the instance map", canvas=canvas)
        if instances is not None:
            segments = np.bitwise_or(segments << np.uint32(16), instances.astype(np.uint32))
    numbers, counts = np.unique(found, return_counts=True)
    names = legend.class_names
    shown = {
        int(number): int(count)
        for number, count in zip(numbers, counts, strict=True)
        if int(number) in names or int(number) not in NO_CLASS
    }
    table = np.zeros((int(numbers[-1]) + 1, 4), np.uint8)
    for number in shown:
        table[number] = (*class_colour("", number), _MAP_OPACITY)
    # A line between segments, also of one class.
    border = np.zeros(segments.shape, bool)
    border[:, 1:] |= segments[:, 1:] != segments[:, :-1]
    border[1:] |= segments[1:] != segments[:-1]
    pixels = table[found]
    pixels[border] = (255, 255, 255, 200)
    overlay = Image.fromarray(pixels, "RGBA").resize(canvas.image.size, Image.Resampling.NEAREST)
    canvas.image.paste(overlay.convert("RGB"), mask=overlay.getchannel("A"))
    ordered = sorted(shown, key=lambda number: (-shown[number], number))
    lines = [
        _Line(
            f"{names.get(number) or f'class {number}'}, {shown[number] / found.size:.1%}",
            swatch=class_colour("", number),
        )
        for number in ordered[:_LEGEND_CLASSES]
    ]
    return [*lines, *_and_more(len(ordered) - len(lines), "classes in the map")]


def _read_map(data: bytes, *, what: str, canvas: _Canvas) -> IndexMap | None:
    width, height = canvas.size
    try:
        found = read_indices(data, size=canvas.size)
    except RejectedError as error:
        canvas.problems.append(f"{what} cannot be drawn: {error.detail}")
        return None
    if found.shape != (height, width):
        canvas.problems.append(f"{what} lies on its side")
        return None
    return found


def _draw_mask(item: PictureObject, *, canvas: _Canvas) -> None:
    if not item.mask:
        return
    found = _read_map(item.mask, what="a mask", canvas=canvas)
    if found is None:
        return
    mask = Image.fromarray(np.where(found, np.uint8(255), np.uint8(0)))
    mask = mask.resize(canvas.image.size, Image.Resampling.NEAREST)
    frame = mask.getbbox()
    if frame is None:
        return
    mask = mask.crop(frame)
    colour = class_colour(item.label, item.label_id)
    canvas.image.paste(colour, frame, mask.point([0] * 255 + [_MASK_OPACITY]))
    edge = ImageChops.subtract(mask, mask.filter(ImageFilter.MinFilter(3)))
    canvas.image.paste(colour, frame, edge)


def _draw_box(item: PictureObject, *, canvas: _Canvas) -> None:
    frame = _frame(item, canvas=canvas)
    if frame is None:
        return
    draw = ImageDraw.Draw(canvas.image)
    xmin, ymin, xmax, ymax = frame
    colour = class_colour(item.label, item.label_id)
    # Between black lines, so that it shows on every ground.
    if min(xmax - xmin, ymax - ymin) > 2 * canvas.stroke + 2:
        inset = canvas.stroke
        draw.rectangle((xmin + inset, ymin + inset, xmax - inset, ymax - inset), outline=(0, 0, 0))
    draw.rectangle((xmin - 1, ymin - 1, xmax + 1, ymax + 1), outline=(0, 0, 0))
    draw.rectangle(frame, outline=colour, width=canvas.stroke)


def _draw_keypoints(item: PictureObject, *, canvas: _Canvas) -> None:
    if not item.keypoints:
        return
    draw = ImageDraw.Draw(canvas.image)
    width, height = canvas.image.size
    colour = class_colour(item.label, item.label_id)
    # Further away nothing of them is seen.
    points = [
        (min(max(x, -2.0), 3.0) * width, min(max(y, -2.0), 3.0) * height, visibility)
        for x, y, visibility in item.keypoints
    ]
    for ink, wider in (((0, 0, 0), 2), (colour, 0)):
        for one, other in item.skeleton:
            if points[one][2] > 0 and points[other][2] > 0:
                draw.line(
                    (*points[one][:2], *points[other][:2]), fill=ink, width=canvas.stroke + wider
                )
    radius = canvas.stroke + 2
    for x, y, visibility in points:
        if visibility > 0:
            fill = colour if visibility >= _VISIBLE else (255, 255, 255)
            frame = (x - radius, y - radius, x + radius, y + radius)
            draw.ellipse(frame, fill=fill, outline=(0, 0, 0))


def _draw_tags(items: Sequence[PictureObject], *, canvas: _Canvas) -> None:
    """Writes the classes of boxes beside them, as long as none covers another."""
    draw = ImageDraw.Draw(canvas.image)
    width, height = canvas.image.size
    taken: list[_Frame] = []
    for item in items:
        frame = _frame(item, canvas=canvas)
        if frame is None:
            continue
        text = tag_name(item) + (", crowd" if item.is_crowd else "")
        text = _readable(text)
        tag_width = _length(text) + 8
        xmin, ymin, xmax, ymax = frame
        for x, y in (
            (xmin, ymin - _TAG_HEIGHT),
            (xmin, ymin),
            (xmin, ymax - _TAG_HEIGHT),
            (xmin, ymax),
            (xmax - tag_width, ymin),
        ):
            left = max(0, min(x, width - tag_width))
            tag = (left, y, left + tag_width, y + _TAG_HEIGHT)
            if 0 <= y <= height - _TAG_HEIGHT and not any(_overlap(tag, other) for other in taken):
                colour = class_colour(item.label, item.label_id)
                draw.rectangle(tag, fill=colour)
                middle = (left + 4, y + _TAG_HEIGHT // 2)
                draw.text(middle, text, font=_font(), fill=_ink_on(colour), anchor="lm")
                taken.append(tag)
                break


def _frame(item: PictureObject, *, canvas: _Canvas) -> _Frame | None:
    """Finds the pixels of a box; None where none of them is in the picture."""
    if item.box is None:
        return None
    width, height = canvas.image.size
    xs = sorted((item.box[0], item.box[2]))
    ys = sorted((item.box[1], item.box[3]))
    if xs[0] > 1 or ys[0] > 1 or xs[1] < 0 or ys[1] < 0:
        return None
    left, right = (round(min(max(x, 0.0), 1.0) * (width - 1)) for x in xs)
    top, bottom = (round(min(max(y, 0.0), 1.0) * (height - 1)) for y in ys)
    return left, top, right, bottom


def _overlap(one: _Frame, other: _Frame) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _area(item: PictureObject) -> float:
    if item.box is None:
        return 0.0
    xmin, ymin, xmax, ymax = item.box
    return abs((xmax - xmin) * (ymax - ymin))


def class_name(item: PictureObject) -> str:
    """Names an object's class; one without a name by its id."""
    return item.label or ("object" if item.label_id == NO_ID else f"class {item.label_id}")


def tag_name(item: PictureObject) -> str:
    """Names an object's class in few enough characters to stand beside its box."""
    return _shortened(class_name(item), _TAG_CHARACTERS)


def _ink_on(colour: Colour) -> Colour:
    red, green, blue = colour
    # ITU-R BT.601: what of a colour the eye takes for light.
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else (255, 255, 255)


def _describe(picture: Picture) -> Iterator[_Line]:
    """Yields what is said below a picture."""
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
    classes = Counter((class_name(item), item.label, item.label_id) for item in picture.objects)
    ordered = sorted(classes.items(), key=lambda counted: (-counted[1], counted[0]))
    for (name, label, label_id), count in ordered[:_LEGEND_CLASSES]:
        yield _Line(f"{name}, {count:,}", swatch=class_colour(label, label_id))
    yield from _and_more(len(ordered) - _LEGEND_CLASSES, "classes")
    if len(picture.objects) > _OBJECTS:
        yield _problem(f"only {_OBJECTS:,} of {len(picture.objects):,} objects are drawn")
    yield from map(_problem, picture.problems)


def _and_more(number: int, what: str) -> list[_Line]:
    return [_Line(f"{_ELLIPSIS} and {number:,} more {what}")] if number > 0 else []


def _problem(text: str) -> _Line:
    return _Line(f"! {text}", ink=_WARNING)


def _add_text(image: Image.Image, lines: Sequence[_Line]) -> Image.Image:
    """Adds a strip with lines of text below a picture; those with colours share rows."""
    width = max(image.width, _MIN_WIDTH)
    placed: list[tuple[int, int, _Line]] = []
    x, y = _MARGIN, image.height + _MARGIN
    for line in lines:
        indent = _LINE_HEIGHT if line.swatch else 0
        text = _readable(_shortened(line.text, _TEXT_CHARACTERS))
        for part in _wrap(text, width=width - 2 * _MARGIN - indent):
            needed = indent + _length(part) + 2 * _MARGIN
            if x > _MARGIN and (not line.swatch or x + needed > width):
                x, y = _MARGIN, y + _LINE_HEIGHT
            placed.append((x, y, line._replace(text=part)))
            x += needed
            if not line.swatch:
                x, y = _MARGIN, y + _LINE_HEIGHT
    height = y + _MARGIN + (_LINE_HEIGHT if x > _MARGIN else 0)
    page = Image.new("RGB", (width, height), _PAPER)
    page.paste(image)
    draw = ImageDraw.Draw(page)
    for left, top, line in placed:
        middle = top + _LINE_HEIGHT // 2
        if line.swatch:
            draw.rectangle(
                (left, middle - 7, left + 14, middle + 7), fill=line.swatch, outline=_INK
            )
            left += _LINE_HEIGHT
        draw.text((left, middle), line.text, font=_font(), fill=line.ink, anchor="lm")
    return page


def _wrap(text: str, *, width: int) -> Iterator[str]:
    """Breaks a text into lines of a width in pixels: at spaces, and in words that are longer."""
    rest = text
    while _length(rest) > width:
        # So many characters fit; there is always one.
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


def _shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}{_ELLIPSIS}"


def _readable(text: str) -> str:
    r"""Writes what is no text, or what the font has no glyphs for, as `\x1b` or `\u81c9`."""
    return "".join(
        character if character == " " or _has_glyph(character) else _escaped(character)
        for character in escape(text)
    )


def _escaped(character: str) -> str:
    if character == _ELLIPSIS:
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
