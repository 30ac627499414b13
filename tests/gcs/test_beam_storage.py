"""Failures of Beam's file systems: repeated where they may pass, said plainly where not."""

from __future__ import annotations

import pytest
from apache_beam.io.filesystem import BeamIOError

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import beam as beam_storage
from shardbeam.transforms.storage.beam import BeamStorage
from tests.gcs.memory_file_systems import MemoryFileSystem

URI = "memory://host/x"


class ServerError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("Sorry.\nReally.")
        self.code = code


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> BeamStorage:
    monkeypatch.setattr(beam_storage, "_INITIAL_WAIT_S", 0.01)
    monkeypatch.setattr(beam_storage, "_MAX_WAIT_S", 0.02)
    monkeypatch.setattr(beam_storage, "_DEADLINE_S", 0.5)
    MemoryFileSystem.files.clear()
    MemoryFileSystem.files.write(URI, b"data")
    return BeamStorage("memory")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        ServerError(503),
        BeamIOError("Open failed", {URI: ServerError(429)}),
        BeamIOError("Open failed", {URI: ConnectionResetError()}),
    ],
    ids=repr,
)
def test_what_may_pass_is_repeated(error: Exception, storage: BeamStorage) -> None:
    MemoryFileSystem.files.failures = [error] * 3
    assert storage.read(URI) == b"data"
    MemoryFileSystem.files.failures = [error] * 1000
    with pytest.raises(InputError, match=r"memory://host/x: cannot be accessed") as caught:
        storage.read(URI)
    assert "\n" not in str(caught.value)
    assert len(MemoryFileSystem.files.failures) > 900


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(),
        ServerError(403),
        BeamIOError("Open failed", {URI: ServerError(401)}),
        BeamIOError("Open failed", {URI: ImportError("no boto3")}),
        BeamIOError("Open failed"),
    ],
    ids=repr,
)
def test_what_stays_is_an_error_at_once(error: Exception, storage: BeamStorage) -> None:
    MemoryFileSystem.files.failures = [error, error]
    with pytest.raises(InputError, match=r"memory://host/x: cannot be accessed"):
        storage.read(URI)
    assert len(MemoryFileSystem.files.failures) == 1


def test_a_file_system_that_is_not_configured_says_so() -> None:
    with pytest.raises(InputError, match=r"^hdfs://: Beam's file system cannot be used: .+"):
        BeamStorage("hdfs")
