"""Finds files below a source's root at launch, before the run lists them."""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry, ImageRef
from shardbeam.transforms.formats.annotation_file import text_lines
from shardbeam.transforms.formats.names import escape_key, key_problem, normalize_key
from shardbeam.transforms.images.read_header import recognize_image
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.archives.open import (
    expand_root,
    is_pattern,
    list_root,
    nothing_found,
)
from shardbeam.transforms.storage.base import StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.image_bytes import read_bytes

_ARCHIVE = re.compile(r"\.(tar|zip)(/|$)", re.IGNORECASE)
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


class RootFiles:
    """The files below one root: a folder, an archive, or a pattern of archives.

    A folder is listed only by `walk`; the other methods ask for single names.

    Paths are `/`-separated and relative to the root. Paths that lead out of the root name no file.

    Attributes:
        root: The root.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def check(self) -> None:
        """Raises InputError if there are no files, or they cannot be listed."""
        if next(self.walk(), None) is None:
            raise nothing_found(self.root, whose="the dataset's")

    def find(self, path: str) -> ImageRef | None:
        """Finds a file; returns None where it is missing."""
        if self._in_archive:
            return self._archived.get(path)
        if not path or path.startswith(("../", "/")) or "\0" in path:
            return None
        return find_file(join_uri(self.root, path))

    def holds(self, folder: str) -> bool:
        """Whether there is any file below a folder; an empty folder stands for the root."""
        if self.find(folder) is not None or folder.startswith(("../", "/")) or "\0" in folder:
            return False
        return next(self.walk(folder), None) is not None

    def folders(self, *, limit: int) -> list[str]:
        """Returns the folders directly below the root; none if it has more than `limit` names."""
        if self._in_archive:
            names = dict.fromkeys("".join(path.partition("/")[:2]) for path in self._archived)
        else:
            found = itertools.islice(storage_for(self.root).names(self.root), limit + 1)
            names = dict.fromkeys(found)
        return [name[:-1] for name in names if name.endswith("/") and len(names) <= limit]

    def walk(self, folder: str = "") -> Iterator[tuple[str, ImageRef]]:
        """Yields `(path below the root, file)` for each file below a folder.

        Raises:
            InputError: The folder cannot be listed.
        """
        prefix = f"{folder}/" if folder else ""
        if self._in_archive:
            for path, file in self._archived.items():
                if path.startswith(prefix):
                    yield path, file
            return
        uri = join_uri(self.root, folder) if folder else self.root
        for path, file in list_root(uri):
            yield prefix + path, file

    @functools.cached_property
    def _in_archive(self) -> bool:
        return is_pattern(self.root) or _ARCHIVE.search(self.root) is not None

    @functools.cached_property
    def _archived(self) -> Mapping[str, ImageRef]:
        return list_keys(self.root)


def list_keys(root: str) -> dict[str, ImageRef]:
    """Lists a folder, an archive or a pattern of archives: `{path below it: file}`."""
    return {normalize_key(path): file for uri in expand_root(root) for path, file in list_root(uri)}


def find_file(uri: str) -> ImageRef | None:
    """Finds a file; returns None where it is missing."""
    stored = storage_for(uri).stat(uri)
    return None if stored is None else _image_ref(stored)


def require_file(uri: str) -> ImageRef:
    """Finds a file; raises InputError where it is missing."""
    return _image_ref(storage_for(uri).find(uri))


def _image_ref(file: StoredFile) -> ImageRef:
    return ImageRef(uri=file.uri, size_bytes=file.size_bytes, version=file.version)


def read_file(file: ImageRef, *, max_bytes: int = limits.LIST_BYTES) -> bytes:
    """Reads a small file; raises InputError where it cannot be read or is too long."""
    try:
        return read_bytes(file, max_bytes=max_bytes)
    except RejectedError as error:
        raise InputError(uri=file.uri, problem=f"cannot be read: {error.detail}") from error


def resolve_path(base: str, path: str) -> str:
    """Joins a path to a folder's URI, unless it is absolute, and resolves `.` and `..` in it.

    This works on the text alone: links are not followed.
    """
    scheme = _SCHEME.match(path)
    if scheme is None and not path.startswith("/"):
        path = f"{base}/{path}"
        scheme = _SCHEME.match(path)
    if scheme is None:
        return "/" + "/".join(path_parts(path))
    return scheme[0] + "/".join(path_parts(path[scheme.end() :]))


def path_parts(path: str) -> list[str]:
    """Splits a path into its parts, and resolves `.` and `..`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts


def relative_path(uri: str, *, root: str) -> str | None:
    """Returns the path of a URI below a root; None where the URI is elsewhere."""
    uri, root = resolve_path(uri, ""), resolve_path(root, "")
    if uri == root:
        return ""
    prefix = root if root.endswith("/") else f"{root}/"
    return uri.removeprefix(prefix) if uri.startswith(prefix) else None


class SplitList(msgspec.Struct, frozen=True, kw_only=True):
    """A text file that names the images of a split, one on each line.

    Attributes:
        split: The split.
        path: The file's path below the root.
        file: The file.
    """

    split: str
    path: str
    file: ImageRef

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yields `(number, text)` of each line that names an image; numbers begin with 1.

        Raises:
            InputError: The file cannot be read, or is not UTF-8 text.
        """
        return text_lines(read_file(self.file), uri=self.file.uri)

    def entry(self, key: str, *, line: int, file_index: int) -> AnnotationEntry:
        """Makes the entry that puts the image of one line into the split.

        Args:
            key: The text that the image is joined by.
            line: Number of the line.
            file_index: Number of the list among the format's annotation files.
        """
        problem = key_problem(key)
        return AnnotationEntry(
            key=key if problem is None else escape_key(key) or f"{self.path}: line {line}",
            file_index=file_index,
            position=line,
            defect=None if problem is None else Reason.UNREADABLE_NAME,
            detail="" if problem is None else f"{self.path}: line {line}: {problem}",
            split=self.split,
        )


# Reads the size of an image from its header.

# A longer file is not read for its size.
_MAX_BYTES = 64 << 20


def stored_sizes(uri: str) -> list[tuple[int, int]]:
    """Returns the sizes of a JPEG or PNG file; empty if the file is missing (`sizes_of`)."""
    try:
        file = find_file(uri)
    except InputError:
        return []
    return [] if file is None else sizes_of(file)


def sizes_of(file: ImageRef) -> list[tuple[int, int]]:
    """Returns the sizes of a JPEG or PNG image in pixels, `(width, height)`.

    A photo that has to be turned has two sizes: as it is stored, and upright. Empty if the image
    cannot be read or has another format.
    """
    try:
        data = read_bytes(file, max_bytes=_MAX_BYTES)
    except (InputError, RejectedError):
        return []
    _, header = recognize_image(data) or (None, None)
    if header is None:
        return []
    size = header.width, header.height
    return [size, size[::-1]] if header.is_sideways else [size]


# Finds the images that a table names below the declared roots, by their names alone.

_URI_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


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
        is_relative = not (name.startswith("/") or _URI_SCHEME.match(name))
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
    match = _URI_SCHEME.match(name)
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
