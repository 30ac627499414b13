"""Measuring processes, and reporting the measurements."""

from __future__ import annotations

import sys

import pytest

from benchmarks.measure import Measurement, measure
from benchmarks.report import markdown_table, median_and_range, target_row

_MB = 1_000_000


def test_measure_sees_memory_of_children_and_time() -> None:
    child = f"x = bytearray(200 * {_MB}); import time; time.sleep(0.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    seen: list[float] = []
    measurement = measure([sys.executable, "-c", f"{parent}; print('x')"], watch=seen.append)
    assert 200 * _MB < measurement.peak_bytes() < 300 * _MB
    assert 190 * _MB < measurement.peak_anonymous_bytes < measurement.peak_bytes()
    assert measurement.wall_time_s > 0.5
    assert measurement.cpu_time_s > 0
    assert measurement.stdout == "x\n"
    assert seen[-1] == measurement.wall_time_s


def test_measure_tells_why_a_command_failed() -> None:
    with pytest.raises(RuntimeError, match=r"exit code 3\n.*nothing there"):
        measure(
            [sys.executable, "-c", "import sys; sys.stderr.write('nothing there'); sys.exit(3)"]
        )


def test_peak_up_to_a_time() -> None:
    memory = ((0.0, 10), (1.0, 30), (2.0, 20), (3.0, 40))
    measurement = Measurement(
        wall_time_s=4, cpu_time_s=1, memory=memory, peak_anonymous_bytes=0, stdout=""
    )
    assert measurement.peak_bytes() == 40
    assert measurement.peak_bytes(until_s=2.0) == 30
    assert measurement.peak_bytes(until_s=0.5) == 10


def test_table() -> None:
    assert markdown_table(["what", "s"], [("a", "1"), ("b", "2")]) == (
        "| what | s |\n| --- | ---: |\n| a | 1 |\n| b | 2 |\n"
    )


def test_median_and_range() -> None:
    assert median_and_range([3.0, 1.0, 2.26]) == "2.3 (1.0 to 3.0)"
    assert median_and_range([2.0]) == "2.0"


def test_a_missed_target_stands_out() -> None:
    assert target_row("x", measured="1", target="2", reached=False)[-1] == "**no**"
    assert target_row("x", measured="2", target="2", reached=True)[-1] == "yes"
