"""Reads small files of a dataset, and compares them with what its manifest says about them."""

from __future__ import annotations

from typing import Protocol

import google_crc32c

from shardbeam.transforms.core.errors import DamagedError, InputError, unreadable
from shardbeam.transforms.storage.find import storage_for


class ListedFile(Protocol):
    """What a manifest says about a file."""

    @property
    def path(self) -> str:
        """Its path below the dataset's folder."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    @property
    def crc32c(self) -> str:
        """Checksum of its content, 8 hex digits."""


def read_optional(uri: str, *, max_bytes: int) -> bytes | None:
    """Reads a small file; None where there is none.

    Raises:
        DamagedError: It is longer than `max_bytes`.
        OSError: It cannot be read.
    """
    try:
        return storage_for(uri).read_small(uri, max_bytes=max_bytes)
    except FileNotFoundError:
        return None


def read_listed(
    uri: str, *, max_bytes: int, listed: ListedFile | None = None, missing: str = ""
) -> bytes:
    """Reads a small file of a dataset.

    Args:
        uri: The file.
        max_bytes: The most bytes that a file of this purpose can have.
        listed: As for `check_listed`.
        missing: The problem to name if there is no such file; by default the system's words.

    Raises:
        InputError: It is not there, cannot be read, is longer, or differs from `listed`.
    """
    try:
        data = storage_for(uri).read_small(uri, max_bytes=max_bytes)
    except OSError as error:
        if missing and isinstance(error, FileNotFoundError):
            raise InputError(uri=uri, problem=missing) from error
        raise unreadable(uri, error) from error
    check_listed(data, uri=uri, listed=listed)
    return data


def check_listed(data: bytes, *, uri: str, listed: ListedFile | None) -> None:
    """Compares a file with what its dataset's manifest says about it.

    Args:
        data: The file's content.
        uri: The file, in its dataset's folder.
        listed: Its entry in the manifest; None where no manifest lists it.

    Raises:
        DamagedError: The file differs.
    """
    if listed is None:
        return
    found = f"{google_crc32c.value(data):08x}"
    if len(data) != listed.size_bytes:
        problem = f"has {len(data):,} bytes, and the manifest says {listed.size_bytes:,}"
    elif found != listed.crc32c:
        problem = f"was changed: its checksum is {found}, and the manifest says {listed.crc32c}"
    else:
        return
    dataset = uri.removesuffix(listed.path).rstrip("/")
    fix = f"repair it with `shardbeam verify {dataset} --repair CONFIG.yaml`"
    raise DamagedError(uri=uri, problem=f"{problem}; {fix}")
