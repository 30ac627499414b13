"""The CPU quota of Linux control groups (cgroups): CPUs that a container may use on the average.

The formats of the files: https://man7.org/linux/man-pages/man7/cgroups.7.html and
https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html; of `cpu.max`:
https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_PROCESS = Path("/proc/self")
_UP = ".."


class _Mount(NamedTuple):
    """A mounted hierarchy of groups.

    Attributes:
        root: The group that `point` shows.
        point: The folder where it is mounted.
        kind: The type of its file system: `cgroup` (version 1) or `cgroup2`.
        controllers: The controllers of a hierarchy of version 1, among other options.
    """

    root: PurePosixPath
    point: Path
    kind: str
    controllers: frozenset[str]


def cpu_quota(*, process: Path = _PROCESS) -> float | None:
    """Returns how many CPUs the groups of a process may use, on the average.

    The smallest quota counts, of the process's group and of all groups that contain it. Groups
    outside of what is mounted cannot be seen from inside a container.

    Args:
        process: The folder in `/proc` that describes the process.

    Returns:
        The number of CPUs, such as 1.5; None if there is no quota, or none that can be read.
    """
    try:
        groups = os.fsdecode((process / "cgroup").read_bytes())
        mounts = os.fsdecode((process / "mountinfo").read_bytes())
    except OSError:
        # Not Linux.
        return None
    kind, group = _find_group(groups)
    quotas = [
        quota
        for mount in _list_mounts(mounts)
        if mount.kind == kind and (kind == "cgroup2" or "cpu" in mount.controllers)
        for folder in _folders(group, mount=mount)
        if (quota := _read_quota(folder)) is not None
    ]
    return min(quotas, default=None)


def _find_group(text: str) -> tuple[str, PurePosixPath]:
    """Finds the group that has the `cpu` controller, in a file like `/proc/self/cgroup`.

    If both versions are mounted, the controller belongs to the one that names it.
    """
    unified = PurePosixPath("/")
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            return "cgroup", PurePosixPath(path)
        if number == "0" and not controllers:
            unified = PurePosixPath(path)
    return "cgroup2", unified


def _list_mounts(text: str) -> Iterator[_Mount]:
    """Lists what is mounted, from a file like `/proc/self/mountinfo`."""
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if len(fields) >= 5 and len(source) >= 3:
            yield _Mount(
                root=PurePosixPath(_unescape(fields[3])),
                point=Path(_unescape(fields[4])),
                kind=source[0],
                controllers=frozenset(source[2].split(",")),
            )


def _unescape(text: str) -> str:
    # The kernel writes spaces, tabs, line ends and backslashes as octal numbers.
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _folders(group: PurePosixPath, *, mount: _Mount) -> Iterator[Path]:
    """Lists the folders of a group and of those that contain it, as far as a mount shows them."""
    inside: tuple[str, ...] = ()
    # Otherwise only the mounted group is known: a container's runtime mounts the container's own,
    # and the process may have another name for it.
    if group.is_relative_to(mount.root):
        inside = group.relative_to(mount.root).parts
    if _UP in inside:
        inside = ()
    folder = mount.point.joinpath(*inside)
    yield folder
    for _ in inside:
        folder = folder.parent
        yield folder


def _read_quota(folder: Path) -> float | None:
    """Reads the quota of one group; None if it has none."""
    # A missing file, `max` and -1 mean no quota.
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return _divide(quota, period)
    with contextlib.suppress(OSError, ValueError):
        return _divide(
            (folder / "cpu.cfs_quota_us").read_text(encoding="ascii"),
            (folder / "cpu.cfs_period_us").read_text(encoding="ascii"),
        )
    return None


def _divide(quota_us: str, period_us: str) -> float | None:
    quota, period = int(quota_us), int(period_us)
    return quota / period if quota > 0 and period > 0 else None
