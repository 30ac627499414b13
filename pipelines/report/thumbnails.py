"""Thumbnails: pictures small enough to be embedded in the page, and the overlays on them."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np
from PIL import Image

from shardbeam.pipelines.draw import decode_pixels
from shardbeam.pipelines.figure import OPACITIES, PALETTE, Area, Classes, Figure, Look, make_figure
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.examples.decode import Picture
from shardbeam.transforms.images.convert import shrink

_JPEG_QUALITY = 80
# The most objects of one picture that are drawn.
MOST_OBJECTS = 300


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
        image = decode_pixels(picture.image, image_format=picture.format)
    except RejectedError as error:
        return Thumbnail(
            uri="",
            width=picture.width,
            height=picture.height,
            problem=f"the picture cannot be drawn: {error}" if picture.image else "no image",
        )
    small = fit(image, max_side=max_side)
    figure = make_figure(
        picture, classes=classes, size=image.size, scaled=small.size, most_objects=MOST_OBJECTS
    )
    return Thumbnail(
        uri=encode_jpeg(small),
        width=image.width,
        height=image.height,
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
