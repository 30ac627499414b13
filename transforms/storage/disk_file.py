"""Files that are too long to be read whole: they stay on disk, and are read in pieces."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import google_crc32c

from shardbeam.transforms.core.errors import InputError, UnreadableError
from shardbeam.transforms.core.map_ahead import map_ahead
from shardbeam.transforms.storage.base import ChangedError, Storage, StoredFile
from shardbeam.transforms.storage.local import read_at

# A copy is downloaded in parts of this size, several at a time.
_PART_BYTES = 8 << 20
_PARTS_AT_A_TIME = 4


class DiskFile:
    """An open file on disk, which must not change while it is read.

    It is not mapped into memory, because a process dies if a mapped file is truncated. Threads may
    share it. The file is closed when nothing refers to this object any more.

    Args:
        file: The file, without a buffer.
        uri: Its name, for errors.

    Attributes:
        size_bytes: Its length.
    """

    def __init__(self, file: BinaryIO, *, uri: str) -> None:
        self._uri = uri
        self._descriptor = file.fileno()
        weakref.finalize(self, file.close)
        self.size_bytes, self._time_ns = self._state()

    def read(self, begin: int, end: int) -> bytes:
        """Reads the bytes between two positions; `check` says whether they are right.

        Raises:
            UnreadableError: They cannot be read.
        """
        try:
            data = read_at(self._descriptor, begin, end - begin)
        except OSError as error:
            raise UnreadableError(
                uri=self._uri, problem=f"the file cannot be read: {error.strerror or error}"
            ) from error
        if begin + len(data) < end:
            raise _changed(self._uri)
        return data

    def check(self) -> None:
        """Checks that the file is as it was when it was opened.

        Raises:
            UnreadableError: Its size or its time of change differs.
        """
        if self._state() != (self.size_bytes, self._time_ns):
            raise _changed(self._uri)

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


def open_on_disk(stored: StoredFile, *, storage: Storage) -> DiskFile:
    """Opens a file; one in remote storage is first copied to a temporary file.

    The temporary file has no name, so nothing is left of it when the process ends, however it ends.

    Args:
        stored: The file. All parts of a copy are of this version.
        storage: Its storage.

    Raises:
        InputError: The file has changed, or the temporary folder has no room for it.
        OSError: The file cannot be read.
    """
    file = storage.open_local(stored.uri)
    if file is None:
        file = write_copy(stored, _checked_parts(stored, storage=storage))
    return DiskFile(file, uri=stored.uri)


def write_copy(stored: StoredFile, parts: Iterable[bytes]) -> BinaryIO:
    """Writes the content of a file to a temporary file without a name.

    Args:
        stored: The file.
        parts: Its content. If they raise an error, no copy is left.

    Raises:
        InputError: The folder of temporary files has no room for it.
    """
    with contextlib.ExitStack() as stack:
        try:
            _check_room(stored)
            # Without a buffer, so that positions are those of the file.
            copy = stack.enter_context(tempfile.TemporaryFile(buffering=0))
        except OSError as error:
            raise _no_room(stored, error) from error
        position = 0
        for part in parts:
            rest = memoryview(part)
            while rest:
                try:
                    written = os.pwrite(copy.fileno(), rest, position)
                except OSError as error:
                    raise _no_room(stored, error) from error
                rest = rest[written:]
                position += written
        stack.pop_all()
    return copy


def _check_room(stored: StoredFile) -> None:
    free_bytes = shutil.disk_usage(tempfile.gettempdir()).free
    if free_bytes < stored.size_bytes:
        raise OSError(0, f"{free_bytes:,} bytes are free")


def _checked_parts(stored: StoredFile, *, storage: Storage) -> Iterator[bytes]:
    crc32c = size_bytes = 0
    for part in _parts(stored, storage=storage):
        crc32c = google_crc32c.extend(crc32c, part)
        size_bytes += len(part)
        yield part
    if size_bytes != stored.size_bytes:
        raise _changed(stored.uri)
    # There are no checksums for parts.
    if stored.crc32c not in ("", f"{crc32c:08x}"):
        raise InputError(
            uri=stored.uri, problem="was damaged on the way; run the same command again"
        )


def _parts(stored: StoredFile, *, storage: Storage) -> Iterator[bytes]:
    def read(offset: int) -> bytes:
        size_bytes = min(_PART_BYTES, stored.size_bytes - offset)
        return storage.read(
            stored.uri, offset=offset, size_bytes=size_bytes, version=stored.version
        )

    with ThreadPoolExecutor(_PARTS_AT_A_TIME, thread_name_prefix="copy") as executor:
        try:
            yield from map_ahead(
                read,
                range(0, stored.size_bytes, _PART_BYTES),
                executor=executor,
                max_items=_PARTS_AT_A_TIME,
            )
        except (ChangedError, FileNotFoundError) as error:
            raise _changed(stored.uri) from error


def _changed(uri: str) -> UnreadableError:
    return UnreadableError(
        uri=uri, problem="the file was changed while it was read; run the same command again"
    )


def _no_room(stored: StoredFile, error: OSError) -> InputError:
    try:
        folder = tempfile.gettempdir()
    except OSError:
        folder = os.environ.get("TMPDIR", "")
    return InputError(
        uri=stored.uri,
        problem=f"is read from a copy in the folder of temporary files, {folder}, which lacks room "
        f"for its {stored.size_bytes:,} bytes ({error.strerror or error}); free some, or set "
        "TMPDIR to a folder that has room",
    )
