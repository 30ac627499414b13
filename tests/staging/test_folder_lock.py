"""The lock of an output on disk: who holds it, and when it is released."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbeam.transforms.staging.lease import FolderLock, LeaseError

# Locks a folder, starts a process that outlives it, says so, and waits.
HOLDER = """
import subprocess, sys
from shardbeam.transforms.staging.lease import FolderLock
lock = FolderLock(sys.argv[1])
lock.take()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
print(child.pid, flush=True)
sys.stdin.read()
"""


def hold(folder: Path) -> FolderLock:
    lock = FolderLock(str(folder))
    assert lock.take() or lock.take()
    return lock


def is_free(folder: Path) -> bool:
    try:
        FolderLock(str(folder)).release()
    except LeaseError:
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


def test_a_stopped_process_keeps_it_and_a_killed_one_frees_it(
    folder: Path, holder: subprocess.Popen[str]
) -> None:
    assert not is_free(folder)
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    assert not is_free(folder)
    holder.kill()
    holder.wait()
    # The process that it had started is alive, and does not have the lock.
    assert is_free(folder)


def test_of_two_in_one_process_one_has_it(folder: Path) -> None:
    lock = hold(folder)
    assert not is_free(folder)
    lock.release()
    lock.release()
    assert is_free(folder)


def test_a_link_has_the_same_lock(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    lock = hold(folder)
    assert not is_free(tmp_path / "link")
    lock.release()
    assert is_free(tmp_path / "link")


def test_a_folder_that_is_not_there_is_made_and_must_be_looked_at_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "out"
    lock = FolderLock(str(folder))
    assert not (tmp_path / "a").exists()
    assert not lock.take()
    assert lock.take()
    assert not is_free(folder)
    lock.release()
    # Nothing was written there.
    assert not (tmp_path / "a").exists()


def test_what_is_not_empty_or_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    hold(tmp_path / "a").release()
    assert (tmp_path / "a").exists()
    lock = hold(tmp_path / "b" / "out")
    (tmp_path / "b" / "out" / "file").touch()
    lock.release()
    assert (tmp_path / "b" / "out" / "file").exists()


@pytest.mark.parametrize("then", ["removed", "another in its place"])
def test_a_folder_that_is_moved_while_it_is_locked(
    then: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def move_and_lock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        folder.rename(tmp_path / "moved")
        if then == "another in its place":
            folder.mkdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", move_and_lock)
    hold(folder)
    assert not is_free(folder)
    assert is_free(tmp_path / "moved")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF])
def test_a_file_system_without_locks_says_so_once(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING):
        hold(folder).release()
    assert caplog.messages == [
        f"{folder}: this file system keeps no locks ({os.strerror(number)}); let only one run at a "
        "time write there"
    ]


def test_a_folder_that_cannot_be_opened_or_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lock = FolderLock(str(tmp_path / "file"))
    with pytest.raises(FileExistsError):
        lock.take()
