"""What is in the output folder before a run, and what may be done with it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.commit import DATASET_INFO, foreign_files, read_manifest
from shardbeam.transforms.formats.sources import Source
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_NAMED_FILES = 3


class OutputError(ValueError):
    """The output folder cannot be used as asked. The message is one line."""


def is_committed(output: str) -> bool:
    """Says whether `output` holds a committed dataset of ours.

    Raises:
        OutputError: It holds something else, which must not be mixed with a dataset, or it
            is no folder.
    """
    try:
        if read_manifest(output) is not None:
            return storage_for(output).stat(join_uri(output, DATASET_INFO)) is not None
        foreign = foreign_files(output)
    except InputError as error:
        raise OutputError(str(error)) from error
    except OSError as error:
        raise OutputError(f"{output}: cannot be a dataset's folder: {error.strerror}") from error
    if foreign:
        names = ", ".join(foreign[:_NAMED_FILES])
        more = f" and {len(foreign) - _NAMED_FILES} more" if len(foreign) > _NAMED_FILES else ""
        raise OutputError(
            f"{output}: holds files that are not Shardbeam's ({names}{more}); choose another "
            "output.path, or empty the folder"
        )
    return False


def check_apart(path: str, *, sources: Iterable[Source], key: str = "output.path") -> None:
    """Refuses an output within an image root: a run would list what it writes.

    Args:
        path: What is written.
        sources: Where images are listed.
        key: The config's key that says the path.

    Raises:
        OutputError: It is.
    """
    for root in (root for source in sources for root in source.roots):
        if f"{_real_path(path)}/".startswith(f"{_real_path(root).rstrip('/')}/"):
            raise OutputError(
                f"{path}: lies within the images' folder {root}, whose listing would "
                f"hold what is written; choose another {key}"
            )


def _real_path(path: str) -> str:
    """Follows symbolic links on local disk, behind which one folder may lie within another."""
    return path if "://" in path else os.path.realpath(path)
