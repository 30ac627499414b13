"""Threads that work ahead."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.map_ahead import batch_by_size, map_ahead, map_many


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
