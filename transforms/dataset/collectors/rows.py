"""The columns of an index that say which Example a row is about, and where it lies."""

from __future__ import annotations

import operator

from shardbeam.transforms.dataset.collectors.base import Collector, Item, ShardFacts
from shardbeam.transforms.dataset.index import index_version

# The fields of an `Item` that have a column.
_FIELDS = (
    *("key", "source", "offset", "length", "sha256", "width", "height", "format", "objects"),
    "crc32c",
)


class RowsCollector(Collector):
    """Fills the columns that every row has."""

    NAME = "rows"
    # The index is rendered again whenever its bytes would differ.
    VERSION = index_version()
    COLUMNS = (*_FIELDS, "split", "shard")

    def __init__(self, facts: ShardFacts) -> None:
        super().__init__(facts)
        self._add_to = [self.columns[name].append for name in _FIELDS]
        self._fields = operator.attrgetter(*_FIELDS)

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        for append, value in zip(self._add_to, self._fields(item), strict=True):
            append(value)

    def finish(self) -> None:
        """Completes the columns that have one value."""
        rows = len(self.columns["key"])
        self.columns["split"] = [self.facts.split] * rows
        self.columns["shard"] = [self.facts.shard] * rows
