"""Shortens the storage's timeouts and waits for tests."""

from __future__ import annotations

from typing import NamedTuple

from shardbeam.transforms.storage import failures
from shardbeam.transforms.storage.gcs import storage as gcs


class Timings(NamedTuple):
    """The times that tests change.

    Attributes:
        timeout_s: The timeout of an answer.
        deadline_s: The deadline of all repetitions.
        initial_wait_s: The wait before the first repetition.
        max_wait_s: The longest wait before another one.
        part_bytes: Size of one request of an upload.
    """

    timeout_s: float = 1.0
    deadline_s: float = 20.0
    initial_wait_s: float = 0.01
    max_wait_s: float = 0.05
    part_bytes: int = 8 << 20


def get_timings() -> Timings:
    """Returns the present values."""
    return Timings(
        timeout_s=failures.TIMEOUT_S[1],
        deadline_s=failures.DEADLINE_S,
        initial_wait_s=failures._INITIAL_WAIT_S,
        max_wait_s=failures._MAX_WAIT_S,
        part_bytes=gcs.PART_BYTES,
    )


def set_timings(timings: Timings) -> None:
    """Sets the values in this process."""
    failures.TIMEOUT_S = (timings.timeout_s, timings.timeout_s)
    failures.DEADLINE_S = timings.deadline_s
    failures._INITIAL_WAIT_S = timings.initial_wait_s
    failures._MAX_WAIT_S = timings.max_wait_s
    gcs.PART_BYTES = timings.part_bytes
