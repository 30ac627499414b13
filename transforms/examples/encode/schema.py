"""The keys that every Example of a dataset has.

The default keys are those of the TF Object Detection API and the TF Model Garden
(`create_coco_tf_record.py`, `tf_example_decoder.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from shardbeam.configs.problem import did_you_mean
from shardbeam.configs.schema import FeaturesConfig, ImageConfig, PanopticConfig
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Value
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.encode.image_features import (
    CAPTIONS,
    CONFIDENCES,
    LABEL,
    LABELS,
    image_group,
)
from shardbeam.transforms.examples.encode.maps import SEMANTIC
from shardbeam.transforms.examples.encode.objects import (
    ANNOTATION,
    ANNOTATION_IMAGE_ID,
    ANNOTATION_MASK,
    KEYPOINTS,
    MASKS,
    OBJECTS,
)
from shardbeam.transforms.examples.encode.panoptic import panoptic_group
from shardbeam.transforms.examples.features import (
    MAX_FLOAT32,
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
)

_OBJECT_KINDS = frozenset({Kind.DETECTION, Kind.INSTANCE_MASKS, Kind.KEYPOINTS})

_CONSTANT_KINDS = {str: FeatureKind.BYTES, int: FeatureKind.INT64, float: FeatureKind.FLOAT}
# A label's key becomes part of a file name, and those may have 255 bytes on common file systems.
_MAX_KEY_BYTES = 200


class FeaturePlan(NamedTuple):
    """The features of a dataset's Examples, each under its own key.

    Attributes:
        defaults: `{default key: feature as written}`.
        groups: The groups that render the values of `defaults`.
        constants: `{feature: values}` of features that are the same in every Example.
    """

    defaults: Mapping[str, FeatureSpec]
    groups: Sequence[FeatureGroup]
    constants: Mapping[FeatureSpec, Sequence[Any]]

    def schema(self) -> tuple[FeatureSpec, ...]:
        """Returns all features, sorted by key."""
        return tuple(sorted((*self.defaults.values(), *self.constants), key=lambda spec: spec.key))


class EncoderSettings(FeaturesConfig, frozen=True, kw_only=True):
    """All settings that decide an Example's bytes.

    Attributes:
        kinds: The groups of default keys that the dataset's formats fill.
        extras: The features that its formats add.
        example_per: Whether an image makes one Example, or one for each of its objects.
        source_id: Whether an image keeps its source's id, or gets a number (`image_number`).
        single_label: Whether every image has exactly one label, so that `image/class/label` is one
            value and not a list.
        raw_images: Whether `image/encoded` holds bare pixels, which readers cannot decode as an
            image.
        image: The settings for checking and storing images.
        panoptic: The settings of maps of segments.
        objects_lost: Whether images that have lost all of their objects are rejected, left out or
            written.
        min_side_px: Objects with a narrower or lower box are left out, in pixels before any resize.
        min_area_px: Objects whose box covers fewer square pixels are left out, too.
    """

    kinds: frozenset[Kind]
    extras: tuple[ExtraFeature, ...] = ()
    example_per: Literal["image", "annotation"] = "image"
    source_id: Literal["source", "number"] = "source"
    single_label: bool = False
    raw_images: bool = False
    image: ImageConfig = ImageConfig()
    panoptic: PanopticConfig = PanopticConfig()
    objects_lost: Literal["reject", "drop", "keep"] = "reject"
    min_side_px: float = 0
    min_area_px: float = 0

    @property
    def needs_numbers(self) -> bool:
        """Whether the source's id of each image must be a number."""
        is_written = "annotation/image_id" not in self.drop
        return self.example_per == "annotation" and self.source_id == "source" and is_written


def plan_features(settings: EncoderSettings) -> FeaturePlan:
    """Decides which features every Example has.

    Raises:
        ValueError: A key or a value is not allowed; the message is one line that begins with the
            setting's name.
    """
    groups = _groups(settings)
    defaults = _written_features(groups, settings=settings)
    plan = FeaturePlan(
        defaults=defaults,
        groups=[
            group
            for group in groups
            if any(spec.key in defaults for spec in (*group.specs, *group.optional))
        ],
        constants=dict(_constant(key, value) for key, value in settings.constants.items()),
    )
    schema = plan.schema()
    if not schema:
        raise ValueError("features.drop: no key is left to be written")
    for spec, following in itertools.pairwise(schema):
        if spec.key == following.key:
            setting = "constants" if spec.key in settings.constants else "rename"
            raise ValueError(f"features.{setting}: two features would have the key {spec.key!r}")
    return plan


@functools.cache
def known_keys() -> frozenset[str]:
    """Returns the default keys of all kinds of datasets, without those of formats."""
    groups = (
        image_group(raw=False),
        *(LABELS, CONFIDENCES, CAPTIONS, OBJECTS, MASKS, KEYPOINTS, SEMANTIC),
        *(panoptic_group(bits=8), ANNOTATION, ANNOTATION_IMAGE_ID, ANNOTATION_MASK),
    )
    return frozenset(spec.key for group in groups for spec in group.specs)


def _groups(settings: EncoderSettings) -> list[FeatureGroup]:
    kinds = settings.kinds
    groups = [] if Kind.ROWS in kinds else [image_group(raw=settings.raw_images)]
    by_object = settings.example_per == "annotation"
    if by_object:
        if Kind.DETECTION not in kinds:
            raise ValueError("example_per: annotation needs a format with objects")
        groups += [ANNOTATION, ANNOTATION_IMAGE_ID]
        if Kind.INSTANCE_MASKS in kinds:
            groups.append(ANNOTATION_MASK)
        kinds -= _OBJECT_KINDS
    if Kind.SEMANTIC in kinds and Kind.PANOPTIC in kinds:
        raise ValueError("features: a dataset holds either semantic or panoptic maps, not both")
    of_kind = {
        Kind.CLASSIFICATION: LABEL if settings.single_label else LABELS,
        Kind.LABEL_CONFIDENCE: CONFIDENCES,
        Kind.DETECTION: OBJECTS,
        Kind.INSTANCE_MASKS: MASKS,
        Kind.KEYPOINTS: KEYPOINTS,
        Kind.CAPTIONS: CAPTIONS,
        Kind.SEMANTIC: SEMANTIC,
        Kind.PANOPTIC: panoptic_group(bits=settings.panoptic.bits),
    }
    groups += [group for kind, group in of_kind.items() if kind in kinds]
    return groups + [_extra_group(extra, by_object=by_object) for extra in settings.extras]


def _extra_group(extra: ExtraFeature, *, by_object: bool) -> FeatureGroup:
    """Declares the Example key of a format's own feature.

    Args:
        extra: The feature.
        by_object: Whether each object has its own Example.
    """
    key = extra.spec.key
    one = msgspec.structs.replace(extra.spec, repeated=False)

    def image_values(subject: AnnotatedImage) -> Values:
        given = subject.annotations.values.get(key, ())
        return {key: _render(extra, extra.spec, given, label_map=subject.label_map)}

    def object_values(subject: AnnotatedImage) -> Values:
        values = []
        for item in subject.objects:
            given = item.annotation.attributes.get(key)
            values.append(
                _render(extra, one, () if given is None else (given,), label_map=subject.label_map)
            )
        return {key: values if by_object else [value for (value,) in values]}

    if not extra.per_object:
        return FeatureGroup((extra.spec,), image_values)
    return FeatureGroup((one if by_object else extra.spec,), object_values, by_object=by_object)


def _render(
    extra: ExtraFeature, spec: FeatureSpec, given: Iterable[Value], *, label_map: LabelMap
) -> list[Any]:
    found = list(given)
    if spec.role in (FeatureRole.LABEL, FeatureRole.LABEL_TEXT):
        labels = [label_map.written.get(str(name)) for name in found]
        wants_ids = spec.role is FeatureRole.LABEL
        found = [label.id if wants_ids else label.name for label in labels if label is not None]
    if not spec.repeated and not found:
        nothing: Value = "" if spec.kind is FeatureKind.BYTES else 0
        found = [nothing if extra.default is None else extra.default] * spec.length
    if spec.kind is FeatureKind.BYTES:
        return [str(value).encode() for value in found]
    number = int if spec.kind is FeatureKind.INT64 else float
    return [number(value) for value in found]


def _written_features(
    groups: Iterable[FeatureGroup], *, settings: EncoderSettings
) -> dict[str, FeatureSpec]:
    defaults: dict[str, FeatureSpec] = {}
    for spec in (spec for group in groups for spec in group.specs):
        if defaults.setdefault(spec.key, spec) != spec:
            raise ValueError(
                f"features: the key {spec.key!r} is filled twice in different ways, by two formats "
                "or by a column of this name: rename the column, or ignore it in `columns`"
            )
    optional = {spec.key: spec for group in groups for spec in group.optional}
    known = defaults | optional
    for place, keys in (
        ("drop", settings.drop),
        ("rename", settings.rename),
        ("add", settings.add),
    ):
        _check_known(keys, known=known, setting=f"features.{place}")
    for default_key, key in settings.rename.items():
        if default_key in settings.drop:
            raise ValueError(f"features.rename: {default_key!r} is also in features.drop")
        check_key(key, setting="features.rename")
    chosen = {*defaults, *settings.add, *settings.rename} - {*settings.drop}
    return {
        default_key: msgspec.structs.replace(
            spec, key=settings.rename.get(default_key, default_key)
        )
        for default_key, spec in known.items()
        if default_key in chosen
    }


def _constant(key: str, value: object) -> tuple[FeatureSpec, Sequence[Any]]:
    check_key(key, setting="features.constants")
    values = value if isinstance(value, list) else [value]
    kind, typed = _typed_constants(values, setting=f"features.constants.{key}")
    role = FeatureRole.TEXT if kind is FeatureKind.BYTES else FeatureRole.VALUE
    return FeatureSpec(key, kind, repeated=isinstance(value, list), role=role), typed


def _typed_constants(values: list[Any], *, setting: str) -> tuple[FeatureKind, tuple[Any, ...]]:
    if not values:
        raise ValueError(f"{setting}: an empty list has no kind; give it a value or leave it out")
    types = {type(value) for value in values}
    if len(types) > 1:
        names = " and ".join(sorted(type_.__name__ for type_ in types))
        raise ValueError(f"{setting}: expected values of one type, got {names}")
    kind = _CONSTANT_KINDS.get(types.pop())
    if kind is None:
        # YAML does not read `yes`, `no`, `on`, `off` and dates as strings.
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


def check_key(key: str, *, setting: str) -> None:
    """Checks that a dataset may have this key; raises ValueError, which names the setting."""
    # This also refuses surrogates, which UTF-8 cannot hold: they are not printable.
    if not key or not key.isprintable():
        raise ValueError(f"{setting}: a key must be printable text, got {key!a}")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise ValueError(f"{setting}: a key may have {_MAX_KEY_BYTES} bytes, got {key[:40]!r}...")
