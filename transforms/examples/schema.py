"""Which keys every Example of a dataset has.

The default keys are those of the TF Object Detection API and the TF Model Garden
(`create_coco_tf_record.py`, `tf_example_decoder.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from transforms.errors import did_you_mean
from transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec
from transforms.formats.base import Kind

_IMAGE_FEATURES = (
    FeatureSpec("image/encoded", FeatureKind.BYTES, repeated=False, role=FeatureRole.IMAGE),
    FeatureSpec("image/format", FeatureKind.BYTES, repeated=False, role=FeatureRole.TEXT),
    FeatureSpec("image/height", FeatureKind.INT64, repeated=False),
    FeatureSpec("image/width", FeatureKind.INT64, repeated=False),
    FeatureSpec("image/filename", FeatureKind.BYTES, repeated=False, role=FeatureRole.TEXT),
    FeatureSpec("image/source_id", FeatureKind.BYTES, repeated=False, role=FeatureRole.TEXT),
    FeatureSpec("image/key/sha256", FeatureKind.BYTES, repeated=False, role=FeatureRole.TEXT),
)
_KIND_FEATURES = {
    Kind.CLASSIFICATION: (
        FeatureSpec("image/class/label", FeatureKind.INT64, repeated=True, role=FeatureRole.LABEL),
        FeatureSpec("image/class/text", FeatureKind.BYTES, repeated=True, role=FeatureRole.TEXT),
    ),
    Kind.DETECTION: (
        FeatureSpec("image/object/bbox/xmin", FeatureKind.FLOAT, repeated=True),
        FeatureSpec("image/object/bbox/xmax", FeatureKind.FLOAT, repeated=True),
        FeatureSpec("image/object/bbox/ymin", FeatureKind.FLOAT, repeated=True),
        FeatureSpec("image/object/bbox/ymax", FeatureKind.FLOAT, repeated=True),
        FeatureSpec(
            "image/object/class/label", FeatureKind.INT64, repeated=True, role=FeatureRole.LABEL
        ),
        FeatureSpec(
            "image/object/class/text", FeatureKind.BYTES, repeated=True, role=FeatureRole.TEXT
        ),
        FeatureSpec("image/object/is_crowd", FeatureKind.INT64, repeated=True),
        FeatureSpec("image/object/area", FeatureKind.FLOAT, repeated=True),
    ),
}

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
    """

    defaults: Mapping[str, FeatureSpec]
    constants: tuple[Constant, ...]

    def schema(self) -> tuple[FeatureSpec, ...]:
        """Returns all features, sorted by key."""
        constants = [constant.spec for constant in self.constants]
        return tuple(sorted((*self.defaults.values(), *constants), key=lambda spec: spec.key))


def example_schema(
    *,
    kinds: Collection[Kind],
    rename: Mapping[str, str],
    drop: Collection[str],
    constants: Mapping[str, Any],
) -> tuple[FeatureSpec, ...]:
    """Lists the features of every Example, sorted by key; as for `plan_features`."""
    return plan_features(kinds=kinds, rename=rename, drop=drop, constants=constants).schema()


def plan_features(
    *,
    kinds: Collection[Kind],
    rename: Mapping[str, str],
    drop: Collection[str],
    constants: Mapping[str, Any],
) -> FeaturePlan:
    """Decides which features every Example has.

    Args:
        kinds: The groups of default keys that the dataset's formats fill.
        rename: `{default key: written key}`.
        drop: Default keys that are not written.
        constants: `{key: value}`: a string, an integer, a float, or a list of one of these.

    Raises:
        ValueError: A key or a value cannot be; one line that begins with the setting's name.
    """
    plan = FeaturePlan(
        defaults=_written_features(kinds=kinds, rename=rename, drop=drop),
        constants=tuple(_constant(key, value) for key, value in constants.items()),
    )
    schema = plan.schema()
    if not schema:
        raise ValueError("features.drop: no key is left to be written")
    for spec, following in itertools.pairwise(schema):
        if spec.key == following.key:
            setting = "constants" if spec.key in constants else "rename"
            raise ValueError(f"features.{setting}: two features would have the key {spec.key!r}")
    return plan


def _written_features(
    *, kinds: Collection[Kind], rename: Mapping[str, str], drop: Collection[str]
) -> dict[str, FeatureSpec]:
    groups = [_IMAGE_FEATURES, *(_KIND_FEATURES[kind] for kind in Kind if kind in kinds)]
    defaults = {spec.key: spec for group in groups for spec in group}
    _check_known(drop, known=defaults, setting="features.drop")
    _check_known(rename, known=defaults, setting="features.rename")
    for default_key, key in rename.items():
        if default_key in drop:
            raise ValueError(f"features.rename: {default_key!r} is also in features.drop")
        _check_key(key, setting="features.rename")
    return {
        default_key: msgspec.structs.replace(spec, key=rename.get(default_key, default_key))
        for default_key, spec in defaults.items()
        if default_key not in drop
    }


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
