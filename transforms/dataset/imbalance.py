"""Classes that a model could not learn, or not be tested by: what statistics show of that."""

from __future__ import annotations

import statistics as mean_values
from collections.abc import Collection, Iterator, Mapping

from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.dataset.statistics import Statistics

# A class is rare if it has this many times fewer images than the median.
RARE = 50
_TRAIN = "train"


def find_imbalances(splits: Mapping[str, Statistics]) -> Iterator[str]:
    """Describes classes that are missing in a split, and rare ones, one line each.

    Splits are compared with `train`, or with the largest where none has that name. A class is rare
    if the split has at most a fiftieth of the median class's objects (of its images, where there
    are no objects).

    Args:
        splits: `{split: what is in it}`.
    """
    if not splits:
        return
    largest = max(splits, key=lambda name: splits[name].examples)
    train = _TRAIN if _TRAIN in splits else largest
    known = splits[train].images_by_class
    for name, split in splits.items():
        found = split.images_by_class
        # A split without any class has no annotations, as test splits often do.
        if name != train and found and known:
            for one, other, missing in (
                (train, name, known.keys() - found.keys()),
                (name, train, found.keys() - known.keys()),
            ):
                if missing:
                    yield f"in {one!r} and not in {other!r}: {_name_classes(missing)}"
    for name, split in splits.items():
        counts, what = split.objects_by_class, "objects"
        if not counts:
            counts, what = split.images_by_class, "images"
        median = mean_values.median(counts.values()) if counts else 0
        rare = [f"{label} ({count:,})" for label, count in counts.items() if count * RARE <= median]
        if rare:
            yield (
                f"rare in {name!r}, at most 1/{RARE} of the median class's {median:,.0f} {what}: "
                f"{_name_classes(rare)}"
            )


def _name_classes(names: Collection[str]) -> str:
    plural = "1 class" if len(names) == 1 else f"{len(names):,} classes"
    return f"{plural}: {list_classes(sorted(names))}"
