"""Finds out which keys the Examples of TFRecord files have."""

from __future__ import annotations

import itertools
import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.examples.decode.decode import make_picture
from shardbeam.transforms.examples.decode.feature_map import FeatureMap, StoredKeys
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.encode.schema import check_key, known_keys
from shardbeam.transforms.examples.features import (
    CLASS_MAP,
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
    feature_values,
)
from shardbeam.transforms.formats.tfrecord.examples import find_file, read_examples
from shardbeam.transforms.formats.tfrecord_layout import Layout

_SAMPLED_EXAMPLES = 64
# A longer text is data of another kind; records are about 1 KB.
_MAX_TEXT_BYTES = 4096
OBJECT = "image/object/"
ANNOTATION = "annotation/"
_LABEL = "image/class/label"
_PANOPTIC = "image/panoptic/"
_OF_KIND = {
    "image/class/label": Kind.CLASSIFICATION,
    "image/class/text": Kind.CLASSIFICATION,
    "image/class/confidence": Kind.LABEL_CONFIDENCE,
    "image/object/mask": Kind.INSTANCE_MASKS,
    "annotation/mask": Kind.INSTANCE_MASKS,
    "image/object/keypoint/x": Kind.KEYPOINTS,
    "image/caption": Kind.CAPTIONS,
    CLASS_MAP: Kind.SEMANTIC,
}


class _Keys:
    """The keys of Examples, collected from several of them, and from manifests."""

    def __init__(self) -> None:
        self.kinds: set[Kind] = set()
        self.extras: dict[str, ExtraFeature] = {}
        self.left_out: dict[str, str] = {}
        self.raw: set[bool] = set()
        # Whether each manifest says that there is one label; False where there is no manifest.
        self.single_label: set[bool] = set()

    def add(self, extra: ExtraFeature, *, uri: str) -> None:
        """Adds a key that is not one of the default keys.

        Raises:
            InputError: It is known with values of another kind.
        """
        spec = extra.spec
        known = self.extras.setdefault(spec.key, extra)
        if known.spec.kind is not spec.kind:
            raise InputError(
                uri=uri,
                place=spec.key,
                problem=f"a list of {spec.kind.value} values here, and of {known.spec.kind.value} "
                "values in an earlier Example; write the files again with one kind",
            )
        self.extras[spec.key] = ExtraFeature(
            msgspec.structs.replace(known.spec, repeated=known.spec.repeated or spec.repeated),
            per_object=known.per_object and extra.per_object,
        )

    def add_default(self, key: str) -> None:
        """Adds one of the default keys."""
        if key.startswith(_PANOPTIC):
            self.left_out[key] = "panoptic maps cannot be read back"
        elif key.startswith((OBJECT, ANNOTATION)):
            self.kinds.add(Kind.DETECTION)
        if key in _OF_KIND:
            self.kinds.add(_OF_KIND[key])


def find_keys(layouts: Mapping[str, Layout]) -> StoredKeys:
    """Finds the keys of a source's Examples: in the manifest, or else in the first Examples.

    About 64 Examples are read, spread over the files. Without a manifest, other keys than the
    default ones hold lists, because a later Example may have any number of values.

    Args:
        layouts: `{file: what the files beside it say}`.

    Raises:
        InputError: A file cannot be read, no Example has an image, or a key has values of two
            kinds.
    """
    keys = _Keys()
    for layout in {id(layout): layout for layout in layouts.values()}.values():
        files = [file for file, of_file in layouts.items() if of_file is layout]
        if layout.features is not None:
            _add_features(layout.features, feature_map=layout.feature_map, uri=files[0], keys=keys)
        else:
            _add_samples(files, feature_map=layout.feature_map, keys=keys)
    if any(key.startswith(_PANOPTIC) for key in keys.left_out):
        # The map of classes is a part of the panoptic maps then.
        keys.left_out[CLASS_MAP] = keys.left_out[f"{_PANOPTIC}category_mask"]
        keys.kinds.discard(Kind.SEMANTIC)
    return StoredKeys(
        kinds=tuple(sorted(keys.kinds)),
        extras=tuple(
            extra for key, extra in sorted(keys.extras.items()) if key not in keys.left_out
        ),
        left_out=dict(sorted(keys.left_out.items())),
        raw=keys.raw == {True},
        single_label=keys.single_label == {True},
    )


def _add_features(
    features: Sequence[FeatureSpec], *, feature_map: FeatureMap, uri: str, keys: _Keys
) -> None:
    defaults = default_keys(feature_map)
    images = [spec for spec in features if defaults.get(spec.key, spec.key) == IMAGE]
    if not images:
        raise _no_images(posixpath.dirname(uri), what="the Examples of this dataset hold no images")
    keys.raw.add(images[0].role is not FeatureRole.IMAGE)
    keys.single_label.add(
        any(defaults.get(spec.key, spec.key) == _LABEL and not spec.repeated for spec in features)
    )
    for spec in features:
        key = defaults.get(spec.key, spec.key)
        if key in known_keys():
            keys.add_default(key)
        else:
            extra = msgspec.structs.replace(spec, key=key)
            keys.add(ExtraFeature(extra, per_object=key.startswith(OBJECT)), uri=uri)


def default_keys(feature_map: FeatureMap) -> dict[str, str]:
    """Returns `{key as it is written: default key}`."""
    return {written: default for default, written in feature_map.keys.items() if written}


def _no_images(uri: str, *, what: str) -> InputError:
    return InputError(uri=uri, problem=f"{what}; expected an image in {IMAGE}")


def _add_samples(files: Sequence[str], *, feature_map: FeatureMap, keys: _Keys) -> None:
    keys.single_label.add(False)
    sampled = files[:: math.ceil(len(files) / _SAMPLED_EXAMPLES)]
    each = math.ceil(_SAMPLED_EXAMPLES / len(sampled))
    examples = 0
    # {key: whether each Example has one of its values for each object}
    of_objects: dict[str, list[bool]] = {}
    images: set[str] = set()
    for uri in sampled:
        for found in itertools.islice(read_examples(find_file(uri)), each):
            examples += 1
            picture = make_picture(found.example, feature_map=feature_map)
            if picture.image:
                keys.raw.add(picture.format == "raw")
                images.add(_image_key(picture))
            for key, feature in found.example.features.feature.items():
                kind, values = feature_values(feature)
                if kind is None:
                    continue
                if key in known_keys():
                    keys.add_default(key)
                    continue
                of_objects.setdefault(key, []).append(
                    key.startswith(OBJECT) and len(values) == len(picture.objects)
                )
                problem = _why_not_carried(key, kind=kind, values=values)
                if problem:
                    keys.left_out[key] = problem
                keys.add(ExtraFeature(FeatureSpec(key, kind, repeated=True)), uri=uri)
    if examples and not images:
        raise _no_images(files[0], what=f"none of the first {examples:,} Examples holds an image")
    for key, of_each in of_objects.items():
        keys.extras[key] = msgspec.structs.replace(keys.extras[key], per_object=all(of_each))
    # An image under another key is the image, and is written as such.
    for key in images - {IMAGE}:
        keys.extras.pop(key, None)
        keys.left_out.pop(key, None)


def _image_key(picture: Picture) -> str:
    """Returns the key of a picture's image."""
    if IMAGE in picture.features:
        return IMAGE
    return next(key for key, values in picture.features.items() if values[:1] == (picture.image,))


def _why_not_carried(key: str, *, kind: FeatureKind, values: Sequence[Any]) -> str:
    """Explains why a key cannot be carried over; empty if it can."""
    try:
        check_key(key, setting="key")
    except ValueError:
        return "its name is too long, or not printable"
    if kind is not FeatureKind.BYTES:
        return ""
    if sum(map(len, values)) > _MAX_TEXT_BYTES:
        return f"it holds more than {_MAX_TEXT_BYTES:,} bytes"
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        return "its bytes are no text"
    return ""
