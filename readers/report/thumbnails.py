"""Thumbnails: images small enough to be embedded in the page, and the overlays on them."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.readers.open.read_rejects import StoredReject
from shardbeam.readers.report.figure import OPACITIES, Area, Figure, make_figure
from shardbeam.readers.report.styles import Classes
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.images.check import CIFAR_BYTES, cifar_pixels
from shardbeam.transforms.images.convert import shrink, to_rgb
from shardbeam.transforms.images.decode import ImageData, open_image
from shardbeam.transforms.images.header import FileFormat, sniff_format
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_IMAGE = ImageConfig()
_JPEG_QUALITY = 80
# At most this many objects of an image are drawn in the page.
MOST_OBJECTS = 300
# The longer sides of the smallest and of the largest thumbnail, in pixels.
_LEAST_SIDE, _MOST_SIDE = 64, 1024
# A pixel takes about this many characters of the page; at most this many sizes are tried.
_CHARACTERS_PER_PIXEL, _TRIES = 0.3, 4
# The longer side of a rejected image's thumbnail, the most of them, and the largest file of one.
_REJECT_SIDE, _MOST_REJECTS = 320, 60
_MAX_FILE_BYTES = 64 << 20


class Overlay(NamedTuple):
    """The pixels of one class, as a PNG that is laid over the image.

    Attributes:
        layer: `masks` of objects, `map` of classes, or `segments` of a panoptic map.
        name: The class.
        x: Its left edge in pixels of the whole image.
        y: Its top edge in the same pixels.
        width: Its width in the same pixels.
        height: Its height in the same pixels.
        share: Its share of the image's pixels.
        uri: A `data:` URI of a PNG file.
    """

    layer: str
    name: str
    x: float
    y: float
    width: float
    height: float
    share: float
    uri: str


class Thumbnail(NamedTuple):
    """An image as the page holds it.

    Attributes:
        uri: A `data:` URI of a JPEG file; empty where the image cannot be drawn.
        width: Width of the whole image in pixels.
        height: Its height in pixels.
        overlays: Images that are laid over it.
        figure: The shapes that are drawn over it; its areas are the overlays.
        problem: Why the image cannot be drawn; empty if it can.
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


def decode_small(
    data: bytes, *, image_format: str = "", side: int = 0
) -> tuple[Image.Image, tuple[int, int]]:
    """Decodes an image as it is stored, without turning it, because annotations refer to that.

    A JPEG file that is going to be shrunk is decoded at a half, a quarter or an eighth of its size,
    which takes a part of the time and of the memory.

    Args:
        data: An image of any format, or the bare pixels of a CIFAR batch.
        image_format: `raw` if the data may be bare pixels.
        side: The longer side that the pixels must have at least, if the image has it; 0 for all of
            its pixels.

    Returns:
        The image, and the width and height of the whole image.

    Raises:
        RejectedError: It cannot be decoded, or would take too much memory.
    """
    file_format = sniff_format(data)
    if file_format is not None:
        opened = open_image(ImageData(data, file_format, _IMAGE))
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


def fit_thumbnail(
    image: Picture,
    *,
    room: float = math.inf,
    classes: Classes,
    max_side: int = _MOST_SIDE,
    most_objects: int = MOST_OBJECTS,
) -> Thumbnail:
    """Makes the largest thumbnail of an image that adds at most `room` bytes to the page.

    The smallest thumbnail may add more. The pixels are always encoded again, so that nothing else
    in the file gets into the page.

    Args:
        image: The image.
        room: The bytes that it may add.
        classes: The dataset's classes.
        max_side: The greatest length of its longer side in pixels.
        most_objects: How many objects are drawn at most.
    """
    side = int(min(max_side, max(_LEAST_SIDE, math.sqrt(room / _CHARACTERS_PER_PIXEL))))
    reach = min(max_side, 2 * side)
    try:
        pixels, size = decode_small(image.image, image_format=image.format, side=reach)
    except RejectedError as error:
        return Thumbnail(
            uri="",
            width=image.width,
            height=image.height,
            problem=f"the image cannot be drawn: {error}" if image.image else "no image",
        )
    reach = min(reach, max(pixels.size))
    side = min(side, reach)
    fitting = None
    for _ in range(_TRIES):
        drawn = _draw(
            image, pixels, size=size, side=side, classes=classes, most_objects=most_objects
        )
        scale = 0.95 * math.sqrt(room / drawn.num_bytes)
        if drawn.num_bytes <= room:
            if fitting is not None and fitting.num_bytes >= drawn.num_bytes:
                break
            fitting = drawn
            following = int(min(reach, side * scale))
            if following <= 1.2 * side:
                break
        elif fitting is not None or side <= _LEAST_SIDE:
            break
        else:
            following = max(_LEAST_SIDE, min(side - 1, int(side * scale)))
        side = following
    return fitting or drawn


def draw_rejects(rejects: Sequence[StoredReject], *, roots: Sequence[str]) -> dict[int, str]:
    """Draws the rejected images that can be found and decoded.

    It reads only below the roots that the caller names: paths in a dataset could lead anywhere.

    Args:
        rejects: The rejects.
        roots: Folders that the keys may be relative to.

    Returns:
        `{number of a reject: data URI of a JPEG file}`.
    """
    drawn: dict[int, str] = {}
    for number, reject in enumerate(rejects):
        if len(drawn) < _MOST_REJECTS and reject.listed:
            for data in _read(reject.key, roots=roots):
                try:
                    image, _ = decode_small(data, side=_REJECT_SIDE)
                    drawn[number] = encode_jpeg(fit(image, max_side=_REJECT_SIDE))
                    break
                except RejectedError:
                    continue
    return drawn


def _read(key: str, *, roots: Sequence[str]) -> Iterator[bytes]:
    """Yields the content of each file that a root has under a key."""
    if {"", ".", ".."} & set(key.split("/")) or "\0" in key:
        return
    for root in roots:
        uri = join_uri(root, key)
        try:
            file = storage_for(uri).stat(uri)
            if file is not None and file.size_bytes <= _MAX_FILE_BYTES:
                yield storage_for(uri).read(uri, size_bytes=file.size_bytes)
        except (OSError, InputError):
            continue


def _draw(
    image: Picture,
    pixels: Image.Image,
    *,
    size: tuple[int, int],
    side: int,
    classes: Classes,
    most_objects: int,
) -> Thumbnail:
    """Makes a thumbnail of decoded pixels; `size` is that of the whole image."""
    small = fit(pixels, max_side=side)
    figure = make_figure(
        image, classes=classes, size=size, scaled=small.size, most_objects=most_objects
    )
    return Thumbnail(
        uri=encode_jpeg(small),
        width=size[0],
        height=size[1],
        overlays=tuple(_overlay(area, size=size) for area in figure.areas),
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


def _overlay(area: Area, *, size: tuple[int, int]) -> Overlay:
    """Encodes the pixels of a class, cropped to the rows and columns that have any."""
    height, width = area.levels.shape
    rows, columns = (np.flatnonzero(area.levels.any(axis=axis)) for axis in (1, 0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    image = Image.fromarray(np.ascontiguousarray(area.levels[top:bottom, left:right]), "P")
    image.putpalette([*area.style.rgb] * len(OPACITIES))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=bytes(OPACITIES), bits=2, optimize=True)
    return Overlay(
        layer=area.layer,
        name=area.name,
        x=float(left / width * size[0]),
        y=float(top / height * size[1]),
        width=float((right - left) / width * size[0]),
        height=float((bottom - top) / height * size[1]),
        share=np.count_nonzero(area.levels) / area.levels.size,
        uri=_data_uri("image/png", buffer.getvalue()),
    )


def _data_uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
