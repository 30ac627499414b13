"""Failures of fsspec's file systems are repeated if that helps, or end with a clear error."""

from __future__ import annotations

import asyncio
import errno

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import failures as storage_failures
from shardbeam.transforms.storage.fsspec import FsspecStorage
from shardbeam.transforms.storage.usage import StorageUsage, UsageCounter, usage_counter
from tests.support import gcs_memory as memory

URI = "memory://host/x"


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> FsspecStorage:
    monkeypatch.setattr(storage_failures, "_INITIAL_WAIT_S", 0.01)
    monkeypatch.setattr(storage_failures, "_MAX_WAIT_S", 0.02)
    monkeypatch.setattr(storage_failures, "DEADLINE_S", 0.5)
    memory.clear()
    memory.write(URI, b"data")
    return FsspecStorage("memory")


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors that the next reads raise."""
    errors: list[Exception] = []
    read = MemoryFileSystem.cat_file

    def fail(
        self: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None
    ) -> bytes:
        if errors:
            raise errors.pop(0)
        return bytes(read(self, path, start, end))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    return errors


@pytest.mark.parametrize(
    "error",
    [
        *(ConnectionResetError(), TimeoutError(), asyncio.TimeoutError()),
        *(OSError(5, "busy\nstill"), OSError(errno.EBUSY, "SlowDown")),
    ],
    ids=repr,
)
def test_what_may_pass_is_repeated(
    error: Exception, storage: FsspecStorage, failures: list[Exception]
) -> None:
    failures[:] = [error] * 3
    before = usage_counter.total()
    assert storage.read(URI) == b"data"
    usage = usage_counter.total() - before
    assert (usage.repeated, usage.throttled) == (3, 3 if "SlowDown" in str(error) else 0)
    failures[:] = [error] * 1000
    with pytest.raises(InputError, match=r"memory://host/x: cannot be accessed") as caught:
        storage.read(URI)
    assert "\n" not in str(caught.value)
    assert len(failures) > 900


@pytest.mark.parametrize(
    "error", [PermissionError(), ImportError("no library"), ValueError("403")], ids=repr
)
def test_what_stays_is_an_error_at_once(
    error: Exception, storage: FsspecStorage, failures: list[Exception]
) -> None:
    failures[:] = [error, error]
    with pytest.raises(InputError, match=r"memory://host/x: cannot be accessed"):
        storage.read(URI)
    assert len(failures) == 1


def test_waits_add_up_to_whole_seconds() -> None:
    counter = UsageCounter()
    taken = StorageUsage()
    for _ in range(10):
        counter.count_throttled(waited_s=0.375)
        taken += counter.take()
    assert taken == StorageUsage(repeated=10, throttled=10, throttled_s=3)


def test_a_file_system_that_is_not_configured_says_so() -> None:
    with pytest.raises(InputError, match=r"^hdfs://host/x: cannot be accessed by fsspec: .+"):
        FsspecStorage("hdfs").stat("hdfs://host/x")
