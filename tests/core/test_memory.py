"""The memory that the threads of a process share."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardbeam.transforms.core.memory import MemoryBudget

_HOLDS_THE_MACHINE = """
import sys
from shardbeam.transforms.core.memory import MemoryBudget
with MemoryBudget(100).take(101):
    print("taken", flush=True)
    sys.stdin.read()
"""


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
