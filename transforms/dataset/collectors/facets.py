"""Counts the values of texts that a source adds, such as a table's `camera` or `weather`."""

from __future__ import annotations

from collections import Counter

import msgspec

from shardbeam.transforms.dataset.collectors.base import (
    MAX_COLLECTED,
    MAX_FACET_BYTES,
    MAX_FACET_VALUES,
    ByName,
    Collector,
    Item,
    ShardFacts,
    counted_version,
    merge_parts,
)

# Shardbeam's own keys, which no source adds.
OWN_KEYS = ("image/", "annotation/")
# Examples of other programs may all have different keys.
_MOST_REMEMBERED = 1_000


class FacetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the texts that a source adds.

    Attributes:
        facets: `{key: {value: Examples}}` of keys with few and short values, one in each Example.
        facets_left_out: `{key: Examples}` of the other keys with texts.
    """

    facets: dict[str, ByName] = {}
    facets_left_out: ByName = {}


class FacetsCollector(Collector):
    """Counts the values of each key that is not Shardbeam's own and holds a text."""

    NAME = "facets"
    VERSION = counted_version(FacetStatistics, {"": (MAX_FACET_VALUES, MAX_FACET_BYTES)})

    def __init__(self, facts: ShardFacts) -> None:
        super().__init__(facts)
        self._total = FacetStatistics()
        # {keys of an Example: those that may be facets}
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._counts: Counter[tuple[str, bytes | None]] = Counter()

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        keys = tuple(item.values)
        found = self._keys.get(keys)
        if found is None:
            found = self._choose(keys)
        for key in found:
            values = item.values[key]
            if not values or not isinstance(values[0], bytes):
                continue
            # A table with a row for each object repeats what is said of the image.
            is_one = len(values) == 1 or values.count(values[0]) == len(values)
            is_short = is_one and len(values[0]) <= MAX_FACET_BYTES
            if not is_short:
                self._counts[key, None] += 1
            elif values[0]:
                self._counts[key, values[0]] += 1
        if len(self._counts) > MAX_COLLECTED:
            self._fold()

    def _choose(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        if len(self._keys) >= _MOST_REMEMBERED:
            self._keys.clear()
        found = self._keys[keys] = tuple(key for key in keys if not key.startswith(OWN_KEYS))
        return found

    def finish(self) -> FacetStatistics:
        """Returns the counts."""
        self._fold()
        return self._total

    def _fold(self) -> None:
        """Adds the counts to the total, and forgets them."""
        facets: dict[str, ByName] = {}
        left_out: Counter[str] = Counter()
        for (key, value), count in self._counts.items():
            try:
                name = value.decode() if value is not None else None
            except UnicodeDecodeError:
                name = None
            if name is None:
                left_out[key] += count
            else:
                facets.setdefault(key, {})[name] = count
        counted = FacetStatistics(facets=facets, facets_left_out=dict(left_out))
        self._total = merge_parts([self._total, counted], kind=FacetStatistics)
        self._counts.clear()
