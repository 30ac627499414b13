"""Writes TFRecord files that are not from Shardbeam."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from PIL import Image

from shardbeam.transforms.containers.tfrecord import frame
from shardbeam.transforms.examples.example_pb2 import (
    BytesList,
    Example,
    Feature,
    FloatList,
    Int64List,
)


def make_example(features: Mapping[str, object]) -> bytes:
    """Serializes an Example of values and lists; an empty list has no kind."""
    return Example(
        features={"feature": {key: _feature(values) for key, values in features.items()}}
    ).SerializeToString(deterministic=True)


def _feature(values: object) -> Feature:
    listed: list[Any] = values if isinstance(values, list) else [values]
    if not listed:
        return Feature()
    if isinstance(listed[0], bytes):
        return Feature(bytes_list=BytesList(value=listed))
    if isinstance(listed[0], float):
        return Feature(float_list=FloatList(value=listed))
    return Feature(int64_list=Int64List(value=listed))


def tfrecord(*records: bytes) -> bytes:
    """Returns the content of a TFRecord file."""
    chunks = []
    for record in records:
        header, footer = frame(len(record), crc32c=google_crc32c.value(record))
        chunks += [header, record, footer]
    return b"".join(chunks)


def write_tfrecord(path: Path, *records: bytes) -> Path:
    """Writes a TFRecord file."""
    path.write_bytes(tfrecord(*records))
    return path


def draw_image(file_format: str, *, width: int, height: int, mode: str = "RGB") -> bytes:
    """Encodes noise as an image."""
    rng = np.random.default_rng(width * height)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, file_format)
    return file.getvalue()
