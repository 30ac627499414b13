"""Counts of a process's work."""

from __future__ import annotations

import threading

import pytest

from shardbeam.transforms.core.counters import BLOCK, BlockCount, Counters, ProgressCount


@pytest.mark.parametrize("number", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_items_are_counted_in_blocks(number: int) -> None:
    count = ProgressCount()
    seen = []
    for item in BlockCount(count).each(range(number)):
        seen.append(item)
        assert count.done == len(seen) // BLOCK * BLOCK
    assert seen == list(range(number))
    assert count.done == number


def test_a_block_may_be_passed_over() -> None:
    count = ProgressCount()
    block = BlockCount(count)
    block.add(BLOCK - 1)
    assert count.done == 0
    block.add(5)
    assert count.done == BLOCK + 4
    block.flush()
    assert count.done == BLOCK + 4


def test_threads_lose_no_addition() -> None:
    count = ProgressCount()

    def add() -> None:
        for _ in range(2000):
            count.add(3)
            count.expect(5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (count.done, count.total) == (24_000, 40_000)


def test_another_piece_of_work_begins_at_zero() -> None:
    counters = Counters()
    counters.joined.add()
    counters.joined.expect(2)
    counters.begin(noun="rows", annotation_bytes=7)
    assert (counters.joined.done, counters.joined.total) == (0, 0)
    assert (counters.noun, counters.annotation_bytes.total) == ("rows", 7)
