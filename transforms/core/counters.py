"""Counts the work of this process, so that a person can see how far a command is.

Nothing else depends on these counts. Every process counts, wherever it runs; only the process of
the command looks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Elements that are added at once.
BLOCK = 256

# What a record is.
IMAGES, ROWS = "images", "rows"


class ProgressCount:
    """A number that grows; several threads may add to it.

    Attributes:
        done: How much is done.
        total: How much there is to do; 0 if that is not known.
    """

    __slots__ = ("_lock", "done", "total")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done = self.total = 0

    def add(self, number: int = 1) -> None:
        """Adds to what is done."""
        with self._lock:
            self.done += number

    def expect(self, number: int) -> None:
        """Adds to the total."""
        with self._lock:
            self.total += number


class BlockCount:
    """Adds to a progress count in blocks: one by one, it would cost as much as a small step itself.

    Args:
        count: The count; only one thread adds to it by this.
    """

    def __init__(self, count: ProgressCount) -> None:
        self._count = count
        self._waiting = 0

    def add(self, number: int = 1) -> None:
        """Adds to what is done."""
        self._waiting += number
        if self._waiting >= BLOCK:
            self.flush()

    def flush(self) -> None:
        """Adds what is left."""
        self._count.add(self._waiting)
        self._waiting = 0

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yields items, and adds each of them."""
        for item in items:
            self.add()
            yield item
        self.flush()


class Counters:
    """The counts of a command's work.

    Attributes:
        files: Files that were listed.
        scanned_bytes: Bytes of COCO and LVIS files in which the entries were found.
        annotation_bytes: Bytes of annotation files that were decoded.
        annotation_files: Listed annotation files that were read.
        entries: Annotation entries that were read; in tables without images, rows.
        cut: Images that the pass before exact splits has seen.
        sampled: Images that the pass before a sample has seen.
        joined: Images that were joined. Their total is that of the two passes, too.
        sharded: Images whose shard was found.
        shard_bytes: Bytes of finished shards that were read.
        indexes: Indexes of shards that were read.
        pictures: Pictures that were drawn.
        bundles: Bundles of the steps that list, read and join: those that are done, of those that
            have started.
        exported: Images that were written as files.
        noun: What a record is: an image, or a row of a table without images.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self, *, noun: str = IMAGES, annotation_bytes: int = 0) -> None:
        """Sets all counts to zero, because another piece of work begins.

        Args:
            noun: `IMAGES` or `ROWS`.
            annotation_bytes: The total of that count.
        """
        self.files = ProgressCount()
        self.scanned_bytes = ProgressCount()
        self.annotation_bytes = ProgressCount()
        self.annotation_files = ProgressCount()
        self.entries = ProgressCount()
        self.cut = ProgressCount()
        self.sampled = ProgressCount()
        self.joined = ProgressCount()
        self.sharded = ProgressCount()
        self.shard_bytes = ProgressCount()
        self.indexes = ProgressCount()
        self.pictures = ProgressCount()
        self.bundles = ProgressCount()
        self.exported = ProgressCount()
        self.noun = noun
        self.annotation_bytes.expect(annotation_bytes)


# The counters of this process.
counters = Counters()
