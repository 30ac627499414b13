"""Writing one file of an attempt at a shard to staging."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

from shardbeam.transforms.dataset.shard_result import StagedFile
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.find import storage_for


class StagedWriter:
    """A file that is written to staging, with its length and checksum.

    Args:
        file: The new file.
        path: Its path below the staging folder.

    Attributes:
        size_bytes: Length of what was written so far.
    """

    def __init__(self, file: BinaryIO, *, path: str) -> None:
        self._file = file
        self._path = path
        self._crc32c = 0
        self.size_bytes = 0

    def write(self, *chunks: bytes) -> None:
        """Appends data, given in one or several parts.

        Raises:
            OSError: It cannot be written.
        """
        for chunk in chunks:
            self._file.write(chunk)
            self._crc32c = google_crc32c.extend(self._crc32c, chunk)
            self.size_bytes += len(chunk)

    def staged_file(self, *, destination: str) -> StagedFile:
        """Describes the file.

        Args:
            destination: Where the commit moves it to, below the dataset's folder.
        """
        return StagedFile(
            staged=self._path,
            destination=destination,
            size_bytes=self.size_bytes,
            crc32c=f"{self._crc32c:08x}",
        )


@contextlib.contextmanager
def create_staged(staging: Staging, *, path: str) -> Iterator[StagedWriter]:
    """Opens a new file in staging; it is not there at all where the context ends by an exception.

    Args:
        staging: The staging area.
        path: The file's path below it.
    """
    uri = staging.uri(path)
    with storage_for(uri).create(uri) as file:
        yield StagedWriter(file, path=path)
