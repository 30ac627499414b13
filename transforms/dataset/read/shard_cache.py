"""Whole copies of shards in a folder on disk, which several processes may fill and read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import posixpath
import shutil
from collections.abc import Iterable
from typing import BinaryIO

import google_crc32c

from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.dataset.folder_lock import is_at
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

_PART_BYTES = 8 << 20
_DIGEST_DIGITS = 16
# A file system allows 255 bytes for a name.
_NAME_CHARACTERS = 40


class ShardCache:
    """Copies of shards in a folder.

    A copy's name depends on the shard's address, version and size, so a shard that has changed is
    copied again. Nothing is deleted.

    Args:
        folder: The folder; made if it does not exist.

    Raises:
        InputError: The folder cannot be made.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise InputError(uri=folder, problem=f"cannot be made: {error.strerror}") from error

    def check_room(self, shards: Iterable[StoredFile]) -> None:
        """Makes sure that there is room for all copies that are missing.

        Raises:
            InputError: There is not.
        """
        missing = [shard for shard in shards if not self._has(shard)]
        # Other processes may be making copies now.
        begun = sum(_size(f"{self._path(shard)}.part") for shard in missing)
        needed = sum(shard.size_bytes for shard in missing) - begun
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise self._no_room(f"{len(missing):,} shards of {needed:,} bytes", free=free)

    def fetch(self, shard: StoredFile) -> str:
        """Returns the path of a whole copy, which this or another process makes if it is missing.

        Raises:
            InputError: The shard cannot be read or was changed, or the copy cannot be written.
            DamagedError: The copy has another checksum than the shard.
            ChangedError: The shard has another version.
            OSError: The shard cannot be read.
        """
        path = self._path(shard)
        part = f"{path}.part"
        while not self._has(shard):
            try:
                with open(part, "ab") as file:
                    # One process copies; the others wait until it has finished, or was killed.
                    fcntl.flock(file, fcntl.LOCK_EX)
                    if is_at(file.fileno(), part) and not self._has(shard):
                        file.truncate(0)
                        self._copy(shard, file)
                        os.replace(part, path)
                    elif is_at(file.fileno(), part):
                        os.unlink(part)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    free = shutil.disk_usage(self.folder).free
                    raise self._no_room(f"{shard.size_bytes:,} bytes", free=free) from error
                problem = f"cannot hold copies of shards: {error.strerror or error}"
                raise InputError(uri=self.folder, problem=problem) from error
        return path

    def _copy(self, shard: StoredFile, file: BinaryIO) -> None:
        """Copies a shard to an open file, and removes the file if that fails."""
        try:
            storage = storage_for(shard.uri)
            # Ranges that are read have no checksum of their own.
            stored = shard if shard.crc32c else storage.stat(shard.uri) or shard
            crc32c = 0
            for offset in range(0, shard.size_bytes, _PART_BYTES):
                data = _read(shard, offset=offset)
                crc32c = google_crc32c.extend(crc32c, data)
                file.write(data)
            if stored.crc32c not in ("", f"{crc32c:08x}"):
                problem = f"its copy has the checksum {crc32c:08x}, not {stored.crc32c}"
                raise DamagedError(uri=shard.uri, problem=problem)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise

    def _has(self, shard: StoredFile) -> bool:
        path = self._path(shard)
        return os.path.exists(path) and _size(path) == shard.size_bytes

    def _path(self, shard: StoredFile) -> str:
        what = f"{shard.uri}\n{shard.version}\n{shard.size_bytes}"
        digest = hashlib.sha256(what.encode(errors="surrogateescape")).hexdigest()
        name = posixpath.basename(shard.uri)[-_NAME_CHARACTERS:]
        return os.path.join(self.folder, f"{digest[:_DIGEST_DIGITS]}-{name}")

    def _no_room(self, what: str, *, free: int) -> InputError:
        return InputError(
            uri=self.folder,
            problem=f"has no room for {what}: {free:,} bytes are free; free some, choose another "
            "folder, or read without a cache",
        )


def _size(path: str) -> int:
    """Returns the length of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read(shard: StoredFile, *, offset: int) -> bytes:
    """Reads a part of a shard.

    Raises:
        ChangedError: The shard has another version.
        InputError: It cannot be read, or ends too early.
    """
    size_bytes = min(_PART_BYTES, shard.size_bytes - offset)
    try:
        data = storage_for(shard.uri).read(
            shard.uri, offset=offset, size_bytes=size_bytes, version=shard.version
        )
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise InputError(uri=shard.uri, problem=problem) from error
    if len(data) != size_bytes:
        raise InputError(uri=shard.uri, problem=f"ends before byte {offset + size_bytes:,}")
    return data
