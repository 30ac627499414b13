"""Finds the files of a manifest that are not there."""

from __future__ import annotations

from collections.abc import Mapping

from shardbeam.transforms.core.errors import reading
from shardbeam.transforms.dataset.file_names import CARD, DATASET_INFO
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.shards.verify_shard import Problem
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for


def find_missing(manifest: Manifest, *, listed: Mapping[str, StoredFile]) -> list[Problem]:
    """Finds the files of a manifest that are missing, or whose size differs.

    Args:
        manifest: What should be there.
        listed: `{path: file}` of what is there.
    """
    problems = []
    for entry in (*manifest.shards(), *manifest.files):
        file = listed.get(entry.path)
        if file is None:
            hint = ": readers see no dataset" if entry.path == DATASET_INFO else ""
            problems.append(Problem(file=entry.path, problem=f"is missing{hint}"))
        elif not (file.version or file.size_bytes):
            problem = "is not a regular file, or is a broken link"
            problems.append(Problem(file=entry.path, problem=problem))
        elif file.size_bytes != entry.size_bytes and entry.path != CARD:
            problem = f"has {file.size_bytes:,} bytes; the manifest says {entry.size_bytes:,}"
            problems.append(Problem(file=entry.path, problem=problem))
    return problems


def list_files(folder: str) -> dict[str, StoredFile]:
    """Lists a dataset's folder: `{path: file}`.

    Raises:
        InputError: It cannot be read.
    """
    with reading(folder):
        return {file.path: file for file in storage_for(folder).list(folder)}
