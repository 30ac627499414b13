"""Example keys that a format adds to the default ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Value
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
)


def extra_group(extra: ExtraFeature, *, by_object: bool) -> FeatureGroup:
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
