"""Compares files with the sizes and checksums that a dataset's manifest gives them."""

from __future__ import annotations

from typing import Protocol

import google_crc32c

from shardbeam.transforms.core.errors import DamagedError


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
