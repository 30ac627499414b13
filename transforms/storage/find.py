"""Finds the storage for a URI by its scheme, and the files that match a pattern.

A path without a scheme is a local file, and `gs://` is Google Cloud Storage. For another scheme,
the module of this folder with the scheme's name is used if it holds a `Storage` class named
`STORAGE`; otherwise fsspec is asked. `local://` and `gcs://` are schemes of fsspec.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.util
import re
from typing import cast

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import Storage, nearest_path, scheme_of

# {scheme: module}. Other schemes have a module of their name, or none.
_MODULES = {"": "local", "gs": "gcs.storage", "s3": "s3", "s3a": "s3"}
_WILDCARD = re.compile(r"[*?\[]")
# A path that may lead into an archive.
_IN_ARCHIVE = re.compile(r"\.(tar|zip|tgz|7z|rar|tar\.[a-z0-9]+)/+[^/]", re.IGNORECASE)

# An archive that a browser would download.
_ON_THE_WEB = re.compile(r"https?://.*\.(zip|tar|tgz|tar\.gz|7z|rar)(?![^/?#])", re.IGNORECASE)


def storage_for(uri: str) -> Storage:
    """Returns the storage that holds `uri`.

    Raises:
        InputError: The scheme is unknown, or an archive on the path cannot be read.
    """
    if _ON_THE_WEB.match(uri):
        raise InputError(uri=uri, problem="archives on the web are not read: download it first")
    if _IN_ARCHIVE.search(uri):
        # By its name, because that module finds the archive's own storage with this one.
        members = importlib.import_module(f"{__package__}.members")
        found = members.open_storage(uri)
        if found is not None:
            return cast(Storage, found)
    return _storage_by_scheme(scheme_of(uri))


@functools.cache
def _storage_by_scheme(scheme: str) -> Storage:
    # Imported here, since few runs need all of them.
    is_module = scheme in _MODULES or (scheme.isidentifier() and scheme not in _MODULES.values())
    module = f"{__package__}.{_MODULES.get(scheme, scheme)}"
    if is_module and importlib.util.find_spec(module) is not None:
        make = getattr(importlib.import_module(module), "STORAGE", None)
        if make is not None:
            return cast(Storage, make())
    from shardbeam.transforms.storage.fsspec import FsspecStorage

    return FsspecStorage(scheme)


def expand_pattern(pattern: str) -> list[str]:
    """Finds the files that match a pattern; its `*`, `?` and `[...]` do not match a `/`.

    Returns:
        Their URIs, sorted; the pattern itself if it has no wildcard or is the name of a file.

    Raises:
        InputError: No file matches, or the folder cannot be listed.
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
        near = nearest_path(root, storage=storage)
        raise InputError(uri=pattern, problem=f"no file matches the pattern{near}")
    return found


def _matches(path: str, patterns: list[str]) -> bool:
    parts = path.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))
