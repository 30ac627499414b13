"""A sample of a split: the same one whatever the order, with some of every class if it can."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterable


@dataclasses.dataclass
class SplitSample:
    """Finds a sample of a split, of which it has seen a part; parts can be merged.

    Attributes:
        limit: How many images the sample has at most.
        places: The first places that were seen, and perhaps some more.
        first_of: `{class: the first place of an image that has it}`.
    """

    limit: int
    places: list[bytes] = dataclasses.field(default_factory=list)
    first_of: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def add(self, place: bytes, classes: Iterable[str]) -> None:
        """Adds an image.

        Args:
            place: Where it stands in its split (`core.sharding.example_hash`).
            classes: The classes that it has.
        """
        self.places.append(place)
        # Not each time: that would cost as much as the limit for each image.
        if len(self.places) > 2 * self.limit:
            self._cut()
        for name in classes:
            self.first_of[name] = min(place, self.first_of.get(name, place))

    def merge(self, other: SplitSample) -> None:
        """Adds what another part has seen."""
        self.places += other.places
        self._cut()
        for name, place in other.first_of.items():
            self.first_of[name] = min(place, self.first_of.get(name, place))

    def chosen(self) -> frozenset[bytes]:
        """Chooses the sample: the first image of each class, and then the first ones of all.

        Where there are more classes than the sample may have images, those come first that are the
        first of most classes.
        """
        classes = Counter(self.first_of.values())
        of_classes = heapq.nsmallest(
            self.limit, classes, key=lambda place: (-classes[place], place)
        )
        rest = heapq.nsmallest(self.limit, {*self.places} - {*of_classes})
        return frozenset([*of_classes, *rest][: self.limit])

    def _cut(self) -> None:
        self.places = heapq.nsmallest(self.limit, self.places)
