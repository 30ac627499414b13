"""Counts of this process's requests to object storage: by kind, repeated, throttled, and bytes."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import msgspec

# The kinds that storage bills, and `upload` for the parts of an upload that an `insert` began.
REQUEST_KINDS = ("list", "get", "insert", "upload", "rewrite", "delete", "other")


class StorageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to object storage, repeated ones included.

    Attributes:
        requests: `{kind: count}` of the kinds that occurred (`REQUEST_KINDS`).
        bytes_received: Bytes of the answers.
        bytes_sent: Bytes of the requests.
        repeated: Requests that were made once more, because the one before had failed.
        throttled: Those of them where the storage had asked for fewer requests (429, 503).
        throttled_s: Whole seconds that all threads together have waited before these.
    """

    requests: Mapping[str, int] = {}
    bytes_received: int = 0
    bytes_sent: int = 0
    repeated: int = 0
    throttled: int = 0
    throttled_s: int = 0

    def __add__(self, other: StorageUsage) -> StorageUsage:
        return self._combine(other, sign=1)

    def __sub__(self, other: StorageUsage) -> StorageUsage:
        return self._combine(other, sign=-1)

    def _combine(self, other: StorageUsage, *, sign: int) -> StorageUsage:
        counts = {
            kind: self.requests.get(kind, 0) + sign * other.requests.get(kind, 0)
            for kind in REQUEST_KINDS
        }
        numbers = {
            name: getattr(self, name) + sign * getattr(other, name)
            for name in self.__struct_fields__
            if name != "requests"
        }
        requests = {kind: count for kind, count in counts.items() if count}
        return StorageUsage(requests=requests, **numbers)

    def __bool__(self) -> bool:
        return bool(self.requests or self.repeated)


class UsageCounter:
    """Counts requests; threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = self._taken = StorageUsage()
        # The part of a second that `_total` lacks.
        self._rest_s = 0.0

    def count(self, kind: str, *, bytes_received: int = 0, bytes_sent: int = 0) -> None:
        """Counts one request, whose kind is one of `REQUEST_KINDS`."""
        self.add(
            StorageUsage(requests={kind: 1}, bytes_received=bytes_received, bytes_sent=bytes_sent)
        )

    def count_repeated(self) -> None:
        """Counts a request that is made once more."""
        self.add(StorageUsage(repeated=1))

    def count_throttled(self, *, waited_s: float) -> None:
        """Counts a request that is made once more, after the storage asked for fewer.

        Args:
            waited_s: Seconds since then.
        """
        with self._lock:
            self._rest_s, whole_s = math.modf(self._rest_s + waited_s)
            self._total += StorageUsage(repeated=1, throttled=1, throttled_s=int(whole_s))

    def add(self, usage: StorageUsage) -> None:
        """Adds the counts of another process."""
        with self._lock:
            self._total += usage

    def total(self) -> StorageUsage:
        """Returns all counts."""
        return self._total

    def take(self) -> StorageUsage:
        """Returns the counts since the last call."""
        with self._lock:
            new, self._taken = self._total - self._taken, self._total
            return new

    def taken(self) -> StorageUsage:
        """Returns the sum of everything that `take` has returned."""
        return self._taken


# The counter of this process.
usage_counter = UsageCounter()
