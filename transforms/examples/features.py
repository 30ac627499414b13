"""What describes an Example's key."""

from __future__ import annotations

import enum

import msgspec

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127


class FeatureKind(str, enum.Enum):
    """The three lists of `tf.train.Feature`."""

    BYTES = "bytes"
    INT64 = "int64"
    FLOAT = "float"


class FeatureRole(str, enum.Enum):
    """What a feature means to a reader, beyond its kind.

    Attributes:
        VALUE: Just its values.
        TEXT: Text, or other bytes that are no image.
        IMAGE: An encoded image in colour.
        MASK: An encoded image of one channel.
        MASK_16: An encoded image of one channel with 16 bits.
        LABEL: Ids of classes.
        LABEL_TEXT: Names of classes.
    """

    VALUE = "value"
    TEXT = "text"
    IMAGE = "image"
    MASK = "mask"
    MASK_16 = "mask_16"
    LABEL = "label"
    LABEL_TEXT = "label_text"


class FeatureSpec(msgspec.Struct, frozen=True):
    """One key of every Example.

    Attributes:
        key: The key as written.
        kind: Its list's kind.
        repeated: Whether the list's length varies; otherwise it holds exactly `length` values.
        role: What it means to a reader.
        length: How many values a list has whose length does not vary.
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

    Its values come from `ImageAnnotations.values`, or `ObjectAnnotation.attributes` of each
    object, under its key. Those of a LABEL or LABEL_TEXT feature are names of classes as the
    source gives them; they are written as ids or names as the labels' settings say, and left
    out with the classes that these leave out.

    Attributes:
        spec: The default key and kind.
        per_object: Whether there is one value for each object.
        default: The value where the source gives none and there must be one; by default 0 or
            an empty text.
    """

    spec: FeatureSpec
    per_object: bool = False
    default: int | float | str | None = None
