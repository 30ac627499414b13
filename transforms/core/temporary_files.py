"""Names of temporary files and folders, and the folder that they are in."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile

# Prefix of temporary files and folders, and that of the folder that a command makes for its own.
TEMPORARY_PREFIX = "shardbeam-"
COMMAND_FOLDER = f"{TEMPORARY_PREFIX}command-"
# `tempfile` adds eight characters.
_TEMPORARY = re.compile(rf"{TEMPORARY_PREFIX}(command-)?[a-z0-9_]{{8}}(/|$)")


def machine_folder() -> str:
    """Returns the folder for temporary files that all commands on this machine share."""
    folder = tempfile.gettempdir()
    outer, name = os.path.split(folder)
    return outer if name.startswith(COMMAND_FOLDER) else folder


def temporary_folder_of(path: str) -> str:
    """Returns the folder for temporary files if a path is that or a temporary file of ours in it.

    Otherwise, as if there is no such folder, the result is empty.
    """
    with contextlib.suppress(OSError):
        folder = machine_folder()
        name = os.path.relpath(path, folder) if os.path.isabs(path) else ""
        if name == os.curdir or _TEMPORARY.match(name):
            return folder
    return ""
