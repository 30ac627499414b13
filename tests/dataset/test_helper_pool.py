"""Helper processes that are started before there is work for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import psutil
import pytest

from shardbeam.transforms.dataset.helper_pool import HelperPool
from tests.dataset.test_shard_writers import LIMIT_S, SETTINGS, helper_pids


@pytest.fixture
def pool() -> Iterator[HelperPool]:
    pool = HelperPool()
    yield pool
    pool.close()


def test_those_that_wait_are_taken_first(pool: HelperPool) -> None:
    before = helper_pids()
    pool.prepare(2)
    waiting = helper_pids() - before
    assert len(waiting) == 2
    for count in (2, 1, 0):
        pool.prepare(count)
    assert helper_pids() - before == waiting
    taken = [pool.take(SETTINGS) for _ in range(3)]
    assert {helper.pid for helper in taken[:2]} == waiting
    assert taken[2].pid not in waiting
    for helper in taken:
        helper.close()
    assert helper_pids() == before


def test_those_that_nobody_takes_are_ended(pool: HelperPool) -> None:
    before = helper_pids()
    pool.prepare(2)
    pool.close()
    assert helper_pids() == before
    pool.prepare(1)
    assert len(helper_pids() - before) == 1


def test_one_that_has_ended_while_it_waited_is_told(pool: HelperPool) -> None:
    before = helper_pids()
    pool.prepare(1)
    (pid,) = helper_pids() - before
    process = psutil.Process(pid)
    process.kill()
    process.wait(LIMIT_S)
    with pytest.raises(BrokenPipeError):
        pool.take(SETTINGS)
    # It has gone from the pool.
    pool.take(SETTINGS).close()


def test_where_none_can_be_started_none_waits(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = helper_pids()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    pool.prepare(2)
    assert helper_pids() == before
    with pytest.raises(FileNotFoundError):
        pool.take(SETTINGS)
