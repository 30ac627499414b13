"""The columns of an index with the measures of images (`images.measures`)."""

from __future__ import annotations

from shardbeam.transforms.dataset.collectors.base import Collector, Item
from shardbeam.transforms.images.measures import MEASURES, MEASURES_VERSION


class MeasuresCollector(Collector):
    """Fills a column for each measure that has one."""

    NAME = "measures"
    VERSION = MEASURES_VERSION
    NEEDS = tuple(each.name for each in MEASURES)
    COLUMNS = tuple(each.name for each in MEASURES if each.column)

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        for name, column in self.columns.items():
            column.append(item.known.get(name))
