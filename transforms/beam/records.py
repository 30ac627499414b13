"""The DoFn of all steps that make records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

from apache_beam import pvalue

from shardbeam.transforms.beam.stages import CountingFn, in_global_window
from shardbeam.transforms.core import counts
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.core.sharding import example_hash
from shardbeam.transforms.dataset.shard_plan import RecordBatcher
from shardbeam.transforms.formats.join.join import JoinedKey
from shardbeam.transforms.formats.join.sources import JoinSettings

# Tags of the outputs: batches of records, and rejects.
RECORDS = "records"
REJECTS = "rejects"

RecordOutput: TypeAlias = pvalue.TaggedOutput[str, Any]


@dataclasses.dataclass(eq=False, kw_only=True)
class GiveRecordsFn(CountingFn):
    """A step that outputs records, in batches (`dataset.shard_plan`), and rejects."""

    settings: JoinSettings

    def start_bundle(self) -> None:
        """Starts new counts and a new batch."""
        super().start_bundle()
        self._batcher = RecordBatcher()

    def finish_bundle(self) -> Iterator[Any]:
        """Outputs the last batch and the counts."""
        for batch in self._batcher.finish():
            yield in_global_window(pvalue.TaggedOutput(RECORDS, batch))
        yield from super().finish_bundle()

    def give(
        self, joined: JoinedKey, *, source: str, key: str, listed: int, referenced: int | None
    ) -> Iterator[RecordOutput]:
        """Counts the result for one key, and outputs its record and its rejects.

        Args:
            joined: The result.
            source: The source of the key.
            key: The key.
            listed: How many listed files have it.
            referenced: How many annotation entries name it; None if the source has no entries.
        """
        self.inputs.add_joined(joined, source=source, key=key, listed=listed, referenced=referenced)
        record = joined.record
        if record is not None:
            if self.settings.masks:
                self.inputs.samples.masks.add_record(record)
            digest = self.hash_of(record)
            self.counts.send(counts.RECORDS, digest)
            for batch in self._batcher.add(record, example_hash=digest):
                yield pvalue.TaggedOutput(RECORDS, batch)
        for reject in joined.rejects:
            yield pvalue.TaggedOutput(REJECTS, reject)

    def hash_of(self, record: Record) -> bytes:
        """Hashes a record's identity (`core.sharding.example_hash`)."""
        return example_hash(seed=self.settings.splits.seed, source=record.source, key=record.key)
