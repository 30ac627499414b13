"""Files of a dataset: their paths, lengths and checksums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import google_crc32c
import msgspec

from shardbeam.transforms.core.errors import InputError

Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
_Crc32c = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}\Z")]


class DatasetFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a dataset.

    Attributes:
        path: Its path below the dataset's folder.
        size_bytes: Its length.
        crc32c: Checksum of the whole file, 8 hex digits.
    """

    path: str
    size_bytes: Amount
    crc32c: _Crc32c


class ShardFile(DatasetFile, frozen=True, kw_only=True):
    """A shard's file.

    Attributes:
        examples: Number of Examples in it.
    """

    examples: Amount


class ShardEntry(ShardFile, frozen=True, kw_only=True):
    """A shard's file in the manifest, which calls its length `num_bytes`.

    Attributes:
        size_bytes: Its length.
    """

    size_bytes: Amount = msgspec.field(name="num_bytes")


def describe_data(path: str, data: bytes) -> DatasetFile:
    """Describes a file by its path and content."""
    return DatasetFile(path=path, size_bytes=len(data), crc32c=f"{google_crc32c.value(data):08x}")


def check_paths(paths: Iterable[str], *, uri: str) -> None:
    """Checks a list of a dataset's files, which are deleted when the dataset is replaced.

    Args:
        paths: Paths below the dataset's folder.
        uri: Where the list is, for the error message.

    Raises:
        InputError: A path leads out of that folder.
    """
    for path in paths:
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise InputError(uri=uri, problem=f"lists {path!r}, which is not below the dataset")
