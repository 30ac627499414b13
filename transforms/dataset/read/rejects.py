"""Reading back what was rejected: of a committed dataset, and of a run that was refused."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import DATASET_INFO
from shardbeam.transforms.dataset.pointer import pointed_folder
from shardbeam.transforms.dataset.staging import STAGING_FOLDER
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for

_REJECTS = re.compile(r"(?P<folder>(?:.*/)?)rejects/[^/]+\.jsonl")
_IN_FOLDER = re.compile(r"[^/]+\.jsonl")


class StoredReject(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file of rejects; its reason may be one that a later version has added.

    Attributes:
        split: The split it would have been in; empty for none.
        source: Which input of the config it belongs to.
        key: The image's key, or what an annotation names instead of one.
        stage: Where it was rejected.
        reason: The reason's code.
        detail: The cause and the place in the source.
        listed: Whether it is a listed image.
    """

    split: str
    source: str
    key: str
    stage: str
    reason: str
    detail: str
    listed: bool


_decoder = msgspec.json.Decoder(StoredReject)


def find_rejects(path: str) -> list[StoredFile]:
    """Finds the files of rejects of a dataset, in order.

    Args:
        path: A dataset's folder, or a pointer to one; the output of a run that was refused, whose
            last run counts; or a folder of such files.

    Raises:
        InputError: There is no dataset and no run at all.
    """
    storage = storage_for(path)
    try:
        file = storage.stat(path)
        folder = path if file is None else pointed_folder(file)
        listed = [] if folder is None else list(storage_for(folder).list(folder))
    except OSError as error:
        raise InputError(uri=path, problem=f"cannot be read: {error.strerror}") from error
    in_staging: dict[str, list[StoredFile]] = {}
    committed = []
    for found in listed:
        match = _REJECTS.fullmatch(found.path)
        if match is None:
            if _IN_FOLDER.fullmatch(found.path):
                committed.append(found)
        elif not match["folder"]:
            committed.append(found)
        elif found.path.startswith(f"{STAGING_FOLDER}/"):
            in_staging.setdefault(match["folder"], []).append(found)
    if any(found.path == DATASET_INFO for found in listed):
        files: Sequence[StoredFile] = [file for file in committed if "/" in file.path]
    elif in_staging:
        # A run's folder is named by the time of its start.
        last = max(in_staging, key=lambda name: (posixpath.basename(name.rstrip("/")), name))
        files = in_staging[last]
    else:
        files = committed
        if not files:
            raise InputError(
                uri=path,
                problem="neither a dataset, nor the output of a run that was refused, nor a folder "
                "of rejects files (*.jsonl)",
            )
    return sorted(files, key=lambda file: file.path)


def read_rejects(uri: str) -> Iterator[StoredReject]:
    """Yields the rejects of a file.

    Raises:
        InputError: It cannot be read, or a line is no reject.
    """
    try:
        data = storage_for(uri).read(uri)
    except FileNotFoundError as error:
        raise InputError(uri=uri, problem="is missing") from error
    except OSError as error:
        raise InputError(uri=uri, problem=f"cannot be read: {error.strerror}") from error
    for number, line in enumerate(data.splitlines(), 1):
        try:
            yield _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                uri=uri, place=f"line {number}", problem=f"not a reject: {error}"
            ) from error
