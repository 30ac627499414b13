"""Descriptions of an Example's keys."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.examples.example_pb2 import Feature

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
# The smallest 32-bit float above 0.
MIN_FLOAT32 = 2.0**-149

# The map of classes, and the one with their ids if a dataset has panoptic maps.
CLASS_MAP = "image/segmentation/class/encoded"
CATEGORY_MAP = "image/panoptic/category_mask"


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


# Height, width and channels; None if it differs from image to image.
ImageShape: TypeAlias = tuple[int | None, int | None, int | None]


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


# Features as columns of a table, in the types of Hugging Face's `datasets`.
#
# The forms are those of `datasets.Features`: `to_dict` (in the schema of Parquet files) and
# `_to_yaml_list` (in the header of a data card). A list is called `sequence` in both, as all
# versions of `datasets` read it.

IMAGE_TYPE = "image"
_IMAGE_ROLES = frozenset({FeatureRole.IMAGE, FeatureRole.MASK, FeatureRole.MASK_16})
_DTYPES = {FeatureKind.INT64: "int64", FeatureKind.FLOAT: "float32"}


class ListOf(NamedTuple):
    """A list of values.

    Attributes:
        item: The type of each.
    """

    item: ColumnType


class Classes(NamedTuple):
    """Ids of classes, from 0.

    Attributes:
        names: The classes' names.
    """

    names: Sequence[str]


# The name of a plain type (`int64`, `string`, `binary`, `image`), or several named columns in one.
ColumnType: TypeAlias = str | ListOf | Classes | Mapping[str, "ColumnType"]


def is_image(spec: FeatureSpec) -> bool:
    """Returns whether a feature holds encoded images."""
    return spec.role in _IMAGE_ROLES


def is_text(spec: FeatureSpec) -> bool:
    """Returns whether a feature holds texts in UTF-8."""
    return spec.role in (FeatureRole.TEXT, FeatureRole.LABEL_TEXT)


def is_list(spec: FeatureSpec) -> bool:
    """Returns whether a feature is a list in a table, not a single value."""
    return spec.repeated or spec.length != 1


def column_type(spec: FeatureSpec, *, label_map: LabelMap) -> ColumnType:
    """Returns the type of a feature's column."""
    item: ColumnType
    if is_image(spec):
        item = IMAGE_TYPE
    elif spec.kind is FeatureKind.BYTES:
        item = "string" if is_text(spec) else "binary"
    elif spec.role is FeatureRole.LABEL and (names := label_map.numbered_names()):
        item = Classes(names)
    else:
        item = _DTYPES[spec.kind]
    return ListOf(item) if is_list(spec) else item


def as_text(kind: ColumnType) -> ColumnType:
    """Returns the type of a column of bytes in a JSON file."""
    return ListOf("string") if isinstance(kind, ListOf) else "string"


def feature_dict(kind: ColumnType) -> dict[str, Any]:
    """Returns a type as `Features.to_dict` writes it."""
    if isinstance(kind, ListOf):
        return {"feature": feature_dict(kind.item), "_type": "Sequence"}
    if isinstance(kind, Classes):
        return {"names": list(kind.names), "_type": "ClassLabel"}
    if isinstance(kind, str):
        return {"_type": "Image"} if kind == IMAGE_TYPE else {"dtype": kind, "_type": "Value"}
    return {name: feature_dict(each) for name, each in kind.items()}


def feature_list(columns: Mapping[str, ColumnType]) -> list[dict[str, Any]]:
    """Returns columns as `Features._to_yaml_list` writes them."""
    listed: list[dict[str, Any]] = []
    for name, kind in columns.items():
        content = _yaml_type(kind)
        field = content if isinstance(content, dict) and "class_label" not in content else None
        listed.append({"name": name, **(field or {"dtype": content})})
    return listed


def _yaml_type(kind: ColumnType) -> str | dict[str, Any]:
    if isinstance(kind, ListOf):
        return {"sequence": _yaml_type(kind.item)}
    if isinstance(kind, Classes):
        return {"class_label": {"names": {str(i): name for i, name in enumerate(kind.names)}}}
    if isinstance(kind, str):
        return kind
    return {"struct": feature_list(kind)}
