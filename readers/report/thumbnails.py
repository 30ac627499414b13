"""Thumbnails: pictures small enough to be embedded in the page, and the overlays on them."""

from __future__ import annotations

import base64
import io
import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from shardbeam.readers.report.draw import decode_small
from shardbeam.readers.report.figure import (
    OPACITIES,
    PALETTE,
    Area,
    Classes,
    Figure,
    Look,
    make_figure,
)
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.examples.decode.decode import Picture
from shardbeam.transforms.images.convert import shrink

_JPEG_QUALITY = 80
# At most this many objects of a picture are drawn.
MOST_OBJECTS = 300
# The longer sides of the smallest and of the largest thumbnail, in pixels.
_LEAST_SIDE, _MOST_SIDE = 64, 1024
# A pixel takes about this many characters of the page; at most this many sizes are tried.
_CHARACTERS_PER_PIXEL, _TRIES = 0.3, 4


class Overlay(NamedTuple):
    """The pixels of one class, as an image that is laid over the picture.

    Attributes:
        layer: `masks` of objects, `map` of classes, or `segments` of a panoptic map.
        name: The class.
        box: `(xmin, ymin, xmax, ymax)` in fractions of the picture.
        uri: A `data:` URI of a PNG file.
    """

    layer: str
    name: str
    box: tuple[float, float, float, float]
    uri: str


class Thumbnail(NamedTuple):
    """A picture as the page holds it.

    Attributes:
        uri: A `data:` URI of a JPEG file; empty where the picture cannot be drawn.
        width: Width of the whole picture in pixels.
        height: Its height in pixels.
        overlays: Images that are laid over it.
        figure: The shapes that are drawn over it; its areas are the overlays.
        problem: Why the picture cannot be drawn; empty if it can.
    """

    uri: str
    width: int
    height: int
    overlays: tuple[Overlay, ...] = ()
    figure: Figure = Figure()
    problem: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes that it adds to the page."""
        return len(self.uri) + sum(len(overlay.uri) for overlay in self.overlays)


def draw_thumbnail(picture: Picture, *, max_side: int, classes: Classes) -> Thumbnail:
    """Makes the thumbnail of a picture.

    The pixels are always encoded again, so that nothing else in the file gets into the page.

    Args:
        picture: The picture.
        max_side: The longer side of the thumbnail in pixels; smaller pictures stay as they are.
        classes: The dataset's classes.
    """
    try:
        image, size = decode_small(picture.image, image_format=picture.format, side=max_side)
    except RejectedError as error:
        return _without_pixels(picture, error)
    return _draw(picture, image, size=size, side=max_side, classes=classes)


def fit_thumbnail(
    picture: Picture, *, room: float, classes: Classes, max_side: int = _MOST_SIDE
) -> Thumbnail:
    """Makes the largest thumbnail of a picture that adds at most `room` bytes to the page.

    The smallest thumbnail may add more.

    Args:
        picture: The picture.
        room: The bytes that it may add.
        classes: The dataset's classes.
        max_side: The greatest length of its longer side in pixels.
    """
    side = min(max_side, max(_LEAST_SIDE, int(math.sqrt(room / _CHARACTERS_PER_PIXEL))))
    reach = min(max_side, 2 * side)
    try:
        image, size = decode_small(picture.image, image_format=picture.format, side=reach)
    except RejectedError as error:
        return _without_pixels(picture, error)
    reach = min(reach, max(image.size))
    side = min(side, reach)
    fitting = None
    for _ in range(_TRIES):
        drawn = _draw(picture, image, size=size, side=side, classes=classes)
        scale = 0.95 * math.sqrt(room / drawn.num_bytes)
        if drawn.num_bytes <= room:
            if fitting is not None and fitting.num_bytes >= drawn.num_bytes:
                break
            fitting = drawn
            following = min(reach, int(side * scale))
            if following <= 1.2 * side:
                break
        elif fitting is not None or side <= _LEAST_SIDE:
            break
        else:
            following = max(_LEAST_SIDE, min(side - 1, int(side * scale)))
        side = following
    return fitting or drawn


def _without_pixels(picture: Picture, error: RejectedError) -> Thumbnail:
    return Thumbnail(
        uri="",
        width=picture.width,
        height=picture.height,
        problem=f"the picture cannot be drawn: {error}" if picture.image else "no image",
    )


def _draw(
    picture: Picture, image: Image.Image, *, size: tuple[int, int], side: int, classes: Classes
) -> Thumbnail:
    """Makes a thumbnail of decoded pixels; `size` is that of the whole picture."""
    small = fit(image, max_side=side)
    figure = make_figure(
        picture, classes=classes, size=size, scaled=small.size, most_objects=MOST_OBJECTS
    )
    return Thumbnail(
        uri=encode_jpeg(small),
        width=size[0],
        height=size[1],
        overlays=tuple(_overlay(area, look=figure.looks[area.name]) for area in figure.areas),
        figure=figure._replace(areas=()),
    )


def fit(image: Image.Image, *, max_side: int) -> Image.Image:
    """Shrinks an image if its longer side has more than `max_side` pixels."""
    return shrink(image, max_side=max_side) if max(image.size) > max_side else image


def encode_jpeg(image: Image.Image) -> str:
    """Encodes an image as the `data:` URI of a JPEG file."""
    buffer = io.BytesIO()
    # Otherwise Pillow writes some of this metadata.
    image.info = {}
    image.save(buffer, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return _data_uri("image/jpeg", buffer.getvalue())


def _overlay(area: Area, *, look: Look) -> Overlay:
    """Encodes the pixels of a class, cropped to the rows and columns that have any."""
    height, width = area.levels.shape
    rows, columns = (np.flatnonzero(area.levels.any(axis=axis)) for axis in (1, 0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    image = Image.fromarray(np.ascontiguousarray(area.levels[top:bottom, left:right]), "P")
    image.putpalette([*PALETTE[look.colour]] * len(OPACITIES))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=bytes(OPACITIES), bits=2, optimize=True)
    return Overlay(
        layer=area.layer,
        name=area.name,
        box=(
            float(left / width),
            float(top / height),
            float(right / width),
            float(bottom / height),
        ),
        uri=_data_uri("image/png", buffer.getvalue()),
    )


def _data_uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
