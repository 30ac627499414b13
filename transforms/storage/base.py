"""One small interface for reading, listing and writing files in any storage."""

from __future__ import annotations

import abc
import contextlib
import difflib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar, TypeVar

import msgspec

from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.core.map_ahead import map_many

# If set, requests to Google Cloud Storage are sent without credentials. Worker processes on this
# machine inherit the variable.
ANONYMOUS_VARIABLE = "SHARDBEAM_ANONYMOUS"
# One for each build of this process that reads without credentials.
_anonymous_builds: list[object] = []

# Requests in progress in `map_many`. A bucket first accepts about 1,000 changes a second; 64 round
# trips of 50 ms at a time come close to that.
_REQUESTS_AT_A_TIME = 64

# Names beside a missing one that are compared with it, and how like it one has to be.
_NAMES, _LEAST_LIKENESS = 1_000, 0.6

T = TypeVar("T")
R = TypeVar("R")

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")


@contextlib.contextmanager
def read_anonymously(anonymous: bool) -> Iterator[None]:
    """Lets this process read buckets without credentials, if `anonymous` says so.

    It leaves the environment variables alone, because other threads of the program may use them.
    """
    builds: list[object] = [object()] if anonymous else []
    _anonymous_builds.extend(builds)
    try:
        yield
    finally:
        for build in builds:
            _anonymous_builds.remove(build)


def is_anonymous() -> bool:
    """Whether buckets are read without credentials."""
    return bool(_anonymous_builds or os.environ.get(ANONYMOUS_VARIABLE))


class ChangedError(Exception):
    """A file has changed since it was listed."""


class WriteFailedError(InputError):
    """A file could not be written completely, and writing cannot continue.

    Writing it again, under another name, may succeed.
    """


class SpecialFileError(InputError, OSError):
    """A path leads to something other than a regular file: a folder, a pipe, a socket, a device.

    This is also an OSError, so that an image with that path becomes a reject like any unreadable
    one.
    """

    def __init__(self, *, uri: str, place: str = "", problem: str) -> None:
        super().__init__(uri=uri, place=place, problem=problem)
        self.strerror = problem


class StoredFile(msgspec.Struct, frozen=True):
    """A file as a listing shows it.

    Attributes:
        path: Relative to the listed root, `/`-separated. A path that ends in a slash is a link to
            a folder whose files are not listed.
        uri: The argument for `Storage.read`.
        size_bytes: Its length.
        version: Changes when the content changes (`ImageRef.version`).
        crc32c: Checksum of the content, 8 hex digits, where listings include it.
    """

    path: str
    uri: str
    size_bytes: int
    version: str
    crc32c: str = ""


class ListingPart(msgspec.Struct, frozen=True):
    """A range of the paths below a root: a part for another worker, or all of them.

    Attributes:
        root: The listed root.
        start: The path below the root after which the part begins; the root's start where empty.
        end: The path before which it ends; the root's end where empty.
        token: What the next page is requested with, where `start` cannot say where it begins.
    """

    root: str
    start: str = ""
    end: str = ""
    token: str = ""


class Storage(abc.ABC):
    """A file system, or an object store seen as one. Implementations are stateless values.

    A request that the system refuses, or that fails in spite of all retries, raises an InputError
    that names the file and the fix. It is never a reject: a broken network says nothing about a
    file.

    `swap`, `rename`, `renew` and `delete` take versions that `list` or `stat` returned. If
    `can_swap`, the storage compares the version and makes the change in one step, and refuses the
    change if the version differs. Otherwise it makes the change in any case, and a lock has to keep
    other writers out.

    Attributes:
        is_remote: Whether each call is a request, which takes a round trip and may cost money; it
            is then worth sending many at a time.
        can_swap: Whether changes are made on condition of a version.
    """

    is_remote: ClassVar[bool] = True
    can_swap: ClassVar[bool] = False

    @abc.abstractmethod
    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every file below `root`, in any order; nothing if `root` does not exist.

        Raises:
            InputError: `root` cannot be listed.
        """

    def names(self, root: str) -> Iterator[str]:
        """Yields the names directly in the folder `root`; names of folders end with a slash.

        Yields nothing if there is no such folder.

        Raises:
            InputError: `root` cannot be listed.
        """
        split = (file.path.partition("/")[:2] for file in self.list(root))
        yield from dict.fromkeys(map("".join, split))

    def begin_listing(self, root: str) -> Iterator[StoredFile | ListingPart]:
        """Yields files like `list`, and parts of a long listing that other workers can read.

        Files always come before the first part.
        """
        yield from self.list(root)

    def list_part(self, part: ListingPart) -> Iterator[StoredFile]:
        """Yields the files of a part that `begin_listing` yielded."""
        raise NotImplementedError(f"{type(self).__name__} yields no parts")

    @abc.abstractmethod
    def stat(self, uri: str) -> StoredFile | None:
        """Describes one file; None if it does not exist."""

    def find(self, uri: str) -> StoredFile:
        """Describes a file that must exist.

        Raises:
            InputError: It does not exist.
        """
        stored = self.stat(uri)
        if stored is None:
            raise InputError(uri=uri, problem=f"no such file{nearest_path(uri, storage=self)}")
        return stored

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
            offset: The first byte. At or behind the end of the file, no bytes are read.
            size_bytes: The number of bytes; None for all up to the end.
            version: The version that the file must have (`StoredFile.version`); None for any.

        Raises:
            ChangedError: `version` was given, and the file has another version or is gone.
            FileNotFoundError: There is no such file.
            OSError: It cannot be read.
        """

    def read_small(self, uri: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """Reads a whole file that should be small.

        Args:
            uri: The file.
            max_bytes: The most bytes that a file of this purpose can have.
            version: The version that the file must have; None for any.

        Raises:
            DamagedError: The file is longer.
            ChangedError: `version` was given, and the file has another version or is gone.
            OSError: It cannot be read.
        """
        data = self.read(uri, size_bytes=max_bytes + 1, version=version)
        if len(data) > max_bytes:
            raise too_large(uri, max_bytes=max_bytes)
        return data

    def open_local(self, uri: str) -> BinaryIO | None:
        """Opens a file on this machine's disks for reading, without a buffer.

        Returns:
            The file; None where each read is a request.

        Raises:
            OSError: It cannot be opened.
        """
        del uri
        return None

    @abc.abstractmethod
    def create(self, uri: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Opens a new file for writing, and creates its folders.

        The content is durable when the context ends. If the context ends with an exception, there
        is no file.

        Raises:
            WriteFailedError: Writing failed, but may succeed under another name.
            FileExistsError: The file exists already.
        """

    @abc.abstractmethod
    def replace(self, uri: str, data: bytes, *, scratch: str = "") -> None:
        """Writes a small file in one step: readers see the old or the new content, never a part.

        Args:
            uri: The file.
            data: Its content.
            scratch: The name of a temporary file, for systems where only a rename is one step. No
                other run may use it; a file of that name is replaced. By default a new name beside
                the file.
        """

    def swap(self, uri: str, data: bytes, *, version: str | None, scratch: str = "") -> str | None:
        """Writes a small file like `replace`, but only if the file has the given version.

        If several callers swap the same version at once, one of them succeeds.

        Args:
            uri: The file.
            data: Its new content, which it must never have had before: when the answer to a request
                is lost, the content shows whether that request succeeded.
            version: The version that the file must have; None if there must be no file.
            scratch: The argument of `replace`.

        Returns:
            The new version, empty where the storage has no versions; None if the file has another
            version or is gone.

        Raises:
            OSError: It cannot be written.
        """
        del version
        self.replace(uri, data, scratch=scratch)
        return ""

    def holds(self, root: str) -> bool:
        """Returns whether there is a file below `root`; on disk, an empty folder counts, too."""
        return any(True for _ in self.list(root))

    def is_folder(self, uri: str) -> bool:
        """Returns whether there is a folder, perhaps an empty one."""
        return self.holds(uri)

    @abc.abstractmethod
    def rename(self, source: str, destination: str, *, replaces: str | None = None) -> None:
        """Moves a file.

        Args:
            source: The file.
            destination: Its new name.
            replaces: The version of `destination` to replace; None if there must be no such file.

        Raises:
            FileNotFoundError: `source` does not exist.
            ChangedError: `destination` has another version.
        """

    def renew(self, file: StoredFile) -> None:
        """Gives a file a new version, so that changes on condition of the present one fail.

        Raises:
            ChangedError: It has another version already, or is gone.
        """
        del file

    def copy(self, source: str, destination: str) -> StoredFile | None:
        """Copies a file within this storage, without downloading it.

        Args:
            source: The file.
            destination: An unused name.

        Returns:
            The copy with the `crc32c` that the storage computed; None if this storage does not
            report checksums of copies, and therefore has copied nothing.

        Raises:
            FileNotFoundError: `source` does not exist.
        """
        del source, destination
        return None

    @abc.abstractmethod
    def delete(self, uri: str, *, version: str | None = None) -> bool:
        """Deletes a file; a missing file is not an error.

        Args:
            uri: The file.
            version: The version to delete; None for any.

        Returns:
            Whether the file is gone; False if another version stays.
        """

    def delete_many(self, files: Iterable[StoredFile]) -> bool:
        """Deletes files in the versions that were listed, several at a time in remote storage.

        Returns:
            Whether all of them are gone.
        """
        deleted = self.map_many(lambda file: self.delete(file.uri, version=file.version), files)
        # The list makes sure that all are deleted, even if one of them stays.
        return all(list(deleted))

    def map_many(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yields `function(item)` for each item, in order; in remote storage, many at a time.

        Raises:
            Exception: Raised by `function`, when its item's turn comes.
        """
        if not self.is_remote:
            return map(function, items)
        return map_many(function, items, threads=_REQUESTS_AT_A_TIME)

    def prune(self, root: str) -> None:
        """Removes the empty folders below `root`, and `root` itself if it is then empty."""
        del root


def nearest_path(path: str, *, storage: Storage) -> str:
    """Returns `; did you mean 'PATH'?` with an existing path like a missing one; empty if none is.

    The first folder or file on the path that is missing is compared with what lies beside it. If it
    is a link, the text says where it leads instead.

    Args:
        path: The missing path.
        storage: Its storage.
    """
    above, slash, name = path.rstrip("/").rpartition("/")
    below = ""
    with contextlib.suppress(InputError, OSError):
        while name:
            folder = above or slash or "."
            names = [it.rstrip("/") for it in itertools.islice(storage.names(folder), _NAMES)]
            if names:
                break
            below = f"/{name}{below}"
            above, slash, name = above.rpartition("/")
        else:
            return ""
        if link := dangling_link(f"{above}{slash}{name}"):
            return f"; {link}"
        near = max(sorted(names), key=lambda other: _likeness(name, other))
        if name in names or _likeness(name, near) < _LEAST_LIKENESS:
            return ""
        found = f"{above}{slash}{near}"
        if storage.stat(found + below) is not None or storage.is_folder(found + below):
            found += below
        return f"; did you mean {found!r}?"
    return ""


def dangling_link(path: str) -> str:
    """Describes a link to nowhere on disk; returns an empty text for anything else."""
    if not os.path.islink(path):
        return ""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is a link to {os.readlink(path)!r}, where nothing is"
    except OSError:
        # It may lead to itself, or where this user may not look.
        return ""
    return ""


def _likeness(name: str, other: str) -> float:
    """Returns from 0 to 1 how alike names are, regardless of case and a shared extension."""
    one, two = map(os.path.splitext, (name.casefold(), other.casefold()))
    parts = (one[0], two[0]) if one[1] == two[1] else map("".join, (one, two))
    return difflib.SequenceMatcher(None, *parts).ratio()


def too_large(uri: str, *, max_bytes: int) -> DamagedError:
    """Makes the error for a file that is too long for its purpose."""
    return DamagedError(
        uri=uri,
        problem=f"has more than {max_bytes:,} bytes, the limit for files of this purpose "
        "(docs/reference/limits.md); is it the right file?",
    )


def join_uri(root: str, *parts: str) -> str:
    """Joins a root and relative `/`-separated parts."""
    return "/".join([root.rstrip("/"), *parts])


def scheme_of(path: str) -> str:
    """Returns the scheme of a URI; empty for a local path."""
    match = _SCHEME.match(path)
    return "" if match is None else match[1]


def is_uri(path: str) -> bool:
    """Returns whether a path is a URI, and not a local path."""
    return bool(scheme_of(path))
