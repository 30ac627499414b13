"""Which keys every Example of a dataset has.

The default keys are those of the TF Object Detection API and the TF Model Garden
(`create_coco_tf_record.py`, `tf_example_decoder.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from shardbeam.transforms.core.errors import did_you_mean
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
)

_BYTES, _INT64, _FLOAT = FeatureKind.BYTES, FeatureKind.INT64, FeatureKind.FLOAT


def _one(
    key: str, kind: FeatureKind, role: FeatureRole = FeatureRole.VALUE, *, length: int = 1
) -> FeatureSpec:
    return FeatureSpec(key, kind, repeated=False, role=role, length=length)


def _list(key: str, kind: FeatureKind, role: FeatureRole = FeatureRole.VALUE) -> FeatureSpec:
    return FeatureSpec(key, kind, repeated=True, role=role)


_IMAGE_FEATURES = (
    _one("image/encoded", _BYTES, FeatureRole.IMAGE),
    _one("image/format", _BYTES, FeatureRole.TEXT),
    _one("image/height", _INT64),
    _one("image/width", _INT64),
    _one("image/filename", _BYTES, FeatureRole.TEXT),
    _one("image/source_id", _BYTES, FeatureRole.TEXT),
    _one("image/key/sha256", _BYTES, FeatureRole.TEXT),
)
# Written only where the config renames or adds them.
_OPTIONAL_FEATURES = (_one("image/depth", _INT64),)
_KIND_FEATURES = {
    Kind.CLASSIFICATION: (
        _list("image/class/label", _INT64, FeatureRole.LABEL),
        _list("image/class/text", _BYTES, FeatureRole.LABEL_TEXT),
    ),
    Kind.LABEL_CONFIDENCE: (_list("image/class/confidence", _FLOAT),),
    Kind.DETECTION: (
        _list("image/object/bbox/xmin", _FLOAT),
        _list("image/object/bbox/xmax", _FLOAT),
        _list("image/object/bbox/ymin", _FLOAT),
        _list("image/object/bbox/ymax", _FLOAT),
        _list("image/object/class/label", _INT64, FeatureRole.LABEL),
        _list("image/object/class/text", _BYTES, FeatureRole.LABEL_TEXT),
        _list("image/object/is_crowd", _INT64),
        _list("image/object/area", _FLOAT),
    ),
    Kind.INSTANCE_MASKS: (_list("image/object/mask", _BYTES, FeatureRole.MASK),),
    Kind.KEYPOINTS: (
        _list("image/object/keypoint/x", _FLOAT),
        _list("image/object/keypoint/y", _FLOAT),
        _list("image/object/keypoint/visibility", _INT64),
        _list("image/object/keypoint/num", _INT64),
        _list("image/object/keypoint/text", _BYTES, FeatureRole.TEXT),
    ),
    Kind.CAPTIONS: (_list("image/caption", _BYTES, FeatureRole.TEXT),),
    Kind.SEMANTIC: (
        _one("image/segmentation/class/encoded", _BYTES, FeatureRole.MASK),
        _one("image/segmentation/class/format", _BYTES, FeatureRole.TEXT),
    ),
    Kind.PANOPTIC: (
        _one("image/segmentation/class/encoded", _BYTES, FeatureRole.MASK),
        _one("image/panoptic/category_mask", _BYTES, FeatureRole.MASK),
        _one("image/panoptic/instance_mask", _BYTES, FeatureRole.MASK),
        _list("image/panoptic/segment_id", _INT64),
    ),
}
_PANOPTIC_MASKS = frozenset({"image/panoptic/category_mask", "image/panoptic/instance_mask"})
# What an Example of a single object holds instead of the lists of objects.
_ANNOTATION_FEATURES = (
    _one("annotation/id", _INT64),
    _one("annotation/image_id", _INT64),
    _one("annotation/bbox", _FLOAT, length=4),
    _one("annotation/area", _FLOAT),
    _one("annotation/is_crowd", _INT64),
    _one("annotation/class/label", _INT64, FeatureRole.LABEL),
    _one("annotation/class/text", _BYTES, FeatureRole.LABEL_TEXT),
)
_ANNOTATION_MASK = _one("annotation/mask", _BYTES, FeatureRole.MASK)
_OBJECT_KINDS = frozenset({Kind.DETECTION, Kind.INSTANCE_MASKS, Kind.KEYPOINTS})

_CONSTANT_KINDS = {str: FeatureKind.BYTES, int: FeatureKind.INT64, float: FeatureKind.FLOAT}
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
# A label's key names a file, whose name may have 255 bytes on common file systems.
_MAX_KEY_BYTES = 200


class Constant(msgspec.Struct, frozen=True):
    """A feature with the same value in every Example.

    Attributes:
        spec: Its key and kind.
        values: Its list: bytes, integers or floats.
    """

    spec: FeatureSpec
    values: tuple[bytes, ...] | tuple[int, ...] | tuple[float, ...]


class FeaturePlan(msgspec.Struct, frozen=True):
    """Which features are written under which keys, no two under one.

    Attributes:
        defaults: `{default key: feature as written}`.
        constants: The features with the same value in every Example.
        extras: `{default key: feature}` of those in `defaults` that formats add.
    """

    defaults: Mapping[str, FeatureSpec]
    constants: tuple[Constant, ...]
    extras: Mapping[str, ExtraFeature] = {}

    def schema(self) -> tuple[FeatureSpec, ...]:
        """Returns all features, sorted by key."""
        constants = [constant.spec for constant in self.constants]
        return tuple(sorted((*self.defaults.values(), *constants), key=lambda spec: spec.key))


class FeatureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides which features every Example has.

    Attributes:
        kinds: The groups of default keys that the dataset's formats fill.
        extras: The features that its formats add.
        example_per: Whether an image makes one Example, or one for each of its objects.
        add: Default keys that are written only if they are named here or in `rename`.
        rename: `{default key: written key}`.
        drop: Default keys that are not written.
        constants: `{key: value}`: a string, an integer, a float, or a list of one of these.
        raw_images: Whether `image/encoded` holds bare pixels, which no reader can decode.
        panoptic_stuff: Whether `image/panoptic/instance_mask` is 0 where stuff is, or tells one
            segment of stuff from another.
        panoptic_bits: Bits of a pixel of the two masks `image/panoptic/*`, 8 or 16.
    """

    kinds: frozenset[Kind]
    extras: tuple[ExtraFeature, ...] = ()
    example_per: Literal["image", "annotation"] = "image"
    add: tuple[str, ...] = ()
    rename: Mapping[str, str] = {}
    drop: tuple[str, ...] = ()
    constants: Mapping[str, Any] = {}
    raw_images: bool = False
    panoptic_stuff: Literal["zero", "index"] = "zero"
    panoptic_bits: Literal[8, 16] = 8


def plan_features(settings: FeatureSettings) -> FeaturePlan:
    """Decides which features every Example has.

    Raises:
        ValueError: A key or a value cannot be; one line that begins with the setting's name.
    """
    defaults = _written_features(settings)
    plan = FeaturePlan(
        defaults=defaults,
        constants=tuple(_constant(key, value) for key, value in settings.constants.items()),
        extras={extra.spec.key: extra for extra in settings.extras if extra.spec.key in defaults},
    )
    schema = plan.schema()
    if not schema:
        raise ValueError("features.drop: no key is left to be written")
    for spec, following in itertools.pairwise(schema):
        if spec.key == following.key:
            setting = "constants" if spec.key in settings.constants else "rename"
            raise ValueError(f"features.{setting}: two features would have the key {spec.key!r}")
    return plan


def _written_features(settings: FeatureSettings) -> dict[str, FeatureSpec]:
    defaults = _default_features(settings)
    optional = {spec.key: spec for spec in _OPTIONAL_FEATURES if Kind.ROWS not in settings.kinds}
    known = defaults | optional
    for place, keys in (
        ("drop", settings.drop),
        ("rename", settings.rename),
        ("add", settings.add),
    ):
        _check_known(keys, known=known, setting=f"features.{place}")
    chosen = defaults | {
        key: spec for key, spec in optional.items() if key in settings.add or key in settings.rename
    }
    for default_key, key in settings.rename.items():
        if default_key in settings.drop:
            raise ValueError(f"features.rename: {default_key!r} is also in features.drop")
        _check_key(key, setting="features.rename")
    return {
        default_key: msgspec.structs.replace(
            spec, key=settings.rename.get(default_key, default_key)
        )
        for default_key, spec in chosen.items()
        if default_key not in settings.drop
    }


def _default_features(settings: FeatureSettings) -> dict[str, FeatureSpec]:
    kinds = settings.kinds
    groups: list[Iterable[FeatureSpec]] = []
    if Kind.ROWS not in kinds:
        groups.append(_image_features(raw=settings.raw_images))
    if settings.example_per == "annotation":
        if Kind.DETECTION not in kinds:
            raise ValueError("example_per: annotation needs a format with objects")
        groups.append(_ANNOTATION_FEATURES)
        if Kind.INSTANCE_MASKS in kinds:
            groups.append([_ANNOTATION_MASK])
        kinds -= _OBJECT_KINDS
    groups += [_KIND_FEATURES[kind] for kind in Kind if kind in kinds and kind is not Kind.ROWS]
    if settings.panoptic_bits == 16:
        groups = [[*map(_with_16_bits, group)] for group in groups]
    defaults = {spec.key: spec for group in groups for spec in group}
    if Kind.SEMANTIC in kinds and Kind.PANOPTIC in kinds:
        raise ValueError("features: a dataset holds either semantic or panoptic maps, not both")
    for extra in settings.extras:
        spec = extra.spec
        if extra.per_object and settings.example_per == "annotation":
            spec = msgspec.structs.replace(spec, repeated=False)
        if defaults.setdefault(spec.key, spec) != spec:
            raise ValueError(f"features: two formats fill the key {spec.key!r} differently")
    return defaults


def _with_16_bits(spec: FeatureSpec) -> FeatureSpec:
    if spec.key not in _PANOPTIC_MASKS:
        return spec
    return msgspec.structs.replace(spec, role=FeatureRole.MASK_16)


def _image_features(*, raw: bool) -> Iterable[FeatureSpec]:
    for spec in _IMAGE_FEATURES:
        if raw and spec.role is FeatureRole.IMAGE:
            yield msgspec.structs.replace(spec, role=FeatureRole.TEXT)
        else:
            yield spec


def _constant(key: str, value: object) -> Constant:
    _check_key(key, setting="features.constants")
    values = value if isinstance(value, list) else [value]
    kind, typed = _typed_constants(values, setting=f"features.constants.{key}")
    role = FeatureRole.TEXT if kind is FeatureKind.BYTES else FeatureRole.VALUE
    spec = FeatureSpec(key, kind, repeated=isinstance(value, list), role=role)
    return Constant(spec=spec, values=typed)


def _typed_constants(values: list[Any], *, setting: str) -> tuple[FeatureKind, tuple[Any, ...]]:
    if not values:
        raise ValueError(f"{setting}: an empty list has no kind; give it a value or leave it out")
    types = {type(value) for value in values}
    if len(types) > 1:
        names = " and ".join(sorted(type_.__name__ for type_ in types))
        raise ValueError(f"{setting}: expected values of one type, got {names}")
    kind = _CONSTANT_KINDS.get(types.pop())
    if kind is None:
        # YAML reads `yes`, `no`, `on`, `off` and dates as something else than strings.
        raise ValueError(
            f"{setting}: expected a string, an integer, a float, or a list of one of these, "
            f"got {values[0]!r}; quote it if it is meant as a string"
        )
    if kind is FeatureKind.BYTES:
        try:
            return kind, tuple(value.encode() for value in values)
        except UnicodeEncodeError as error:
            raise ValueError(f"{setting}: not valid Unicode: {error.object!a}") from error
    for value in values:
        if kind is FeatureKind.INT64 and not -(2**63) <= value < 2**63:
            raise ValueError(f"{setting}: {value} does not fit into 64 bits")
        if kind is FeatureKind.FLOAT and not abs(value) <= MAX_FLOAT32:
            raise ValueError(f"{setting}: {value} is not a finite 32-bit float")
    return kind, tuple(values)


def _check_known(keys: Iterable[str], *, known: Collection[str], setting: str) -> None:
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, known=known) or f"; known: {', '.join(known)}"
            raise ValueError(f"{setting}: unknown key {key!r}{hint}")


def _check_key(key: str, *, setting: str) -> None:
    # Surrogates, which UTF-8 cannot hold, are not printable either.
    if not key or not key.isprintable():
        raise ValueError(f"{setting}: a key must be printable text, got {key!a}")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise ValueError(f"{setting}: a key may have {_MAX_KEY_BYTES} bytes, got {key[:40]!r}...")
