"""Small values to build tests from."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import (
    Category,
    ImageAnnotations,
    ImageRef,
    Record,
    encode_annotations,
)
from shardbeam.transforms.examples.boxes import AnnotatedAs
from shardbeam.transforms.examples.encode import ExampleEncoder
from shardbeam.transforms.examples.schema import FeatureSettings
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage


def make_label_map(
    ids: Mapping[str, int], *, settings: LabelSettings | None = None, objects: bool = True
) -> LabelMap:
    categories = [Category(name, source_id) for name, source_id in ids.items()]
    return build_label_map(
        categories=categories, settings=settings or LabelSettings(), objects=objects
    )


def make_encoder(
    *,
    label_map: LabelMap,
    kinds: Collection[Kind] = (Kind.DETECTION,),
    annotated_as: AnnotatedAs = "auto",
    **settings: Any,  # noqa: ANN401  # Those of FeatureSettings.
) -> ExampleEncoder:
    return ExampleEncoder(
        features=FeatureSettings(kinds=frozenset(kinds), **settings),
        label_map=label_map,
        annotated_as=annotated_as,
    )


def make_record(annotations: ImageAnnotations, *, key: str = "dogs/1.jpg") -> Record:
    ref = ImageRef(uri=f"/images/{key}", size_bytes=5, version="1")
    return Record(source="train", key=key, image=ref, annotations=encode_annotations(annotations))


def make_image(
    *,
    data: bytes = b"pixels",
    format: str = "jpeg",
    size: tuple[int, int] = (100, 50),
    file_size: tuple[int, int] | None = None,
    orientation: int = 1,
    upright: bool = True,
    corrections: tuple[Correction, ...] = (),
) -> StoredImage:
    """Makes an image as it is stored; sizes are (width, height) in pixels."""
    file_width, file_height = file_size or size
    return StoredImage(
        data=data,
        format=format,
        width=size[0],
        height=size[1],
        file_width=file_width,
        file_height=file_height,
        orientation=orientation,
        upright=upright,
        corrections=corrections,
        notes=(),
    )


def encode_picture(*, mode: str, format: str, size: tuple[int, int]) -> bytes:
    """Encodes a plain picture with Pillow."""
    buffer = io.BytesIO()
    Image.new(mode, size, 128 if mode == "L" else (200, 100, 50)).save(buffer, format)
    return buffer.getvalue()


def upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """What Pillow makes of a picture with an EXIF orientation."""
    image = Image.fromarray(pixels)
    image.getexif()[ExifTags.Base.Orientation] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


def size_of(pixels: npt.NDArray[np.uint8]) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[0]
