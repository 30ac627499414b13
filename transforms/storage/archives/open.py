"""Roots of images: a folder, an archive, a folder inside an archive, or a pattern."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator

from shardbeam.transforms.core.counters import BlockCount, counters
from shardbeam.transforms.core.errors import InputError, reading
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.core.search import search
from shardbeam.transforms.storage.archives.tar import list_tar
from shardbeam.transforms.storage.archives.zip import list_zip
from shardbeam.transforms.storage.base import (
    ListingPart,
    StoredFile,
    is_uri,
    join_uri,
    nearest_path,
)
from shardbeam.transforms.storage.find import storage_for

_ARCHIVE = re.compile(r"\.(tar|zip)$", re.IGNORECASE)
# Archives that cannot be read from the middle, and the command that unpacks them.
_REFUSED = (
    (re.compile(r"\.(tar\.gz|tgz|taz)$", re.IGNORECASE), "decompress it first: gunzip"),
    (re.compile(r"\.(tar\.bz2|tbz2?|tb2)$", re.IGNORECASE), "decompress it first: bunzip2"),
    (re.compile(r"\.(tar\.(xz|lzma)|txz|tlz)$", re.IGNORECASE), "decompress it first: unxz"),
    (re.compile(r"\.(tar\.zst|tzst)$", re.IGNORECASE), "decompress it first: unzstd"),
    (re.compile(r"\.7z$", re.IGNORECASE), "unpack it first: 7z x"),
    (re.compile(r"\.rar$", re.IGNORECASE), "unpack it first: unrar x"),
)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_WILDCARD = re.compile(r"[*?\[]")
# The most characters of a path that systems accept.
_MAX_NAME = 4_096
_SHOWN = 100
# Folders of an archive that an error names.
_MAX_FOLDERS = 5


def is_pattern(root: str) -> bool:
    """Returns whether a root is a pattern, which may stand for several archives.

    If a folder or archive has exactly that name, such as `flowers [v2]`, it is not a pattern.
    """
    if not _is_variable(root):
        return False
    try:
        return locate(root) is None and next(storage_for(root).list(root), None) is None
    except InputError:
        # Something is there; listing it later raises the error.
        return False


def expand_root(root: str) -> Iterator[str]:
    """Yields the folders and archives that a root stands for, sorted.

    A root that is not a pattern stands for itself. In a pattern `*`, `?` and `[...]` match
    characters of one name, `**` matches any folders, and `{000..099}` stands for each of these
    numbers. A pattern matches archives; a path behind the archive's name is a folder inside each.

    Raises:
        InputError: A pattern matches nothing, or an archive of a range is missing.
    """
    if not is_pattern(root):
        yield root
        return
    for pattern in _expand_ranges(root):
        if not _WILDCARD.search(pattern):
            if locate(pattern) is None:
                raise InputError(
                    uri=pattern, problem=f"there is no such archive; the pattern {root} names it"
                )
            yield pattern
            continue
        outer, inner = _split_pattern(pattern)
        found = [uri for uri in _match(outer) if is_archive_name(uri)]
        if not found:
            raise InputError(uri=pattern, problem="the pattern matches no .tar or .zip file")
        for uri in sorted(found):
            yield join_uri(uri, inner) if inner else uri


def is_archive(uri: str) -> bool:
    """Returns whether a path leads to an archive, or to a folder inside one."""
    return locate(uri) is not None


def fixed_folder(root: str) -> str:
    """Returns the deepest folder, without wildcards, that holds everything a root stands for."""
    parts = root.rstrip("/").split("/")[:-1]
    return "/".join(itertools.takewhile(lambda part: not _is_variable(part), parts))


def begin_root(
    uri: str, *, open_archives: bool = True
) -> Iterator[tuple[str, ImageRef] | ListingPart]:
    """Lists a root like `list_root`, but leaves parts of a long listing to `list_root_part`.

    Raises:
        InputError: The root cannot be listed.
    """
    located = locate(uri)
    if located is None:
        empty = True
        for listed in BlockCount(counters.files).each(storage_for(uri).begin_listing(uri)):
            empty = False
            yield listed if isinstance(listed, ListingPart) else (listed.path, _whole(listed))
        if empty and any(map(is_archive_name, uri.split("/"))):
            near = nearest_path(uri, storage=storage_for(uri))
            raise InputError(
                uri=uri, problem=f"there is no such archive or folder, or it is empty{near}"
            )
        return
    archive, inner = located
    if open_archives:
        yield from BlockCount(counters.files).each(list_archive(archive, inner=inner))
    elif inner:
        raise InputError(uri=uri, problem="expected an archive, got a folder inside one")
    else:
        _refuse_compressed(archive.uri)
        yield archive.uri.rpartition("/")[2], archive


def nothing_found(uri: str, *, whose: str) -> InputError:
    """Makes the error for a root without files: it is missing or empty."""
    storage = storage_for(uri)
    if is_archive(uri):
        problem = "the archive holds no files"
    elif storage.is_folder(uri):
        problem = f"the folder is empty; is this {whose} folder?"
    else:
        problem = f"there is no such folder{nearest_path(uri, storage=storage)}"
    return InputError(uri=uri, problem=problem)


def list_root(uri: str, *, open_archives: bool = True) -> Iterator[tuple[str, ImageRef]]:
    """Yields `(path below the root, place of its bytes)` for every file of a folder or archive.

    The names of an archive's members are never used as paths to write to, so a name that leads out
    of the archive (`../a.jpg`) does no harm and is listed like any other.

    Args:
        uri: A folder, a `.tar`, a `.zip`, or a folder inside one of these.
        open_archives: Whether to list an archive's members, and not the archive itself.

    Raises:
        InputError: The root cannot be listed.
    """
    for listed in begin_root(uri, open_archives=open_archives):
        if isinstance(listed, ListingPart):
            yield from list_root_part(listed)
        else:
            yield listed


def list_root_part(part: ListingPart) -> Iterator[tuple[str, ImageRef]]:
    """Yields the files of a part that `begin_root` has left.

    Raises:
        InputError: The part cannot be listed.
    """
    for file in BlockCount(counters.files).each(storage_for(part.root).list_part(part)):
        yield file.path, _whole(file)


def list_archive(archive: ImageRef, *, inner: str = "") -> Iterator[tuple[str, ImageRef]]:
    """Yields `(path, place of its bytes)` for every file of an archive, or of a folder in it.

    Raises:
        InputError: The archive cannot be read, or holds no such folder.
    """
    _refuse_compressed(archive.uri)
    prefix = f"{inner}/" if inner else ""
    found = False
    folders: dict[str, None] = {}
    for name, file in _list_members(archive):
        path = _path(name)
        if not path or "\0" in path:
            # No file can have this name.
            path = path.replace("\0", "\\x00") or f"unnamed-{file.offset}"
            file = _unnamed(file)
        elif len(path) > _MAX_NAME:
            # Keep the extension, so that it counts as an image if it may be one.
            path = f"{path[:_SHOWN]}...{file.offset}...{path[-_SHOWN:]}"
            file = _unnamed(file)
        if path.startswith(prefix):
            found = True
            yield path.removeprefix(prefix), file
        elif len(folders) < _MAX_FOLDERS:
            folders[path.rpartition("/")[0] or "."] = None
    if not found and inner:
        held = ", ".join(folders) or "nothing"
        raise InputError(uri=archive.uri, problem=f"has no folder {inner!r}; its folders: {held}")


def _path(name: str) -> str:
    """Removes empty and `.` components from a name."""
    # Characters are not composed here: formats do that, for files in folders, too.
    root = "/" if name.startswith("/") else ""
    return root + "/".join(part for part in name.split("/") if part not in ("", "."))


def _unnamed(file: ImageRef) -> ImageRef:
    return ImageRef(
        uri=file.uri,
        size_bytes=0,
        version=file.version,
        offset=file.offset,
        whole=False,
        problem="no file can have its name in the archive",
    )


def _whole(file: StoredFile) -> ImageRef:
    return ImageRef(uri=file.uri, size_bytes=file.size_bytes, version=file.version)


def locate(uri: str) -> tuple[ImageRef, str] | None:
    """Returns the archive that a path leads to, and the path in it; None if there is none.

    Raises:
        InputError: The archive cannot be read.
    """
    parts = uri.rstrip("/").split("/")
    for index, part in enumerate(parts, 1):
        if not is_archive_name(part):
            continue
        candidate = "/".join(parts[:index])
        with reading(candidate):
            file = storage_for(candidate).stat(candidate)
        if file is not None:
            return _whole(file), "/".join(part for part in parts[index:] if part not in ("", "."))
    return None


def _is_variable(root: str) -> bool:
    return bool(_WILDCARD.search(root) or _RANGE.search(root))


def is_archive_name(name: str) -> bool:
    """Whether a file is an archive by its name, also one that cannot be read."""
    return bool(_ARCHIVE.search(name)) or any(suffix.search(name) for suffix, _ in _REFUSED)


def _refuse_compressed(uri: str) -> None:
    for suffix, fix in _REFUSED:
        if suffix.search(uri):
            raise InputError(
                uri=uri,
                problem="an archive that is compressed as a whole cannot be read from the middle; "
                f"{fix} {os.path.basename(uri)}",
            )


def _expand_ranges(pattern: str) -> Iterator[str]:
    match = _RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    first, last = match[1], match[2]
    if int(last) < int(first):
        raise InputError(uri=pattern, problem=f"{match[0]} is empty: the first number is greater")
    for number in range(int(first), int(last) + 1):
        text = str(number).zfill(len(first))
        for rest in _expand_ranges(pattern[match.end() :]):
            yield pattern[: match.start()] + text + rest


def _split_pattern(pattern: str) -> tuple[str, str]:
    """Splits a pattern after the first archive's name."""
    parts = pattern.rstrip("/").split("/")
    for index, part in enumerate(parts, 1):
        if is_archive_name(part):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return pattern, ""


def _match(pattern: str) -> Iterator[str]:
    """Yields the files that match a pattern without ranges."""
    if not is_uri(pattern):
        yield from (path for path in glob.iglob(pattern, recursive=True) if os.path.isfile(path))
        return
    # Imported here, so that commands which only print help stay fast.
    from fsspec.utils import glob_translate

    folder = fixed_folder(pattern)
    # Within a name, two asterisks mean the same as one, as on disk.
    below = re.sub(r"(?<=[^/*])\*+|\*+(?=[^/*])", "*", pattern[len(folder) + 1 :])
    expression = rf"\A{glob_translate(below)}"
    for file in storage_for(folder).list(folder):
        if search(expression, file.path, setting=pattern):
            yield file.uri


def _list_members(archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    return (list_zip if archive.uri.lower().endswith(".zip") else list_tar)(archive)
