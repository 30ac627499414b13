"""The times, dollars and machines that docs/guide/runners.md promises for Dataflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.dataflow_cost import JOBS, Job, make_table, read_s

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_table_that_is_computed() -> None:
    assert make_table() in (DOCS / "guide" / "runners.md").read_text(encoding="utf-8")


def test_the_table_s_cpu_times_are_those_that_were_measured() -> None:
    text = (DOCS / "internals" / "scale.md").read_text(encoding="utf-8")
    found = re.search(
        r"takes (\S+) ms of CPU with `verify: decode` from disk and (\S+) ms with `header` .*?"
        r"and about (\S+) ms with `header` from \[object storage\]",
        text,
    )
    assert found is not None
    decode, header, remote = map(float, found.groups())
    job = Job(images=10**5, workers=1)
    assert job.write_s() == pytest.approx(10**5 * (remote + decode - header) / 1000 / job.vcpus)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job.images))
def test_a_machine_holds_what_its_processes_take(job: Job) -> None:
    assert job.machine == f"n2-standard-{job.vcpus}"
    assert job.needed_gb <= job.memory_gb == 4 * job.vcpus
    assert job.workers * job.vcpus <= job.shards


def test_time_and_dollars_add_up() -> None:
    """By hand: 90 shards on 8 CPUs, which write for 40 s."""
    job = Job(images=10**5, workers=2)
    assert (job.shards, job.list_s()) == (90, 5)
    assert job.write_s() == pytest.approx(40)
    assert job.total_s() == pytest.approx(240 + 5 + 40 + 0.63)
    hours = 2 * 285.63 / 3600
    machines = hours * (4 * 0.056 + 16 * 0.003557 + 50 * 0.000054)
    requests = (100 + 630) * 0.000005 + (100_000 + 1080) * 0.0000004
    assert job.cost_usd() == pytest.approx(machines + 0.2 * 0.011 + requests)


@pytest.mark.parametrize(
    ("images", "seconds"), [(5000, 1), (6_000_000, 1200), (18_000_000, 2400), (18_020_000, 2401)]
)
def test_a_bucket_answers_twice_as_much_every_twenty_minutes(images: int, seconds: float) -> None:
    assert read_s(images) == pytest.approx(seconds)
