"""Renders indexes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shardbeam.transforms.dataset.index import INDEX_SCHEMA, IndexRow, index_parquet


def as_stored(row: IndexRow) -> dict[str, Any]:
    """Returns the values of a row as they are stored."""
    found = row.findings
    listed = None if found is None else [{"kind": k, "strength": found[k]} for k in found]
    return {**msgspec.structs.asdict(row), "findings": listed}


def render_index(rows: Sequence[IndexRow]) -> bytes:
    """Renders an index with these rows."""
    stored = [as_stored(row) for row in rows]
    columns = {name: [row[name] for row in stored] for name in INDEX_SCHEMA.names}
    return index_parquet(columns, rows=len(rows))
