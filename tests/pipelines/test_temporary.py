"""The folder for the temporary files of a command and of everything it starts."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardbeam.transforms.core import memory
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.temporary_files import COMMAND_FOLDER
from shardbeam.transforms.shards.worker import Worker
from tests.support.dataset import TIMEOUT_S

# Prints where it, and a process that it starts, put temporary files; ends when stdin does.
COMMAND = """
import atexit, pathlib, subprocess, sys, tempfile
from shardbeam.pipelines.interrupts import end_on_signals
from shardbeam.pipelines.own_folders import own_temporary_files

with end_on_signals(str):
    own_temporary_files(OUTLIVED)
    # As the build does that `verify --repair` goes on with.
    own_temporary_files(OUTLIVED)
    left = pathlib.Path(tempfile.mkdtemp(), "part")
    left.write_bytes(b"x")
    # As Beam's job server does.
    atexit.register(left.unlink)
    child = "import tempfile; print(tempfile.gettempdir())"
    print(tempfile.gettempdir(), flush=True)
    subprocess.run([sys.executable, "-c", child])
    sys.stdin.read()
"""


@pytest.fixture
def outer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def begin(outlived: str = "") -> tuple[subprocess.Popen[str], list[str]]:
    command = [sys.executable, "-c", COMMAND.replace("OUTLIVED", outlived)]
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    return process, [process.stdout.readline().strip() for _ in range(2)]


def make_old(folder: Path) -> None:
    os.utime(folder, (0, 0))


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_it_is_gone_when_the_command_has_ended(number: int | None, outer: Path) -> None:
    process, (own, of_child) = begin()
    assert own == of_child
    (folder,) = outer.iterdir()
    assert str(folder) == own
    assert folder.name.startswith(COMMAND_FOLDER)
    if number is not None:
        process.send_signal(number)
        process.wait(TIMEOUT_S)
    _, printed = process.communicate(timeout=TIMEOUT_S)
    assert number is not None or printed == ""
    assert process.returncode == (130 if number else 0)
    assert list(outer.iterdir()) == []


def test_a_later_command_removes_what_a_killed_one_has_left(outer: Path) -> None:
    killed, (left, _) = begin()
    killed.kill()
    killed.communicate(timeout=TIMEOUT_S)
    alive, (other, _) = begin()
    # A folder that was only just made may not have been locked yet.
    assert {str(path) for path in outer.iterdir()} == {left, other}
    foreign = outer / "shardbeam-x"
    link = outer / f"{COMMAND_FOLDER}link"
    foreign.mkdir()
    link.symlink_to(foreign)
    marker = Path(left) / "shardbeam-temporary"
    theirs = [outer / f"{COMMAND_FOLDER}{name}" for name in ("notes", "like", "pipe")]
    for folder in theirs:
        folder.mkdir()
        (folder / "mine.txt").touch()
    (theirs[1] / marker.name).write_bytes(marker.read_bytes() + b"more")
    os.mkfifo(theirs[2] / marker.name)
    for path in outer.iterdir():
        make_old(path)

    process, _ = begin()
    process.communicate(timeout=TIMEOUT_S)

    assert set(outer.iterdir()) == {Path(other), foreign, link, *theirs}
    assert all((folder / "mine.txt").exists() for folder in theirs)
    assert list(Path(other).iterdir()) != []
    alive.communicate(timeout=TIMEOUT_S)
    assert set(outer.iterdir()) == {foreign, link, *theirs}


def test_a_job_on_a_cluster_keeps_what_its_server_needs(outer: Path) -> None:
    process, printed = begin("outlived=True")
    assert printed == [str(outer)] * 2
    process.communicate(timeout=TIMEOUT_S)


def test_commands_take_turns_with_what_takes_all_memory(
    outer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = outer / f"{COMMAND_FOLDER}x"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    with MemoryBudget(100).take(101):
        descriptor = os.open(outer, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder as another program would."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def take_all() -> str:
    """Takes more than there is, as a large image does."""
    with MemoryBudget(100).take(101):
        return "taken"


def prepare_to_take() -> Callable[[str], str]:
    memory._WARN_AFTER_S = 0.01
    return lambda _: take_all()


@pytest.mark.parametrize("where", ["here", "in a worker process"])
def test_a_lock_of_another_program_is_no_silent_wait(
    where: str, outer: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(outer))
    monkeypatch.setattr(memory, "_WARN_AFTER_S", 0.01)
    memory._warn_of_lock.cache_clear()
    worker: Worker[str, str] | None = None
    take = take_all
    if where != "here":
        worker = Worker(prepare_to_take, task="took memory")
        take = functools.partial(worker.call, "")
    with ThreadPoolExecutor() as threads:
        with locked(outer):
            taken = threads.submit(take)
            deadline_s = time.monotonic() + TIMEOUT_S
            while not caplog.messages and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert not taken.done()
        assert taken.result(TIMEOUT_S) == "taken"
    (message,) = caplog.messages
    assert message.startswith(f"{outer}: another process has locked this folder; waiting for it")
    assert message.endswith("set TMPDIR to another folder)")
    # Where nobody else holds it, nothing is said.
    caplog.clear()
    assert take() == "taken"
    assert caplog.messages == []
    if worker is not None:
        worker.close()
