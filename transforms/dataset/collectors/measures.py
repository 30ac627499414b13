"""The columns of an index with the measures of images (`images.measures`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from shardbeam.transforms.dataset.collectors.base import Finished, Item, ShardFacts
from shardbeam.transforms.examples.features import FeatureKind
from shardbeam.transforms.images.measures import MEASURES, MEASURES_VERSION


class MeasuresCollector:
    """Fills a column for each measure that has one."""

    NAME: ClassVar[str] = "measures"
    VERSION: ClassVar[str] = MEASURES_VERSION
    KEYS: ClassVar[Mapping[str, FeatureKind]] = {}
    NEEDS: ClassVar[Collection[str]] = tuple(each.name for each in MEASURES)
    COLUMNS: ClassVar[Sequence[str]] = tuple(each.name for each in MEASURES if each.column)

    def __init__(self, facts: ShardFacts) -> None:
        del facts
        self._columns: dict[str, list[int | None]] = {name: [] for name in self.COLUMNS}

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        for name, column in self._columns.items():
            column.append(item.known.get(name))

    def finish(self) -> Finished:
        """Returns the columns."""
        return Finished(self._columns)
