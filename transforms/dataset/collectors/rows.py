"""The columns of an index that say which Example a row is about, and where it lies."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from shardbeam.transforms.dataset.collectors.base import Finished, Item, ShardFacts
from shardbeam.transforms.dataset.index import index_version
from shardbeam.transforms.examples.features import FeatureKind

# {column: field of an `Item`}
_FIELDS = {
    "key": "key",
    "source": "source",
    "offset": "place",
    "length": "size_bytes",
    "sha256": "sha256",
    "width": "width",
    "height": "height",
    "format": "format",
    "objects": "objects",
    "crc32c": "crc32c",
}


class RowsCollector:
    """Fills the columns that every row has."""

    NAME: ClassVar[str] = "rows"
    # The index is rendered again whenever its bytes would differ.
    VERSION: ClassVar[str] = index_version()
    KEYS: ClassVar[Mapping[str, FeatureKind]] = {}
    NEEDS: ClassVar[Collection[str]] = ()
    COLUMNS: ClassVar[Sequence[str]] = ("split", "shard", *_FIELDS)

    def __init__(self, facts: ShardFacts) -> None:
        self._facts = facts
        self._columns: dict[str, list[Any]] = {column: [] for column in _FIELDS}
        self._add_to = [column.append for column in self._columns.values()]
        self._fields = operator.attrgetter(*_FIELDS.values())

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        for append, value in zip(self._add_to, self._fields(item), strict=True):
            append(value)

    def finish(self) -> Finished:
        """Returns the columns."""
        rows = len(self._columns["key"])
        return Finished(
            {
                "split": [self._facts.split] * rows,
                "shard": [self._facts.shard] * rows,
                **self._columns,
            }
        )
