"""How far a run is, as its workers tell in staging."""

from __future__ import annotations

from shardbeam.pipelines.progress import ProgressSnapshot
from shardbeam.transforms.dataset.outcome import ShardProgress, Totals
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.find import storage_for

_LOCAL_POLL_S = 0.5
# A listing is billed, and takes its time.
_REMOTE_POLL_S = 5.0


class StagedProgress:
    """Reads a run's progress again and again, and no more of it than has changed.

    Attributes:
        poll_s: Seconds from one reading to the next.
    """

    def __init__(self, staging: Staging) -> None:
        self.poll_s = _REMOTE_POLL_S if storage_for(staging.root).is_remote else _LOCAL_POLL_S
        self._staging = staging
        self._totals: Totals | None = None
        self._seen: dict[str, tuple[str, ShardProgress]] = {}

    def read(self) -> ProgressSnapshot:
        """Returns how far the run is."""
        self._totals = self._totals or self._staging.read_totals()
        if self._totals is None:
            return ProgressSnapshot()
        shards = self._staging.read_progress(self._seen)
        return ProgressSnapshot(
            shards_done=sum(shard.finished for shard in shards),
            shards_total=self._totals.shards,
            images_done=sum(shard.examples for shard in shards),
            images_total=self._totals.examples,
            shards_resumed=sum(shard.resumed for shard in shards),
            images_resumed=sum(shard.examples for shard in shards if shard.resumed),
        )
