"""The shards that this process has open, and whole copies of shards in a folder on disk.

Processes of one user may fill and read these copies. The folder may be one that other users write
to, such as `/tmp/copies`. So the copies lie in a folder of the user inside it, which nobody else
can enter. It is opened once for each use, and files are opened relative to what was opened: a link
under one of these names is never followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import posixpath
import re
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import google_crc32c
import msgspec

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.containers.tfrecord import frame
from shardbeam.transforms.core.errors import DamagedError, InputError, reading
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import is_at

# The shards that this process has open at most: those that were read last.
MAX_OPEN_FILES = 64
_TFRECORD = "tfrecord"
_PART_BYTES = 8 << 20
_DIGEST_DIGITS = 16
# A file system allows 255 bytes for a name.
_NAME_CHARACTERS = 40
# Only files with such names are counted and deleted.
_COPY = re.compile(rf"[0-9a-f]{{{_DIGEST_DIGITS}}}-.*", re.DOTALL)
_PART = ".part"
# A process holds a lock on this file while it counts, deletes or renames copies.
_LOCK = ".lock"
_MODE = 0o700
# Between two looks at copies that other processes are making.
_WAIT_S = 0.05

_numbers = itertools.count()


class OpenFile:
    """An open file, which is closed when nothing refers to it any more.

    Args:
        descriptor: Its descriptor.
        is_copy: Whether it is a copy in a cache.

    Attributes:
        number: Its number in this process, which no other file gets.
        identity: Device and inode, which another file may get as soon as this one is closed.
        size_bytes: Its length when it was opened.
    """

    __slots__ = ("descriptor", "identity", "is_copy", "number", "size_bytes")

    def __init__(self, descriptor: int, *, is_copy: bool) -> None:
        self.descriptor = descriptor
        self.is_copy = is_copy
        status = os.fstat(descriptor)
        self.number = next(_numbers)
        self.identity = (status.st_dev, status.st_ino)
        self.size_bytes = status.st_size

    # Bound here, because modules may be gone when the interpreter ends.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


class OpenFiles:
    """Open files that several sequences share, at most `MAX_OPEN_FILES`.

    A file that a thread is reading stays open until it has finished.
    """

    def __init__(self) -> None:
        # By number; the file that was read last is the last.
        self._files: OrderedDict[int, OpenFile] = OrderedDict()
        self.unlock()

    def unlock(self) -> None:
        """Forgets a lock that a thread of the parent process held when it forked."""
        self._lock = threading.Lock()

    def find(self, number: int) -> OpenFile | None:
        """Returns the file with a number; None if it is not open any more."""
        with self._lock:
            opened = self._files.get(number)
            if opened is not None:
                self._files.move_to_end(number)
            return opened

    def add(self, opened: OpenFile) -> OpenFile:
        """Keeps a file open; returns the one to read, as the same file may be open already."""
        with self._lock:
            for other in self._files.values():
                if other.identity == opened.identity:
                    return other
            self._files[opened.number] = opened
            while len(self._files) > MAX_OPEN_FILES:
                self._files.popitem(last=False)
            return opened

    def close_deleted_copies(self) -> None:
        """Closes copies that were deleted, because they take room on the disk until then."""
        with self._lock:
            for number, opened in list(self._files.items()):
                if opened.is_copy and not os.fstat(opened.descriptor).st_nlink:
                    del self._files[number]


OPEN_FILES = OpenFiles()
os.register_at_fork(after_in_child=OPEN_FILES.unlock)


class ShardCache:
    """Copies of shards in a folder of the user.

    A copy's name depends on the shard's address, version, size and checksum, so a shard that has
    changed is copied again. Of another container than TFRecord, the records of a shard are written
    into a TFRecord file.

    Args:
        folder: The folder of all users; it is made if it does not exist.
        max_bytes: What all copies of the user may take; None for no bound. To make room for a copy,
            those are deleted that were opened longest ago. A process that has one of them open
            can read it to the end.
        container: Name of the shards' container.
    """

    def __init__(
        self, folder: str, *, max_bytes: int | None = None, container: str = _TFRECORD
    ) -> None:
        self._parent = folder
        self.folder = os.path.join(folder, f"shardbeam-{os.geteuid()}")
        self._max_bytes = max_bytes
        self._container = container
        # {shard: the file that it is unpacked from}
        self._packed: dict[str, StoredFile] = {}

    def unpack(self, shards: Sequence[StoredFile], *, sizes: Sequence[int]) -> Sequence[StoredFile]:
        """Describes the TFRecord files that are written instead of copies.

        Args:
            shards: The shards, of another container.
            sizes: The lengths of their TFRecord files.
        """
        self._packed = {shard.uri: shard for shard in shards}
        return [
            msgspec.structs.replace(shard, size_bytes=size)
            for shard, size in zip(shards, sizes, strict=True)
        ]

    def check_room(self, shards: Sequence[StoredFile]) -> None:
        """Makes sure that there is room for all copies that are missing, or for `max_bytes`.

        Raises:
            InputError: There is not, a shard is larger than `max_bytes`, or the folder cannot be
                used.
        """
        largest = max(shards, key=lambda shard: shard.size_bytes)
        if self._max_bytes is not None and largest.size_bytes > self._max_bytes:
            raise InputError(
                uri=largest.uri,
                problem=f"has {largest.size_bytes:,} bytes, more than all copies may take "
                f"(cache_bytes={self._max_bytes:,}); raise cache_bytes, or read without a cache",
            )
        with self._enter() as folder:
            room = None
            if self._max_bytes is not None:
                with _lock_names(folder):
                    room = max(0, self._delete_oldest(folder))
            missing = [shard for shard in shards if not _has(shard, folder=folder)]
            # Other processes may be making copies now.
            begun = sum(_used_bytes(f"{_name(shard)}{_PART}", folder=folder) for shard in missing)
            needed = sum(shard.size_bytes for shard in missing) - begun
            what = f"{len(missing):,} shards of {needed:,} bytes"
            if room is not None and room < needed:
                needed = room
                what = f"{room:,} more bytes of copies (cache_bytes={self._max_bytes:,})"
            if needed > shutil.disk_usage(self.folder).free:
                raise self._no_room(what)

    def open(self, shard: StoredFile) -> int:
        """Opens a whole copy, which this or another process makes if it is missing.

        Returns:
            A file descriptor for reading; the copy may be deleted while it is open.

        Raises:
            InputError: The shard cannot be read or was changed, or the copy cannot be written.
            DamagedError: The copy has another checksum than the shard.
            ChangedError: The shard has another version.
        """
        # Other processes may have deleted copies that are open here.
        OPEN_FILES.close_deleted_copies()
        with self._enter() as folder:
            while True:
                descriptor = _open_copy(shard, folder=folder)
                if descriptor is not None:
                    return descriptor
                try:
                    descriptor = self._make_copy(shard, folder=folder)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    raise self._no_room(f"{shard.size_bytes:,} bytes") from error
                if descriptor is not None:
                    return descriptor

    @contextlib.contextmanager
    def _enter(self) -> Iterator[int]:
        """Opens the user's folder, and makes it if it does not exist.

        Raises:
            InputError: It is not a folder that this user alone can enter, or something in it cannot
                be read or written.
        """
        try:
            os.makedirs(self._parent, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder, _MODE)
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._check(os.lstat(self.folder))
            problem = f"cannot be made: {error.strerror}"
            raise InputError(uri=error.filename or self.folder, problem=problem) from error
        try:
            self._check(os.fstat(descriptor))
            yield descriptor
        except OSError as error:
            problem = f"cannot hold copies of shards: {error.strerror or error}"
            raise InputError(uri=self.folder, problem=problem) from error
        finally:
            os.close(descriptor)

    def _check(self, status: os.stat_result) -> None:
        """Makes sure that the user's folder is a folder that the user alone can enter.

        Raises:
            InputError: It is not.
        """
        mode = stat.S_IMODE(status.st_mode) & 0o777
        if not stat.S_ISDIR(status.st_mode):
            problem = "is a link or a file, and must be a folder; remove it"
        elif status.st_uid != os.geteuid():
            problem = (
                f"belongs to another user ({status.st_uid}), who could change what is read; have "
                "it removed"
            )
        elif mode != _MODE:
            problem = (
                f"has the mode {mode:04o} instead of {_MODE:04o}, so other users may have changed "
                f"what is in it; delete it (or, if nobody has, run `chmod {_MODE:o}` on it)"
            )
        else:
            return
        problem += ", or choose another folder for cache=, or read without a cache"
        raise InputError(uri=self.folder, problem=problem)

    def _make_copy(self, shard: StoredFile, *, folder: int) -> int | None:
        """Makes a copy, and opens it; None if another process may just have made it."""
        name = _name(shard)
        part = f"{name}{_PART}"
        with (
            os.fdopen(_open(part, os.O_WRONLY | os.O_CREAT, folder=folder), "wb") as file,
            # One process copies; the others wait until it has finished, or was killed.
            _lock(file.fileno()),
        ):
            if not is_at(file.fileno(), part, folder=folder):
                return None
            try:
                if _has(shard, folder=folder):
                    os.unlink(part, dir_fd=folder)
                    return None
                file.truncate(0)
                self._make_room(shard, file, folder=folder)
                packed = self._packed.get(shard.uri)
                if packed is None:
                    _copy(shard, file)
                else:
                    _unpack(packed, file, container=self._container, size_bytes=shard.size_bytes)
                file.flush()
                os.fsync(file.fileno())
                with _lock_names(folder):
                    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
                    # Opened at once, because others may delete it to make room.
                    return _open_copy(shard, folder=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise

    def _make_room(self, shard: StoredFile, file: BinaryIO, *, folder: int) -> None:
        """Waits until there is room for a copy beside those of others, and reserves it."""
        while self._max_bytes is not None:
            with _lock_names(folder):
                if self._delete_oldest(folder, beside=shard.size_bytes) >= 0:
                    # Files are counted by their length, so nobody else gets this room.
                    file.truncate(shard.size_bytes)
                    return
            # Others are making copies: these have their room, and can be deleted when finished.
            time.sleep(_WAIT_S)

    def _delete_oldest(self, folder: int, *, beside: int = 0) -> int:
        """Deletes copies until the others fit into `max_bytes`.

        Args:
            folder: The user's folder.
            beside: Bytes of a copy that is to be made.

        Returns:
            The bytes that are left; negative as long as others make copies that leave no room.
        """
        files = []
        for name in os.listdir(folder):
            status = _stat(name, folder=folder) if _COPY.fullmatch(name) else None
            if status is not None and status.st_size:
                files.append((status.st_mtime_ns, name, status.st_size))
        left = (self._max_bytes or 0) - beside - sum(size for *_, size in files)
        for _, name, size in sorted(files):
            if left >= 0:
                break
            if _delete(name, folder=folder):
                left += size
        OPEN_FILES.close_deleted_copies()
        return left

    def _no_room(self, what: str) -> InputError:
        free = shutil.disk_usage(self.folder).free
        return InputError(
            uri=self.folder,
            problem=f"has no room for {what}: {free:,} bytes are free; free some, choose another "
            f"folder, {'set' if self._max_bytes is None else 'lower'} cache_bytes, or read without "
            "a cache",
        )


def _name(shard: StoredFile) -> str:
    what = f"{shard.uri}\n{shard.version}\n{shard.size_bytes}"
    if shard.crc32c:
        # Another file may have the same length and time (`cp -p`, `rsync -t`).
        what += f"\n{shard.crc32c}"
    digest = hashlib.sha256(what.encode(errors="surrogateescape")).hexdigest()
    name = posixpath.basename(shard.uri)[-_NAME_CHARACTERS:]
    return f"{digest[:_DIGEST_DIGITS]}-{name}"


def _stat(name: str, *, folder: int) -> os.stat_result | None:
    """Describes a regular file; None if there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _has(shard: StoredFile, *, folder: int) -> bool:
    status = _stat(_name(shard), folder=folder)
    return status is not None and status.st_size == shard.size_bytes


def _used_bytes(name: str, *, folder: int) -> int:
    """Returns what a file takes on the disk, which is less than its length if it has holes."""
    status = _stat(name, folder=folder)
    return 0 if status is None else min(status.st_size, status.st_blocks * 512)


def _open(name: str, flags: int, *, folder: int) -> int:
    """Opens a regular file of the folder, or makes it; never waits, as a named pipe would make it.

    Raises:
        FileNotFoundError: There is none, and the flags make none.
        OSError: Something else has its name.
    """
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o600, dir_fd=folder)
    except OSError as error:
        # What a link, a folder, a socket, and a pipe that nobody reads give.
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _no_file(name) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(name)
    return descriptor


def _no_file(name: str) -> OSError:
    return OSError(errno.EINVAL, f"{name} is not a regular file; remove it")


def _open_copy(shard: StoredFile, *, folder: int) -> int | None:
    """Opens a whole copy; None if there is none."""
    try:
        descriptor = _open(_name(shard), os.O_RDONLY, folder=folder)
    except FileNotFoundError:
        return None
    if os.fstat(descriptor).st_size != shard.size_bytes:
        os.close(descriptor)
        return None
    # Its time says when it was last used. A folder that can only be read holds it, too.
    with contextlib.suppress(OSError):
        os.utime(descriptor)
    return descriptor


@contextlib.contextmanager
def _lock(descriptor: int) -> Iterator[None]:
    """Waits for the lock of an open file, and holds it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        # Closing the file would keep the lock, if another thread has forked meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def _lock_names(folder: int) -> Iterator[None]:
    """Waits for the lock of all copies, and holds it for a short time."""
    descriptor = _open(_LOCK, os.O_RDWR | os.O_CREAT, folder=folder)
    try:
        with _lock(descriptor):
            yield
    finally:
        os.close(descriptor)


def _delete(name: str, *, folder: int) -> bool:
    """Deletes a copy, or what a killed process has left of one; False if it is being made."""
    try:
        if not name.endswith(_PART):
            os.unlink(name, dir_fd=folder)
            return True
        descriptor = _open(name, os.O_RDWR, folder=folder)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, name, folder=folder):
            os.unlink(name, dir_fd=folder)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _copy(shard: StoredFile, file: BinaryIO) -> None:
    """Copies a shard to an open file.

    Raises:
        DamagedError: The copy has another checksum than the shard.
        InputError: The shard cannot be read.
        ChangedError: It has another version.
        OSError: The copy cannot be written.
    """
    expected = shard.crc32c or _stored_checksum(shard)
    crc32c = 0
    for offset in range(0, shard.size_bytes, _PART_BYTES):
        data = _read(shard, offset=offset)
        crc32c = google_crc32c.extend(crc32c, data)
        file.write(data)
    if expected not in ("", f"{crc32c:08x}"):
        problem = f"its copy has the checksum {crc32c:08x}, not {expected}"
        raise DamagedError(uri=shard.uri, problem=problem)


def _unpack(shard: StoredFile, file: BinaryIO, *, container: str, size_bytes: int) -> None:
    """Writes the records of a shard to an open TFRecord file.

    Raises:
        DamagedError: The shard is damaged, or its records are not those of its index.
        InputError: It cannot be read.
        OSError: The file cannot be written.
    """
    for _, record in find_container(container).read(shard):
        header, footer = frame(len(record), crc32c=google_crc32c.value(record))
        file.write(header + record + footer)
        if file.tell() > size_bytes:
            break
    if file.tell() != size_bytes:
        raise DamagedError(
            uri=shard.uri,
            problem="its records have other lengths than its index says; check the dataset with "
            "`shardbeam verify`",
        )


def _stored_checksum(shard: StoredFile) -> str:
    """Returns the checksum that the storage knows: ranges that are read have none of their own."""
    with reading(shard.uri):
        stored = storage_for(shard.uri).stat(shard.uri)
    return "" if stored is None else stored.crc32c


def _read(shard: StoredFile, *, offset: int) -> bytes:
    """Reads a part of a shard.

    Raises:
        ChangedError: The shard has another version.
        InputError: It cannot be read, or ends too early.
    """
    size_bytes = min(_PART_BYTES, shard.size_bytes - offset)
    with reading(shard.uri):
        data = storage_for(shard.uri).read(
            shard.uri, offset=offset, size_bytes=size_bytes, version=shard.version
        )
    if len(data) != size_bytes:
        raise InputError(uri=shard.uri, problem=f"ends before byte {offset + size_bytes:,}")
    return data
