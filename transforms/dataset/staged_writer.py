"""Writing one file of an attempt at a shard to staging."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

from shardbeam.transforms.dataset.block_writer import BlockWriter
from shardbeam.transforms.dataset.shard_result import StagedFile
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.find import storage_for


class StagedWriter(BlockWriter):
    """A file being written to staging.

    Args:
        file: The new file.
        path: Its path below the staging folder.
    """

    def __init__(self, file: BinaryIO, *, path: str) -> None:
        super().__init__(file)
        self._path = path

    def staged_file(self, *, destination: str) -> StagedFile:
        """Describes the file, once the context has ended.

        Args:
            destination: Where the commit moves it to, below the dataset's folder.
        """
        return StagedFile(
            staged=self._path,
            destination=destination,
            size_bytes=self.size_bytes,
            crc32c=self.crc32c,
            sha256=self.sha256,
        )


@contextlib.contextmanager
def create_staged(staging: Staging, *, path: str) -> Iterator[StagedWriter]:
    """Opens a new file in staging; it is not there at all where the context ends by an exception.

    Args:
        staging: The staging area.
        path: The file's path below it.
    """
    uri = staging.uri(path)
    with storage_for(uri).create(uri) as file, StagedWriter(file, path=path) as writer:
        yield writer
