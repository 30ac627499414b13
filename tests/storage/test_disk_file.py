from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path
from typing import BinaryIO, ClassVar

import google_crc32c
import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError, UnreadableError
from shardbeam.transforms.storage import disk_file
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.disk_file import open_on_disk
from shardbeam.transforms.storage.local import LocalStorage

DATA = bytes(range(256)) * 10
_Usage = namedtuple("_Usage", "total used free")


class RemoteStorage(LocalStorage):
    """Local files, each read of which is taken for a request."""

    is_remote: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int | None, str | None]] = []

    def open_local(self, uri: str) -> BinaryIO | None:  # type: ignore[override]
        del uri
        return None

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        self.reads.append((offset, size_bytes, version))
        return super().read(uri, offset=offset, size_bytes=size_bytes, version=version)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredFile:
    """A file, which is copied in parts of 1,000 bytes to an own temporary folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(disk_file, "_PART_BYTES", 1_000)
    path = tmp_path / "x"
    path.write_bytes(DATA)
    os.utime(path, (1, 1))
    return LocalStorage().find(str(path))


def test_a_local_file_is_read_in_place(stored: StoredFile) -> None:
    file = open_on_disk(stored, storage=LocalStorage())

    assert file.size_bytes == len(DATA)
    assert file.read(3, 700) == DATA[3:700]
    assert file.read(5, 5) == b""
    file.check()
    Path(stored.uri).write_bytes(DATA)
    with pytest.raises(InputError, match="was changed while it was read"):
        file.check()
    os.truncate(stored.uri, 100)
    with pytest.raises(InputError, match="was changed while it was read"):
        file.read(3, 700)


def test_a_remote_file_is_copied_in_parts_of_one_version(stored: StoredFile) -> None:
    storage = RemoteStorage()
    crc32c = f"{google_crc32c.value(DATA):08x}"
    file = open_on_disk(msgspec.structs.replace(stored, crc32c=crc32c), storage=storage)

    version = stored.version
    assert sorted(storage.reads) == [
        (0, 1000, version),
        (1000, 1000, version),
        (2000, 560, version),
    ]
    os.unlink(stored.uri)
    assert file.read(0, len(DATA)) == DATA
    file.check()
    # It has no name.
    assert os.listdir(tempfile.gettempdir()) == []


def test_a_disk_that_fails(stored: StoredFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_on_disk(stored, storage=LocalStorage())

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(UnreadableError, match="the file cannot be read: Input/output error"):
        file.read(0, 10)


def test_the_file_is_closed_with_the_last_reference(stored: StoredFile) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for storage in (LocalStorage(), RemoteStorage()):
        file = open_on_disk(stored, storage=storage)
        del file
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_remote_file_that_changes_while_it_is_copied(stored: StoredFile, is_gone: bool) -> None:
    class Changing(RemoteStorage):
        def read(self, uri: str, **options: object) -> bytes:
            if options["offset"] == 1_000:
                if is_gone:
                    os.unlink(uri)
                else:
                    os.utime(uri, (2, 2))
            return super().read(uri, **options)  # type: ignore[arg-type]

    with pytest.raises(InputError, match="was changed while it was read; run the same command"):
        open_on_disk(stored, storage=Changing())
    assert os.listdir(tempfile.gettempdir()) == []


def test_a_copy_that_was_damaged_on_the_way(stored: StoredFile) -> None:
    with pytest.raises(InputError, match="was damaged on the way; run the same command again"):
        open_on_disk(msgspec.structs.replace(stored, crc32c="00000000"), storage=RemoteStorage())


def test_a_temporary_disk_without_room(stored: StoredFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10_000, 7_441, 2_559))
    storage = RemoteStorage()

    with pytest.raises(InputError) as raised:
        open_on_disk(stored, storage=storage)
    assert raised.value.problem == (
        f"is read from a copy in the folder of temporary files, {tempfile.gettempdir()}, which "
        "lacks room for its 2,560 bytes (2,559 bytes are free); free some, or set TMPDIR to a "
        "folder that has room"
    )
    # Nothing was downloaded.
    assert storage.reads == []
    # A local file needs no room.
    open_on_disk(stored, storage=LocalStorage())


def test_a_temporary_disk_that_fills_up(
    stored: StoredFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def full(descriptor: int, data: bytes, position: int) -> int:
        if position + len(data) > 1_500:
            # As Linux does: some of it is written first.
            if position >= 1_500:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: 1_500 - position]
        return write(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(InputError) as raised:
        open_on_disk(stored, storage=RemoteStorage())
    assert tempfile.gettempdir() in raised.value.problem
    assert "lacks room for its 2,560 bytes (No space left on device)" in raised.value.problem


def test_no_temporary_folder(stored: StoredFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(Path(stored.uri).parent / "missing"))
    with pytest.raises(InputError, match=r"lacks room for its 2,560 bytes \(No such file"):
        open_on_disk(stored, storage=RemoteStorage())
