"""Finding the storage of a URI by its scheme, and the files that a pattern names.

A path without a scheme lies on the local disk, `gs://` in Google Cloud Storage. For any other
scheme, a module of this folder that is named after it and holds a class of `Storage` named
`STORAGE` is used; otherwise what fsspec knows. `local://` and `gcs://` are schemes of fsspec's.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.util
import re
from typing import cast

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import Storage, scheme_of

# Modules with another name than their scheme.
_MODULES = {"": "local", "gs": "gcs"}
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
    name = _MODULES.get(scheme, "" if scheme in _MODULES.values() else scheme)
    module = f"{__package__}.{name}"
    if name.isidentifier() and importlib.util.find_spec(module) is not None:
        make = getattr(importlib.import_module(module), "STORAGE", None)
        if make is not None:
            return cast(Storage, make())
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
