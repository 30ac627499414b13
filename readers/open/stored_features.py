"""The features of a dataset's Examples, from its `features.json` or inferred.

The file holds JSON of the proto `Feature` (tensorflow_datasets/core/proto/feature.proto), where
64-bit integers are strings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.containers.base import read_examples
from shardbeam.transforms.core.errors import InputError, decoding
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import FeatureKind, StoredFeature, feature_values
from shardbeam.transforms.images.header import FileFormat
from shardbeam.transforms.images.read_header import recognize_image
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.listed_files import read_listed

_KINDS = {
    "string": FeatureKind.BYTES,
    **dict.fromkeys(
        ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), FeatureKind.INT64
    ),
    **dict.fromkeys(("bfloat16", "float16", "float32", "float64"), FeatureKind.FLOAT),
}
_IMAGE_BITS = {"uint8": 8, "uint16": 16}

_SAMPLED_EXAMPLES = 64
_STORABLE = (FileFormat.JPEG, FileFormat.PNG)
_SEVERAL, _NO_IMAGE, _GRAY, _RGB = -1, 0, 1, 3


class _Shape(msgspec.Struct, frozen=True):
    dimensions: list[int] = []


class _Image(msgspec.Struct, frozen=True):
    shape: _Shape
    dtype: str = "uint8"


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: _Shape = _Shape()
    encoding: str = "none"


class _Sequence(msgspec.Struct, frozen=True):
    feature: _Node


class _Node(msgspec.Struct, frozen=True, rename="camel"):
    """A feature; the field that is set says which kind it is."""

    python_class_name: str = ""
    image: _Image | None = None
    text: dict[str, Any] | None = None
    class_label: dict[str, Any] | None = None
    tensor: _Tensor | None = None
    sequence: _Sequence | None = None


class _FeaturesDict(msgspec.Struct, frozen=True):
    features: dict[str, _Node]


class _Root(msgspec.Struct, frozen=True, rename="camel"):
    features_dict: _FeaturesDict


_decoder = JsonDecoder(_Root, strict=False)


def read_features(file: StoredFile) -> tuple[StoredFeature, ...]:
    """Reads a `features.json` of Shardbeam or TFDS.

    Raises:
        InputError: The file is damaged, or has a feature that only TFDS can decode.
    """
    data = read_listed(file.uri, max_bytes=limits.METADATA_BYTES)
    with decoding(file.uri, "the features of a dataset"):
        root = _decoder.decode(data)
    if not root.features_dict.features:
        raise InputError(uri=file.uri, problem="the dataset has no features")
    features = []
    for key, node in root.features_dict.features.items():
        feature = _stored_feature(key, node)
        if feature is None:
            raise InputError(
                uri=file.uri,
                place=key,
                problem=f"only TFDS can decode {node.python_class_name or 'this feature'}; load "
                "the dataset with tfds.builder_from_directory",
            )
        features.append(feature)
    return tuple(features)


def _stored_feature(key: str, node: _Node) -> StoredFeature | None:
    if node.sequence is not None:
        item = _stored_feature(key, node.sequence.feature)
        if item is None or item.repeated:
            return None
        return msgspec.structs.replace(item, repeated=True, image_shape=None)
    if node.image is not None:
        shape = [None if size < 0 else size for size in node.image.shape.dimensions]
        bits = _IMAGE_BITS.get(node.image.dtype)
        if bits is None or len(shape) != 3:
            return None
        height, width, channels = shape
        return StoredFeature(
            key=key,
            kind=FeatureKind.BYTES,
            image_shape=(height, width, channels),
            image_bits=bits,
        )
    if node.text is not None:
        return StoredFeature(key=key, kind=FeatureKind.BYTES)
    if node.class_label is not None:
        return StoredFeature(key=key, kind=FeatureKind.INT64)
    if node.tensor is None or node.tensor.encoding != "none":
        return None
    kind = _KINDS.get(node.tensor.dtype)
    sizes = tuple(node.tensor.shape.dimensions)
    if kind is None or any(size < 0 for size in sizes):
        return None
    return StoredFeature(key=key, kind=kind, shape=sizes)


def find_features(dataset: StoredDataset) -> tuple[StoredFeature, ...]:
    """Reads the features of a dataset, or infers them from all its splits, so that they agree.

    Raises:
        InputError: They cannot be read, or cannot be inferred.
    """
    if dataset.features is not None:
        return read_features(dataset.features)
    return infer_features([shard for split in dataset.splits for shard in split.shards])


def infer_features(files: Sequence[StoredFile]) -> tuple[StoredFeature, ...]:
    """Infers features from the first Examples of TFRecord files.

    It reads about 64 Examples, spread over the files. A key that has exactly one value in each of
    them holds a single value, any other key a list. A single value that is a JPEG or PNG in each of
    them is an image, with one channel if all are gray, and with three otherwise. Keys for which no
    Example sets a list are left out.

    Args:
        files: The files; at least one.

    Returns:
        The features, sorted by key.

    Raises:
        InputError: A file cannot be read, a key has values of two kinds, or there are no values.
    """
    kinds: dict[str, FeatureKind] = {}
    # {key: channels in each Example}
    seen: dict[str, list[int]] = {}
    examples = 0
    for file, example in _sample(files):
        examples += 1
        for key, feature in example.features.feature.items():
            kind, values = feature_values(feature)
            if kind is None:
                continue
            if kind is not kinds.setdefault(key, kind):
                raise InputError(
                    uri=file.uri,
                    problem=f"{key!r} is a list of {kind.value} values here, and of "
                    f"{kinds[key].value} values in an earlier record",
                )
            seen.setdefault(key, []).append(_channels(values))
    if not seen:
        what = "no values in its records" if examples else "no records"
        raise InputError(uri=files[0].uri, problem=f"{what} to infer the features from")
    features = []
    for key, channels in sorted(seen.items()):
        repeated = len(channels) < examples or min(channels) == _SEVERAL
        image = not repeated and min(channels) != _NO_IMAGE
        features.append(
            StoredFeature(
                key=key,
                kind=kinds[key],
                repeated=repeated,
                image_shape=(None, None, max(channels)) if image else None,
            )
        )
    return tuple(features)


def _sample(files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Example]]:
    sampled = files[:: math.ceil(len(files) / _SAMPLED_EXAMPLES)]
    each = math.ceil(_SAMPLED_EXAMPLES / len(sampled))
    for file in sampled:
        for example in itertools.islice(read_examples(file), each):
            yield file, example


def _channels(values: Sequence[bytes | int | float]) -> int:
    """Returns an image's channels, or a code below 1 if the values are not exactly one image."""
    if len(values) != 1:
        return _SEVERAL
    image = recognize_image(values[0]) if isinstance(values[0], bytes) else None
    if image is None or image[0] not in _STORABLE:
        return _NO_IMAGE
    header = image[1]
    return _GRAY if header is not None and header.gray else _RGB
