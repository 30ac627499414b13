"""Thumbnails: a picture small enough to be embedded, and what its annotations cover of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.pipelines.draw import class_name, decode_pixels
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.dataset.read.pictures import NO_CLASS, Picture
from shardbeam.transforms.images.convert import shrink
from shardbeam.transforms.images.mask_file import IndexMap, read_indices

# A class has one of these colours, which are told apart on photographs; `style.css` has them, too.
PALETTE = (
    (255, 77, 94),
    (47, 155, 255),
    (34, 195, 115),
    (255, 179, 26),
    (181, 123, 255),
    (0, 196, 204),
    (255, 118, 195),
    (159, 211, 16),
    (255, 130, 67),
    (111, 125, 255),
    (211, 154, 92),
    (242, 227, 58),
)
_OUTSIDE, _INSIDE, _BORDER = range(3)
_OPACITIES = bytes([0, 105, 240])
_JPEG_QUALITY = 80

_Area = npt.NDArray[np.bool_]
_Levels = npt.NDArray[np.uint8]


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
        overlays: What is laid over it.
        problem: Why it, or a mask of it, cannot be drawn; empty if all can.
    """

    uri: str
    width: int
    height: int
    overlays: tuple[Overlay, ...] = ()
    problem: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes that it adds to the page."""
        return len(self.uri) + sum(len(overlay.uri) for overlay in self.overlays)


def draw_thumbnail(
    picture: Picture,
    *,
    max_side: int,
    numbers: Mapping[str, int],
    names: Mapping[int, str],
) -> Thumbnail:
    """Makes the thumbnail of a picture.

    Pixels are always encoded anew, so that nothing of a file but its picture gets into the page.

    Args:
        picture: The picture.
        max_side: The longer side of the thumbnail in pixels; smaller pictures stay as they are.
        numbers: `{class: number}`, which decides its colour.
        names: `{value of a map's pixels: class}`.
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
    overlays: tuple[Overlay, ...] = ()
    problem = ""
    try:
        overlays = tuple(
            _overlay(layer, name, levels, colour=PALETTE[numbers.get(name, 0) % len(PALETTE)])
            for (layer, name), levels in _paint(
                picture, size=image.size, scaled=small.size, names=names
            ).items()
            if levels.any()
        )
    except RejectedError as error:
        problem = f"its masks cannot be drawn: {error}"
    return Thumbnail(
        uri=encode_jpeg(small),
        width=image.width,
        height=image.height,
        overlays=overlays,
        problem=problem,
    )


def fit(image: Image.Image, *, max_side: int) -> Image.Image:
    """Makes an image smaller whose longer side has more than `max_side` pixels."""
    return shrink(image, max_side=max_side) if max(image.size) > max_side else image


def encode_jpeg(image: Image.Image) -> str:
    """Encodes an image as the `data:` URI of a JPEG file."""
    buffer = io.BytesIO()
    # Pillow writes some of this unasked.
    image.info = {}
    image.save(buffer, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return _data_uri("image/jpeg", buffer.getvalue())


def map_names(data: bytes, *, size: tuple[int, int], names: Mapping[int, str]) -> set[str]:
    """Names the classes that a map of classes shows.

    Raises:
        RejectedError: It cannot be read, or is not of an image of this size.
    """
    values = np.unique(read_indices(data, size=size)).tolist()
    return {name for name in (_map_class(value, names=names) for value in values) if name}


def _map_class(value: int, *, names: Mapping[int, str]) -> str:
    """Names the class of a map's value; empty for what is no class."""
    if value in names:
        return names[value]
    return "" if value in NO_CLASS else f"class {value}"


def _paint(
    picture: Picture,
    *,
    size: tuple[int, int],
    scaled: tuple[int, int],
    names: Mapping[int, str],
) -> dict[tuple[str, str], _Levels]:
    """Draws what each class covers, small: `{(layer, class): pixels}`."""
    painted: dict[tuple[str, str], _Levels] = {}
    for item in picture.objects:
        if item.mask:
            mask = Image.fromarray((_read(item.mask, size=size) != 0).astype(np.uint8) * 255)
            # As much as half a pixel of the thumbnail.
            area = np.asarray(mask.resize(scaled, Image.Resampling.BOX)) >= 128
            levels = painted.setdefault(("masks", class_name(item)), _nothing(scaled))
            levels[area & (levels == _OUTSIDE)] = _INSIDE
            levels[area & _edges(area)] = _BORDER
    if picture.class_map:
        values = _nearest(_read(picture.class_map, size=size), scaled)
        edges = _edges(values)
        if picture.instance_map:
            edges |= _edges(_nearest(_read(picture.instance_map, size=size), scaled))
        layer = "segments" if picture.instance_map else "map"
        for value in np.unique(values).tolist():
            name = _map_class(value, names=names)
            if name:
                area = values == value
                levels = painted.setdefault((layer, name), _nothing(scaled))
                levels[area] = _INSIDE
                levels[area & edges] = _BORDER
    return painted


def _read(data: bytes, *, size: tuple[int, int]) -> IndexMap:
    values = read_indices(data, size=size)
    if values.shape != size[::-1]:
        raise RejectedError(Reason.MASK_MISMATCH, "one lies on its side")
    return values


def _nothing(size: tuple[int, int]) -> _Levels:
    return np.full(size[::-1], _OUTSIDE, np.uint8)


def _nearest(values: IndexMap, size: tuple[int, int]) -> npt.NDArray[np.int32]:
    image = Image.fromarray(values.astype(np.int32))
    return np.asarray(image.resize(size, Image.Resampling.NEAREST))


def _edges(values: npt.NDArray[np.generic]) -> _Area:
    """Marks the pixels whose neighbour to the left or above is another, and those neighbours."""
    edges = np.zeros(values.shape, np.bool_)
    across = values[:, 1:] != values[:, :-1]
    down = values[1:] != values[:-1]
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    edges[1:] |= down
    edges[:-1] |= down
    return edges


def _overlay(layer: str, name: str, levels: _Levels, *, colour: tuple[int, int, int]) -> Overlay:
    """Encodes what a class covers, cut to it."""
    height, width = levels.shape
    rows, columns = (np.flatnonzero(levels.any(axis=axis)) for axis in (1, 0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    image = Image.fromarray(np.ascontiguousarray(levels[top:bottom, left:right]), "P")
    image.putpalette([*colour] * len(_OPACITIES))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=_OPACITIES, bits=2, optimize=True)
    return Overlay(
        layer=layer,
        name=name,
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
