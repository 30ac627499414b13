"""Finds the dataset that `--reuse` names, whose unchanged shards a build copies."""

from __future__ import annotations

import logging
from collections.abc import Collection

from shardbeam.configs.placeholders import DATE, FINGERPRINT, VERSION, fill_template
from shardbeam.pipelines.failures import UsageError, machine_error
from shardbeam.pipelines.plan import Plan, absolute_path
from shardbeam.transforms.commit.pointer import pointed_folder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import DATASET_INFO, MANIFEST
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_log = logging.getLogger(__name__)


def find_previous(path: str, *, plan: Plan) -> str:
    """Finds the dataset that `--reuse` names, to copy its unchanged shards.

    Args:
        path: Its folder, or a file whose only line is the path of that folder. If the plan's own
            runs write it, it need not exist yet: the first run of a schedule is the same command as
            the later ones.
        plan: The plan, not placed yet.

    Returns:
        The dataset's folder; empty if there is none yet.

    Raises:
        UsageError: There is no committed dataset of ours, and the build would not write one.
        RunError: The storage cannot be read.
    """
    named = _normalized(path)
    try:
        if _is_dataset(named):
            return named
        pointed = _read_pointer(named)
        if pointed and _is_dataset(pointed):
            return pointed
    except InputError as error:
        raise UsageError(f"--reuse: {error}") from error
    except OSError as error:
        raise machine_error(error, path=f"--reuse: {path}") from error
    where = f"{pointed} (which {named} names)" if pointed else named
    if named not in map(_normalized, _own_paths(plan)):
        raise UsageError(
            f"--reuse: no committed dataset of Shardbeam's in {where}; name the folder of "
            "one, or leave --reuse out"
        )
    _log.warning("--reuse: no committed dataset in %s yet; all shards are written", where)
    return ""


def _own_paths(plan: Plan) -> Collection[str]:
    """Names the paths that a plan's runs write; `{date}` and `{fingerprint}` are not filled in."""
    values = {VERSION: plan.dataset.version, DATE: "{date}", FINGERPRINT: "{fingerprint}"}
    own = fill_template(plan.output_template, values)
    return (own, plan.latest) if plan.latest else (own,)


def _normalized(path: str) -> str:
    return absolute_path(path).rstrip("/") or "/"


def _is_dataset(folder: str) -> bool:
    """Whether a folder holds a dataset of ours: it looks for two files, and reads neither."""
    return all(
        storage_for(folder).stat(join_uri(folder, name)) is not None
        for name in (DATASET_INFO, MANIFEST)
    )


def _read_pointer(uri: str) -> str:
    """Reads the path that a pointer names; empty if `uri` is not a file.

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
