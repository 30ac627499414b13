"""What each process that writes shards may use: CPUs, memory, threads."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core import resources
from shardbeam.transforms.core.resources import (
    MemoryBudget,
    Resources,
    Share,
    batch_by_size,
    cpu_quota,
    map_ahead,
    map_many,
    reachable_cpus,
    usable_cpus,
    without_collector,
)


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


# Work under way at a time, by its memory


class UnderWay:
    """Counts what is under way at a time."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._now: list[int] = []
        self.seen: set[tuple[int, ...]] = set()

    def work(self, size_bytes: int) -> None:
        with self._budget.take(size_bytes):
            with self._lock:
                self._now.append(size_bytes)
                self.seen.add(tuple(sorted(self._now)))
            with self._lock:
                self._now.remove(size_bytes)


def test_never_more_is_under_way_than_there_is_and_what_takes_more_goes_alone() -> None:
    rng = random.Random(0)
    sizes = [rng.choice([0, 1, 30, 60, 100, 101, 10_000]) for _ in range(4_000)]
    under_way = UnderWay(MemoryBudget(100))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(under_way.work, sizes))
    assert {size for group in under_way.seen for size in group} == set(sizes)
    for group in under_way.seen:
        assert sum(min(size, 100) for size in group) <= 100


def test_what_fits_does_not_wait() -> None:
    budget = MemoryBudget(100)
    with budget.take(60), budget.take(40), MemoryBudget().take(10**18):
        waiting = threading.Thread(target=lambda: budget.take(1).__enter__())
        waiting.start()
        assert waiting.is_alive()
    waiting.join()


def test_smaller_work_does_not_overtake_what_waits() -> None:
    budget = MemoryBudget(100)
    order: list[int] = []

    def take(size_bytes: int) -> None:
        with budget.take(size_bytes):
            order.append(size_bytes)

    threads = [threading.Thread(target=take, args=(size,)) for size in (90, 1, 2)]
    with budget.take(60):
        threads[0].start()
        while not budget._next.locked():
            pass
        for thread in threads[1:]:
            thread.start()
        threads[1].join(0.05)
        assert order == []
    for thread in threads:
        thread.join()
    assert order[0] == 90


_HOLDS_THE_MACHINE = """
import sys
from shardbeam.transforms.core.resources import MemoryBudget
with MemoryBudget(100).take(101):
    print("taken", flush=True)
    sys.stdin.read()
"""


@pytest.mark.timing
def test_what_takes_more_than_all_is_alone_on_the_machine_until_its_process_ends() -> None:
    taken = threading.Event()

    def take_more_than_all(budget: MemoryBudget) -> None:
        with budget.take(101):
            taken.set()

    other = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_THE_MACHINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        budget = MemoryBudget(100)
        thread = threading.Thread(target=take_more_than_all, args=(budget,))
        thread.start()
        assert not taken.wait(0.2)
        # Smaller work does not wait for it.
        with budget.take(100):
            pass
        other.kill()
        thread.join()
        assert taken.is_set()


def test_where_no_folder_can_be_locked_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with MemoryBudget(100).take(101):
        pass


def test_an_error_gives_the_memory_back() -> None:
    budget = MemoryBudget(100)
    with pytest.raises(KeyError), budget.take(100):
        raise KeyError
    with budget.take(100):
        pass


# The CPUs of this process, and its garbage collector


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
    monkeypatch.setattr(resources, "cpu_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert (usable_cpus(), reachable_cpus()) == (3, 3)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert (usable_cpus(), reachable_cpus()) == (1, 1)


@pytest.mark.parametrize(("quota", "cpus"), [(0.1, 1), (1.0, 1), (1.5, 2), (3.0, 3), (64.0, 3)])
def test_a_quota_limits_the_usable_cpus(
    quota: float, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "cpu_quota", lambda: quota)
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


# Threads that read ahead


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


class Load:
    """Counts what is under way between submission and use."""

    def __init__(self) -> None:
        self.items = 0
        self.weight = 0
        self.most_items = 0
        self.most_weight = 0

    def begin(self, size: int) -> int:
        self.items += 1
        self.weight += size
        self.most_items = max(self.most_items, self.items)
        self.most_weight = max(self.most_weight, self.weight)
        return size

    def end(self, size: int) -> None:
        self.items -= 1
        self.weight -= size


@given(
    sizes=st.lists(st.integers(0, 50)), max_items=st.integers(1, 10), max_bytes=st.integers(1, 100)
)
def test_order_is_kept_and_bounds_hold(
    executor: ThreadPoolExecutor, sizes: list[int], max_items: int, max_bytes: int
) -> None:
    load = Load()
    results = []
    for size in map_ahead(
        lambda size: size,
        (load.begin(size) for size in sizes),
        executor=executor,
        size_bytes=lambda size: size,
        max_items=max_items,
        max_bytes=max_bytes,
    ):
        load.end(size)
        results.append(size)
    assert results == sizes
    # The item that waits for its turn was drawn already.
    assert load.most_items <= max_items + 1
    assert load.most_weight <= max(max_bytes, max(sizes, default=0)) + max(sizes, default=0)


def test_threads_work_at_the_same_time(executor: ThreadPoolExecutor) -> None:
    barrier = threading.Barrier(3, timeout=30)

    def meet(item: int) -> int:
        barrier.wait()
        return item

    met = map_ahead(
        meet,
        range(3),
        executor=executor,
        size_bytes=lambda _: 1,
        max_items=3,
        max_bytes=3,
    )
    assert list(met) == [0, 1, 2]


def test_an_error_comes_in_its_turn_and_the_rest_is_not_computed(
    executor: ThreadPoolExecutor,
) -> None:
    seen = []

    def fail_at_three(item: int) -> int:
        seen.append(item)
        if item == 3:
            raise KeyError(item)
        return item

    results = map_ahead(
        fail_at_three,
        range(1000),
        executor=executor,
        size_bytes=lambda _: 1,
        max_items=5,
        max_bytes=100,
    )
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="3"):
        next(results)
    assert max(seen) <= 3 + 5


@given(sizes=st.lists(st.integers(0, 50)), max_bytes=st.integers(1, 100))
def test_batches_hold_all_items_in_order_within_their_bound(
    sizes: list[int], max_bytes: int
) -> None:
    batches = list(batch_by_size(sizes, size_bytes=lambda size: size, max_bytes=max_bytes))
    assert [size for batch in batches for size in batch] == sizes
    assert all(len(batch) == 1 or sum(batch) <= max_bytes for batch in batches)
    # Two that follow each other would not have fitted into one.
    assert all(sum(one) + other[0] > max_bytes for one, other in itertools.pairwise(batches))


def test_many_items_are_mapped_in_order_and_few_are_under_way() -> None:
    load = Load()
    results = []
    for item in map_many(lambda item: item, (load.begin(item) for item in range(500)), threads=5):
        load.end(item)
        results.append(item)
    assert results == list(range(500))
    assert 5 <= load.most_items <= 21


def test_an_error_ends_the_mapping_of_many() -> None:
    with pytest.raises(ZeroDivisionError):
        list(map_many(lambda item: 1 // (item - 7), itertools.count(), threads=3))
