"""Example keys of the image as a whole."""

from __future__ import annotations

from collections.abc import Callable

from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.features import (
    FeatureKind,
    FeatureRole,
    FeatureSpec,
    one_value,
    value_list,
)

# The key of the image's own bytes.
IMAGE = "image/encoded"


def image_group(*, raw: bool) -> FeatureGroup:
    """Declares the keys of every image.

    Args:
        raw: Whether the images are bare pixels, which readers cannot decode as images.
    """
    return FeatureGroup(
        (
            one_value(IMAGE, FeatureKind.BYTES, FeatureRole.DATA if raw else FeatureRole.IMAGE),
            one_value("image/format", FeatureKind.BYTES, FeatureRole.TEXT),
            one_value("image/height", FeatureKind.INT64),
            one_value("image/width", FeatureKind.INT64),
            one_value("image/filename", FeatureKind.BYTES, FeatureRole.TEXT),
            one_value("image/source_id", FeatureKind.BYTES, FeatureRole.TEXT),
            one_value("image/key/sha256", FeatureKind.BYTES, FeatureRole.TEXT),
        ),
        _image_values,
        optional=(one_value("image/depth", FeatureKind.INT64),),
    )


def _image_values(subject: AnnotatedImage) -> Values:
    image = subject.image
    return {
        "image/format": [image.format.encode()],
        "image/height": [image.height],
        "image/width": [image.width],
        "image/depth": [image.channels],
        "image/filename": [subject.key.encode()],
        "image/source_id": [(subject.annotations.image_id or subject.key).encode()],
        "image/key/sha256": [subject.sha256.encode()],
    }


def _label_values(subject: AnnotatedImage) -> Values:
    return {
        "image/class/label": [label_id for label_id, _ in subject.labels.values()],
        "image/class/text": list(subject.labels),
    }


def _confidence_values(subject: AnnotatedImage) -> Values:
    return {"image/class/confidence": [confidence for _, confidence in subject.labels.values()]}


def _caption_values(subject: AnnotatedImage) -> Values:
    return {"image/caption": [caption.encode() for caption in subject.annotations.captions]}


def _label_group(feature: Callable[[str, FeatureKind, FeatureRole], FeatureSpec]) -> FeatureGroup:
    ids = feature("image/class/label", FeatureKind.INT64, FeatureRole.LABEL)
    names = feature("image/class/text", FeatureKind.BYTES, FeatureRole.LABEL_TEXT)
    return FeatureGroup((ids, names), _label_values)


LABELS = _label_group(value_list)
# The labels of formats whose images have exactly one.
LABEL = _label_group(one_value)
CONFIDENCES = FeatureGroup(
    (value_list("image/class/confidence", FeatureKind.FLOAT),), _confidence_values
)
CAPTIONS = FeatureGroup(
    (value_list("image/caption", FeatureKind.BYTES, FeatureRole.TEXT),), _caption_values
)
