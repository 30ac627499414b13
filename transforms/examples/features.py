"""Descriptions of an Example's keys."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from shardbeam.transforms.examples.example_pb2 import Feature

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
# The smallest 32-bit float above 0.
MIN_FLOAT32 = 2.0**-149

# The map of classes, and the one with their ids if a dataset has panoptic maps.
CLASS_MAP = "image/segmentation/class/encoded"
CATEGORY_MAP = "image/panoptic/category_mask"

# Height, width and channels; None if it differs from image to image.
ImageShape: TypeAlias = tuple[int | None, int | None, int | None]


class FeatureKind(str, enum.Enum):
    """The three lists of `tf.train.Feature`."""

    BYTES = "bytes"
    INT64 = "int64"
    FLOAT = "float"


class FeatureRole(str, enum.Enum):
    """The meaning of a feature for a reader, beyond its kind.

    Attributes:
        VALUE: Plain values.
        TEXT: Text, in UTF-8.
        DATA: Other bytes that readers cannot decode as an image.
        IMAGE: An encoded image in colour.
        MASK: An encoded image of one channel.
        MASK_16: An encoded image of one channel with 16 bits.
        LABEL: Ids of classes.
        LABEL_TEXT: Names of classes.
    """

    VALUE = "value"
    TEXT = "text"
    DATA = "data"
    IMAGE = "image"
    MASK = "mask"
    MASK_16 = "mask_16"
    LABEL = "label"
    LABEL_TEXT = "label_text"


class FeatureSpec(msgspec.Struct, frozen=True):
    """One key of every Example.

    Attributes:
        key: The key as written.
        kind: The kind of its list.
        repeated: Whether the list's length varies; otherwise it holds exactly `length` values.
        role: Its meaning for a reader.
        length: The number of values, unless `repeated`.
    """

    key: str
    kind: FeatureKind
    repeated: bool
    role: FeatureRole = FeatureRole.VALUE
    length: int = 1


def one_value(
    key: str, kind: FeatureKind, role: FeatureRole = FeatureRole.VALUE, *, length: int = 1
) -> FeatureSpec:
    """Declares a key whose list always has the same length."""
    return FeatureSpec(key, kind, repeated=False, role=role, length=length)


def value_list(key: str, kind: FeatureKind, role: FeatureRole = FeatureRole.VALUE) -> FeatureSpec:
    """Declares a key whose list may have any length."""
    return FeatureSpec(key, kind, repeated=True, role=role)


class ExtraFeature(msgspec.Struct, frozen=True):
    """A feature that a format adds to the default ones.

    Its values come from `ImageAnnotations.values` or, for each object, from
    `ObjectAnnotation.attributes`, under its key. The values of a LABEL or LABEL_TEXT feature are
    the source's names of classes; they are written as ids or names by the labels' settings, and
    classes that these leave out are left out here, too.

    Attributes:
        spec: The default key and kind.
        per_object: Whether there is one value for each object.
        default: The value to write if the source gives none and there must be one; None for 0 or
            an empty text.
    """

    spec: FeatureSpec
    per_object: bool = False
    default: int | float | str | None = None


class StoredFeature(msgspec.Struct, frozen=True, kw_only=True):
    """A key of every Example of a dataset.

    Attributes:
        key: The key.
        kind: The kind of its list.
        repeated: Whether the number of values differs from Example to Example.
        shape: Shape of the value, or of each item if it is repeated; () for scalars.
        image_shape: Shape of the decoded image, if the value is an encoded image.
        image_bits: Bits of each channel of the image: 8 or 16.
    """

    key: str
    kind: FeatureKind
    repeated: bool = False
    shape: tuple[int, ...] = ()
    image_shape: ImageShape | None = None
    image_bits: int = 8


def feature_values(feature: Feature) -> tuple[FeatureKind | None, Sequence[bytes | int | float]]:
    """Returns a feature's kind and its values; None and no values if no list is set."""
    field = feature.WhichOneof("kind")
    if field is None:
        return None, ()
    return FeatureKind(field.removesuffix("_list")), getattr(feature, field).value
