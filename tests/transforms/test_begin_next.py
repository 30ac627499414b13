from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from transforms.begin_next import HandedOut

LIMIT_S = 30


@pytest.fixture
def executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def test_waiting_ends_when_the_last_item_is_handed_out_and_the_work_goes_on(
    executor: ThreadPoolExecutor,
) -> None:
    handed_out = HandedOut()
    may_end = threading.Event()

    def work() -> list[int]:
        items = list(handed_out.watch(range(3)))
        assert may_end.wait(LIMIT_S)
        return items

    future = executor.submit(work)
    handed_out.wait(future)
    assert not future.done()
    may_end.set()
    assert future.result() == [0, 1, 2]


def test_waiting_ends_with_work_that_fails_or_hands_nothing_out(
    executor: ThreadPoolExecutor,
) -> None:
    def fail() -> None:
        raise ValueError

    for work in (fail, int):
        handed_out = HandedOut()
        future = executor.submit(work)
        handed_out.wait(future)
        assert future.done() or executor.submit(future.done).result()


class _Interrupted:
    """A queue whose reader is interrupted."""

    def put(self, item: None) -> None:
        del item

    def get(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_stops_the_work_at_its_next_item(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_out = HandedOut()
    monkeypatch.setattr(handed_out, "_last", _Interrupted())
    interrupted = threading.Event()
    taken = []

    def work() -> None:
        for item in handed_out.watch(range(3)):
            taken.append(item)
            assert interrupted.wait(LIMIT_S)

    future = executor.submit(work)
    with pytest.raises(KeyboardInterrupt):
        handed_out.wait(future)
    interrupted.set()
    with pytest.raises(CancelledError):
        future.result()
    assert taken == [0]
