"""The Example schema: which keys are written, and their kinds."""

from __future__ import annotations

import enum

import msgspec


class FeatureKind(str, enum.Enum):
    """The three lists of `tf.train.Feature`."""

    BYTES = "bytes"
    INT64 = "int64"
    FLOAT = "float"


class FeatureRole(str, enum.Enum):
    """What a feature means to a reader, beyond its kind."""

    VALUE = "value"
    TEXT = "text"
    IMAGE = "image"
    LABEL = "label"


class FeatureSpec(msgspec.Struct, frozen=True):
    """One key of every Example.

    Attributes:
        key: The key as written.
        kind: Its list's kind.
        repeated: Whether the list's length varies; otherwise it holds exactly one value.
        role: What it means to a reader.
    """

    key: str
    kind: FeatureKind
    repeated: bool
    role: FeatureRole = FeatureRole.VALUE
