"""Progress, with a simulated clock."""

from __future__ import annotations

import io
import threading

import pytest

from shardbeam.pipelines.progress import ProgressMonitor, ProgressSnapshot, describe
from tests.support.watching import WORKING, Steps, Terminal, watch


@pytest.mark.parametrize(
    ("snapshot", "images_per_s", "line"),
    [
        (ProgressSnapshot(), 0, "listing and joining..."),
        (WORKING, 0, "1/4 shards, 1,000/4,000 images, 0 images/s"),
        (WORKING, 30, "1/4 shards, 1,000/4,000 images, 30 images/s, ETA 0:01:40"),
        (
            ProgressSnapshot(shards_done=4, shards_total=4, images_done=9, images_total=9),
            2000,
            "4/4 shards, 9/9 images, 2,000 images/s",
        ),
        (
            WORKING._replace(shards_done=3, shards_resumed=2, images_done=3000),
            100,
            "3/4 shards (2 resumed), 3,000/4,000 images, 100 images/s, ETA 0:00:10",
        ),
        (
            ProgressSnapshot(images_done=1, images_total=2),
            1,
            "1/2 images, 1 images/s, ETA 0:00:01",
        ),
    ],
)
def test_a_line(snapshot: ProgressSnapshot, images_per_s: float, line: str) -> None:
    assert describe(snapshot, images_per_s) == line


def test_plain_lines_are_few_and_the_last_state_is_told() -> None:
    states = [
        ProgressSnapshot(shards_done=n // 10, shards_total=4, images_done=n, images_total=40)
        for n in range(36)
    ]
    lines = watch(Steps(*states), io.StringIO()).splitlines()
    assert all(line.startswith("shardbeam: ") for line in lines)
    assert lines[0] == "shardbeam: 0/4 shards, 9/40 images, 1 images/s, ETA 0:00:31"
    # 36 seconds at a line every ten, and one at the end.
    assert len(lines) == 4
    assert lines[-1].startswith("shardbeam: 3/4 shards, 35/40 images, ")


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    slow = [ProgressSnapshot(shards_total=1, images_done=n, images_total=9000) for n in range(100)]
    fast = [
        ProgressSnapshot(shards_total=1, images_done=100 * n, images_total=9000)
        for n in range(1, 41)
    ]
    lines = watch(Steps(*slow, *fast), io.StringIO()).splitlines()
    assert ", 1 images/s, " in lines[8]
    assert ", 100 images/s, " in lines[13]


def test_what_was_resumed_has_no_speed() -> None:
    steps = [
        WORKING._replace(images_done=1000 + 101 * n, images_resumed=1000 + 100 * n)
        for n in range(20)
    ]
    assert ", 1 images/s, " in watch(Steps(*steps), io.StringIO()).splitlines()[0]


def test_a_run_that_cleared_up_is_not_listing_again() -> None:
    text = watch(Steps(WORKING, ProgressSnapshot()), io.StringIO())
    assert text == "shardbeam: 1/4 shards, 1,000/4,000 images, 0 images/s\n"


def test_a_run_too_short_to_tell_of_says_nothing() -> None:
    assert watch(Steps(ProgressSnapshot()), io.StringIO()) == ""


def test_a_terminal_gets_a_live_line_that_goes_away() -> None:
    text = watch(Steps(ProgressSnapshot(), WORKING, WORKING), Terminal())
    assert "1/4 shards" in text
    assert "\x1b[2K" in text
    assert "shardbeam:" not in text


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["plain", "terminal"])
def test_reading_may_fail(stream: io.StringIO) -> None:
    errors = [OSError("gone"), ValueError("half a file")]
    done = threading.Event()

    def read() -> ProgressSnapshot:
        if errors:
            raise errors.pop()
        done.set()
        return WORKING

    with ProgressMonitor(read=read, stream=stream, poll_s=0.001):
        assert done.wait(30)
    assert "1/4 shards" in stream.getvalue()


def test_a_write_may_fail() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    steps = Steps(WORKING, seconds=20)
    watch(steps, Broken())
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_the_runs_own_error_gets_through() -> None:
    monitor = ProgressMonitor(read=lambda: WORKING, stream=io.StringIO())
    with pytest.raises(ZeroDivisionError), monitor:
        raise ZeroDivisionError
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]
