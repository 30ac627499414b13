"""Files that commands write for people, with a mark that shows which of them may be replaced."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.interrupts import delay_interrupts
from shardbeam.pipelines.overlap import check_file
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import DATASET_INFO, MANIFEST
from shardbeam.transforms.dataset.pointer import pointed_folder
from shardbeam.transforms.storage.base import is_uri, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import remove_scratch

# The first bytes of a file, which hold its mark.
_MARK_BYTES = 2000
# Only this much of a file is read; what is left of a larger one is not valid JSON.
_INFO_BYTES = 200_000_000


class _Named(msgspec.Struct, frozen=True):
    """The dataset's name in `dataset_info.json`, or in the config in `manifest.json`."""

    name: str = ""
    config: dict[str, Any] = {}


class Mark(NamedTuple):
    """What a file of ours says about itself.

    Attributes:
        kind: What it is.
        name: The dataset's name.
    """

    kind: str
    name: str

    @property
    def text(self) -> str:
        """The text that is in the file: ASCII without quotes."""
        return f"Shardbeam {self.kind} ({quote(self.name, safe='', errors='backslashreplace')})"


def write_file(uri: str, data: bytes, *, flag: str) -> None:
    """Writes a file in one step. An interrupt waits for it, so that it leaves no temporary file.

    What a killed command has left is removed.

    Args:
        uri: The file.
        data: Its content.
        flag: The flag that names it.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        with delay_interrupts():
            storage_for(uri).replace(uri, data)
        if not is_uri(uri):
            folder, name = os.path.split(uri)
            remove_scratch(folder, names=[name])
    except OSError as error:
        raise UsageError(f"{flag}: {uri}: {error.strerror or error}") from error


def dataset_name(path: str) -> str:
    """Returns the name of a dataset, or that of its file or folder if it has none.

    Args:
        path: A path as for `open_dataset`; it need not exist.
    """
    # Other code reports damaged files.
    with contextlib.suppress(InputError, OSError):
        file = storage_for(path).stat(path)
        path = (file and pointed_folder(file)) or path
    for name in (DATASET_INFO, MANIFEST):
        uri = join_uri(path, name)
        with contextlib.suppress(InputError, OSError, ValueError, RecursionError):
            # Only a regular file, because reading a pipe would never end.
            if storage_for(uri).stat(uri) is None:
                continue
            data = storage_for(uri).read(uri, size_bytes=_INFO_BYTES)
            said = JsonDecoder(_Named, strict=False).decode(data)
            if found := said.name or str(said.config.get("name", "")):
                return found
    if not is_uri(path):
        # `.` is a path, too.
        path = os.path.abspath(path)
    return posixpath.basename(path.rstrip("/"))


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
    try:
        within = check_file(uri, name=flag, inputs=inputs)
        storage = storage_for(uri)
        file = storage.stat(uri)
        if file is None and not storage.is_remote and storage.holds(uri):
            raise UsageError(f"{flag}: {uri} exists and is not a file; name another one")
        if file is None or (overwrite and not within):
            return
        beginning = storage.read(uri, size_bytes=_MARK_BYTES)
    except OSError as error:
        raise UsageError(f"{flag}: {uri}: {error.strerror or error}") from error
    if not (beginning.startswith(start) and mark.text.encode() in beginning):
        fix = "name another file" + ("" if within else ", or replace it with --overwrite")
        raise UsageError(
            f"{flag}: {uri} exists, and is not a {mark.kind} that Shardbeam wrote for a dataset "
            f"named {mark.name!r}; {fix}"
        )
