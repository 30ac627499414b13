"""Storage on local disk (or whatever the operating system mounts as such)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import uuid
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import ChangedError, Storage, StoredFile

# Shards are written in records of 100 KB and more: few, large system calls.
_WRITE_BUFFER_BYTES = 1 << 20


class LocalStorage(Storage):
    """Files and folders. Symbolic links are followed, loops among them are not.

    Raises:
        InputError: Python does not read the names of files as UTF-8.
    """

    is_remote: ClassVar[bool] = False

    def __init__(self) -> None:
        # Here it also covers worker processes, and programs that use the library.
        check_encoding()

    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every regular file below `root`; see the base class."""
        try:
            status = os.stat(root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(uri=root, problem=f"cannot be listed: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise InputError(uri=root, problem="expected a folder, found a file")
        yield from _walk(folder=root, prefix="", above=((status.st_dev, status.st_ino),))

    def names(self, root: str) -> Iterator[str]:
        """Yields the names in a folder; see the base class."""
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
        """Describes a regular file; see the base class."""
        try:
            status = os.stat(uri)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise
        return _stored_file(path=uri, uri=uri, status=status)

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Reads a file or a range of it; see the base class."""
        try:
            with open(uri, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if version is not None and _version(status) != version:
                    raise ChangedError(f"{uri} was changed after it was listed")
                if offset:
                    file.seek(offset)
                if size_bytes is None and stat.S_ISREG(status.st_mode):
                    # Asked for all there is, Python would first find out how much, and ask twice.
                    size_bytes = max(0, status.st_size - offset)
                return _read_fully(file, size_bytes)
        except FileNotFoundError as error:
            # A dangling link is listed with an empty version: nothing was there before either.
            if version:
                raise ChangedError(f"{uri} was deleted after it was listed") from error
            raise

    @contextlib.contextmanager
    def create(self, uri: str) -> Iterator[BinaryIO]:
        """Opens a new file for writing; see the base class."""
        os.makedirs(os.path.dirname(uri) or ".", exist_ok=True)
        with open(uri, "xb", buffering=_WRITE_BUFFER_BYTES) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(uri)
                raise

    def replace(self, uri: str, data: bytes, *, scratch: str = "") -> None:
        """Writes another file, and renames it; see the base class."""
        scratch = scratch or f"{uri}.{uuid.uuid4().hex}.tmp"
        # Perhaps that of a run that was killed here.
        self.delete(scratch)
        with self.create(scratch) as file:
            file.write(data)
        try:
            self.rename(scratch, uri)
        except OSError:
            self.delete(scratch)
            raise

    def holds(self, root: str) -> bool:
        """Says whether there is such a file or folder; see the base class."""
        return os.path.lexists(root)

    def rename(self, source: str, destination: str, *, replaces: str | None = None) -> None:
        """Moves a file; see the base class."""
        del replaces
        os.stat(source)
        os.makedirs(os.path.dirname(destination) or ".", exist_ok=True)
        os.replace(source, destination)

    def delete(self, uri: str, *, version: str | None = None) -> bool:
        """Deletes a file; see the base class."""
        del version
        with contextlib.suppress(FileNotFoundError):
            os.unlink(uri)
        return True

    def prune(self, root: str) -> None:
        """Removes empty folders; see the base class."""
        for folder, _, _ in os.walk(root, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


STORAGE = LocalStorage


def check_encoding() -> None:
    """Makes sure that Python reads the names of files as UTF-8.

    In another encoding, `café.jpg` would be written as `cafÃ©.jpg`, in keys and labels, too.

    Raises:
        InputError: It does not.
    """
    encoding = sys.getfilesystemencoding()
    if encoding.lower() != "utf-8":
        raise InputError(
            uri="names of files",
            problem=f"Python reads them as {encoding} in this locale, and would change every one "
            "that is not ASCII; set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8",
        )


def _walk(*, folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[StoredFile]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{prefix}{entry.name}"
                try:
                    status = entry.stat()
                except OSError:
                    # A dangling link: listed all the same, so that it ends as a reject.
                    yield StoredFile(path=path, uri=entry.path, size_bytes=0, version="")
                    continue
                if stat.S_ISDIR(status.st_mode):
                    identity = (status.st_dev, status.st_ino)
                    if identity not in above:
                        yield from _walk(
                            folder=entry.path, prefix=f"{path}/", above=(*above, identity)
                        )
                    continue
                stored = _stored_file(path=path, uri=entry.path, status=status)
                if stored is not None:
                    yield stored
    except FileNotFoundError:
        # Deleted since the folder above was looked at: a commit clears its staging while readers
        # find the dataset already.
        return
    except OSError as error:
        raise InputError(uri=folder, problem=f"cannot be listed: {error.strerror}") from error


def _stored_file(*, path: str, uri: str, status: os.stat_result) -> StoredFile | None:
    # Reading a pipe or a device could block for ever: they are no images.
    if not stat.S_ISREG(status.st_mode):
        return None
    return StoredFile(path=path, uri=uri, size_bytes=status.st_size, version=_version(status))


def _version(status: os.stat_result) -> str:
    return str(status.st_mtime_ns)


def _read_fully(file: BinaryIO, size_bytes: int | None) -> bytes:
    if size_bytes is None:
        return file.read()
    data = file.read(size_bytes)
    # A raw read may be short (over 2 GB, or on network mounts) without being at the end.
    while len(data) < size_bytes and (more := file.read(size_bytes - len(data))):
        data += more
    return data
