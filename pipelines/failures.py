"""The errors of a command, and what to raise for a run that could not record its outcome."""

from __future__ import annotations

import errno
import os
import re
import traceback

from shardbeam.transforms.core.memory import address_space_limit, is_shortage

# How an error of ours looks in the text of a runner's error, which has lost its type.
_INPUT_ERROR = re.compile(r"\b(?:Input|Damaged|SpecialFile|WriteFailed)Error: (?P<message>[^\n]+)")
# What Flink's job server says of a job that failed, and what Beam makes of it.
_JOB_FAILED = re.compile(r"Pipeline \S+ failed in state (?P<state>\w+): (?P<cause>[^\n]+)")
_WHILE_RUNNING = re.compile(r" \[while running '[^\n]*$")

# How the system says so.
_NO_MEMORY = os.strerror(errno.ENOMEM)
# What the machine is to blame for, and no code.
_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT),
    }
)


class UsageError(Exception):
    """What the command line asks for cannot be done; the message is one line."""


class RunError(Exception):
    """A run failed; the message is one line that names the file, the place and the fix."""


class NotStartedError(RunError):
    """A runner is not there, so that no job was started."""


def explain_failure(error: Exception | None) -> Exception:
    """Returns what to raise for a run that could not record its outcome.

    A `RunError` where there is something that a user could mend, and otherwise `error` itself:
    all of it is to be seen.
    """
    if error is None:
        return RuntimeError("the run ended without an error and without an outcome")
    text = "".join(traceback.format_exception(error))
    found = _INPUT_ERROR.search(text)
    if found is None or _NO_MEMORY in found["message"]:
        shortage = find_shortage(error)
        if shortage is not None:
            return shortage
    if found is not None:
        return RunError(_WHILE_RUNNING.sub("", found["message"]))
    if isinstance(error, RunError):
        return RunError(_one_line(str(error)))
    failed = _JOB_FAILED.search(text)
    if failed is not None:
        return RunError(f"the job ended as {failed['state']}: {failed['cause']}")
    return error


def find_shortage(error: BaseException) -> RunError | None:
    """Returns the error of a process that gets no more memory, if that is behind an error."""
    found: BaseException | None = None
    behind: BaseException | None = error
    while behind is not None:
        # What is behind all others says it best.
        found = behind if is_shortage(behind) else found
        behind = behind.__cause__ or behind.__context__
    if found is None:
        return None
    return shortage_error(_one_line(_WHILE_RUNNING.sub("", str(found))) or type(found).__name__)


def shortage_error(cause: str) -> RunError:
    """Returns the error of a process that gets no more memory; its message is one line."""
    limit = address_space_limit()
    raised = "more memory" if limit is None else f"more than `ulimit -v` {limit // 1024}"
    return RunError(
        f"out of memory or address space ({cause}): give it {raised}, or let it take less by fewer "
        "--processes (1) and a smaller --memory (such as 100), and run the same command again"
    )


def explain_os_error(error: Exception) -> Exception:
    """Returns a `RunError` for what the machine is to blame for, such as a failing disk."""
    if not isinstance(error, OSError) or error.errno not in _ERRNOS:
        return error
    return machine_error(error)


def machine_error(error: OSError, *, path: str = "") -> RunError:
    """Puts an error of a disk or another storage into words: no usage is wrong, and it may pass.

    Args:
        error: The error.
        path: What was looked at, where the error does not say it.
    """
    where = error.filename or path
    words = f"{where}: {error.strerror or error}" if where else error.strerror or error
    return RunError(f"{words}; mend it and run the same command again")


def ended_as_failed(error: Exception) -> bool:
    """Says whether a job server told that the job itself has failed: it is no more."""
    return _JOB_FAILED.search("".join(traceback.format_exception(error))) is not None


def _one_line(text: str) -> str:
    """Leaves a traceback out, and puts what is left on one line."""
    before, _, trace = text.partition("Traceback (most recent call last)")
    last = trace.strip().rpartition("\n")[2]
    return " ".join(f"{before} {last}".split())
