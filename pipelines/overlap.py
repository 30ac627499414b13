"""Makes sure that what a command writes is no input, lies in no dataset, and replaces nothing else.

Files and folders on disk are compared by device and inode, so that links, bind mounts and disks
that ignore case hide nothing. Files that commands write for people have a mark, which shows which
of them may be replaced.
"""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from shardbeam.configs.passwords import hide_passwords
from shardbeam.pipelines.failures import UsageError, blaming
from shardbeam.pipelines.interrupts import delay_interrupts
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import Mark
from shardbeam.transforms.dataset.file_names import DATASET_INFO
from shardbeam.transforms.storage.base import StoredFile, dangling_link, is_uri, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import remove_scratch

# Device and inode, or the parts of a URI.
_Identity = tuple[int, int] | tuple[str, ...]
# {other names of a scheme: the usual one}
_SCHEMES = {"gcs": "gs", "s3a": "s3"}
# The first bytes of a file, which hold its mark.
_MARK_BYTES = 2000


def check_apart(path: str, *, name: str, inputs: Iterable[str]) -> None:
    """Makes sure that an output and the inputs of a command do not overlap.

    Args:
        path: The folder or the file that the command writes; it need not exist.
        name: The flag, or the key of the config, that names it.
        inputs: Paths and URIs of the files and folders that the command reads.

    Raises:
        UsageError: The output is an input, lies in one, or holds one.
    """
    find = _finder()
    output = find(path)
    for uri in inputs:
        place = find(uri)
        if output.own is not None and output.own == place.own:
            problem = f"is the input {uri} itself; choose another path"
        elif place.own in output.above:
            problem = f"lies within the input {uri}; choose another path"
        elif output.own in place.above:
            problem = f"holds the input {uri}; copy that first, or choose another path"
        else:
            continue
        raise UsageError(hide_passwords(f"{name}: {path} {problem}"))


def check_file(path: str, *, name: str, inputs: Iterable[str]) -> bool:
    """Makes sure that a file that a command writes is no input, and lies in no committed dataset.

    Args:
        path: The file; it need not exist.
        name: The flag that names it.
        inputs: As for `check_apart`.

    Returns:
        Whether it lies within an input. A new file does no harm there, but one that is there
        already may be read.

    Raises:
        UsageError: It is an input, or lies in a committed dataset.
    """
    check_outside_datasets(path, name=name, may_be_one=True)
    find = _finder()
    file = find(path)
    places = {uri: find(uri) for uri in inputs}
    for uri, place in places.items():
        if file.own is not None and file.own == place.own:
            raise UsageError(f"{name}: {path} is the input {uri} itself; choose another path")
    return any(place.own in file.above for place in places.values())


def check_outside_datasets(path: str, *, name: str, may_be_one: bool = False) -> None:
    """Makes sure that an output lies in no committed dataset.

    Args:
        path: The folder or the file that a command writes; it need not exist.
        name: The flag, or the key of the config, that names it.
        may_be_one: Whether the output itself may be a dataset, which is then replaced.

    Raises:
        UsageError: It lies in one, or no path is given.
    """
    if not path:
        raise UsageError(f"{name}: expected a path, got ''")
    storage = storage_for(path)

    def is_there(uri: str) -> bool:
        # A user may write into a folder without permission to read those above it.
        with contextlib.suppress(InputError, OSError):
            return storage.stat(uri) is not None
        return False

    folders = _upward(_folder_of(path) if may_be_one else path)
    infos = [join_uri(folder, DATASET_INFO) for folder in folders]
    for uri, found in zip(infos, storage.map_many(is_there, infos), strict=True):
        if found:
            raise UsageError(
                hide_passwords(
                    f"{name}: {path} lies in a dataset ({uri}), to which nothing may be added; "
                    "choose another path"
                )
            )


def find_replaced(uri: str, *, flag: str) -> StoredFile | None:
    """Returns the file that a new one would replace; None if there is none.

    Raises:
        UsageError: Something else than a file is there, such as a folder or a link to nowhere.
    """
    storage = storage_for(uri)
    file = storage.stat(uri)
    if file is None and not storage.is_remote and storage.holds(uri):
        problem = dangling_link(uri) or f"{uri} exists and is not a file"
        raise UsageError(f"{flag}: {problem}; name another one")
    return file


def check_replaceable(
    uri: str, *, flag: str, start: bytes, mark: Mark, overwrite: bool, inputs: Iterable[str]
) -> None:
    """Makes sure that a file may be written: none is there, or an older one of the same dataset.

    Args:
        uri: The file.
        flag: The flag that names it.
        start: The first bytes of all files of its kind.
        mark: The mark of the new file.
        overwrite: Whether any other file may be replaced, too, except within an input.
        inputs: What the command reads. The file may be none of these, nor lie in a dataset.

    Raises:
        UsageError: It may not be written, or no name is given.
    """
    if not uri:
        raise UsageError(f"{flag}: expected the name of a file, got ''")
    with blaming(f"{flag}: {uri}"):
        within = check_file(uri, name=flag, inputs=inputs)
        if find_replaced(uri, flag=flag) is None or (overwrite and not within):
            return
        beginning = storage_for(uri).read(uri, size_bytes=_MARK_BYTES)
    if not (beginning.startswith(start) and mark.text.encode() in beginning):
        fix = "name another file" + ("" if within else ", or replace it with --overwrite")
        raise UsageError(
            f"{flag}: {uri} exists, and is not a {mark.kind} that Shardbeam wrote for a dataset "
            f"named {mark.name!r}; {fix}"
        )


def write_file(uri: str, data: bytes, *, flag: str) -> None:
    """Writes a file in one step. An interrupt waits for it, so that it leaves no temporary file.

    What a killed command has left is removed.

    Args:
        uri: The file.
        data: Its content.
        flag: The flag that names it.

    Raises:
        UsageError: It cannot be written.
        RunError: The disk is full, or fails.
    """
    with blaming(f"{flag}: {uri}"):
        with delay_interrupts():
            storage_for(uri).replace(uri, data)
        if not is_uri(uri):
            folder, name = os.path.split(uri)
            remove_scratch(folder, names=[name])


def _folder_of(path: str) -> str:
    """Returns the folder that something lies in: a link to a folder lies where it leads.

    A link to a file lies where it is, because it is replaced, and not what it leads to.
    """
    if is_uri(path):
        return posixpath.dirname(path.rstrip("/"))
    return os.path.dirname(os.path.realpath(path) if os.path.isdir(path) else path)


def _upward(folder: str) -> Iterator[str]:
    """Yields a folder and those that it lies in, except for the root of the disk."""
    in_storage = is_uri(folder)
    folder = folder.rstrip("/") if in_storage else os.path.realpath(folder)
    while folder not in ("", "/") and is_uri(folder) == in_storage:
        yield folder
        folder = posixpath.dirname(folder)


class _Place(NamedTuple):
    """Where a file or a folder is.

    Attributes:
        own: What identifies it; None if nothing is there.
        above: What identifies the folders that it lies in, however deep.
    """

    own: _Identity | None
    above: frozenset[_Identity]


def _finder() -> Callable[[str], _Place]:
    """Returns a function that finds places, and looks at each folder once."""
    # Thousands of inputs may lie in the same folder.
    real_path = functools.cache(os.path.realpath)

    @functools.cache
    def above(folder: str) -> frozenset[_Identity]:
        return frozenset(filter(None, map(_identify, (*_upward(folder), "/"))))

    def find(path: str) -> _Place:
        if is_uri(path):
            own, *folders = _uri_steps(path)
            return _Place(own, frozenset(folders))
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or os.path.islink(path):
            folder, name = os.path.split(os.path.realpath(path))
        folder = real_path(folder)
        return _Place(_identify(os.path.join(folder, name)), above(folder))

    return find


def _identify(path: str) -> _Identity | None:
    """Returns device and inode; None if nothing is there, or it cannot be reached."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _uri_steps(uri: str) -> list[_Identity]:
    """Returns what identifies a URI, and then each folder that it lies in.

    An object store may hold `a//b` and `a/./b` beside `a/b`, but other file systems, and a bucket
    that is mounted as a folder, do not tell them apart.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, name = rest.partition("/")
    below = posixpath.normpath(f"/{name.lstrip('/')}").split("/")
    parts = (_SCHEMES.get(scheme, scheme), bucket, *filter(None, below))
    return [parts[:count] for count in range(len(parts), 1, -1)]
