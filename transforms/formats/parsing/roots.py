"""Finds the images that a table names below the declared roots, by their names alone."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from shardbeam.transforms.formats.names import normalize_key

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


class TableRoots:
    """The folders of a table's images.

    An image's key is its path below the root, or below the common parent of several roots.

    Args:
        roots: Absolute paths or URIs.

    Raises:
        ValueError: A root is below another, or the roots are in different file systems.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = [_resolve(root) for root in roots]
        if len({_split_scheme(root)[0] for root in self._roots}) > 1:
            raise ValueError("image_root: expected folders of one file system or object store")
        for index, one in enumerate(self._roots):
            for other in self._roots[:index]:
                if f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"):
                    raise ValueError(
                        "image_root: one folder lies below another; give the upper one alone"
                    )
        self._parent = common_folder(self._roots)

    def key_below(self, path: str, *, root: int) -> str:
        """Makes the key of a listed file.

        Args:
            path: Its path below its root.
            root: Number of the root.
        """
        return self._key(f"{self._roots[root]}/{path}")

    def key_of(self, name: str) -> str | None:
        """Finds the key of an image that a row names; returns None if it is outside of all roots.

        Args:
            name: An absolute path, a URI, or a path relative to the root (with several roots: to
                their common parent).
        """
        is_relative = not (name.startswith("/") or _SCHEME.match(name))
        location = _resolve(f"{self._parent}/{name}" if is_relative else name)
        if any(location.startswith(f"{root}/") for root in self._roots):
            return self._key(location)
        return None

    def location_of(self, name: str) -> str | None:
        """Returns the path or URI of an image that a row names; None if it is outside of all roots.

        Args:
            name: As for `key_of`.
        """
        key = self.key_of(name)
        return None if key is None else f"{self._parent}/{key}"

    def _key(self, location: str) -> str:
        return normalize_key(location.removeprefix(self._parent).lstrip("/"))


def short_names(uris: Sequence[str]) -> list[str]:
    """Returns short, different names of files: base names, or paths below a common parent."""
    names = [posixpath.basename(uri) for uri in uris]
    if len(set(names)) < len(names):
        parent = common_folder([posixpath.dirname(uri) for uri in uris])
        names = [uri.removeprefix(parent).lstrip("/") for uri in uris]
    return [
        name if names.count(name) == 1 else f"{index}/{name}" for index, name in enumerate(names)
    ]


def _resolve(name: str) -> str:
    """Removes `.`, `..` and a last `/` from a path or URI, and the scheme of local files."""
    scheme, path = _split_scheme(name)
    return scheme + posixpath.normpath(f"/{path.lstrip('/')}").rstrip("/").removeprefix(
        "/" if scheme else ""
    )


def _split_scheme(name: str) -> tuple[str, str]:
    match = _SCHEME.match(name)
    if match is None:
        return "", name
    scheme = match[0].lower()
    return ("" if scheme == "file://" else scheme), name[match.end() :]


def common_folder(folders: Sequence[str]) -> str:
    """Returns the innermost folder that holds all of these folders."""
    common = folders[0].split("/")
    for folder in folders[1:]:
        parts = folder.split("/")
        while parts[: len(common)] != common:
            common.pop()
    return "/".join(common)
