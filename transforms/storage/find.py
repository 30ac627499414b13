"""Finding the storage of a URI by its scheme, and the files that a pattern names.

A path without a scheme lies on the local disk, `gs://` in Google Cloud Storage; all other schemes
are those that fsspec knows.
"""

from __future__ import annotations

import fnmatch
import functools
import re

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import Storage, scheme_of

_WILDCARD = re.compile(r"[*?\[]")


def storage_for(uri: str) -> Storage:
    """Finds the storage that holds `uri`.

    Raises:
        InputError: Nothing here knows its scheme.
    """
    return _storage_by_scheme(scheme_of(uri))


@functools.cache
def _storage_by_scheme(scheme: str) -> Storage:
    # Imported here: few runs need all of them.
    if not scheme:
        from shardbeam.transforms.storage.local import LocalStorage

        return LocalStorage()
    if scheme == "gs":
        from shardbeam.transforms.storage.gcs import GcsStorage

        return GcsStorage()
    from shardbeam.transforms.storage.fsspec import FsspecStorage

    return FsspecStorage(scheme)


def expand_pattern(pattern: str) -> list[str]:
    """Finds the files that a pattern names: `*`, `?` and `[...]`, none of which match a `/`.

    Returns:
        Their URIs, sorted; the pattern itself where it holds no wildcard, or is a file's name.

    Raises:
        InputError: It matches no file, or its folder cannot be listed.
    """
    wildcard = _WILDCARD.search(pattern)
    if wildcard is None:
        return [pattern]
    storage = storage_for(pattern)
    if storage.stat(pattern) is not None:
        return [pattern]
    root = pattern[: wildcard.start()].rpartition("/")[0] or (
        "/" if pattern.startswith("/") else "."
    )
    parts = pattern[len(root) :].lstrip("/").split("/") if root != "." else pattern.split("/")
    found = sorted(file.uri for file in storage.list(root) if _matches(file.path, parts))
    if not found:
        raise InputError(uri=pattern, problem="no file matches the pattern")
    return found


def _matches(path: str, patterns: list[str]) -> bool:
    parts = path.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))
