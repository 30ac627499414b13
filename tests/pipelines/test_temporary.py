"""The folder that a command has for the temporary files of all that it starts."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardbeam.transforms.core.memory import COMMAND_FOLDER, MemoryBudget
from tests.support.dataset import TIMEOUT_S

# Prints where it, and a process that it starts, put temporary files; ends when stdin does.
COMMAND = """
import atexit, pathlib, subprocess, sys, tempfile
from shardbeam.pipelines.interrupts import end_on_signals
from shardbeam.pipelines.temporary import own_temporary_files

with end_on_signals():
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
    for path in outer.iterdir():
        make_old(path)

    process, _ = begin()
    process.communicate(timeout=TIMEOUT_S)

    assert set(outer.iterdir()) == {Path(other), foreign, link}
    assert list(Path(other).iterdir()) != []
    alive.communicate(timeout=TIMEOUT_S)
    assert set(outer.iterdir()) == {foreign, link}


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
