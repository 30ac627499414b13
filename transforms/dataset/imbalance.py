"""Finds classes that are too rare to learn, or that are missing from a split."""

from __future__ import annotations

import statistics as mean_values
from collections.abc import Collection, Iterator, Mapping

from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.dataset.statistics import Statistics

# A rare class has at most this fraction (1/50) of the objects, or images, of the median class.
RARE = 50
_TRAIN = "train"


def find_imbalances(splits: Mapping[str, Statistics]) -> Iterator[str]:
    """Describes missing and rare classes, one line for each split.

    Splits are compared with `train`, or with the largest split if none has that name. A class is
    rare if it has at most a fiftieth of the median class's objects (or images, if the split has no
    objects).

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
