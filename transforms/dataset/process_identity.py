"""Which process of which boot of which machine: so that its end can be told, where it can."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMESPACE = "/proc/self/ns/pid"
# Processes that run no more, and whose number is only kept for their parents.
_ENDED_STATES = frozenset("ZXx")


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process, told apart from any that gets its number later.

    Attributes:
        pid: Its number.
        boot: The kernel's random id of the boot that it runs under.
        namespace: The namespace of process numbers; containers have their own.
        started: Its start, in clock ticks since the boot.
    """

    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    boot: str
    namespace: str
    started: int


def own_process() -> ProcessIdentity | None:
    """Identifies this process; None where the system has no `/proc` that could tell."""
    pid = os.getpid()
    try:
        with open(_BOOT_ID) as file:
            boot = file.read().strip()
        namespace = os.readlink(_NAMESPACE)
        # Where `/proc` is that of another namespace, it shows another process under this number.
        if os.readlink("/proc/self") != str(pid):
            return None
        _, started = _read_stat(pid)
    except (OSError, ValueError):
        return None
    return ProcessIdentity(pid=pid, boot=boot, namespace=namespace, started=started)


def has_ended(process: ProcessIdentity) -> bool:
    """Says whether a process is known to have ended.

    False also where that cannot be known: it runs on another machine, in another container, or
    before the last boot of this one.
    """
    own = own_process()
    if own is None or (own.boot, own.namespace) != (process.boot, process.namespace):
        return False
    try:
        state, started = _read_stat(process.pid)
    except (FileNotFoundError, ProcessLookupError):
        return _is_unused(process.pid)
    except (OSError, ValueError):
        return False
    return state in _ENDED_STATES or started != process.started


def _is_unused(pid: int) -> bool:
    # `/proc` may hide other users' processes.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _read_stat(pid: int) -> tuple[str, int]:
    """Returns a process's state and start (proc_pid_stat(5), fields 3 and 22)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field is the program's name, in which anything may stand.
        fields = file.read().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("not a process's status")
    return fields[0].decode("ascii", "replace"), int(fields[19])
