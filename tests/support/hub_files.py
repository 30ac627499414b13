"""Parquet files as Hugging Face's `datasets` writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

IMAGE = {"_type": "Image"}
_IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def classes(*names: str) -> dict[str, Any]:
    return {"_type": "ClassLabel", "names": [*names]}


def list_of(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"_type": "List", "feature": item}


def value(dtype: str) -> dict[str, Any]:
    return {"_type": "Value", "dtype": dtype}


BOXES = list_of(list_of(value("float32")))


def hub_image(data: bytes | None, path: str | None = None) -> dict[str, Any]:
    return {"bytes": data, "path": path}


def hub_parquet(
    rows: Sequence[Mapping[str, Any]],
    features: Mapping[str, Any],
    *,
    compression: str = "NONE",
    described: bool = True,
) -> bytes:
    """Writes rows; `features` is what `Features.to_dict` gives."""
    schema = pa.schema([(name, _arrow(node)) for name, node in features.items()])
    if described:
        text = json.dumps({"info": {"features": features}})
        schema = schema.with_metadata({"huggingface": text})
    file = io.BytesIO()
    table = pa.Table.from_pylist([*map(dict, rows)], schema=schema)
    parquet.write_table(table, file, compression=compression, use_dictionary=False)
    return file.getvalue()


def _arrow(node: Mapping[str, Any]) -> pa.DataType:
    kind = node.get("_type")
    if kind == "Image":
        return _IMAGE_TYPE
    if kind == "ClassLabel":
        return pa.int64()
    if kind == "List":
        return pa.list_(_arrow(node["feature"]))
    if kind == "Value":
        return pa.type_for_alias(node["dtype"])
    return pa.struct([(name, _arrow(child)) for name, child in node.items()])
