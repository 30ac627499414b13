"""Counts what became of a shard's records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection

from shardbeam.transforms.core.reasons import ALLOWED_OF_A_KIND, ALLOWED_REASONS
from shardbeam.transforms.core.records import ImageRef, Reject
from shardbeam.transforms.dataset.input_counts import add_fingerprints, fingerprint
from shardbeam.transforms.dataset.rejects import CorrectionsCollector
from shardbeam.transforms.dataset.shard_result import RecordOutcomes
from shardbeam.transforms.examples.encode.encode import EncodedRecord

# Unread files of a shard that are recorded for the next run.
_MAX_UNREAD = 100
_MOST_ALLOWED = ALLOWED_OF_A_KIND * len(ALLOWED_REASONS)


class OutcomesCounter:
    """Counts the outcomes of records, one after another.

    Args:
        split: The records' split.

    Attributes:
        libraries: The names of the libraries that decide the outcomes.
        exchanged: `{source: whether it exchanges width and height}`, where outcomes depend on it.
    """

    def __init__(self, split: str) -> None:
        self._images = 0
        self._fingerprints: list[str] = []
        self._corrections: Counter[str] = Counter()
        self._excluded: Counter[str] = Counter()
        self._rejects: list[Reject] = []
        self._corrected = CorrectionsCollector(split)
        # {source: counts of its boxes}
        self._readings: dict[str, Counter[str]] = {}
        self._unread: list[ImageRef] = []
        self.libraries: set[str] = set()
        self.exchanged: dict[str, bool] = {}
        # The classes of each rejected image. If there are more images, the gate allows none.
        self._classes: list[Collection[str]] = []

    def add(self, encoded: EncodedRecord) -> None:
        """Adds the outcome of a record."""
        record, sha256 = encoded.record, encoded.content_sha256
        self._images += bool(encoded.examples)
        if sha256:
            self._fingerprints.append(
                fingerprint(record.source, record.key, record.size_bytes, sha256)
            )
        self._corrections.update(encoded.corrections)
        self._corrected.add(record, encoded.corrections)
        if encoded.excluded is not None:
            self._excluded[encoded.excluded.value] += 1
        if encoded.reject is not None:
            self._rejects.append(encoded.reject)
        if encoded.rejected_classes and len(self._classes) < _MOST_ALLOWED:
            self._classes.append(encoded.rejected_classes)
        if encoded.readings:
            self._readings.setdefault(record.source, Counter()).update(encoded.readings)
        if encoded.unread is not None and len(self._unread) < _MAX_UNREAD:
            self._unread.append(encoded.unread)
        self.libraries.update(encoded.libraries)
        if encoded.exchanged is not None:
            self.exchanged[record.source] = encoded.exchanged

    def total(self) -> RecordOutcomes:
        """Returns the outcomes of all records so far."""
        return RecordOutcomes(
            images=self._images,
            fingerprint=add_fingerprints(*self._fingerprints),
            inputs=len(self._fingerprints),
            corrections=dict(self._corrections),
            excluded=dict(self._excluded),
            rejects=tuple(self._rejects),
            corrected=self._corrected.first(),
            readings={source: dict(counts) for source, counts in self._readings.items()},
            unread=tuple(self._unread),
            rejected_classes=tuple(sorted({*itertools.chain(*self._classes)})),
        )
