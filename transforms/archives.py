"""What may stand where a folder of images may: an archive, or a pattern of archives."""

from __future__ import annotations

from collections.abc import Iterator

from transforms.records import ImageRef
from transforms.storage import storage_for


def expand_root(root: str) -> Iterator[str]:
    """Yields the folders and archives that a root stands for.

    Raises:
        InputError: A pattern matches nothing.
    """
    yield root


def is_pattern(root: str) -> bool:
    """Whether a root is a pattern, which may stand for several archives."""
    del root
    return False


def list_root(uri: str) -> Iterator[tuple[str, ImageRef]]:
    """Yields `(path below the root, where it lies)` for every file of a folder or archive.

    Raises:
        InputError: It cannot be listed.
    """
    for file in storage_for(uri).list(uri):
        yield (
            file.path,
            ImageRef(uri=file.uri, size_bytes=file.size_bytes, version=file.version),
        )
