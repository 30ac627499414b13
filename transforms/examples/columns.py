"""Features as columns of a table, in the types of Hugging Face's `datasets`.

The forms are those of `datasets.Features`: `to_dict` (in the schema of Parquet files) and
`_to_yaml_list` (in the header of a data card). A list is called `sequence` in both, as all versions
of `datasets` read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec

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
