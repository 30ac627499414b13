"""The features of Examples that come without metadata, inferred from some of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.read.examples import feature_values, read_examples
from shardbeam.transforms.dataset.read.features import StoredFeature
from shardbeam.transforms.dataset.read.images import recognize_image
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import FeatureKind
from shardbeam.transforms.images.sniff import FileFormat
from shardbeam.transforms.storage.base import StoredFile

_SAMPLED_EXAMPLES = 64
_STORABLE = (FileFormat.JPEG, FileFormat.PNG)
_GRAY, _RGB = 1, 3


def infer_features(files: Sequence[StoredFile]) -> tuple[StoredFeature, ...]:
    """Infers features from the first Examples of TFRecord files.

    About 64 Examples are looked at, spread over the files. A key with one value in each of them
    holds a single value, any other a list; a single value that is a JPEG or PNG in each of them
    is an image, with one channel if all are gray, and with three otherwise. Keys without a
    kind, which no list has been set for, are left out.

    Args:
        files: The files; at least one.

    Returns:
        The features, sorted by key.

    Raises:
        InputError: A file cannot be read, a key has values of two kinds, or there are no values.
    """
    seen: dict[str, _Seen] = {}
    examples = 0
    for file, example in _sample(files):
        examples += 1
        for key, feature in example.features.feature.items():
            kind, values = feature_values(feature)
            if kind is None:
                continue
            facts = seen.setdefault(key, _Seen(kind))
            if kind is not facts.kind:
                raise InputError(
                    uri=file.uri,
                    problem=f"{key!r} is a list of {kind.value} values here, and of "
                    f"{facts.kind.value} values in an earlier record",
                )
            facts.add(values)
    if not seen:
        what = "no values in its records" if examples else "no records"
        raise InputError(uri=files[0].uri, problem=f"{what} that would tell the features")
    return tuple(seen[key].feature(key, examples=examples) for key in sorted(seen))


def _sample(files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Example]]:
    sampled = files[:: math.ceil(len(files) / _SAMPLED_EXAMPLES)]
    each = math.ceil(_SAMPLED_EXAMPLES / len(sampled))
    for file in sampled:
        for example in itertools.islice(read_examples(file), each):
            yield file, example


class _Seen:
    """What the Examples so far have shown of one key."""

    def __init__(self, kind: FeatureKind) -> None:
        self.kind = kind
        self._present = 0
        self._single = True
        self._images = kind is FeatureKind.BYTES
        self._gray = True

    def add(self, values: Sequence[bytes | int | float]) -> None:
        self._present += 1
        self._single = self._single and len(values) == 1
        if self._images and self._single:
            (value,) = values
            image = recognize_image(value) if isinstance(value, bytes) else None
            self._images = image is not None and image.format in _STORABLE
            header = image and image.header
            self._gray = self._gray and header is not None and header.gray

    def feature(self, key: str, *, examples: int) -> StoredFeature:
        repeated = not self._single or self._present < examples
        image = self._images and not repeated
        return StoredFeature(
            key=key,
            kind=self.kind,
            repeated=repeated,
            image_shape=(None, None, _GRAY if self._gray else _RGB) if image else None,
        )
