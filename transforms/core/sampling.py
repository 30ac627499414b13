"""A sample of a split that holds every class if it can, and does not depend on arrival order."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterable


@dataclasses.dataclass
class SplitSample:
    """Chooses a sample of a split; samples of several parts of the split can be merged.

    Attributes:
        limit: The most images in the sample.
        places: The smallest places that were added, and perhaps some more.
        first_of: `{class: the first place of an image with that class}`.
    """

    limit: int
    places: list[bytes] = dataclasses.field(default_factory=list)
    first_of: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def add(self, place: bytes, classes: Iterable[str]) -> None:
        """Adds an image.

        Args:
            place: Its place in the order of its split (`core.sharding.example_hash`).
            classes: Its classes.
        """
        self.places.append(place)
        # Cut rarely, because cutting takes time in proportion to the limit.
        if len(self.places) > 2 * self.limit:
            self._cut()
        for name in classes:
            self.first_of[name] = min(place, self.first_of.get(name, place))

    def merge(self, other: SplitSample) -> None:
        """Adds another part of the split."""
        self.places += other.places
        self._cut()
        for name, place in other.first_of.items():
            self.first_of[name] = min(place, self.first_of.get(name, place))

    def chosen(self) -> frozenset[bytes]:
        """Returns the places of the sample: the first image of each class, then the split's first.

        Where there are more classes than `limit`, images that come first in the most classes are
        preferred.
        """
        classes = Counter(self.first_of.values())
        of_classes = heapq.nsmallest(
            self.limit, classes, key=lambda place: (-classes[place], place)
        )
        rest = heapq.nsmallest(self.limit, {*self.places} - {*of_classes})
        return frozenset([*of_classes, *rest][: self.limit])

    def _cut(self) -> None:
        self.places = heapq.nsmallest(self.limit, self.places)
