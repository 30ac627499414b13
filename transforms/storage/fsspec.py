"""Storage in any file system that fsspec supports: `s3://`, `hdfs://`, `abfs://`, ...

fsspec has no preconditions and cannot read a given version of a file. Here a file's version is its
ETag or its time of change, compared right before each read. A file that is replaced between the
comparison and the read is noticed only if its size differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from shardbeam.configs.passwords import hide_passwords
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import ChangedError, Storage, StoredFile, scheme_of
from shardbeam.transforms.storage.failures import make_retry, one_line

T = TypeVar("T")

_TRANSIENT = (OSError, asyncio.TimeoutError)
# Errors that repeating does not fix.
_LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
# Numbers of such errors; s3fs uses them for requests that S3 calls bad.
_LASTING_NUMBERS = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENAMETOOLONG, errno.EMSGSIZE})
# Codes among them that say that bytes were damaged on the way.
_DAMAGED = frozenset({"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"})
# Codes of S3's answers to HEAD requests, which have no body that names the cause.
_UNNAMED = frozenset({"400", "401", "403"})
# Codes and types of errors that refuse credentials.
_REFUSED_CREDENTIALS = frozenset(
    {
        # S3: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
        *("ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity"),
        # STS, which gives temporary credentials for a role.
        *("ExpiredTokenException", "InvalidClientTokenId", "InvalidIdentityToken"),
        # Types of botocore's errors.
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"),
        *("NoAuthTokenError", "TokenRetrievalError", "SSOTokenLoadError"),
        *("UnauthorizedSSOTokenError", "LoginRefreshRequired", "LoginTokenLoadError"),
        # Azure: https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes
        *("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"),
        *("ClientAuthenticationError", "CredentialUnavailableError"),
    }
)
# The code of S3 and Azure for a range that begins at or behind the end of a file.
_BEHIND_END = "InvalidRange"
_RENEW = (
    "; renew the credentials on this machine and on each worker, for example with `aws sso login` "
    "or `az login`, and run the same command again"
)
# File systems name their version differently; the first of these keys that a file has is used.
_VERSION_KEYS = (
    *("ETag", "etag", "generation", "mtime", "modified"),
    *("LastModified", "last_modified", "modificationTime", "created"),
)


class FsspecStorage(Storage):
    """Files of one scheme, read and written with fsspec.

    Args:
        scheme: The scheme.

    Raises:
        InputError: fsspec does not know the scheme, or lacks a package for it.
    """

    def __init__(self, scheme: str) -> None:
        uri = f"{scheme}://"
        if scheme == "file":
            raise InputError(uri=uri, problem="write local paths without file://")
        try:
            fsspec.get_filesystem_class(scheme)
        except (ValueError, ImportError) as error:
            raise InputError(
                uri=uri,
                problem=f"no file system is known for this scheme ({error}); local paths and "
                "gs:// need no package, other schemes need one for fsspec: pip install s3fs for "
                "s3://, adlfs for abfs://",
            ) from error

    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every file below `root`."""
        root = root.rstrip("/")
        system, path = file_system(root)
        prefix = f"{path.rstrip('/')}/"
        for info in self._find(system, path, uri=root):
            name = info["name"]
            # Consoles represent an empty folder by an object whose name ends in a slash.
            if name.startswith(prefix) and not name.endswith("/"):
                below = name.removeprefix(prefix)
                yield stored_file(info, path=below, uri=f"{root}/{below}")

    def _find(
        self, system: AbstractFileSystem, path: str, *, uri: str
    ) -> Iterator[Mapping[str, Any]]:
        """Yields what fsspec knows about each file below a path, or at it."""
        if _has_find(system):
            with contextlib.suppress(FileNotFoundError):
                yield from self._attempt(lambda: system.find(path, detail=True), uri=uri).values()
            return
        # fsspec's own `find` would hold all names, and leave out folders that it cannot list.
        waiting = [path]
        while waiting:
            for info in self._list_folder(system, waiting.pop(), uri=uri):
                if info["type"] == "directory":
                    waiting.append(info["name"].rstrip("/"))
                else:
                    yield info

    def names(self, root: str) -> Iterator[str]:
        """Yields the names in a folder."""
        root = root.rstrip("/")
        system, path = file_system(root)
        for info in self._list_folder(system, path, uri=root):
            name = info["name"].rstrip("/").rpartition("/")[2]
            yield f"{name}/" if info["type"] == "directory" else name

    def _list_folder(
        self, system: AbstractFileSystem, path: str, *, uri: str
    ) -> Sequence[Mapping[str, Any]]:
        """Describes what lies in a folder; nothing if there is no such folder."""
        try:
            found = self._attempt(lambda: system.ls(path, detail=True), uri=uri)
        except FileNotFoundError:
            return []
        # A file, and in some file systems a folder, is listed below itself.
        return [info for info in found if info["name"].rstrip("/") != path.rstrip("/")]

    def stat(self, uri: str) -> StoredFile | None:
        """Describes a file."""
        info = self._info(uri)
        if info is None or info["type"] == "directory":
            return None
        return stored_file(info, path=uri.rpartition("/")[2], uri=uri)

    def _info(self, uri: str) -> Mapping[str, Any] | None:
        """Returns what fsspec knows about a file or a folder; None if there is neither."""
        system, path = file_system(uri)
        try:
            return self._attempt(lambda: system.info(path), uri=uri)
        except FileNotFoundError:
            return None

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Reads a file or a range of it, after comparing its version."""
        if version is not None:
            stored = self.stat(uri)
            if stored is None:
                raise ChangedError(f"{hide_passwords(uri)} was deleted after it was listed")
            if stored.version != version:
                raise ChangedError(f"{hide_passwords(uri)} was changed after it was listed")
        if size_bytes == 0:
            return b""
        system, path = file_system(uri)
        start = offset or None
        end = None if size_bytes is None else offset + size_bytes

        def read() -> bytes:
            try:
                return cast(bytes, system.cat_file(path, start=start, end=end))
            except Exception as error:
                if _error_code(error) == _BEHIND_END:
                    return b""
                raise

        return self._attempt(read, uri=uri)

    @contextlib.contextmanager
    def create(self, uri: str) -> Iterator[BinaryIO]:
        """Opens a new file for writing."""
        system, path = file_system(uri)
        file = self._attempt(
            lambda: _in_folder(system, path, lambda: system.open(path, "wb")), uri=uri
        )
        try:
            try:
                yield cast(BinaryIO, file)
            finally:
                file.close()
        except BaseException as error:
            # close() publishes the file even when it is incomplete.
            with contextlib.suppress(InputError, OSError):
                self.delete(uri)
            if isinstance(error, OSError) or (
                isinstance(error, Exception) and _error_code(error) in _REFUSED_CREDENTIALS
            ):
                raise _inaccessible(uri, error) from error
            raise

    def replace(self, uri: str, data: bytes, *, scratch: str = "") -> None:
        """Writes a small file; where files can be moved, to a temporary file first."""
        system, path = file_system(uri)
        if not _has_moves(system):
            # An object store shows an object only when it is complete.
            self._attempt(lambda: system.pipe_file(path, data), uri=uri)
            return
        scratch = scratch or f"{uri}.{uuid.uuid4().hex}.tmp"
        # A killed run may have left it.
        self.delete(scratch)
        with self.create(scratch) as file:
            file.write(data)
        self.rename(scratch, uri)

    def holds(self, root: str) -> bool:
        """Returns whether there is anything below `root`."""
        # fsspec's own `exists` and `isdir` say no after any error.
        return self._info(root) is not None

    def is_folder(self, uri: str) -> bool:
        """Returns whether there is a folder."""
        info = self._info(uri)
        return info is not None and info["type"] == "directory"

    def rename(self, source: str, destination: str, *, replaces: str | None = None) -> None:
        """Moves a file.

        In an object store it is copied, and the source deleted. Other file systems may refuse to
        replace a file, so the old one is deleted first: a run killed in between leaves none.
        """
        del replaces
        if self.stat(source) is None:
            raise FileNotFoundError(f"{hide_passwords(source)}: no such file")
        system, old = file_system(source)
        _, new = file_system(destination)
        if _has_moves(system):
            self.delete(destination)
            move = lambda: _in_folder(system, new, lambda: system.mv(old, new))  # noqa: E731
            self._attempt(move, uri=destination)
            return
        # fsspec's general `mv` would treat brackets in names as patterns.
        self._attempt(lambda: system.cp_file(old, new), uri=destination)
        self.delete(source)

    def delete(self, uri: str, *, version: str | None = None) -> bool:
        """Deletes a file, whatever its version."""
        del version
        system, path = file_system(uri)
        with contextlib.suppress(FileNotFoundError):
            self._attempt(lambda: system.rm_file(path), uri=uri)
        return True

    def prune(self, root: str) -> None:
        """Removes empty folders."""
        system, path = file_system(root)
        with contextlib.suppress(FileNotFoundError):
            found = self._attempt(lambda: system.find(path, withdirs=True, detail=True), uri=root)
            folders = {name for name, info in found.items() if info["type"] == "directory"}
            for folder in sorted({path, *folders}, reverse=True):
                # The folder is not empty, or this file system has no folders.
                with contextlib.suppress(OSError, NotImplementedError):
                    system.rmdir(folder)

    def _attempt(self, function: Callable[[], T], *, uri: str) -> T:
        """Calls a function, and repeats the call while it fails for reasons that may go away.

        Raises:
            FileNotFoundError: There is no such file.
            InputError: Any other failure.
        """
        try:
            return make_retry(_may_pass)(function)()
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "no such file", hide_passwords(uri)) from error
        except Exception as error:
            # Each file system has its own types of exceptions.
            raise _inaccessible(uri, _explained(error, uri=uri)) from error


def file_system(uri: str) -> tuple[AbstractFileSystem, str]:
    """Returns the file system of a URI, which fsspec caches, and the file's path in it."""
    try:
        # fsspec's `url_to_fs` would take `::` in a name for a chain of file systems.
        kind = fsspec.get_filesystem_class(scheme_of(uri))
        system = kind(**{**kind._get_kwargs_from_urls(uri), "use_listings_cache": False})
    except Exception as error:
        # fsspec reports missing packages and credentials with many exception types.
        raise _inaccessible(uri, error) from error
    return system, kind._strip_protocol(uri)


def _has_moves(system: AbstractFileSystem) -> bool:
    """Returns whether a file system can move a file in one step, which object stores cannot."""
    return type(system).mv is not AbstractFileSystem.mv


def _has_find(system: AbstractFileSystem) -> bool:
    """Returns whether a file system has a listing of its own of all below a folder."""
    if isinstance(system, AsyncFileSystem):
        return type(system)._find is not AsyncFileSystem._find
    return type(system).find is not AbstractFileSystem.find


def _in_folder(system: AbstractFileSystem, path: str, function: Callable[[], T]) -> T:
    """Calls a function that creates a file; if its folder is missing, creates that first."""
    try:
        return function()
    except FileNotFoundError:
        # Only now: on S3 this would create a bucket.
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        return function()


def stored_file(info: Mapping[str, Any], *, path: str, uri: str) -> StoredFile:
    """Makes a file of what a file system says about it."""
    version = next((info[key] for key in _VERSION_KEYS if info.get(key) is not None), "")
    if isinstance(version, datetime.datetime):
        version = version.timestamp()
    return StoredFile(path=path, uri=uri, size_bytes=info["size"] or 0, version=str(version))


def _may_pass(error: BaseException) -> bool:
    if not isinstance(error, _TRANSIENT) or isinstance(error, _LASTING):
        return False
    code = _error_code(error)
    if code in _REFUSED_CREDENTIALS or code in _UNNAMED:
        return False
    return getattr(error, "errno", None) not in _LASTING_NUMBERS or code in _DAMAGED


def _error_code(error: BaseException) -> str:
    """Returns the storage's code for an error; without one, the type of the error."""
    cause = error.__cause__ or error
    # botocore's errors have a dictionary, and Azure's an attribute.
    response = getattr(cause, "response", None)
    if isinstance(response, Mapping):
        code = response.get("Error", {}).get("Code")
    else:
        code = getattr(cause, "error_code", None)
    return str(getattr(code, "value", code) or type(cause).__name__)


def _explained(error: Exception, *, uri: str) -> Exception:
    """Returns the answer to a GET request for an error that does not name its cause.

    S3 answers a HEAD request with expired credentials only with "Bad Request".
    """
    if _error_code(error) in _UNNAMED:
        try:
            system, path = file_system(uri)
            system.cat_file(path, start=0, end=1)
        except FileNotFoundError:
            return error
        except OSError as answer:
            return error if _may_pass(answer) else answer
    return error


def _inaccessible(uri: str, error: Exception) -> InputError:
    words = one_line(error.__cause__ or error)
    fix = _RENEW if _error_code(error) in _REFUSED_CREDENTIALS else ""
    return InputError(uri=uri, problem=f"cannot be accessed by fsspec: {words}{fix}")
