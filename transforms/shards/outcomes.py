"""Counts what became of a shard's records."""

from __future__ import annotations

from collections import Counter

from shardbeam.transforms.core.records import ImageRef, Reject
from shardbeam.transforms.dataset.files import RecordOutcomes
from shardbeam.transforms.dataset.input_counts import add_fingerprints, fingerprint
from shardbeam.transforms.dataset.rejects import CorrectionsCollector
from shardbeam.transforms.examples.encode.encode import EncodedRecord

# Unread files of a shard that are recorded for the next run.
_MAX_UNREAD = 100


class OutcomesCounter:
    """Counts the outcomes of records, one after another.

    Args:
        split: The records' split.
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
        if encoded.readings:
            self._readings.setdefault(record.source, Counter()).update(encoded.readings)
        if encoded.unread is not None and len(self._unread) < _MAX_UNREAD:
            self._unread.append(encoded.unread)

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
        )
