"""Reading, listing and writing files, whatever system holds them.

One small interface; `storage_for` finds its implementation by a URI's scheme.
"""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from transforms.errors import InputError

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")


class ChangedError(Exception):
    """A file is no longer what its listing said."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file as a listing shows it.

    Attributes:
        path: Relative to the listed root, `/`-separated.
        uri: What `Storage.read` takes.
        size_bytes: Its length.
        version: Changes when the content does (`ImageRef.version`).
    """

    path: str
    uri: str
    size_bytes: int
    version: str


class Storage(abc.ABC):
    """A file system, or an object store seen as one. Implementations are stateless values."""

    @abc.abstractmethod
    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every file below `root`, in any order; nothing where there is nothing.

        Raises:
            InputError: `root` cannot be listed.
        """

    @abc.abstractmethod
    def stat(self, uri: str) -> StoredFile | None:
        """Describes one file; None where there is none."""

    @abc.abstractmethod
    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Reads a whole file, or a range of it.

        Args:
            uri: The file.
            offset: Where to begin.
            size_bytes: How much to read; to the end where None.
            version: What the content must be (`StoredFile.version`); any where None.

        Raises:
            ChangedError: The file's version is another, or it is gone, and `version` was given.
            FileNotFoundError: There is no such file.
            OSError: It cannot be read.
        """

    @abc.abstractmethod
    def create(self, uri: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Opens a new file for writing.

        The content is durable when the context ends, and not there at all when it ends by an
        exception. Folders on the way are made.
        """

    @abc.abstractmethod
    def replace(self, uri: str, data: bytes) -> None:
        """Writes a small file in one step: readers see the old content or the new, never half."""

    @abc.abstractmethod
    def rename(self, source: str, destination: str) -> None:
        """Moves a file, replacing `destination`.

        Raises:
            FileNotFoundError: `source` is not there.
        """

    @abc.abstractmethod
    def delete(self, uri: str) -> None:
        """Deletes a file; one that is not there is no error."""

    @abc.abstractmethod
    def delete_tree(self, root: str) -> None:
        """Deletes everything below `root`, and `root`; nothing there is no error."""

    @abc.abstractmethod
    def prune(self, root: str) -> None:
        """Removes `root` if it is an empty folder, where folders exist."""


def join_uri(root: str, *parts: str) -> str:
    """Joins a root and relative `/`-separated parts."""
    return "/".join([root.rstrip("/"), *parts])


def storage_for(uri: str) -> Storage:
    """Finds the storage that holds `uri`.

    Raises:
        InputError: Its scheme is not supported.
    """
    # Imported here: the implementations stand on this interface.
    from transforms.local_storage import LocalStorage

    match = _SCHEME.match(uri)
    if match is None:
        return LocalStorage()
    raise InputError(
        uri=uri,
        problem=f"this version reads and writes local paths only, not {match[1]}://",
    )
