"""Files that commands write for people, with a mark that shows which of them may be replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable

from shardbeam.pipelines.failures import UsageError, blaming
from shardbeam.pipelines.interrupts import delay_interrupts
from shardbeam.pipelines.overlap import check_file
from shardbeam.transforms.core.text import Mark
from shardbeam.transforms.storage.base import is_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import remove_scratch

# The first bytes of a file, which hold its mark.
_MARK_BYTES = 2000


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
    with blaming(f"{flag}: {uri}"):
        with delay_interrupts():
            storage_for(uri).replace(uri, data)
        if not is_uri(uri):
            folder, name = os.path.split(uri)
            remove_scratch(folder, names=[name])


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
        storage = storage_for(uri)
        file = storage.stat(uri)
        if file is None and not storage.is_remote and storage.holds(uri):
            raise UsageError(f"{flag}: {uri} exists and is not a file; name another one")
        if file is None or (overwrite and not within):
            return
        beginning = storage.read(uri, size_bytes=_MARK_BYTES)
    if not (beginning.startswith(start) and mark.text.encode() in beginning):
        fix = "name another file" + ("" if within else ", or replace it with --overwrite")
        raise UsageError(
            f"{flag}: {uri} exists, and is not a {mark.kind} that Shardbeam wrote for a dataset "
            f"named {mark.name!r}; {fix}"
        )
