"""Mapping with threads that run ahead, in order and within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def batch_by_size(
    items: Iterable[T], *, size_bytes: Callable[[T], int], max_items: int, max_bytes: int
) -> Iterator[list[T]]:
    """Puts items together into batches, in order; one above `max_bytes` is a batch of its own."""
    batch: list[T] = []
    weight = 0
    for item in items:
        size = size_bytes(item)
        if batch and (len(batch) >= max_items or weight + size > max_bytes):
            yield batch
            batch, weight = [], 0
        batch.append(item)
        weight += size
    if batch:
        yield batch


# Items under way for each thread: one that takes long does not make the others wait.
_ITEMS_PER_THREAD = 4


def map_many(function: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """Yields `function(item)` for each item, in order, with threads of its own.

    A few times as many items as there are threads are under way. What `function` raises is raised
    in the item's turn.
    """
    under_way = threads * _ITEMS_PER_THREAD
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="many") as executor:
        yield from map_ahead(function, items, executor=executor, max_items=under_way)


def map_ahead(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    executor: ThreadPoolExecutor,
    max_items: int,
    size_bytes: Callable[[T], int] = lambda _: 0,
    max_bytes: int = 0,
) -> Iterator[R]:
    """Yields `function(item)` for each item, in order, computing ahead in `executor`.

    Args:
        function: Runs in the executor's threads.
        items: What it is applied to.
        executor: Has the threads.
        max_items: Items under way at most.
        size_bytes: What an item weighs while it is under way.
        max_bytes: Weight under way at most; a single heavier item goes alone.

    Raises:
        Exception: What `function` raises, in the item's turn. What is under way then is
            cancelled or waited for.
    """
    under_way: deque[tuple[Future[R], int]] = deque()
    weight = 0
    try:
        for item in items:
            size = size_bytes(item)
            while under_way and (len(under_way) >= max_items or weight + size > max_bytes):
                future, done_size = under_way.popleft()
                yield future.result()
                weight -= done_size
            under_way.append((executor.submit(function, item), size))
            weight += size
        while under_way:
            future, _ = under_way.popleft()
            yield future.result()
    finally:
        for future, _ in under_way:
            future.cancel()
        for future, _ in under_way:
            if not future.cancelled():
                future.exception()
