from __future__ import annotations

import gc
import importlib
import os
from pathlib import Path

import pytest

from shardbeam.transforms.core import process
from shardbeam.transforms.core.process import reachable_cpus, usable_cpus, without_collector


def test_the_collector_pauses_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_once.py").write_text("value = [[]]")
    monkeypatch.syspath_prepend(tmp_path)
    counts = [gc.get_freeze_count()]
    for _ in range(2):
        with without_collector():
            assert not gc.isenabled()
            importlib.import_module("imported_once")
        assert gc.isenabled()
        counts.append(gc.get_freeze_count())
    # What a second command in the same process leaves behind can still be collected.
    assert counts[0] < counts[1] == counts[2]


def test_cpus_that_this_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "cpu_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert (usable_cpus(), reachable_cpus()) == (3, 3)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert (usable_cpus(), reachable_cpus()) == (1, 1)


@pytest.mark.parametrize(("quota", "cpus"), [(0.1, 1), (1.0, 1), (1.5, 2), (3.0, 3), (64.0, 3)])
def test_a_quota_limits_the_usable_cpus(
    quota: float, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert (usable_cpus(), reachable_cpus()) == (cpus, 3)
