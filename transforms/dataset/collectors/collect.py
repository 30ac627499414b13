"""Runs the collectors over the Examples of a shard."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from shardbeam.transforms.dataset.collectors.base import Collector, Item, ShardFacts
from shardbeam.transforms.dataset.collectors.objects import ObjectsCollector
from shardbeam.transforms.dataset.collectors.statistics import (
    Collected,
    FacetsCollector,
    Statistics,
    StatisticsCollector,
    merge_statistics,
)
from shardbeam.transforms.dataset.index import index_version
from shardbeam.transforms.examples.encode.image_features import (
    CLASS_IDS,
    IMAGE_CLASSES,
    LABEL_KEYS,
    LABELS_VERSION,
    count_class_objects,
    digest_classes,
    list_class_ids,
)
from shardbeam.transforms.examples.encode.maps import PIXELS, list_map_classes
from shardbeam.transforms.examples.features import FeatureKind
from shardbeam.transforms.images.measures import MEASURES, MEASURES_VERSION

# The columns of an index: each Example's place, classes and measures.

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


class LabelsCollector(Collector):
    """Fills the columns that tell images of different classes apart."""

    NAME = "labels"
    VERSION = str(LABELS_VERSION)
    # And the pixels of a map, which are read from one of two keys.
    KEYS = {  # noqa: RUF012  # Never changed.
        **dict.fromkeys(LABEL_KEYS, FeatureKind.BYTES),
        **{key: FeatureKind.FLOAT for key in LABEL_KEYS if "/bbox/" in key},
        **dict.fromkeys(CLASS_IDS, FeatureKind.INT64),
    }
    NEEDS = ("labels",)
    COLUMNS = ("labels", "classes_digest", "classes", "map_classes")

    def __init__(self, facts: ShardFacts) -> None:
        super().__init__(facts)
        # The source's own feature replaces the counts of a map.
        is_replaced = any(spec.key == PIXELS for spec in facts.extras)
        self._map_names = {} if is_replaced else facts.map_names

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        values, columns = item.values, self.columns
        columns["labels"].append(item.known["labels"])
        columns["classes_digest"].append(digest_classes(values.get(IMAGE_CLASSES, ())))
        columns["classes"].append(list_class_ids(values) if self.facts.has_labels else None)
        columns["map_classes"].append(
            list_map_classes(values, names=self._map_names) if self._map_names else None
        )


class ClassObjectsCollector(Collector):
    """Fills the column with the number of objects of each class."""

    NAME = "class_objects"
    VERSION = "1"
    KEYS = dict.fromkeys(CLASS_IDS, FeatureKind.INT64)
    COLUMNS = ("class_objects",)

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        counts = count_class_objects(item.values) if self.facts.has_labels else None
        self.columns["class_objects"].append(counts)


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
