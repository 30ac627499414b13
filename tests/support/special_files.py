"""Special files: names that do not lead to a regular file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

# {kind: its name in errors}
SPECIAL = {
    "pipe": "a named pipe",
    "socket": "a socket",
    "device": "a device",
    "folder": "a folder",
}
# The length of a sparse file, which takes no room on the disk.
_SPARSE_BYTES = 30 << 30


@contextlib.contextmanager
def placed(path: Path, kind: str) -> Iterator[None]:
    """Puts something into a file's place: one of `SPECIAL`, or a `sparse` file of 30 GB."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, _SPARSE_BYTES)
    try:
        yield
    finally:
        if kind == "pipe":
            # Who hangs in opening it is let go: the test has failed by then.
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
