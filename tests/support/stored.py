"""Files as storages describe them, a storage in memory, and one on disk that does more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.local import LocalStorage


def stored_file(path: Path) -> StoredFile:
    """Returns a file on disk whose version nobody looks at."""
    return StoredFile(
        path=path.name, uri=str(path), size_bytes=path.stat().st_size, version="unknown"
    )


def before_each(patch: pytest.MonkeyPatch, method: str, act: Callable[[str], object]) -> None:
    """Calls a function with the path before each call of a method of the storage on disk."""
    original = getattr(LocalStorage, method)

    def call(storage: LocalStorage, uri: str, *more: Any, **options: Any) -> Any:  # noqa: ANN401
        act(uri)
        return original(storage, uri, *more, **options)

    patch.setattr(LocalStorage, method, call)


def fail_with(code: int, *, where: str = "") -> Callable[[str], None]:
    """Makes a function for `before_each` that fails for paths that contain a text."""

    def fail(uri: str) -> None:
        if where in uri:
            raise OSError(code, os.strerror(code), uri)

    return fail


class StoredFiles(LocalStorage):
    """Files in memory; counts reads."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self.read_bytes = 0

    def stat(self, uri: str) -> StoredFile | None:
        data = self._files.get(uri)
        if data is None:
            return None
        return StoredFile(path=uri, uri=uri, size_bytes=len(data), version="1")

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        del version
        if uri not in self._files:
            raise FileNotFoundError(uri)
        data = self._files[uri]
        if offset and offset >= len(data):
            raise AssertionError("an object store refuses a range that begins at the file's end")
        end = None if size_bytes is None else offset + size_bytes
        found = data[offset:end]
        self.read_bytes += len(found)
        return found
