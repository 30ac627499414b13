"""This process and its worker processes write shards together."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.examples.encode.encode import EncodedRecord, RecordEncoder
from shardbeam.transforms.shards import processes
from shardbeam.transforms.shards import writer as shard_module
from shardbeam.transforms.shards.processes import WorkerProcess, WriterPool
from shardbeam.transforms.shards.worker import WorkerLostError, _without_main, picklable
from shardbeam.transforms.shards.writer import Shard, ShardSettings, ShardWriter
from shardbeam.transforms.staging import staging
from shardbeam.transforms.storage.base import WriteFailedError
from tests.support.processes import LIMIT_S, worker_processes
from tests.support.shards import make_settings, make_shard, read_shard


@pytest.fixture
def settings(tmp_path: Path) -> ShardSettings:
    return make_settings(tmp_path / "out")


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return make_shard(tmp_path / "images")


@pytest.fixture
def worker(settings: ShardSettings) -> Iterator[WorkerProcess]:
    made = WorkerProcess(settings, processes=2)
    yield made
    made.close()


@pytest.fixture
def start(settings: ShardSettings) -> Iterator[Callable[[int], WriterPool]]:
    made: list[WriterPool] = []

    def make(workers: int) -> WriterPool:
        made.append(WriterPool(settings, workers=workers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def others(shard: Shard, count: int) -> list[Shard]:
    """Shards of the same images and of other keys."""
    return [msgspec.structs.replace(shard, key=f"{number + 1:064x}") for number in range(count)]


def without_attempt(result: ShardResult) -> ShardResult:
    return msgspec.structs.replace(result, staged="")


# A worker process


def test_a_worker_writes_what_this_process_would(
    shard: Shard, settings: ShardSettings, worker: WorkerProcess
) -> None:
    writer = ShardWriter(settings)
    here, beside, again = writer.write(shard), worker.write(shard), worker.write(shard)
    writer.close()
    assert here.examples == 20
    assert without_attempt(beside) == without_attempt(again) == without_attempt(here)
    assert len({result.staged for result in (here, beside, again)}) == 3
    assert len(read_shard(beside, staging=settings.staging)) == 20


def test_an_error_in_a_worker_is_raised_here_and_the_worker_goes_on(
    shard: Shard, settings: ShardSettings, worker: WorkerProcess
) -> None:
    folder = Path(settings.staging.root)
    folder.parent.mkdir(parents=True)
    folder.touch()
    with pytest.raises(NotADirectoryError) as raised:
        worker.write(shard)
    assert raised.value.filename is not None
    # Where it happened.
    assert "in write_shard" in str(raised.value.__cause__)
    folder.unlink()
    assert worker.write(shard).examples == 20


def test_a_worker_that_was_killed_is_lost(shard: Shard, worker: WorkerProcess) -> None:
    (process,) = worker_processes()
    process.kill()
    for _ in range(2):
        with pytest.raises(WorkerLostError, match=f"process {process.pid}, which wrote shards"):
            worker.write(shard)
    worker.close()
    worker.close()


class _KeywordOnlyError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def test_errors_that_cannot_be_pickled_keep_their_words() -> None:
    error = picklable(_KeywordOnlyError(code=3))
    assert (type(error), str(error)) == (RuntimeError, "_KeywordOnlyError: code 3")
    # These decide whether a shard is tried again, and what the command says.
    for kept in (WriteFailedError(uri="u", place="p", problem="x"), InputError(uri="", problem="")):
        assert picklable(kept) is kept


def test_workers_take_no_interrupt_from_their_first_moment_on(
    shard: Shard, worker: WorkerProcess
) -> None:
    (process,) = worker_processes()
    for _ in range(20):
        process.send_signal(signal.SIGINT)
    assert worker.write(shard).examples == 20
    # This thread still does.
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


_PROGRAM = """
import os, sys, threading
from pathlib import Path
import shardbeam.transforms.shards.processes as processes
from tests.support.shards import make_settings, make_shard

print("begins", flush=True)

def work():
    folder = Path(sys.argv[1])
    worker = processes.WorkerProcess(make_settings(folder / "out"), processes=2)
    result = worker.write(make_shard(folder / "images"))
    modules = {"apache_beam", "tensorflow"} & set(sys.modules)
    print(result.examples, sorted(modules), flush=True)
    if "wait" in sys.argv:
        print(worker._process.pid, flush=True)
        sys.stdin.read()
    worker.close()

if "thread" in sys.argv:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""


# The thread is one of a script.
@pytest.mark.parametrize("way", [pytest.param("stdin", marks=pytest.mark.slow), "thread"])
def test_any_program_may_start_workers(way: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    program = "-" if way == "stdin" else str(script)
    done = subprocess.run(
        [sys.executable, program, str(tmp_path), way],
        input=_PROGRAM,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    # Once: it is not run again in the worker process.
    assert (done.stdout, done.stderr) == ("begins\n20 []\n", "")


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begins\n", "20 []\n"]
    worker = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.communicate()
    worker.wait(LIMIT_S)


def test_workers_import_neither_beam_nor_tensorflow(worker: WorkerProcess, shard: Shard) -> None:
    assert worker.write(shard).examples == 20
    (process,) = worker_processes()
    mapped = [file.path for file in process.memory_maps()]
    assert any("pyarrow" in path for path in mapped)
    assert not any("apache_beam" in path or "tensorflow" in path for path in mapped)


# Several


def test_shards_are_made_by_all_processes_at_a_time(
    shard: Shard, start: Callable[[int], WriterPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of them have begun before one goes on.
    begun = threading.Barrier(3, timeout=LIMIT_S)
    make = WriterPool._make  # There is no other way to see that one has begun.

    def meet(self: WriterPool, shard: Shard, worker: WorkerProcess | None) -> ShardResult:
        begun.wait()
        return make(self, shard, worker)

    monkeypatch.setattr(WriterPool, "_make", meet)
    writers = start(2)
    assert len(worker_processes()) == 2
    futures = [writers.begin(each) for each in others(shard, 6)]
    assert [future.result().examples for future in futures] == [20] * 6
    writers.close()
    assert worker_processes() == []


def test_the_shards_of_lost_workers_are_written_here(
    shard: Shard, start: Callable[[int], WriterPool], caplog: pytest.LogCaptureFixture
) -> None:
    writers = start(2)
    for process in worker_processes():
        process.kill()
    futures = [writers.begin(each) for each in others(shard, 8)]
    assert [future.result().examples for future in futures] == [20] * 8
    told = [record.getMessage() for record in caplog.records]
    # One of them may have had no turn.
    assert 1 <= len(told) <= 2
    assert all("has ended; its shard is written by this process" in text for text in told)


def test_no_shard_is_written_into_another_folder_than_the_launchers(
    shard: Shard, settings: ShardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_MARK_WAIT_S", 0)
    marked = msgspec.structs.replace(settings.staging, mark=staging.LAUNCHED)
    writers = WriterPool(dataclasses.replace(settings, staging=marked), workers=1)
    for _ in range(3):
        with pytest.raises(InputError, match="does not see what this run"):
            writers.begin(shard).result()
    assert not Path(marked.output).exists()
    marked.write_mark()
    assert writers.begin(shard).result().examples == 20
    writers.close()


@pytest.mark.parametrize("error", [OSError(), AssertionError()])
def test_where_no_process_can_be_started_this_one_does_all(
    error: Exception,
    shard: Shard,
    start: Callable[[int], WriterPool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: object) -> None:
        raise error

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", fail)
    writers = start(2)
    futures = [writers.begin(each) for each in others(shard, 3)]
    assert [future.result().examples for future in futures] == [20] * 3


def test_an_error_while_processes_are_started_leaves_nothing_behind(
    settings: ShardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*_: object, **__: object) -> WorkerProcess:
        if made:
            raise KeyboardInterrupt
        made.append(WorkerProcess(settings, processes=3))
        return made[0]

    made: list[WorkerProcess] = []
    monkeypatch.setattr(processes, "WorkerProcess", make)
    with pytest.raises(KeyboardInterrupt):
        WriterPool(settings, workers=2)
    assert (shard_module._Shared._current, worker_processes()) == (None, [])


def test_a_shard_is_begun_when_the_last_images_of_the_one_before_are_handed_out(
    shard: Shard, start: Callable[[int], WriterPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = others(shard, 2)
    may_end = threading.Event()
    write = ShardWriter.write

    def wait(
        self: ShardWriter, shard: Shard, *, handed_out: Callable[[], None] = lambda: None
    ) -> ShardResult:
        result = write(self, shard, handed_out=handed_out)
        assert shard.key == second.key or may_end.wait(LIMIT_S)
        return result

    monkeypatch.setattr(ShardWriter, "write", wait)
    writers = start(0)
    futures = [writers.begin(first), writers.begin(second)]
    assert futures[1].result().examples == 20
    assert not futures[0].done()
    may_end.set()
    assert futures[0].result().examples == 20


@pytest.mark.parametrize("workers", [0, 1])
def test_there_is_a_place_again_after_shards_that_fail_or_are_there_already(
    workers: int, shard: Shard, settings: ShardSettings, start: Callable[[int], WriterPool]
) -> None:
    writers = start(workers)
    folder = Path(settings.staging.root)
    folder.parent.mkdir(parents=True)
    folder.touch()
    for _ in range(4):
        with pytest.raises(NotADirectoryError):
            writers.begin(shard).result()
    folder.unlink()
    result = writers.begin(shard).result()
    again = [writers.begin(shard) for _ in range(4)]
    assert [future.result() for future in again] == [result] * 4


def test_a_shard_that_is_lost_on_its_way_is_written_anew(
    shard: Shard, settings: ShardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    finish = type(settings.staging).finish_shard

    def fail_twice(self: object, result: ShardResult) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise WriteFailedError(uri="u", problem="x")
        finish(settings.staging, result)

    monkeypatch.setattr(type(settings.staging), "finish_shard", fail_twice)
    writer = ShardWriter(settings)
    assert writer.write(shard).examples == 20
    assert attempts == 3
    # It is tried three times.
    attempts = -10
    with pytest.raises(WriteFailedError):
        writer.write(shard)
    assert attempts == -7
    writer.close()


def test_the_first_writer_of_a_process_decides_how_much_all_share(settings: ShardSettings) -> None:
    def memory(writer: ShardWriter) -> float:
        return writer.memory._size_bytes

    def make(megabytes: int) -> ShardWriter:
        resources = Resources(memory_mb=megabytes)
        return ShardWriter(dataclasses.replace(settings, resources=resources))

    first, second = make(100), make(200)
    assert second.memory is first.memory
    for _ in range(2):
        first.close()
    # The second one is still there.
    third = make(300)
    assert memory(third) == 100_000_000
    for writer in (second, third):
        writer.close()
    fourth = make(300)
    assert memory(fourth) == 300_000_000
    fourth.close()


def test_writers_of_a_process_write_two_shards_at_a_time_with_the_threads_of_one(
    shard: Shard, settings: ShardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ShardWriter(settings)
    expected = alone.write(shard)
    alone.close()
    # {shard's encoder: its images that were encoded}
    begun: Counter[RecordEncoder] = Counter()
    threads: set[int] = set()
    most = 0
    counting = threading.Lock()
    encode = RecordEncoder.encode

    def count(encoder: RecordEncoder, record: Record) -> EncodedRecord:
        nonlocal most
        with counting:
            begun[encoder] += 1
            threads.add(threading.get_ident())
            most = max(most, sum(0 < images < len(shard.records) for images in begun.values()))
        return encode(encoder, record)

    monkeypatch.setattr(RecordEncoder, "encode", count)
    # So that all shards that may begin do so before one ends.
    monkeypatch.setattr(shard_module, "_BATCH_BYTES", 1)
    monkeypatch.setattr(shard_module, "_MAX_IMAGES_AHEAD", 2)
    writers = [WriterPool(settings, workers=0) for _ in range(12)]
    shards = others(shard, 24)
    with ThreadPoolExecutor(12) as pool:
        begin = [pool.submit(writers[n % 12].begin, each) for n, each in enumerate(shards)]
        results = [future.result().result() for future in begin]
    for writer in writers:
        writer.close()
    assert {result.data for result in results} == {expected.data}
    assert len(begun) == 24
    assert most <= 2
    assert len(threads) <= (settings.resources.threads or 0)


def test_a_closed_writer_leaves_its_shard_and_the_others_go_on(
    shard: Shard, settings: ShardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    encode = RecordEncoder.encode

    def wait(encoder: RecordEncoder, record: Record) -> EncodedRecord:
        assert closed.wait(LIMIT_S)
        return encode(encoder, record)

    monkeypatch.setattr(RecordEncoder, "encode", wait)
    monkeypatch.setattr(shard_module, "_BATCH_BYTES", 1)
    monkeypatch.setattr(shard_module, "_MAX_IMAGES_AHEAD", 2)
    first, second = ShardWriter(settings), ShardWriter(settings)
    one, other = others(shard, 2)
    with ThreadPoolExecutor(2) as pool:
        left, written = pool.submit(first.write, one), pool.submit(second.write, other)
        first.close()
        closed.set()
        with pytest.raises(CancelledError):
            left.result()
        assert written.result().examples == 20
    second.close()


@pytest.mark.timing
@pytest.mark.parametrize(
    ("size_bytes", "ratio", "expected"),
    [
        # Threads would wait for each other.
        (1_000, math.inf, 1),
        (15_000, math.inf, 1),
        # Most of what large images need, they need without the interpreter.
        (100_000, math.inf, 2),
        (2_000_000, math.inf, 2),
        # Threads wait for the disk.
        (1_000, 4, 2),
    ],
)
def test_threads_encode_at_the_same_time_where_they_do_not_wait_for_each_other(
    size_bytes: int,
    ratio: float,
    expected: int,
    shard: Shard,
    settings: ShardSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy: Counter[int] = Counter()
    most = 0

    def encode(encoder: RecordEncoder, record: Record) -> EncodedRecord:
        nonlocal most
        busy[threading.get_ident()] = 1
        most = max(most, busy.total())
        time.sleep(0.002)
        busy[threading.get_ident()] = 0
        return EncodedRecord(record=record)

    monkeypatch.setattr(RecordEncoder, "encode", encode)
    monkeypatch.setattr(shard_module, "_WAITING_RATIO", ratio)
    (first, *_) = (MsgpackDecoder(Record).decode(each) for each in shard.records)
    assert first.image is not None
    image = msgspec.structs.replace(first.image, size_bytes=size_bytes)
    records = [msgspec.msgpack.encode(msgspec.structs.replace(first, image=image))] * 200
    writer = ShardWriter(settings)
    result = writer.write(msgspec.structs.replace(shard, records=records))
    writer.close()
    assert result.records == 200
    assert most == expected


@pytest.mark.timing
def test_threads_that_start_workers_at_once_leave_main_as_it_is() -> None:
    main = sys.modules["__main__"]
    entered, left = threading.Event(), threading.Event()

    def hide() -> None:
        with _without_main():
            entered.set()
            left.wait(LIMIT_S)

    thread = threading.Thread(target=hide)
    with _without_main():
        thread.start()
        entered.wait(0.2)
    left.set()
    thread.join()
    assert sys.modules["__main__"] is main
