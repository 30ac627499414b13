"""What a run asks of object storage, in all of its processes."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from apache_beam.metrics.metric import MetricsFilter

from shardbeam.transforms.beam.stages import BYTES_RECEIVED, BYTES_SENT, REQUESTS, USAGE_NAMESPACE
from shardbeam.transforms.storage.usage import StorageUsage, usage_counter

_log = logging.getLogger(__name__)


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
