"""Runs the collectors over the Examples of a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardbeam.transforms.dataset.collectors.base import Collector, Item, ShardFacts
from shardbeam.transforms.dataset.collectors.index_columns import (
    ClassObjectsCollector,
    LabelsCollector,
    MeasuresCollector,
    RowsCollector,
)
from shardbeam.transforms.dataset.collectors.objects import ObjectsCollector
from shardbeam.transforms.dataset.collectors.statistics import (
    Collected,
    FacetsCollector,
    Statistics,
    StatisticsCollector,
    merge_statistics,
)

COLLECTORS: Sequence[type[Collector]] = (
    RowsCollector,
    LabelsCollector,
    ClassObjectsCollector,
    MeasuresCollector,
    ObjectsCollector,
    StatisticsCollector,
    FacetsCollector,
)
# The collectors that count the statistics.
COUNTING: Sequence[type[Collector]] = (
    ObjectsCollector,
    StatisticsCollector,
    FacetsCollector,
)
# `{default key: kind}` of all values that are read again from Examples.
COUNTED_KINDS = {key: kind for each in COLLECTORS for key, kind in each.KEYS.items()}


class ShardCollectors:
    """Collectors of one shard.

    Args:
        facts: The shard.
        kinds: The collectors to run.

    Attributes:
        examples: The number of Examples so far.
    """

    def __init__(self, facts: ShardFacts, *, kinds: Sequence[type[Collector]] = COLLECTORS) -> None:
        self.examples = 0
        self._collectors = [kind(facts) for kind in kinds]
        self._add_to = [each.add for each in self._collectors]

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        self.examples += 1
        for add in self._add_to:
            add(item)

    def finish(self) -> tuple[dict[str, Sequence[Any]], dict[str, Collected]]:
        """Returns `{column of the index: values}`, and `{name: what it has counted}`."""
        columns: dict[str, Sequence[Any]] = {}
        collected = {}
        for each in self._collectors:
            counted = each.finish()
            columns |= each.columns
            collected[each.NAME] = Collected(
                each.VERSION, None if counted is None else merge_statistics([counted])
            )
        return columns, collected

    def statistics(self) -> Statistics:
        """Returns what was counted so far."""
        _, collected = self.finish()
        return merge_statistics(each.statistics for each in collected.values() if each.statistics)


def list_outdated(collected: Mapping[str, Collected]) -> list[type[Collector]]:
    """Returns the collectors that have not counted a shard, or only in another version."""
    return [
        each
        for each in COLLECTORS
        if each.NAME not in collected or collected[each.NAME].version != each.VERSION
    ]
