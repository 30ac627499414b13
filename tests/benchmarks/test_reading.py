"""The part on reading, with the readers that need no other package."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import reading
from tests.support.bench_report import tables


@pytest.mark.slow
def test_reading_part_measures_each_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_install_readers", lambda _: None)
    report = reading.run_reading(data=tmp_path, images=24, rounds=1, rows=1_000)
    results, targets = tables(report)
    assert [row[0] for row in results[1:]] == [
        reading.READERS[reading.OURS],
        reading.READERS[reading.IMAGES],
        reading.READERS[reading.FILES],
    ]
    assert all(float(cell.replace(",", "")) > 0 for row in results[1:] for cell in row[1:])
    assert len(targets) == 1 + 2
    assert "An open dataset of 1,000 Examples in 8 shards takes" in report


def test_memory_of_an_open_dataset(tmp_path: Path) -> None:
    found = reading.measure_memory(tmp_path, rows=20_000)
    # Eight bytes a row, and what does not grow with the rows: some 10 KB, half a byte for each.
    assert found["bytes_per_row"] == pytest.approx(8, abs=1)
    assert found["selected"] == pytest.approx(8, abs=1)
    assert found["pickled_bytes"] < 1_000
    assert list(tmp_path.iterdir()) == []
