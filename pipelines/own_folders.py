"""Folders for a command's own files, which are removed when it ends, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from shardbeam.pipelines.interrupts import delay_interrupts, do_when_interrupted, handles_signals
from shardbeam.transforms.core.temporary_files import (
    COMMAND_FOLDER,
    TEMPORARY_PREFIX,
    machine_folder,
)
from shardbeam.transforms.storage.local import make_folders, remove_empty

# Begins the names of the folders that `folder_inside` makes.
FOLDER_INSIDE = ".shardbeam-"
# Seconds that a command may take to lock its new folder.
_YOUNG_S = 60
# A folder without this file is not ours, whatever its name.
_MARKER = "shardbeam-temporary"
_MARKER_TEXT = b"Shardbeam removes this folder when no command uses it.\n"


@contextlib.contextmanager
def temporary_folder(*, prefix: str = TEMPORARY_PREFIX, parent: str | None = None) -> Iterator[str]:
    """Makes a temporary folder, which is removed after a signal, too."""
    with contextlib.ExitStack() as stack:
        with delay_interrupts():
            temporary = tempfile.TemporaryDirectory(
                prefix=prefix, dir=parent, ignore_cleanup_errors=True
            )
            # A signal may come while the folder is being removed, too.
            stack.enter_context(do_when_interrupted(functools.partial(_remove, temporary.name)))
        yield stack.enter_context(temporary)


def _remove(folder: str) -> None:
    gone = f"{folder}-gone"
    # Renamed first, so that running code creates nothing more in it.
    os.rename(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextlib.contextmanager
def folder_inside(path: str) -> Iterator[str]:
    """Makes a hidden folder in a folder, for files that are moved up when they are complete.

    It is removed at the end, and after a signal. If a command was killed, a later one that writes
    into the same folder removes it.

    Args:
        path: The folder. If it, or folders above it, are not there they are made, and removed again
            if nothing is in them.

    Raises:
        OSError: No folder can be made there.
    """
    with contextlib.ExitStack() as stack:
        with delay_interrupts():
            remove = functools.partial(remove_empty, make_folders(path))
            stack.callback(remove)
            stack.enter_context(do_when_interrupted(remove))
        _remove_left(path, prefix=FOLDER_INSIDE)
        folder = stack.enter_context(temporary_folder(prefix=FOLDER_INSIDE, parent=path))
        # Some network mounts keep no locks; then nobody removes another command's folder.
        with contextlib.suppress(OSError):
            stack.callback(os.close, _lock(folder))
        _mark(folder)
        yield folder


def own_temporary_files(*, outlived: bool = False) -> None:
    """Gives this process and its child processes one folder for all their temporary files.

    Beam and the processes that write shards leave files behind when they are interrupted. So the
    folder is removed when the command ends; if it was killed, a later command removes it. A lock
    (flock) on the folder shows that its command runs.

    It does nothing in a program that calls `main`, whose other threads have temporary files, too.
    If no folder can be made, it does nothing either: code that needs one raises its own error.

    Args:
        outlived: Whether a job may go on without the command. Then it does nothing, because the job
            needs files of Beam's job server.
    """
    if outlived or not handles_signals():
        return
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        outer = machine_folder()
        if tempfile.gettempdir() != outer:
            # An earlier step of this command has made one.
            return
        _remove_left(outer, prefix=COMMAND_FOLDER)
        folder = stack.enter_context(temporary_folder(prefix=COMMAND_FOLDER))
        # The lock lasts until this process ends.
        _lock(folder)
        _mark(folder)
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        # Exit functions run in reverse order: Beam's job servers, which register theirs later, have
        # removed their files by then.
        atexit.register(stack.pop_all().close)


def _lock(folder: str) -> int:
    """Locks a folder until the returned descriptor is closed; child processes do not inherit it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mark(folder: str) -> None:
    with open(os.path.join(folder, _MARKER), "xb") as marker:
        marker.write(_MARKER_TEXT)


def _remove_left(outer: str, *, prefix: str) -> None:
    """Removes the folders of this user's commands that were killed: those with our marker."""
    for entry in os.scandir(outer):
        with contextlib.suppress(OSError):
            if not entry.name.startswith(prefix):
                continue
            stat = entry.stat(follow_symlinks=False)
            if stat.st_uid != os.geteuid() or time.time() - stat.st_mtime < _YOUNG_S:
                continue
            descriptor = _lock(entry.path)
            try:
                if _is_marked(entry.path):
                    _empty(entry.path)
            finally:
                os.close(descriptor)


def _is_marked(folder: str) -> bool:
    descriptor = os.open(os.path.join(folder, _MARKER), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(len(_MARKER_TEXT) + 1) == _MARKER_TEXT


def _empty(folder: str) -> None:
    """Removes a folder, its marker last: a removal that is cut short can be repeated."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name != _MARKER:
            os.unlink(entry.path)
    os.unlink(os.path.join(folder, _MARKER))
    os.rmdir(folder)
