"""The columns of an index with the classes of an Example, and the digests of its labels."""

from __future__ import annotations

from shardbeam.transforms.dataset.collectors.base import Collector, Item, ShardFacts
from shardbeam.transforms.examples.encode.label_digest import (
    CLASS_IDS,
    IMAGE_CLASSES,
    LABEL_KEYS,
    LABELS_VERSION,
    digest_classes,
    list_class_ids,
)
from shardbeam.transforms.examples.encode.maps import PIXELS, list_map_classes
from shardbeam.transforms.examples.features import FeatureKind


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
