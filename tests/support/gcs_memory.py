"""File systems of fsspec in memory: its own, and one that is strict about folders."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FolderFileSystem(MemoryFileSystem):
    """Works like HDFS (`folders://`): it creates no folders unasked, and moves replace no file."""

    protocol = "folders"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

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


def clear() -> None:
    """Empties both file systems."""
    for system in (MemoryFileSystem, FolderFileSystem):
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
