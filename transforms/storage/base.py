"""Reading, listing and writing files, whatever system holds them: one small interface."""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar, TypeVar

import msgspec

from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.core.read_ahead import map_many

# Where it is set, requests to Google Cloud Storage go without credentials. The worker processes of
# this machine inherit it.
ANONYMOUS_VARIABLE = "SHARDBEAM_ANONYMOUS"

# Where one worker has very many small things to do. A bucket takes about 1,000 changes a second,
# at first; that many round trips of 50 ms come near it.
_REQUESTS_AT_A_TIME = 64

T = TypeVar("T")
R = TypeVar("R")

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")


class ChangedError(Exception):
    """A file is no longer what its listing said."""


class WriteFailedError(InputError):
    """A file could not be written to its end, nor can it be gone on with.

    Written anew, under another name, it may succeed.
    """


class SpecialFileError(InputError, OSError):
    """What a name stands for is no regular file: a folder, a named pipe, a socket, a device.

    It is an OSError, too, so that an image of that name becomes a reject like any unreadable one.
    """

    def __init__(self, *, uri: str, place: str = "", problem: str) -> None:
        super().__init__(uri=uri, place=place, problem=problem)
        self.strerror = problem


class StoredFile(msgspec.Struct, frozen=True):
    """A file as a listing shows it.

    Attributes:
        path: Relative to the listed root, `/`-separated. One that ends in a slash is a link to a
            folder whose files are not listed.
        uri: What `Storage.read` takes.
        size_bytes: Its length.
        version: Changes when the content does (`ImageRef.version`).
        crc32c: Checksum of the content, 8 hex digits, where the storage tells it unasked.
    """

    path: str
    uri: str
    size_bytes: int
    version: str
    crc32c: str = ""


class ListingPart(msgspec.Struct, frozen=True):
    """A range of a listing's names: what is left for another worker, or all of it.

    Attributes:
        root: The listed root.
        start: From this name on, in the storage's own terms.
        end: The name before which the part ends; the root's end where empty.
        after_start: Whether `start` itself is left out.
    """

    root: str
    start: str = ""
    end: str = ""
    after_start: bool = False


class Storage(abc.ABC):
    """A file system, or an object store seen as one. Implementations are stateless values.

    What the system itself refuses, or what fails in spite of all retries, is an InputError that
    names the file and the fix: a sick network says nothing about a file.

    `swap`, `rename`, `renew` and `delete` take versions as `list` and `stat` give them. Where
    `can_swap`, the change is made only if the version is still there, in one step with the
    comparison. Elsewhere it is made whatever is there: a lock has to keep others out.

    Attributes:
        is_remote: Whether each call is a request that takes as long as a round trip, and may cost
            something: then many at a time are worth it.
        can_swap: Whether changes depend on versions.
    """

    is_remote: ClassVar[bool] = True
    can_swap: ClassVar[bool] = False

    @abc.abstractmethod
    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every file below `root`, in any order; nothing where there is nothing.

        Raises:
            InputError: `root` cannot be listed.
        """

    def names(self, root: str) -> Iterator[str]:
        """Yields the names right below `root`, those of folders with a slash behind them.

        Nothing where there is no such folder.

        Raises:
            InputError: `root` cannot be listed.
        """
        split = (file.path.partition("/")[:2] for file in self.list(root))
        yield from dict.fromkeys(map("".join, split))

    def begin_listing(self, root: str) -> Iterator[StoredFile | ListingPart]:
        """Lists as `list` does, but leaves parts of a long listing, for other workers.

        A part is left only after some files were found.
        """
        yield from self.list(root)

    def list_part(self, part: ListingPart) -> Iterator[StoredFile]:
        """Yields the files of a part that `begin_listing` has left."""
        raise NotImplementedError(f"{type(self).__name__} leaves no parts")

    @abc.abstractmethod
    def stat(self, uri: str) -> StoredFile | None:
        """Describes one file; None where there is none."""

    def find(self, uri: str) -> StoredFile:
        """Describes a file that has to be there.

        Raises:
            InputError: It is not.
        """
        stored = self.stat(uri)
        if stored is None:
            raise InputError(uri=uri, problem="no such file")
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
            offset: Where to begin; nothing is there to read behind the end.
            size_bytes: How much to read; to the end where None.
            version: What the content must be (`StoredFile.version`); any where None.

        Raises:
            ChangedError: The file's version is another, or it is gone, and `version` was given.
            FileNotFoundError: There is no such file.
            OSError: It cannot be read.
        """

    def read_small(self, uri: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """Reads a whole file that is small by its purpose.

        Args:
            uri: The file.
            max_bytes: The most bytes that a file of its purpose has; a longer one is not read.
            version: As for `read`.

        Raises:
            DamagedError: It is longer.
            ChangedError: As `read`.
            OSError: As `read`.
        """
        data = self.read(uri, size_bytes=max_bytes + 1, version=version)
        if len(data) > max_bytes:
            raise too_large(uri, max_bytes=max_bytes)
        return data

    @abc.abstractmethod
    def create(self, uri: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Opens a new file for writing.

        The content is durable when the context ends, and not there at all when it ends by an
        exception. Folders on the way are made.

        Raises:
            WriteFailedError: It cannot be written to the end, but another might.
            FileExistsError: There is such a file already.
        """

    @abc.abstractmethod
    def replace(self, uri: str, data: bytes, *, scratch: str = "") -> None:
        """Writes a small file in one step: readers see the old content or the new, never half.

        Args:
            uri: The file.
            data: Its content.
            scratch: A name that no other run uses, for systems that can only rename in one step;
                what is there is replaced. By default a new one beside the file.
        """

    def swap(self, uri: str, data: bytes, *, version: str | None, scratch: str = "") -> str | None:
        """Writes a small file as `replace` does, if what is there is what the caller has seen.

        Of several that see the same version and swap at once, one succeeds.

        Args:
            uri: The file.
            data: Its new content, unlike any that it has had: a repeated request tells by it
                whether the first, whose answer was lost, succeeded.
            version: The version that must be there; None where nothing may be there.
            scratch: As for `replace`.

        Returns:
            The new version, empty where there are none; None where something else is there, or
            nothing any more.

        Raises:
            OSError: It cannot be written.
        """
        del version
        self.replace(uri, data, scratch=scratch)
        return ""

    def holds(self, root: str) -> bool:
        """Says whether there is anything below `root`; where folders exist, `root` is enough."""
        return any(True for _ in self.list(root))

    @abc.abstractmethod
    def rename(self, source: str, destination: str, *, replaces: str | None = None) -> None:
        """Moves a file.

        Args:
            source: The file.
            destination: Its new name.
            replaces: The version of `destination` that it replaces; None where nothing may be
                there.

        Raises:
            FileNotFoundError: `source` is not there.
            ChangedError: `destination` is another version.
        """

    def renew(self, file: StoredFile) -> None:
        """Gives a file another version, so that changes which depend on the present one fail.

        Raises:
            ChangedError: It has another version already, or is gone.
        """
        del file

    def copy(self, source: str, destination: str) -> StoredFile | None:
        """Copies a file within this storage, without its content coming here.

        Args:
            source: The file.
            destination: A name that is free.

        Returns:
            The copy with its `crc32c`, which is the storage's own; None where a storage could not
            tell that of what it has copied, and has copied nothing.

        Raises:
            FileNotFoundError: `source` is not there.
        """
        del source, destination
        return None

    @abc.abstractmethod
    def delete(self, uri: str, *, version: str | None = None) -> bool:
        """Deletes a file; one that is not there is no error.

        Args:
            uri: The file.
            version: The only version that is deleted; any where None.

        Returns:
            Whether nothing is there now; False where another version stays.
        """

    def delete_many(self, files: Iterable[StoredFile]) -> bool:
        """Deletes files in the versions that were listed: many at a time, where that is worth it.

        Returns:
            As `delete` does, for all.
        """
        deleted = self.map_many(lambda file: self.delete(file.uri, version=file.version), files)
        # To the last, whatever has become of one.
        return all(list(deleted))

    def map_many(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yields `function(item)` for each item, in order: where each is a request, many at a time.

        Raises:
            Exception: What `function` raises, in the item's turn.
        """
        if not self.is_remote:
            return map(function, items)
        return map_many(function, items, threads=_REQUESTS_AT_A_TIME)

    def prune(self, root: str) -> None:
        """Removes the empty folders below `root`, and `root` if it is one, where folders exist."""
        del root


def too_large(uri: str, *, max_bytes: int) -> DamagedError:
    """Makes the error of a file that is longer than any of its purpose."""
    return DamagedError(
        uri=uri,
        problem=f"has more than {max_bytes:,} bytes, which no file of its purpose has "
        "(docs/limits.md); is it the right file?",
    )


def join_uri(root: str, *parts: str) -> str:
    """Joins a root and relative `/`-separated parts."""
    return "/".join([root.rstrip("/"), *parts])


def scheme_of(path: str) -> str:
    """Returns the scheme of a URI; empty for a path of this machine."""
    match = _SCHEME.match(path)
    return "" if match is None else match[1]


def is_uri(path: str) -> bool:
    """Says whether a path has a scheme, and is no path of this machine."""
    return bool(scheme_of(path))
