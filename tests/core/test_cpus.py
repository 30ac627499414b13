"""The CPUs that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardbeam.transforms.core import cpus as cpus_module
from shardbeam.transforms.core.cpus import cpu_quota, reachable_cpus, usable_cpus


def test_cpus_that_this_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus_module, "cpu_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert (usable_cpus(), reachable_cpus()) == (3, 3)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert (usable_cpus(), reachable_cpus()) == (1, 1)


@pytest.mark.parametrize(("quota", "cpus"), [(0.1, 1), (1.0, 1), (1.5, 2), (3.0, 3), (64.0, 3)])
def test_a_quota_limits_the_usable_cpus(
    quota: float, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus_module, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert (usable_cpus(), reachable_cpus()) == (cpus, 3)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        (
            {
                "cpu.max": "200000 100000\n",
                "cpu/cpu.cfs_quota_us": "300000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": ""}, None),
        ({"cpu.max": "50000 0\n"}, None),
        ({"cpu.max": "\xff"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),
    ],
)
def test_the_quota_of_the_mounted_groups(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert cpu_quota(groups=tmp_path) == quota
