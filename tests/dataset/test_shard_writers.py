"""Writing shards in this process and in helper processes beside it."""

from __future__ import annotations

import concurrent.futures._base
import io
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, thread
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import msgspec
import psutil
import pytest

from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset import shard_writers
from shardbeam.transforms.dataset.helper_pool import HelperPool, helper_pool
from shardbeam.transforms.dataset.helper_process import HelperLostError, HelperProcess, picklable
from shardbeam.transforms.dataset.shard_encoder import ShardEncoder, ShardEncoderSettings, ShardWork
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.dataset.shard_writer import ShardTarget
from shardbeam.transforms.dataset.shard_writers import ShardWriters, Write
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.base import WriteFailedError
from tests.examples.builders import make_label_map
from tests.transforms.test_write_to_tfrecord import ENCODER, make_records

if TYPE_CHECKING:
    from _typeshed import TraceFunction

LIMIT_S = 60
_TRACED = {
    module.__file__ for module in (shard_writers, threading, concurrent.futures._base, thread)
}
SETTINGS = ShardEncoderSettings(
    encoder=ENCODER, threads=2, max_items_ahead=64, max_bytes_ahead=1_000_000, read_ahead=1
)


@pytest.fixture
def work(tmp_path: Path) -> ShardWork:
    """A shard of 20 images."""
    staging = Staging(output=str(tmp_path / "out"), plan="plan", run_id="run")
    records = make_records(tmp_path / "images", 20)
    target = ShardTarget(
        staging=staging,
        shard_key="key",
        split="train",
        shard_index=0,
        num_shards=1,
        file_name="x-train.tfrecord-00000-of-00001",
        records=len(records),
    )
    return ShardWork(
        records=[msgspec.msgpack.encode(record) for record in records],
        target=target,
        label_map=make_label_map({"cat": 1}, objects=False),
        origin=Origin.MENDED,
    )


@pytest.fixture
def writers() -> Iterator[Callable[[int], ShardWriters]]:
    made: list[ShardWriters] = []

    def make(helpers: int) -> ShardWriters:
        made.append(ShardWriters(SETTINGS, helpers=helpers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def helper_pids() -> set[int]:
    """The child processes of this process."""
    return {child.pid for child in psutil.Process().children()}


def with_path(result: ShardResult, path: str) -> ShardResult:
    """The result, had its attempt had another name."""
    return msgspec.structs.replace(
        result,
        data=msgspec.structs.replace(result.data, staged=path),
        index=msgspec.structs.replace(result.index, staged=path),
    )


def test_a_helper_writes_what_this_process_would(work: ShardWork) -> None:
    encoder, helper = ShardEncoder(SETTINGS), HelperPool().take(SETTINGS)
    try:
        here, beside, again = encoder.write(work), helper.write(work), helper.write(work)
    finally:
        helper.close()
        encoder.close()
    assert here.examples == 20
    assert with_path(beside, "x") == with_path(again, "x") == with_path(here, "x")
    assert len({result.data.staged for result in (here, beside, again)}) == 3
    data = Path(work.target.staging.uri(beside.data.staged)).read_bytes()
    assert len(list(read_records(io.BytesIO(data)))) == 20
    assert not psutil.pid_exists(helper.pid)


def test_what_goes_wrong_in_a_helper_is_raised_here_and_it_goes_on(
    work: ShardWork, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    staging = Staging(output=str(tmp_path / "file"), plan="plan", run_id="run")
    target = msgspec.structs.replace(work.target, staging=staging)
    helper = HelperPool().take(SETTINGS)
    try:
        with pytest.raises(NotADirectoryError) as raised:
            helper.write(msgspec.structs.replace(work, target=target))
        assert raised.value.filename is not None
        # Where it happened.
        assert "in write_shard" in str(raised.value.__cause__)
        assert not helper.is_lost
        assert helper.write(work).examples == 20
    finally:
        helper.close()


def test_a_helper_that_has_ended_is_lost(work: ShardWork) -> None:
    helper = HelperPool().take(SETTINGS)
    psutil.Process(helper.pid).kill()
    for _ in range(2):
        with pytest.raises(HelperLostError, match=f"process {helper.pid}, which wrote shards"):
            helper.write(work)
    assert helper.is_lost
    helper.close()
    helper.close()


class _KeywordOnlyError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def test_errors_that_cannot_be_pickled_are_told_in_words() -> None:
    error = picklable(_KeywordOnlyError(code=3))
    assert (type(error), str(error)) == (RuntimeError, "_KeywordOnlyError: code 3")
    # What decides whether a shard is tried again, and what the command says.
    for kept in (WriteFailedError(uri="u", place="p", problem="x"), InputError(uri="", problem="")):
        assert picklable(kept) is kept


def test_shards_are_written_by_all_processes_at_a_time(
    work: ShardWork, writers: Callable[[int], ShardWriters]
) -> None:
    before = helper_pids()
    all_writers = writers(2)
    assert len(helper_pids() - before) == 2
    # All of them have begun before one goes on.
    begun = threading.Barrier(3, timeout=LIMIT_S)

    def make(write: Write) -> ShardResult:
        begun.wait()
        return write(work)

    shards = [all_writers.begin(make) for _ in range(6)]
    assert [all_writers.wait(shard).examples for shard in shards] == [20] * 6
    assert len({shard.result().data.staged for shard in shards}) == 6
    all_writers.close()
    assert helper_pids() == before


def test_the_work_of_helpers_that_are_lost_is_done_here(
    work: ShardWork, writers: Callable[[int], ShardWriters], caplog: pytest.LogCaptureFixture
) -> None:
    before = helper_pids()
    all_writers = writers(2)
    for pid in helper_pids() - before:
        psutil.Process(pid).kill()
    shards = [all_writers.begin(lambda write: write(work)) for _ in range(8)]
    assert [all_writers.wait(shard).examples for shard in shards] == [20] * 8
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert all("has ended; its shard is written anew by this process" in text for text in told)


def test_one_that_ended_while_it_waited_does_not_keep_the_others_from_work(
    work: ShardWork, writers: Callable[[int], ShardWriters]
) -> None:
    before = helper_pids()
    waiting: list[int] = []
    for count in (1, 2):
        helper_pool.prepare(count)
        waiting += helper_pids() - before - set(waiting)
    # The one that is taken first.
    process = psutil.Process(waiting[-1])
    process.kill()
    process.wait(LIMIT_S)
    all_writers = writers(2)
    shards = [all_writers.begin(lambda write: write(work)) for _ in range(4)]
    assert [all_writers.wait(shard).examples for shard in shards] == [20] * 4
    all_writers.close()
    assert helper_pids() == before


def test_where_no_process_can_be_started_this_one_does_all(
    work: ShardWork, writers: Callable[[int], ShardWriters], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    all_writers = writers(2)
    shards = [all_writers.begin(lambda write: write(work)) for _ in range(3)]
    assert [all_writers.wait(shard).examples for shard in shards] == [20] * 3


def test_a_shard_is_begun_when_the_last_images_of_the_one_before_are_handed_out(
    work: ShardWork, writers: Callable[[int], ShardWriters]
) -> None:
    all_writers = writers(0)
    may_end = threading.Event()

    def make(write: Write) -> ShardResult:
        result = write(work)
        assert may_end.wait(LIMIT_S)
        return result

    first = all_writers.begin(make)
    second = all_writers.begin(lambda write: write(work))
    assert all_writers.wait(second).examples == 20
    assert not first.done()
    may_end.set()
    assert all_writers.wait(first).examples == 20


def test_there_is_room_again_after_shards_that_fail_or_need_no_writing(
    work: ShardWork, writers: Callable[[int], ShardWriters]
) -> None:
    all_writers = writers(1)

    def fail(write: Write) -> NoReturn:
        del write
        raise ValueError

    for _ in range(4):
        shard = all_writers.begin(fail)
        with pytest.raises(ValueError, match=r"^$"):
            all_writers.wait(shard)
    result = all_writers.wait(all_writers.begin(lambda write: write(work)))
    shards = [all_writers.begin(lambda _: result) for _ in range(4)]
    assert [all_writers.wait(shard) for shard in shards] == [result] * 4


class _Interrupted:
    """Rooms whose reader is interrupted."""

    def get(self) -> NoReturn:
        raise KeyboardInterrupt

    def put(self, room: HelperProcess | None) -> None:
        del room


@pytest.mark.parametrize("helpers", [0, 1])
def test_an_interrupt_stops_what_is_under_way(
    helpers: int,
    work: ShardWork,
    writers: Callable[[int], ShardWriters],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_writers = writers(helpers)
    interrupted = threading.Event()

    def make(write: Write) -> ShardResult:
        assert interrupted.wait(LIMIT_S)
        return write(work)

    shards = [all_writers.begin(make) for _ in range(1 + helpers)]
    monkeypatch.setattr(all_writers, "_rooms", _Interrupted())
    with pytest.raises(KeyboardInterrupt):
        all_writers.begin(make)
    interrupted.set()
    for shard in shards:
        with pytest.raises(CancelledError):
            all_writers.wait(shard)
    assert not Path(work.target.staging.root).exists() or not any(
        Path(work.target.staging.root).rglob("*.tfrecord")
    )


def _interrupted_at(moment: int, run: Callable[[], object]) -> bool:
    """Runs something with a KeyboardInterrupt at its nth line, call or return.

    Only what shards are made with counts, and what that locks with.
    """
    left = moment

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        nonlocal left
        del event, argument
        if frame.f_code.co_filename not in _TRACED:
            return None
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_after_an_interrupt_at_any_moment_it_can_be_closed(
    work: ShardWork, writers: Callable[[int], ShardWriters]
) -> None:
    first = writers(0)
    result = first.wait(first.begin(lambda write: write(work)))
    moments = 0
    while True:
        all_writers = ShardWriters(SETTINGS, helpers=0)

        def run(all_writers: ShardWriters = all_writers) -> None:
            for _ in range(3):
                shard = all_writers.begin(lambda _: result)
                shard.done()
                all_writers.wait(shard)

        interrupted = _interrupted_at(moments, run)
        closing = threading.Thread(target=all_writers.close, daemon=True)
        closing.start()
        closing.join(LIMIT_S)
        assert not closing.is_alive(), f"moment {moments}"
        if not interrupted:
            break
        moments += 1
    assert moments > 30
