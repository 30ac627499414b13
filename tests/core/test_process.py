from __future__ import annotations

import gc
import os

import pytest

from shardbeam.transforms.core.process import usable_cpus, without_collector


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
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert usable_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus() == 1
