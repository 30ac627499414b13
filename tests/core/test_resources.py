"""What each process that writes shards may use."""

from __future__ import annotations

import pytest

from shardbeam.transforms.core import resources
from shardbeam.transforms.core.resources import Resources, Share


@pytest.mark.parametrize(
    ("cpus", "wanted", "shards", "num_bytes", "expected"),
    [
        # The requested number, but never more processes than shards.
        (4, 1, 100, 10**12, 1),
        (4, 6, 100, 1, 6),
        (4, 6, 3, 1, 3),
        (4, 2, 1, 10**12, 1),
        # One a CPU, if that is worth it.
        (2, None, 8, 10**9, 2),
        (2, None, 8, 199_999_999, 1),
        (4, None, 8, 200_000_000, 2),
        (4, None, 3, 10**12, 3),
        (64, None, 1000, 10**12, 8),
        (1, None, 1000, 10**12, 1),
        (4, None, 1, 0, 1),
    ],
)
def test_how_many_processes_write(
    cpus: int,
    wanted: int | None,
    shards: int,
    num_bytes: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "usable_cpus", lambda: cpus)
    counted = Resources(processes=wanted).count_processes(shards=shards, num_bytes=num_bytes)
    assert counted == expected


@pytest.mark.parametrize(
    ("given", "processes", "expected"),
    [
        # One thread more than CPUs; at most a quarter of the memory.
        (Resources(), 1, Share(threads=7, memory_bytes=500_000_000, read_ahead=32)),
        (Resources(), 4, Share(threads=3, memory_bytes=500_000_000, read_ahead=32)),
        (Resources(), 8, Share(threads=2, memory_bytes=250_000_000, read_ahead=32)),
        # What is given holds for each process.
        (
            Resources(threads=7, memory_mb=400, read_ahead=5),
            8,
            Share(threads=7, memory_bytes=400_000_000, read_ahead=5),
        ),
    ],
)
def test_processes_share_the_machine(
    given: Resources, processes: int, expected: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "usable_cpus", lambda: 6)
    monkeypatch.setattr(resources, "machine_bytes", lambda: 8_000_000_000)
    assert given.share(processes=processes) == expected
