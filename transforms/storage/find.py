"""Finds the storage for a URI by its scheme, and the files that match a pattern.

A path without a scheme is a local file, and `gs://` is Google Cloud Storage. For another scheme,
the module of this folder with the scheme's name is used if it holds a `Storage` class named
`STORAGE`; otherwise fsspec is asked. `local://` and `gcs://` are schemes of fsspec.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import importlib
import importlib.util
import os
import re
from typing import Protocol, cast

import google_crc32c

from shardbeam.transforms.core.errors import DamagedError, InputError, unreadable
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.base import ChangedError, Storage, nearest_path, scheme_of

# {scheme: module}. Other schemes have a module of their name, or none.
_MODULES = {"": "local", "gs": "gcs.storage", "s3": "s3", "s3a": "s3"}
_WILDCARD = re.compile(r"[*?\[]")
# A path that may lead into an archive.
_IN_ARCHIVE = re.compile(r"\.(tar|zip|tgz|7z|rar|tar\.[a-z0-9]+)/+[^/]", re.IGNORECASE)

# An archive that a browser would download.
_ON_THE_WEB = re.compile(r"https?://.*\.(zip|tar|tgz|tar\.gz|7z|rar)(?![^/?#])", re.IGNORECASE)


def storage_for(uri: str) -> Storage:
    """Returns the storage that holds `uri`.

    Raises:
        InputError: The scheme is unknown, or an archive on the path cannot be read.
    """
    if _ON_THE_WEB.match(uri):
        raise InputError(uri=uri, problem="archives on the web are not read: download it first")
    if _IN_ARCHIVE.search(uri):
        # By its name, because that module finds the archive's own storage with this one.
        members = importlib.import_module(f"{__package__}.members")
        found = members.open_storage(uri)
        if found is not None:
            return cast(Storage, found)
    return _storage_by_scheme(scheme_of(uri))


@functools.cache
def _storage_by_scheme(scheme: str) -> Storage:
    # Imported here, since few runs need all of them.
    is_module = scheme in _MODULES or (scheme.isidentifier() and scheme not in _MODULES.values())
    module = f"{__package__}.{_MODULES.get(scheme, scheme)}"
    if is_module and importlib.util.find_spec(module) is not None:
        make = getattr(importlib.import_module(module), "STORAGE", None)
        if make is not None:
            return cast(Storage, make())
    from shardbeam.transforms.storage.fsspec import FsspecStorage

    return FsspecStorage(scheme)


def expand_pattern(pattern: str) -> list[str]:
    """Finds the files that match a pattern; its `*`, `?` and `[...]` do not match a `/`.

    Returns:
        Their URIs, sorted; the pattern itself if it has no wildcard or is the name of a file.

    Raises:
        InputError: No file matches, or the folder cannot be listed.
    """
    wildcard = _WILDCARD.search(pattern)
    if wildcard is None:
        return [pattern]
    storage = storage_for(pattern)
    if storage.stat(pattern) is not None:
        return [pattern]
    root = pattern[: wildcard.start()].rpartition("/")[0] or (
        "/" if pattern.startswith("/") else "."
    )
    parts = pattern[len(root) :].lstrip("/").split("/") if root != "." else pattern.split("/")
    found = sorted(file.uri for file in storage.list(root) if _matches(file.path, parts))
    if not found:
        near = nearest_path(root, storage=storage)
        raise InputError(uri=pattern, problem=f"no file matches the pattern{near}")
    return found


def _matches(path: str, patterns: list[str]) -> bool:
    parts = path.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


# A seekable file over storage, which makes few large reads instead of many small ones.

# Transferring this many bytes takes about as long as starting a read: on local disk, and remotely.
_LOCAL_BLOCK_BYTES = 64 << 10
_REMOTE_BLOCK_BYTES = 8 << 20


class StorageReader:
    """A seekable, read-only file over a stored file, or over a byte range of one.

    It keeps the block that it fetched last: reading forward in small steps costs one request a
    block, and skipped blocks are not fetched. Threads must not share a reader.

    Args:
        file: The file, or a byte range of a container.
        block_bytes: The least bytes to read at a time; by default 64 KB on local disk and 8 MB
            elsewhere.

    Raises:
        ValueError: `file` is a member of a zip archive, whose range of bytes is not known.

    Attributes:
        file: The file that it reads.
    """

    def __init__(self, file: ImageRef, *, block_bytes: int | None = None) -> None:
        if file.header_bytes or file.coding is Coding.DEFLATED:
            raise ValueError(f"{file.uri}: read a member of a zip archive with read_bytes")
        self.file = file
        self._storage = storage_for(file.uri)
        default = _REMOTE_BLOCK_BYTES if self._storage.is_remote else _LOCAL_BLOCK_BYTES
        self._block_bytes = block_bytes or default
        self._block = b""
        self._block_begin = 0
        self._position = 0

    @property
    def uri(self) -> str:
        """The stored file that holds the bytes."""
        return self.file.uri

    @property
    def size_bytes(self) -> int:
        """Length of `file`."""
        return self.file.size_bytes

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Reads a range; returns less if the file ends before.

        Args:
            offset: The first byte.
            size_bytes: How many bytes to read.

        Raises:
            InputError: The file cannot be read, or has changed since it was listed.
        """
        size_bytes = min(size_bytes, self.size_bytes - offset)
        if size_bytes <= 0:
            return b""
        begin = offset - self._block_begin
        if not 0 <= begin <= len(self._block) - size_bytes:
            self._block = self._fetch(offset, max(size_bytes, self._block_bytes))
            self._block_begin = offset
            begin = 0
        return self._block[begin : begin + size_bytes]

    def _fetch(self, offset: int, size_bytes: int) -> bytes:
        size_bytes = min(size_bytes, self.size_bytes - offset)
        try:
            data = self._storage.read(
                self.uri,
                offset=self.file.offset + offset,
                size_bytes=size_bytes,
                version=self.file.version,
            )
        except (ChangedError, FileNotFoundError) as error:
            raise self._changed() from error
        except OSError as error:
            raise unreadable(self.uri, error) from error
        if len(data) < size_bytes:
            raise self._changed()
        return data

    def _changed(self) -> InputError:
        return InputError(
            uri=self.uri,
            problem="the file was changed while it was read; run the same command again",
        )

    @property
    def closed(self) -> bool:
        """Never: no file stays open between reads. pyarrow asks before each."""
        return False

    def close(self) -> None:
        """Does nothing."""

    def tell(self) -> int:
        """Returns the position of the next `read`."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position of the next `read`.

        Raises:
            OSError: The new position is before the beginning.
        """
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size_bytes: int = -1, /) -> bytes:
        """Reads from the current position, by default up to the end, and moves the position."""
        if size_bytes < 0:
            size_bytes = max(0, self.size_bytes - self._position)
        data = self.read_at(self._position, size_bytes)
        self._position += len(data)
        return data


# Reads files of a dataset, and compares them with what its manifest says about them.


class ListedFile(Protocol):
    """What a manifest says about a file."""

    @property
    def path(self) -> str:
        """Its path below the dataset's folder."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    @property
    def crc32c(self) -> str:
        """Checksum of its content, 8 hex digits."""


def read_optional(uri: str, *, max_bytes: int) -> bytes | None:
    """Reads a small file; None where there is none.

    Raises:
        DamagedError: It is longer than `max_bytes`.
        OSError: It cannot be read.
    """
    try:
        return storage_for(uri).read_small(uri, max_bytes=max_bytes)
    except FileNotFoundError:
        return None


def read_listed(
    uri: str, *, max_bytes: int, listed: ListedFile | None = None, missing: str = ""
) -> bytes:
    """Reads a small file of a dataset.

    Args:
        uri: The file.
        max_bytes: The most bytes that a file of this purpose can have.
        listed: As for `check_listed`.
        missing: The problem to name if there is no such file; by default the system's words.

    Raises:
        InputError: It is not there, cannot be read, is longer, or differs from `listed`.
    """
    try:
        data = storage_for(uri).read_small(uri, max_bytes=max_bytes)
    except OSError as error:
        if missing and isinstance(error, FileNotFoundError):
            raise InputError(uri=uri, problem=missing) from error
        raise unreadable(uri, error) from error
    check_listed(data, uri=uri, listed=listed)
    return data


def check_listed(data: bytes, *, uri: str, listed: ListedFile | None) -> None:
    """Compares a file with what its dataset's manifest says about it.

    Args:
        data: The file's content.
        uri: The file, in its dataset's folder.
        listed: Its entry in the manifest; None where no manifest lists it.

    Raises:
        DamagedError: The file differs.
    """
    if listed is None:
        return
    found = f"{google_crc32c.value(data):08x}"
    if len(data) != listed.size_bytes:
        problem = f"has {len(data):,} bytes, and the manifest says {listed.size_bytes:,}"
    elif found != listed.crc32c:
        problem = f"was changed: its checksum is {found}, and the manifest says {listed.crc32c}"
    else:
        return
    dataset = uri.removesuffix(listed.path).rstrip("/")
    fix = f"repair it with `shardbeam verify {dataset} --repair CONFIG.yaml`"
    raise DamagedError(uri=uri, problem=f"{problem}; {fix}")
