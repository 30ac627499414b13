"""Maps items with threads that work ahead; results come in order, and few items are held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Items in progress for each thread, so that a slow item does not make the others wait.
_ITEMS_PER_THREAD = 4


def batch_by_size(
    items: Iterable[T], *, size_bytes: Callable[[T], int], max_bytes: int
) -> Iterator[list[T]]:
    """Groups items into batches, in order; an item larger than `max_bytes` gets its own batch."""
    batch: list[T] = []
    weight = 0
    for item in items:
        size = size_bytes(item)
        if batch and weight + size > max_bytes:
            yield batch
            batch, weight = [], 0
        batch.append(item)
        weight += size
    if batch:
        yield batch


def map_many(function: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """Yields `function(item)` for each item, in order, computed by new threads.

    An exception of `function` is raised when its item's turn comes.
    """
    max_items = threads * _ITEMS_PER_THREAD
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="many") as executor:
        yield from map_ahead(function, items, executor=executor, max_items=max_items)


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
        items: The items.
        executor: The threads.
        max_items: The most items in progress at a time.
        size_bytes: Returns the bytes that an item takes while it is in progress.
        max_bytes: The most bytes in progress at a time; a larger item is processed alone.

    Raises:
        Exception: Raised by `function`, when its item's turn comes. Items in progress are then
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
