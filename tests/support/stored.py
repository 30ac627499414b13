"""Files as storages describe them, and a storage in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.local import LocalStorage


def stored_file(path: Path) -> StoredFile:
    """Returns a file on disk whose version nobody looks at."""
    return StoredFile(
        path=path.name, uri=str(path), size_bytes=path.stat().st_size, version="unknown"
    )


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
