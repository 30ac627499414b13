"""Failures of fsspec's file systems are repeated if that helps, or end with a clear error."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import failures as storage_failures
from shardbeam.transforms.storage.fsspec import FsspecStorage, file_system
from shardbeam.transforms.storage.usage import StorageUsage, UsageCounter, usage_counter
from tests.support import gcs_memory as memory
from tests.support.gcs_memory import translated

URI = "memory://host/x"
FOLDER = "folders://host/x"


class AzureError(Exception):
    """An error of Azure's library."""

    def __init__(self, code: str) -> None:
        super().__init__(f"ErrorCode:{code}")
        self.error_code = code


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
        *(OSError(5, "busy\nstill"), translated(OSError(errno.EBUSY, "SlowDown"), "SlowDown")),
        translated(OSError(errno.EINVAL, "another digest"), "BadDigest"),
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
    "error",
    [
        PermissionError(),
        ImportError("no library"),
        ValueError("403"),
        translated(OSError(errno.EINVAL, "no such name"), "InvalidBucketName"),
    ],
    ids=repr,
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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (translated(PermissionError("expired"), "ExpiredToken", "expired"), "expired"),
        (translated(PermissionError("no"), "SignatureDoesNotMatch"), "SignatureDoesNotMatch"),
        (translated(OSError(errno.EINVAL, "no"), "InvalidToken"), "InvalidToken"),
        # s3fs does not know it.
        (translated(OSError(errno.EIO, "no"), "ExpiredTokenException"), "ExpiredTokenException"),
        (type("UnauthorizedSSOTokenError", (Exception,), {})("run aws sso login"), "aws sso login"),
        (AzureError("AuthenticationFailed"), "AuthenticationFailed"),
    ],
    ids=repr,
)
def test_refused_credentials_are_named_at_once(
    error: Exception, words: str, storage: FsspecStorage, failures: list[Exception]
) -> None:
    failures[:] = [error, error]
    with pytest.raises(InputError, match=rf"^{URI}: .*{words}.*; renew the credentials .*`aws"):
        storage.read(URI)
    assert len(failures) == 1


def test_credentials_that_expire_while_a_file_is_written_are_named(
    storage: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only once: from Python 3.13 on, a file that failed to close is closed again when it is freed.
    failures = [AzureError("AuthenticationFailed")]
    original = MemoryFile.close

    def close(self: MemoryFile) -> None:
        if failures:
            raise failures.pop()
        original(self)

    monkeypatch.setattr(MemoryFile, "close", close)
    with (
        pytest.raises(InputError, match=r"AuthenticationFailed; renew the credentials"),
        storage.create("memory://host/new") as file,
    ):
        file.write(b"data")


@pytest.mark.parametrize(
    ("code", "answer", "problem"),
    [
        ("400", translated(PermissionError("no"), "ExpiredToken"), "ExpiredToken.*; renew the"),
        ("403", translated(PermissionError("no"), "AccessDenied"), r"\(AccessDenied\): no$"),
        # Neither of these says more.
        ("403", FileNotFoundError(), r"\(403\): Forbidden$"),
        ("403", ConnectionResetError(), r"\(403\): Forbidden$"),
    ],
)
def test_a_head_request_without_a_cause_is_followed_by_a_get_request(
    code: str,
    answer: Exception,
    problem: str,
    storage: FsspecStorage,
    failures: list[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def refuse(self: MemoryFileSystem, path: str) -> None:
        asked.append(path)
        raise translated(OSError(errno.EINVAL, "Forbidden"), code, "Forbidden")

    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    failures[:] = [answer, answer]
    with pytest.raises(InputError, match=problem):
        storage.stat(URI)
    assert (len(asked), len(failures)) == (1, 1)


def test_a_file_system_that_is_not_configured_says_so() -> None:
    with pytest.raises(InputError, match=r"^hdfs://host/x: cannot be accessed by fsspec: .+"):
        FsspecStorage("hdfs").stat("hdfs://host/x")


@pytest.mark.parametrize(
    ("error", "found"), [(FileNotFoundError(), ["x"]), (PermissionError(13, "not yours"), None)]
)
def test_only_a_folder_that_is_gone_may_be_missing_in_a_listing(
    error: OSError,
    found: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory.clear()
    storage = FsspecStorage("folders")
    memory.write(f"{FOLDER}/deep/y", b"data")
    memory.write(f"{FOLDER}/x", b"data")
    list_folder = memory.FolderFileSystem.ls

    def fail(self: memory.FolderFileSystem, path: str, **options: Any) -> Any:  # noqa: ANN401
        if path.endswith("/deep"):
            raise error
        return list_folder(self, path, **options)

    assert sorted(file.path for file in storage.list(f"{FOLDER}")) == ["deep/y", "x"]
    monkeypatch.setattr(memory.FolderFileSystem, "ls", fail)
    if found is None:
        with pytest.raises(InputError, match=r"folders://host/x: cannot be accessed .* not yours"):
            list(storage.list(f"{FOLDER}"))
    else:
        assert [file.path for file in storage.list(f"{FOLDER}")] == found


@pytest.mark.parametrize("method", ["holds", "is_folder", "stat"])
def test_a_failure_does_not_mean_that_nothing_is_there(
    method: str, storage: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: MemoryFileSystem, path: str, **options: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(MemoryFileSystem, "info", fail)
    with pytest.raises(InputError, match=r"memory://host/x: cannot be accessed"):
        getattr(storage, method)(URI)


def test_two_colons_in_a_name_make_no_chain_of_file_systems() -> None:
    system, path = file_system("memory://host/zip::a.jpg")
    assert type(system) is MemoryFileSystem
    assert path.endswith("host/zip::a.jpg")
