"""Which process has ended, and of which that cannot be told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shardbeam.transforms.dataset import process_identity
from shardbeam.transforms.dataset.process_identity import ProcessIdentity, has_ended, own_process

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

_IDENTIFY = (
    "import msgspec, sys; from shardbeam.transforms.dataset.process_identity import own_process; "
    "print(msgspec.json.encode(own_process()).decode(), flush=True); sys.stdin.read()"
)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], ProcessIdentity]]:
    """A process that waits, and who it says it is."""
    command = [sys.executable, "-c", _IDENTIFY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, msgspec.json.decode(process.stdout.readline(), type=ProcessIdentity)
        process.kill()


def own() -> ProcessIdentity:
    process = own_process()
    assert process is not None
    return process


def test_this_process_runs() -> None:
    assert own().pid == os.getpid()
    assert own() == own()
    assert not has_ended(own())


def test_a_process_that_was_killed_has_ended(
    other: tuple[subprocess.Popen[str], ProcessIdentity],
) -> None:
    process, identity = other
    assert identity.pid == process.pid
    assert not has_ended(identity)
    process.kill()
    # Not waited for, its number stays taken: it is a zombie then.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(identity)
    process.wait()
    assert has_ended(identity)


def test_a_number_that_another_process_has_got_since(
    other: tuple[subprocess.Popen[str], ProcessIdentity],
) -> None:
    _, identity = other
    earlier = msgspec.structs.replace(identity, started=identity.started - 1)
    assert has_ended(earlier)


@pytest.mark.parametrize("change", [{"boot": "another"}, {"namespace": "pid:[1]"}])
def test_of_other_machines_and_containers_nothing_is_known(change: dict[str, str]) -> None:
    gone = msgspec.structs.replace(own(), pid=2**31 - 1)
    assert has_ended(gone)
    assert not has_ended(msgspec.structs.replace(gone, **change))


def test_a_process_that_is_hidden_is_not_gone(
    other: tuple[subprocess.Popen[str], ProcessIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with hidepid: no folder in /proc, and a signal is refused.
    process, identity = other
    read_stat = process_identity._read_stat

    def hide(pid: int) -> tuple[str, int]:
        if pid == process.pid:
            raise FileNotFoundError(pid)
        return read_stat(pid)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    monkeypatch.setattr(process_identity, "_read_stat", hide)
    assert not has_ended(identity)
    monkeypatch.setattr(os, "kill", refuse)
    assert not has_ended(identity)


@pytest.mark.parametrize("missing", ["_BOOT_ID", "_NAMESPACE"])
def test_a_system_that_cannot_tell(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = msgspec.structs.replace(own(), pid=2**31 - 1)
    monkeypatch.setattr(process_identity, missing, "/nowhere")
    assert own_process() is None
    assert not has_ended(gone)
