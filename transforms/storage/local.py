"""Storage on local disk, or anything that the operating system mounts like one."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from shardbeam.transforms.core.errors import InputError, naming
from shardbeam.transforms.storage.base import (
    ChangedError,
    SpecialFileError,
    Storage,
    StoredFile,
    dangling_link,
    too_large,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Shards are written in records of 100 KB and more: few, large system calls.
_WRITE_BUFFER_BYTES = 1 << 20
# The name of a temporary file, beside the file that it replaces.
_SCRATCH = re.compile(r"(.+)\.[0-9a-f]{32}\.tmp", re.DOTALL)
# Seconds for which a process may be busy between two writes to a temporary file.
_YOUNG_S = 60
# Folders that link to each other can be reached by a huge number of paths.
_MAX_LINKED_FOLDERS = 10_000

# Only on Linux: opens a file of any kind without blocking or side effects.
_O_PATH: int = getattr(os, "O_PATH", 0)
_DESCRIPTORS = "/proc/self/fd"
_REOPENS = bool(_O_PATH) and os.path.isdir(_DESCRIPTORS)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class LocalStorage(Storage):
    """Files and folders.

    Links to files are followed anywhere, links to folders only within the listed root. A link to a
    folder outside the root, or to a folder that holds the link, is listed as a link.

    Raises:
        InputError: Python does not read file names as UTF-8.
    """

    is_remote: ClassVar[bool] = False

    def __init__(self) -> None:
        # Checked here, so that worker processes and programs that use the library are covered.
        check_encoding()

    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every regular file below `root`."""
        try:
            status = os.stat(root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(uri=root, problem=f"cannot be listed: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise InputError(uri=root, problem=f"expected a folder, found {_kind(status)}")
        yield from _Walk(root).files((status.st_dev, status.st_ino))

    def names(self, root: str) -> Iterator[str]:
        """Yields the names in a folder."""
        try:
            with os.scandir(root) as entries:
                for entry in entries:
                    # A link may lead nowhere, or to itself.
                    is_folder = os.path.isdir if entry.is_symlink() else os.DirEntry.is_dir
                    yield f"{entry.name}/" if is_folder(entry) else entry.name
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise InputError(uri=root, problem=f"cannot be listed: {error.strerror}") from error

    def stat(self, uri: str) -> StoredFile | None:
        """Describes a regular file."""
        try:
            status = os.stat(uri)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise
        if not stat.S_ISREG(status.st_mode):
            return None
        return _stored_file(path=uri, uri=uri, status=status)

    def find(self, uri: str) -> StoredFile:
        """Describes a regular file that must exist."""
        stored = self.stat(uri)
        if stored is None and os.path.exists(uri):
            _check_regular(uri, os.stat(uri))
        return stored or super().find(uri)

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Reads a file or a range of it."""
        try:
            with open(uri, "rb", buffering=0, opener=open_regular) as file:
                status = os.fstat(file.fileno())
                if version is not None and _version(status) != version:
                    raise ChangedError(f"{uri} was changed after it was listed")
                # Give the exact size: Python allocates as much as is requested, and without a size
                # it looks up the file's length twice.
                left = max(0, status.st_size - offset)
                with naming(uri):
                    size = left if size_bytes is None else min(size_bytes, left)
                    return read_at(file.fileno(), offset, size)
        except FileNotFoundError as error:
            # A dangling link is listed with an empty version; nothing was deleted then.
            if version:
                raise ChangedError(f"{uri} was deleted after it was listed") from error
            raise

    def read_small(self, uri: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """Reads a whole small file, after a look at its length."""
        stored = self.stat(uri)
        if stored is not None and stored.size_bytes > max_bytes:
            raise too_large(uri, max_bytes=max_bytes)
        return super().read_small(uri, max_bytes=max_bytes, version=version)

    def open_local(self, uri: str) -> BinaryIO:
        """Opens a regular file."""
        return open(uri, "rb", buffering=0, opener=open_regular)

    @contextlib.contextmanager
    def create(self, uri: str) -> Iterator[BinaryIO]:
        """Opens a new file for writing."""
        make_folders(os.path.dirname(uri) or ".")
        with io.BufferedWriter(_NamedFile(uri, "xb"), _WRITE_BUFFER_BYTES) as file:
            try:
                yield file
                file.flush()
                with naming(uri):
                    os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(uri)
                raise

    def replace(self, uri: str, data: bytes, *, scratch: str = "") -> None:
        """Writes a temporary file and renames it."""
        scratch = scratch or f"{uri}.{uuid.uuid4().hex}.tmp"
        # A killed run may have left it.
        self.delete(scratch)
        with self.create(scratch) as file:
            file.write(data)
        try:
            self.rename(scratch, uri)
        except OSError:
            self.delete(scratch)
            raise

    def holds(self, root: str) -> bool:
        """Returns whether there is a file or folder of that name."""
        return os.path.lexists(root)

    def is_folder(self, uri: str) -> bool:
        """Returns whether there is a folder."""
        return os.path.isdir(uri)

    def rename(self, source: str, destination: str, *, replaces: str | None = None) -> None:
        """Moves a file, and replaces a file that has the new name."""
        del replaces
        os.stat(source)
        make_folders(os.path.dirname(destination) or ".")
        os.replace(source, destination)

    def delete(self, uri: str, *, version: str | None = None) -> bool:
        """Deletes a file, whatever its version."""
        del version
        with contextlib.suppress(FileNotFoundError):
            os.unlink(uri)
        return True

    def prune(self, root: str) -> None:
        """Removes empty folders."""
        for folder, _, _ in os.walk(root, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


STORAGE = LocalStorage


class _NamedFile(io.FileIO):
    """A file whose errors name it, also those of a buffer above it."""

    def write(self, data: Buffer, /) -> int:
        with naming(str(self.name)):
            return super().write(data)


def check_encoding() -> None:
    """Makes sure that Python reads file names as UTF-8.

    With another encoding, `café.jpg` would be written as `cafÃ©.jpg`, also in keys and labels.

    Raises:
        InputError: Python uses another encoding.
    """
    encoding = sys.getfilesystemencoding()
    if encoding.lower() != "utf-8":
        raise InputError(
            uri="file names",
            problem=f"Python reads them as {encoding} in this locale and would change each one "
            "that is not ASCII; set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8",
        )


def is_at(descriptor: int, path: str, *, folder: int | None = None) -> bool:
    """Returns whether an open file or folder still has this path.

    Args:
        descriptor: The file or folder.
        path: The path.
        folder: Descriptor of the folder that the path is relative to; None for the current one.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, dir_fd=folder))
    except FileNotFoundError:
        return False


def make_folders(path: str) -> list[str]:
    """Makes a folder and those above it that are missing; if one fails, none is left.

    `os.makedirs` calls itself for each folder, which fails for thousands of them.

    Returns:
        Those that were made, the deepest first.

    Raises:
        OSError: One cannot be made.
    """
    folders = [path]
    while (above := os.path.dirname(folders[-1])) and not os.path.exists(above):
        folders.append(above)
    made = [folder for folder in folders if not os.path.lexists(folder)]
    try:
        for folder in reversed(folders):
            os.makedirs(folder, exist_ok=True)
    except OSError as error:
        remove_empty(made)
        if link := dangling_link(folder):
            raise FileNotFoundError(errno.ENOENT, link, folder) from error
        raise
    return made


def remove_scratch(folder: str, *, names: Collection[str]) -> None:
    """Removes temporary files of `LocalStorage.replace` that killed processes have left.

    Args:
        folder: The folder.
        names: The names of the files in it that were being replaced.
    """
    with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            found = _SCRATCH.fullmatch(entry.name)
            if found is None or found[1] not in names:
                continue
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > _YOUNG_S:
                    os.unlink(entry.path)


def remove_empty(folders: Iterable[str]) -> None:
    """Removes those of some folders that are empty; folders above others come later."""
    for folder in folders:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


class _Walk:
    """Lists the files below a root.

    Args:
        root: The folder.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._real_root = os.path.join(os.path.realpath(root), "")
        self._linked = 0

    def files(self, root: tuple[int, int]) -> Iterator[StoredFile]:
        """Yields the files below the root.

        Args:
            root: Device and inode of the root.
        """
        # A list instead of recursion: folders may lie thousands deep. Each has its path below the
        # root, and what identifies it and the folders that it lies in.
        waiting: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(self._root, "", (root,))]
        while waiting:
            folder, prefix, above = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        path = f"{prefix}{entry.name}"
                        try:
                            status = entry.stat()
                        except OSError:
                            # A dangling link is listed, so that it becomes a reject.
                            yield _unreadable_file(path=path, uri=entry.path)
                            continue
                        if not stat.S_ISDIR(status.st_mode):
                            yield _stored_file(path=path, uri=entry.path, status=status)
                            continue
                        identity = (status.st_dev, status.st_ino)
                        if identity in above or (entry.is_symlink() and not self._may_enter(entry)):
                            yield _unreadable_file(path=f"{path}/", uri=entry.path)
                            continue
                        waiting.append((entry.path, f"{path}/", (*above, identity)))
            except FileNotFoundError:
                # The folder was deleted meanwhile: a commit clears its staging folder while readers
                # already find the dataset.
                continue
            except OSError as error:
                raise InputError(
                    uri=folder, problem=f"cannot be listed: {error.strerror}"
                ) from error

    def _may_enter(self, link: os.DirEntry[str]) -> bool:
        """Returns whether a link leads to a folder within the root."""
        if not os.path.realpath(link.path).startswith(self._real_root):
            return False
        self._linked += 1
        if self._linked > _MAX_LINKED_FOLDERS:
            raise InputError(
                uri=self._root,
                problem=f"has more than {_MAX_LINKED_FOLDERS:,} linked folders, the last of them "
                f"{link.path}: its folders link to each other; remove the links",
            )
        return True


def read_at(descriptor: int, offset: int, size_bytes: int) -> bytes:
    """Reads bytes of an open file; fewer only at its end. Threads may share the file."""
    data = os.pread(descriptor, size_bytes, offset)
    # A read may be short (over 2 GB, or on network mounts) without being at the end.
    while len(data) < size_bytes and (
        more := os.pread(descriptor, size_bytes - len(data), offset + len(data))
    ):
        data += more
    return data


def open_regular(path: str, flags: int) -> int:
    """Opens a file if it is a regular one: opening a pipe or a device could block forever.

    Raises:
        SpecialFileError: It is not a regular file.
        OSError: It cannot be opened.
    """
    if not _REOPENS:
        # With O_NONBLOCK, opening a leased file fails, but only Linux has leases.
        _check_regular(path, os.stat(path))
        return _checked(path, os.open(path, flags | getattr(os, "O_NONBLOCK", 0)))
    # The handle keeps the file that was checked, even if another one takes its name meanwhile.
    handle = _checked(path, os.open(path, _O_PATH | os.O_CLOEXEC))
    try:
        return os.open(f"{_DESCRIPTORS}/{handle}", flags)
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(handle)


def _checked(path: str, descriptor: int) -> int:
    try:
        _check_regular(path, os.fstat(descriptor))
    except SpecialFileError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        problem = f"{_kind(status)}; only regular files are read, so put a file in its place"
        raise SpecialFileError(uri=path, problem=problem)


def _kind(status: os.stat_result) -> str:
    return next((kind for is_kind, kind in _KINDS if is_kind(status.st_mode)), "a file")


def _stored_file(*, path: str, uri: str, status: os.stat_result) -> StoredFile:
    if not stat.S_ISREG(status.st_mode):
        return _unreadable_file(path=path, uri=uri)
    return StoredFile(path=path, uri=uri, size_bytes=status.st_size, version=_version(status))


def _unreadable_file(*, path: str, uri: str) -> StoredFile:
    return StoredFile(path=path, uri=uri, size_bytes=0, version="")


def _version(status: os.stat_result) -> str:
    return str(status.st_mtime_ns)
