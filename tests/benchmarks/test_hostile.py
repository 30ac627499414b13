"""A slice of `python -m benchmarks.hostile`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.hostile import MEMORY_MB, judge, make_inputs, measure_builds


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_builds_of_hostile_images_take_no_more_memory_than_promised(tmp_path: Path) -> None:
    inputs = make_inputs(40, seed=1, megapixels=(0.05, 6))
    _, largest_bytes = judge(inputs)
    assert largest_bytes > 2 * MEMORY_MB * 1_000_000
    (peak,) = measure_builds(inputs, processes=[2], largest_bytes=largest_bytes, folder=tmp_path)
    assert peak.imports < peak.measured <= peak.allowed
