from __future__ import annotations

import gc
import os

import pytest

from shardbeam.transforms.core import process
from shardbeam.transforms.core.process import reachable_cpus, usable_cpus, without_collector


def test_the_collector_pauses_and_comes_back() -> None:
    frozen = gc.get_freeze_count()
    with without_collector():
        assert not gc.isenabled()
    try:
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


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
