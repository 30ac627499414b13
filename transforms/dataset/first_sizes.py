"""The first images of each source, whose sizes show whether it exchanges width and height."""

from __future__ import annotations

import msgspec

from shardbeam.transforms.core.records import Record, SizedImage, annotated_size

# Images of a source that decide.
MAX_SIZES = 200


class FirstSizes(msgspec.Struct):
    """The first images of each source, by their keys, whose annotations give a size.

    Attributes:
        sources: `{source: {key: image}}`, at most `MAX_SIZES` images of each.
        last: `{source: the last key}` of the sources that have as many.
    """

    sources: dict[str, dict[str, SizedImage]] = {}
    last: dict[str, str] = {}

    def add_record(self, record: Record) -> bool:
        """Adds a record; returns whether it is one of the first so far."""
        last = self.last.get(record.source)
        if record.image is None or (last is not None and record.key > last):
            return False
        width, height = annotated_size(record.annotations)
        if min(width, height) <= 0:
            return False
        self._add(record.source, record.key, SizedImage(record.image, width, height))
        return True

    def add(self, other: FirstSizes) -> None:
        """Adds other images."""
        for source, images in other.sources.items():
            for key, image in images.items():
                self._add(source, key, image)

    def at_least(self, number: int) -> dict[str, tuple[SizedImage, ...]]:
        """Returns the images of each source that has this many, in the order of their keys."""
        return {
            source: tuple(images[key] for key in sorted(images))
            for source, images in sorted(self.sources.items())
            if len(images) >= number
        }

    def _add(self, source: str, key: str, image: SizedImage) -> None:
        images = self.sources.setdefault(source, {})
        images[key] = image
        if len(images) > MAX_SIZES:
            del images[max(images)]
        if len(images) == MAX_SIZES:
            self.last[source] = max(images)
