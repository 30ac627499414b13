"""Where the images that a table names lie below the declared roots, told by their names alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from shardbeam.transforms.formats.names import normalize_key

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


class _Location(NamedTuple):
    """A path or URI in its components, `.` and `..` resolved.

    Attributes:
        scheme: Such as `gs`; `/` of an absolute local path; empty of a relative one.
        parts: The components.
        climbs: How many `..` of a relative path are left.
    """

    scheme: str
    parts: tuple[str, ...]
    climbs: int = 0


class TableRoots:
    """The folders that hold a table's images.

    An image's key is its path below its root, or below the roots' common parent where there are
    several.

    Args:
        roots: Paths or URIs.

    Raises:
        ValueError: One lies below another, or they lie in different systems.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = [_locate(root) for root in roots]
        for one in self._roots:
            if one.scheme != self._roots[0].scheme:
                raise ValueError("image_root: expected folders of one file system or object store")
        for index, one in enumerate(self._roots):
            for other in self._roots[:index]:
                shorter = min(len(one.parts), len(other.parts))
                if one.parts[:shorter] == other.parts[:shorter]:
                    raise ValueError(
                        "image_root: one folder lies below another; give the upper one alone"
                    )
        self._parent = _common_parts([root.parts for root in self._roots])

    def key_below(self, path: str, *, root: int) -> str:
        """Makes the key of a listed file.

        Args:
            path: Its path below its root.
            root: Which of the roots.
        """
        above = self._roots[root].parts[len(self._parent) :]
        return normalize_key("/".join([*above, path]))

    def key_of(self, name: str) -> str | None:
        """Finds the key of an image as a row names it; None where it lies outside of all roots.

        Args:
            name: An absolute path, a URI, or a path relative to the root (with several roots: to
                their common parent).
        """
        location = _locate(name)
        parts = location.parts
        if not location.scheme:
            if location.climbs > len(self._parent):
                return None
            parts = (*self._parent[: len(self._parent) - location.climbs], *parts)
        elif location.scheme != self._roots[0].scheme:
            return None
        for root in self._roots:
            if parts[: len(root.parts)] == root.parts and len(parts) > len(root.parts):
                return normalize_key("/".join(parts[len(self._parent) :]))
        return None


def short_names(uris: Sequence[str]) -> list[str]:
    """Names files by what tells them apart: their base names, or paths below a common parent."""
    parts = [_locate(uri).parts for uri in uris]
    names = [path[-1] if path else uri for path, uri in zip(parts, uris, strict=True)]
    if len(set(names)) == len(names):
        return names
    common = len(_common_parts(parts))
    names = ["/".join(path[common:]) for path in parts]
    return [
        name if name and names.index(name) == index else f"{index}/{name}"
        for index, name in enumerate(names)
    ]


def _locate(name: str) -> _Location:
    match = _SCHEME.match(name)
    scheme, path = (match[1].lower(), name[match.end() :]) if match else ("", name)
    if scheme == "file" or (not scheme and path.startswith("/")):
        scheme = "/"
    parts: list[str] = []
    climbs = 0
    for part in path.split("/"):
        if part == "..":
            if parts:
                parts.pop()
            else:
                climbs += 1
        elif part not in ("", "."):
            parts.append(part)
    return _Location(scheme, tuple(parts), 0 if scheme else climbs)


def _common_parts(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    common = paths[0] if paths else ()
    for path in paths:
        length = 0
        while length < min(len(common), len(path)) and common[length] == path[length]:
            length += 1
        common = common[:length]
    return common
