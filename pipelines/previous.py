"""Which dataset `--reuse` names."""

from __future__ import annotations

import logging
from collections.abc import Collection

from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.plan import absolute_path
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.commit import DATASET_INFO, MANIFEST
from shardbeam.transforms.dataset.pointer import pointed_folder
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_log = logging.getLogger(__name__)


def find_previous(path: str, *, own: Collection[str]) -> str:
    """Finds the dataset whose unchanged shards are to be copied.

    Args:
        path: Its folder, or a file whose only line is the path of that folder.
        own: Paths that the build itself is going to write: they need not be there yet, so that
            the first run of a schedule is no other command than the later ones.

    Returns:
        The dataset's folder; empty where there is none yet.

    Raises:
        UsageError: There is no committed dataset of ours, and the build would not write it.
    """
    named = _normalized(path)
    try:
        folder = named
        if not _is_dataset(folder):
            pointed = _read_pointer(named)
            folder = pointed or named
            if not pointed or not _is_dataset(folder):
                where = folder if folder == named else f"{folder} (which {named} names)"
                if named in map(_normalized, own):
                    _log.warning(
                        "--reuse: no committed dataset in %s yet; all shards are written", where
                    )
                    return ""
                raise UsageError(
                    f"--reuse: no committed dataset of Shardbeam's in {where}; name the folder of "
                    "one, or leave --reuse out"
                )
    except InputError as error:
        raise UsageError(f"--reuse: {error}") from error
    except OSError as error:
        raise UsageError(f"--reuse: {path}: cannot be read: {error.strerror or error}") from error
    return folder


def _normalized(path: str) -> str:
    return absolute_path(path).rstrip("/") or "/"


def _is_dataset(folder: str) -> bool:
    """Says so without reading what may be long: the shards' keys tell all that matters."""
    return all(
        storage_for(folder).stat(join_uri(folder, name)) is not None
        for name in (DATASET_INFO, MANIFEST)
    )


def _read_pointer(uri: str) -> str:
    """Reads the path that a pointer names; empty where `uri` is no file.

    Raises:
        UsageError: It holds something else.
    """
    file = storage_for(uri).stat(uri)
    if file is None:
        return ""
    folder = pointed_folder(file)
    if folder is None:
        raise UsageError(
            f"--reuse: {uri}: expected a dataset's folder, or a pointer (one line with the "
            "absolute path or URI of such a folder)"
        )
    return folder.rstrip("/")
