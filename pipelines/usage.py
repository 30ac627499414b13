"""What a run asks of object storage: as it was counted, and as it can be foreseen."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from apache_beam.metrics.metric import MetricsFilter

from shardbeam.configs.placeholders import FINGERPRINT, placeholders
from shardbeam.pipelines.plan import Plan
from shardbeam.transforms.beam.stages import BYTES_RECEIVED, BYTES_SENT, REQUESTS, USAGE_NAMESPACE
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome
from shardbeam.transforms.storage.usage import StorageUsage, usage_counter

_log = logging.getLogger(__name__)

_GCS = "gs://"
# What one page of a listing holds, and one part of an upload (shardbeam.transforms.storage.gcs).
_PAGE_FILES = 1000
_PART_BYTES = 8 << 20


class UsageMeter:
    """Adds up what a run asks of object storage, from when it is made on."""

    def __init__(self) -> None:
        self._before = usage_counter.total()
        self._taken_before = usage_counter.taken()
        self._elsewhere = StorageUsage()

    def add_result(self, result: Any) -> None:  # noqa: ANN401  # Each runner has a class of its own.
        """Adds what the workers of a pipeline have reported, in whichever process they ran."""
        try:
            reported = _reported(result)
        except Exception:  # noqa: BLE001
            # Not every runner has metrics, and none of them is worth a run.
            _log.debug("the runner tells no metrics", exc_info=True)
            return
        here = usage_counter.taken() - self._taken_before
        # What this process has reported is counted by itself.
        elsewhere = reported - here
        if all(count >= 0 for count in elsewhere.requests.values()):
            self._elsewhere = elsewhere

    def usage(self) -> StorageUsage:
        """Returns all requests so far; without those of workers whose run has failed."""
        return usage_counter.total() - self._before + self._elsewhere


def _reported(result: Any) -> StorageUsage:  # noqa: ANN401  # As above.
    counters = result.metrics().query(MetricsFilter().with_namespace(USAGE_NAMESPACE))["counters"]
    # One of the same name for each step.
    values: Counter[str] = Counter()
    for counter in counters:
        values[counter.key.metric.name] += counter.result or 0
    return StorageUsage(
        bytes_received=values.pop(BYTES_RECEIVED, 0),
        bytes_sent=values.pop(BYTES_SENT, 0),
        requests={name.removeprefix(REQUESTS): count for name, count in values.items()},
    )


def forecast_usage(
    plan: Plan, outcome: Outcome, *, annotation_files: Iterable[tuple[str, int, str]]
) -> StorageUsage:
    """Foresees what a build will ask of Google Cloud Storage, if nothing has to be repeated.

    Args:
        plan: What is to be built.
        outcome: What listing and joining have found.
        annotation_files: `(uri, size in bytes, version)` of each.
    """
    usage = StorageUsage()
    for uri, size_bytes, _ in annotation_files:
        if uri.startswith(_GCS):
            usage += StorageUsage(requests={"get": 2}, bytes_received=size_bytes)
    # The output's name is found out before the run.
    listings = 2 if FINGERPRINT in placeholders(plan.output_template) else 1
    for source in plan.sources:
        splits = _splits_of(source.name, outcome)
        if any(root.startswith(_GCS) for root in source.format.roots()):
            listed = sum(split.listed for split in splits)
            usage += StorageUsage(
                requests={
                    "list": listings * max(1, math.ceil(listed / _PAGE_FILES)),
                    "get": sum(split.images for split in splits),
                },
                bytes_received=sum(split.num_bytes for split in splits),
            )
    if plan.output.startswith(_GCS):
        usage += _writing(outcome)
    if plan.latest.startswith(_GCS):
        usage += StorageUsage(requests={"get": 1, "insert": 1})
    return usage


def _splits_of(source: str, outcome: Outcome) -> list[SplitOutcome]:
    """The splits that a source fills: that of its own name, or all where it is the only one."""
    named = outcome.splits.get(source)
    return list(outcome.splits.values()) if named is None else [named]


def _writing(outcome: Outcome) -> StorageUsage:
    """Foresees the writing of the output, as `transforms.dataset` does it; no shard is copied."""
    shards = sum(split.shards for split in outcome.splits.values())
    num_bytes = sum(split.num_bytes for split in outcome.splits.values())
    rejects = sum(bool(split.rejected) for split in outcome.splits.values())
    moved = 2 * shards + rejects
    parts = sum(
        split.shards * math.ceil(split.num_bytes / split.shards / _PART_BYTES)
        for split in outcome.splits.values()
        if split.shards and split.num_bytes / split.shards >= _PART_BYTES
    )
    return StorageUsage(
        requests={
            # What is there before, the staging before the gate and when it is cleared.
            "list": 8 + 2 * math.ceil(2 * shards / _PAGE_FILES),
            # Each shard is looked up after the lease, and its result read for its record; what is
            # moved, is asked for its version. About ten are for the lease.
            "get": 4 * shards + moved + 18,
            # Shard, index, result, progress and record; then the dataset's own files, and the
            # lease, which is taken and released.
            "insert": 5 * shards + rejects + 12,
            "upload": parts,
            "rewrite": moved,
            # What was moved, results and progress; then what was about the run.
            "delete": moved + 2 * shards + 6,
        },
        bytes_sent=num_bytes,
    )
