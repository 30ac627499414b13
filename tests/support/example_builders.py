"""Small values to build tests from."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.corrections import Change, Corrections
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import Category, ImageAnnotations
from shardbeam.transforms.examples.encode.encode import EncodedExample, RecordEncoder
from shardbeam.transforms.examples.encode.schema import EncoderSettings
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.check import StoredImage
from shardbeam.transforms.images.convert import Placement

AnnotatedAs: TypeAlias = Literal["auto", "upright", "stored"]
AnnotatedSize: TypeAlias = Literal["scale", "ignore", "reject"]


def make_label_map(
    ids: Mapping[str, int], *, settings: LabelSettings | None = None, objects: bool = True
) -> LabelMap:
    categories = [Category(name, source_id) for name, source_id in ids.items()]
    return build_label_map(
        categories=categories, settings=settings or LabelSettings(), objects=objects
    )


class Rendered(NamedTuple):
    """An image's Examples, serialized and as `{key: values}`, and its corrections."""

    encoded: Sequence[EncodedExample]
    examples: list[dict[str, list[Any]]]
    corrections: Corrections

    @property
    def values(self) -> dict[str, list[Any]]:
        (only,) = self.examples
        return only

    def pictures(self, key: str) -> list[npt.NDArray[Any]]:
        """Decodes a key's PNG files."""
        return [read_picture(data) for data in self.values[key]]


def render(
    annotations: ImageAnnotations,
    *,
    image: StoredImage | None = None,
    key: str = "dogs/1.jpg",
    sha256: str | None = None,
    masks: Mapping[str, bytes] | None = None,
    label_map: LabelMap,
    kinds: Collection[Kind] = (Kind.DETECTION,),
    annotated_as: AnnotatedAs = "auto",
    annotated_size: AnnotatedSize = "scale",
    memory: MemoryBudget | None = None,
    **settings: Any,  # noqa: ANN401  # Those of EncoderSettings.
) -> Rendered:
    """Encodes an image with its annotations, and parses its Examples."""
    encoder = RecordEncoder(
        EncoderSettings(
            kinds=frozenset(kinds),
            image=ImageConfig(annotated_as=annotated_as, annotated_size=annotated_size),
            **settings,
        ),
        label_map=label_map,
        memory=memory,
    )
    encoded, corrections, _ = encoder.encode_image(
        image or make_image(), key=key, annotations=annotations, sha256=sha256, masks=masks
    )
    return Rendered(encoded, [parse(example.data) for example in encoded], corrections)


def parse(data: bytes) -> dict[str, list[Any]]:
    """Parses an Example into `{key: values}`."""
    return {key: values for key, (_, values) in parse_kinds(data).items()}


def parse_kinds(data: bytes) -> dict[str, tuple[str | None, list[Any]]]:
    """Parses an Example into `{key: (kind, values)}`."""
    features = {}
    for key, feature in Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        features[key] = (kind, list(getattr(feature, kind).value) if kind else [])
    return features


def read_picture(data: bytes) -> npt.NDArray[Any]:
    return np.asarray(Image.open(io.BytesIO(data)))


def write_png(pixels: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def make_image(
    *,
    data: bytes = b"pixels",
    format: str = "jpeg",
    size: tuple[int, int] = (100, 50),
    file_size: tuple[int, int] | None = None,
    orientation: int = 1,
    upright: bool = True,
    corrections: Mapping[Correction, Change] = {},
    placement: Placement | None = None,
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
        placement=placement,
    )


def encode_picture(*, mode: str, format: str, size: tuple[int, int]) -> bytes:
    """Encodes a plain picture with Pillow."""
    buffer = io.BytesIO()
    Image.new(mode, size, 128 if mode == "L" else (200, 100, 50)).save(buffer, format)
    return buffer.getvalue()


def upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Turns a picture upright with Pillow, by its EXIF orientation."""
    image = Image.fromarray(pixels)
    image.getexif()[ExifTags.Base.Orientation] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


def size_of(pixels: npt.NDArray[np.uint8]) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[0]
