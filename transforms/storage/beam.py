"""Storage in any system that Beam has a `FileSystem` for: `s3://`, `hdfs://`, `azfs://`, ...

Beam's interface knows no versions and no preconditions. A file's version here is its time of
change, which is asked for before each read: a file that is replaced in the very moment between the
two is read as it is then, and found out only where its size is another.
"""

from __future__ import annotations

import contextlib
import errno
import re
import uuid
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from apache_beam.io.filesystem import (
    BeamIOError,
    CompressionTypes,
    FileMetadata,
    FileSystem,
)
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from google.api_core import retry

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import ChangedError, Storage, StoredFile

T = TypeVar("T")

_DEADLINE_S = 300.0
_INITIAL_WAIT_S = 0.3
_MAX_WAIT_S = 20.0
# What repeating does not mend.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_TRANSIENT_CODES = frozenset({408, 429, 500, 502, 503, 504})
_NOT_FOUND_CODES = frozenset({404, "404", "NoSuchKey", "NotFound"})
_NOT_FOUND_WORDS = re.compile("not found|does not exist|no such", re.IGNORECASE)
_MAX_WORDS = 200


class BeamStorage(Storage):
    """Files of one scheme, by Beam's `FileSystems`.

    Args:
        scheme: The scheme.

    Raises:
        InputError: Beam knows no such scheme, or lacks the library for it.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        uri = f"{scheme}://"
        if FileSystems._pipeline_options is None:
            # As long as nobody has made a pipeline, which sets its own; some systems take no None.
            FileSystems.set_options(PipelineOptions([]))
        if scheme == "file":
            raise InputError(uri=uri, problem="write local paths without file://")
        try:
            _file_system(uri)
        except ValueError as error:
            raise InputError(
                uri=uri,
                problem="no file system of this scheme is known; local paths and gs:// need "
                "nothing, others an extra of Beam's: pip install 'apache-beam[aws]' for s3://, "
                "[azure] for azfs://, [hadoop] for hdfs://",
            ) from error
        except BeamIOError as error:
            raise InputError(
                uri=uri, problem=f"Beam's file system cannot be used: {_in_words(error)}"
            ) from error

    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every file below `root`; see the base class."""
        prefix = f"{root.rstrip('/')}/"
        system = _file_system(root)
        try:
            found = self._attempt(lambda: list(_list(system, prefix)), uri=root)
        except FileNotFoundError:
            return
        for metadata in found:
            if metadata.path.startswith(prefix) and not metadata.path.endswith("/"):
                yield _stored_file(metadata, prefix=prefix)

    def stat(self, uri: str) -> StoredFile | None:
        """Describes a file; see the base class."""
        try:
            metadata = self._attempt(lambda: _file_system(uri).metadata(uri), uri=uri)
        except FileNotFoundError:
            return None
        return _stored_file(metadata, prefix=f"{uri.rpartition('/')[0]}/")

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Reads a file or a range of it; see the base class."""
        if version is not None:
            stored = self.stat(uri)
            if stored is None:
                raise ChangedError(f"{uri} was deleted after it was listed")
            if stored.version != version:
                raise ChangedError(f"{uri} was changed after it was listed")

        def read() -> bytes:
            with _file_system(uri).open(
                uri, compression_type=CompressionTypes.UNCOMPRESSED
            ) as file:
                if offset:
                    file.seek(offset)
                return file.read() if size_bytes is None else file.read(size_bytes)

        return self._attempt(read, uri=uri)

    @contextlib.contextmanager
    def create(self, uri: str) -> Iterator[BinaryIO]:
        """Opens a new file for writing; see the base class."""
        system = _file_system(uri)
        if system.has_dirs():
            self._make_folder(uri.rpartition("/")[0])
        file = self._attempt(
            lambda: system.create(uri, compression_type=CompressionTypes.UNCOMPRESSED), uri=uri
        )
        try:
            try:
                yield file
            finally:
                file.close()
        except BaseException:
            # Closing it has finished it, whatever is in it.
            with contextlib.suppress(InputError, OSError):
                self.delete(uri)
            raise

    def _make_folder(self, folder: str) -> None:
        # It may be there already, or come to be there by another worker.
        with contextlib.suppress(OSError):
            _file_system(folder).mkdirs(folder)

    def replace(self, uri: str, data: bytes) -> None:
        """Writes a small file; see the base class."""
        self.publish(uri, data, scratch=f"{uri}.{uuid.uuid4().hex}.tmp")

    def publish(self, uri: str, data: bytes, *, scratch: str, new: bool = False) -> None:
        """Writes a small file, by way of `scratch` where there are folders; see the base class."""
        del new
        # Object stores show an object when it is whole, file systems while it grows.
        target = scratch if _file_system(uri).has_dirs() else uri
        if target != uri:
            # Perhaps that of a run that was killed here.
            self.delete(scratch)
        with self.create(target) as file:
            file.write(data)
        if target != uri:
            self.rename(scratch, uri)

    def holds(self, root: str) -> bool:
        """Says whether there is anything below `root`; see the base class."""
        system = _file_system(root)
        if not system.has_dirs():
            return super().holds(root)
        return bool(self._attempt(lambda: system.exists(root), uri=root))

    def rename(self, source: str, destination: str) -> None:
        """Moves a file; see the base class."""
        if self.stat(source) is None:
            raise FileNotFoundError(f"{source}: no such file")
        system = _file_system(source)
        if system.has_dirs():
            self._make_folder(destination.rpartition("/")[0])
            # Some refuse to replace a file.
            self.delete(destination)
        self._attempt(lambda: system.rename([source], [destination]), uri=destination)

    def delete(self, uri: str) -> None:
        """Deletes a file; see the base class."""
        system = _file_system(uri)

        def delete() -> None:
            if system.exists(uri):
                system.delete([uri])

        with contextlib.suppress(FileNotFoundError):
            self._attempt(delete, uri=uri)

    def delete_tree(self, root: str) -> None:
        """Deletes all below a folder, and the folder; see the base class."""
        if _file_system(root).has_dirs():
            self.delete(root)
            return
        self.delete_many(file.uri for file in self.list(root))

    def _attempt(self, function: Callable[[], T], *, uri: str) -> T:
        """Calls a function, again and again while it fails for reasons that may pass.

        Raises:
            FileNotFoundError: There is no such file.
            InputError: All else.
        """
        rule = retry.Retry(
            predicate=_may_pass,
            initial=_INITIAL_WAIT_S,
            maximum=_MAX_WAIT_S,
            timeout=_DEADLINE_S,
        )
        try:
            return rule(function)()
        except Exception as error:
            # Each file system has errors of its own.
            if _is_not_found(error):
                raise FileNotFoundError(errno.ENOENT, "no such file", uri) from error
            raise InputError(
                uri=uri, problem=f"cannot be accessed by Beam's file system: {_in_words(error)}"
            ) from error


def _file_system(uri: str) -> FileSystem:
    # Made anew for each use, as Beam does: what it holds is cheap, and it may be bound to a thread.
    return FileSystems.get_filesystem(uri)


def _list(system: FileSystem, prefix: str) -> Iterator[FileMetadata]:
    """Lists all levels: where there are folders, Beam's own listing gives one of them."""
    if not system.has_dirs():
        yield from system._list(prefix)
        return
    for metadata in system._list(prefix.rstrip("/")):
        # Folders are not told apart, but have no size.
        below = None
        if not metadata.size_in_bytes:
            with contextlib.suppress(BeamIOError):
                below = list(_list(system, f"{metadata.path}/"))
        if below is None:
            yield metadata
        else:
            yield from below


def _stored_file(metadata: FileMetadata, *, prefix: str) -> StoredFile:
    return StoredFile(
        path=metadata.path[len(prefix) :],
        uri=metadata.path,
        size_bytes=metadata.size_in_bytes,
        version=repr(metadata.last_updated_in_seconds),
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    details = getattr(error, "exception_details", None)
    if isinstance(details, dict):
        for cause in details.values():
            if isinstance(cause, BaseException):
                yield from _causes(cause)
    elif isinstance(details, BaseException):
        yield from _causes(details)


def _is_not_found(error: BaseException) -> bool:
    return any(
        isinstance(cause, FileNotFoundError)
        or getattr(cause, "code", None) in _NOT_FOUND_CODES
        or _NOT_FOUND_WORDS.search(str(cause)) is not None
        for cause in _causes(error)
    )


def _may_pass(error: BaseException) -> bool:
    *_, cause = _causes(error)
    code = getattr(cause, "code", None)
    if isinstance(code, int):
        return code in _TRANSIENT_CODES
    # Beam's own error says nothing about what it stands for.
    return isinstance(cause, OSError) and not isinstance(cause, (*_LASTING, BeamIOError))


def _in_words(error: BaseException) -> str:
    last = list(_causes(error.__cause__ or error))[-1]
    words = " ".join(str(last).split()) or type(last).__name__
    return words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}..."
