"""File systems of fsspec in memory: its own, one that is strict about folders, one like s3fs."""

from __future__ import annotations

import errno
import hashlib
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from tests.support.listing_server import make_page


class FolderFileSystem(MemoryFileSystem):
    """Works like HDFS (`folders://`): it creates no folders unasked, and moves replace no file."""

    protocol = "folders"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    find = AbstractFileSystem.find

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix("folders://"))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:  # noqa: ANN401
        self._check_folder(path)
        return super()._open(path, mode, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:  # noqa: ANN401
        self._check_folder(path2)
        if path2 in self.store:
            raise FileExistsError(path2)
        self.store[path2] = self.store.pop(path1)

    def _check_folder(self, path: str) -> None:
        if self._parent(path) not in self.pseudo_dirs:
            raise FileNotFoundError(self._parent(path))


fsspec.register_implementation("folders", FolderFileSystem)


class ClientError(Exception):
    """An error of botocore, which has the answer of S3."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"An error occurred ({code}): {words}")
        self.response = {"Error": {"Code": code, "Message": words}}


def translated(error: OSError, code: str, words: str = "no") -> OSError:
    """Returns an error as s3fs raises it for a code of S3."""
    error.__cause__ = ClientError(code, words)
    return error


class S3FileSystem(MemoryFileSystem):
    """Answers those calls of s3fs (`s3://`) that this project makes beside fsspec's own.

    It is not registered: without s3fs, there is no `s3://`.
    """

    protocol = "s3"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix("s3://"))

    def split_path(self, path: str) -> tuple[str, str, str | None]:
        bucket, _, key = path.lstrip("/").partition("/")
        return bucket, key, None

    def info(self, path: str, **options: Any) -> Any:  # noqa: ANN401
        found = super().info(path, **options)
        file = self.store.get(found["name"])
        return found if file is None else {**found, "ETag": _etag(file)}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        is_range = start is not None or end is not None
        if is_range and (start or 0) >= self.info(path)["size"]:
            raise translated(OSError(errno.EINVAL, "no such range"), "InvalidRange")
        return bytes(super().cat_file(path, start=start, end=end))

    def call_s3(self, method: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        assert method == "list_objects_v2"
        bucket = f"/{options['Bucket']}/"
        after = options.get("StartAfter")
        page = make_page(
            sorted(name.removeprefix(bucket) for name in self.store if name.startswith(bucket)),
            prefix=options["Prefix"],
            first=options.get("ContinuationToken") or (f"{after}\0" if after else ""),
            end="",
            delimiter=options.get("Delimiter", ""),
            size=options["MaxKeys"],
        )
        files = {name: self.store[f"{bucket}{name}"] for name in page.objects}
        # Like the real one, it leaves out what is empty.
        found = {
            "Contents": [
                {"Key": name, "Size": len(file.getvalue()), "ETag": _etag(file)}
                for name, file in files.items()
            ],
            "CommonPrefixes": [{"Prefix": name} for name in page.folders],
            "IsTruncated": bool(page.token),
            "NextContinuationToken": page.token,
        }
        return {name: value for name, value in found.items() if value}


def _etag(file: Any) -> str:  # noqa: ANN401
    return f'"{hashlib.md5(file.getvalue()).hexdigest()}"'


def clear() -> None:
    """Empties all of them."""
    for system in (MemoryFileSystem, FolderFileSystem, S3FileSystem):
        system.store.clear()
        system.pseudo_dirs[:] = [""]


def write(uri: str, data: bytes) -> None:
    """Writes a file, and its folder."""
    system, path = fsspec.core.url_to_fs(uri)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    system.pipe_file(path, data)


def read_tree(root: str) -> dict[str, bytes]:
    """Reads all files below a root: `{path: content}`."""
    system, path = fsspec.core.url_to_fs(root)
    return {name.removeprefix(f"{path}/"): system.cat_file(name) for name in system.find(path)}
