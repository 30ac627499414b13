"""Where the images that a table names lie below the declared roots, by their names alone."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from shardbeam.transforms.formats.names import normalize_key

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


class TableRoots:
    """The folders that hold a table's images.

    An image's key is its path below its root, or below the roots' common parent where there are
    several.

    Args:
        roots: Absolute paths or URIs.

    Raises:
        ValueError: One lies below another, or they lie in different systems.
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
            root: Which of the roots.
        """
        return self._key(f"{self._roots[root]}/{path}")

    def key_of(self, name: str) -> str | None:
        """Finds the key of an image as a row names it; None where it lies outside of all roots.

        Args:
            name: An absolute path, a URI, or a path relative to the root (with several roots: to
                their common parent).
        """
        is_relative = not (name.startswith("/") or _SCHEME.match(name))
        location = _resolve(f"{self._parent}/{name}" if is_relative else name)
        if any(location.startswith(f"{root}/") for root in self._roots):
            return self._key(location)
        return None

    def _key(self, location: str) -> str:
        return normalize_key(location.removeprefix(self._parent).lstrip("/"))


def short_names(uris: Sequence[str]) -> list[str]:
    """Names files by what tells them apart: their base names, or paths below a common parent."""
    names = [posixpath.basename(uri) for uri in uris]
    if len(set(names)) < len(names):
        parent = common_folder([posixpath.dirname(uri) for uri in uris])
        names = [uri.removeprefix(parent).lstrip("/") for uri in uris]
    return [
        name if names.count(name) == 1 else f"{index}/{name}" for index, name in enumerate(names)
    ]


def _resolve(name: str) -> str:
    """A path or URI without `.`, `..` and a last `/`; local files without a scheme."""
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
    """The folder that holds all of these."""
    common = folders[0].split("/")
    for folder in folders[1:]:
        parts = folder.split("/")
        while parts[: len(common)] != common:
            common.pop()
    return "/".join(common)
