"""Beam file systems in memory: one like an object store, one with folders."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from apache_beam.io.filesystem import BeamIOError, FileMetadata, FileSystem


class _Files:
    def __init__(self) -> None:
        self.content: dict[str, tuple[bytes, float]] = {}
        self.folders: set[str] = set()
        self.clock = 0.0
        # Errors to be raised by the next calls of `open`.
        self.failures: list[Exception] = []
        # Several threads may delete.
        self.lock = threading.Lock()

    def write(self, path: str, data: bytes) -> None:
        self.clock += 1
        self.content[path] = data, self.clock

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class _NewFile(io.BytesIO):
    def __init__(self, files: _Files, path: str) -> None:
        super().__init__()
        self._files, self._path = files, path

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._path, self.getvalue())
        super().close()


class MemoryFileSystem(FileSystem):
    """Like an object store (`memory://`): no folders, and objects appear when they are whole."""

    files = _Files()

    @classmethod
    def scheme(cls) -> str:
        return "memory"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path: str) -> None:
        raise NotImplementedError

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for path in sorted(self.files.content):
            if path.startswith(dir_or_prefix):
                yield self.metadata(path)

    def create(self, path: str, mime_type: str = "", compression_type: str = "") -> BinaryIO:
        return cast(BinaryIO, _NewFile(self.files, path))

    def open(self, path: str, mime_type: str = "", compression_type: str = "") -> BinaryIO:
        if self.files.failures:
            raise self.files.failures.pop(0)
        if path not in self.files.content:
            raise BeamIOError("Open failed", {path: FileNotFoundError(path)})
        return io.BytesIO(self.files.content[path][0])

    def copy(self, source_file_names: Any, destination_file_names: Any) -> None:  # noqa: ANN401
        raise NotImplementedError

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            self.files.content[destination] = self.files.content.pop(source)

    def exists(self, path: str) -> bool:
        return path in self.files.content

    def size(self, path: str) -> int:
        return len(self.files.content[path][0])

    def last_updated(self, path: str) -> float:
        return self.files.content[path][1]

    def metadata(self, path: str) -> FileMetadata:
        if path not in self.files.content:
            raise BeamIOError("Metadata failed", {path: FileNotFoundError(path)})
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            del self.files.content[path]


class FolderFileSystem(MemoryFileSystem):
    """Like a file system (`folders://`): listings are of one level, and nothing is replaced."""

    files = _Files()

    @classmethod
    def scheme(cls) -> str:
        return "folders"

    def has_dirs(self) -> bool:
        return True

    def mkdirs(self, path: str) -> None:
        if path in self.files.folders:
            raise BeamIOError(f"Path already exists: {path}")
        while path.count("/") > 2:
            self.files.folders.add(path)
            path = path.rpartition("/")[0]

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        if dir_or_prefix not in self.files.folders and dir_or_prefix.count("/") > 2:
            is_file = dir_or_prefix in self.files.content
            cause = NotADirectoryError if is_file else FileNotFoundError
            raise BeamIOError("List failed", {dir_or_prefix: cause(dir_or_prefix)})
        for path in sorted({*self.files.content, *self.files.folders}):
            if path.rpartition("/")[0] == dir_or_prefix:
                if path in self.files.content:
                    yield self.metadata(path)
                else:
                    yield FileMetadata(path, 0, 0.0)

    def create(self, path: str, mime_type: str = "", compression_type: str = "") -> BinaryIO:
        if path.rpartition("/")[0] not in self.files.folders:
            raise BeamIOError("Create failed", {path: FileNotFoundError(path)})
        # There from the start, unlike in an object store.
        self.files.write(path, b"")
        return super().create(path)

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for destination in destination_file_names:
            if destination in self.files.content:
                raise BeamIOError("Rename failed", {destination: FileExistsError(destination)})
        super().rename(source_file_names, destination_file_names)

    def exists(self, path: str) -> bool:
        return path in self.files.content or path in self.files.folders

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            below = f"{path}/"
            with self.files.lock:
                for names in (self.files.content, self.files.folders):
                    for name in [name for name in names if name == path or name.startswith(below)]:
                        self._forget(name)

    def _forget(self, name: str) -> None:
        self.files.content.pop(name, None)
        self.files.folders.discard(name)
