"""The errors of a build and of the commands, and what to raise for a run without an outcome."""

from __future__ import annotations

import errno
import os
import re
import traceback

from shardbeam.configs.problem import ShardbeamError
from shardbeam.transforms.core.memory import address_space_limit, is_shortage

# Errors of ours that workers raise; the command reports each in one line.
WORKER_ERRORS = (
    *("InputError", "DamagedError", "SpecialFileError", "UnreadableError", "WriteFailedError"),
)

# Finds such an error in a runner's text, because runners change an error's type.
_WORKER_ERROR = re.compile(rf"\b(?:{'|'.join(WORKER_ERRORS)}): (?P<message>[^\n]+)")
# A failed job in the words of Flink's job server, as Beam passes them on.
_JOB_FAILED = re.compile(r"Pipeline \S+ failed in state (?P<state>\w+): (?P<cause>[^\n]+)")
_INTERRUPTED = re.compile(r"^KeyboardInterrupt\b", re.MULTILINE)
_WHILE_RUNNING = re.compile(r" \[while running '[^\n]*$")

_NO_MEMORY = os.strerror(errno.ENOMEM)
# Errors of the machine, not of the code.
_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT),
    }
)


class UsageError(ShardbeamError):
    """A build or a command cannot be done as asked; the message is one line."""


class RunError(ShardbeamError):
    """A run failed; the message is one line that names the file, the place and the fix."""


class NotStartedError(RunError):
    """The runner does not answer, so no job was started."""


def explain_failure(error: Exception | None) -> Exception:
    """Returns what to raise for a run that could not record its outcome.

    That is a `RunError` if a user can do something about it, and otherwise `error` itself, so that
    its whole traceback is shown.
    """
    if error is None:
        return RuntimeError("the run ended without an error and without an outcome")
    text = "".join(traceback.format_exception(error))
    found = _WORKER_ERROR.search(text)
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
    """Returns the error to show if a lack of memory caused an error; otherwise None."""
    found: BaseException | None = None
    behind: BaseException | None = error
    while behind is not None:
        # The deepest cause has the most useful message.
        found = behind if is_shortage(behind) else found
        behind = behind.__cause__ or behind.__context__
    if found is None:
        return None
    return shortage_error(_one_line(_WHILE_RUNNING.sub("", str(found))) or type(found).__name__)


def shortage_error(cause: str) -> RunError:
    """Makes the error to show for a lack of memory; its message is one line."""
    limit = address_space_limit()
    raised = "more memory" if limit is None else f"more than `ulimit -v` {limit // 1024}"
    return RunError(
        f"out of memory or address space ({cause}): give it {raised}, or make it take less with "
        "--processes=1 and --memory=100, and run the same command again"
    )


def explain(error: Exception) -> Exception:
    """Returns our error if the machine fails or memory is short; otherwise `error` itself."""
    if isinstance(error, ShardbeamError):
        return error
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return machine_error(error)
    return find_shortage(error) or error


def was_interrupted(error: Exception) -> bool:
    """Whether a KeyboardInterrupt ended a run in this process.

    Beam puts the traceback of whatever ends a step into the text of a RuntimeError.
    """
    return _INTERRUPTED.search(str(error)) is not None


def machine_error(error: OSError, *, path: str = "") -> RunError:
    """Makes the error to show if a disk or another storage fails.

    Args:
        error: The error.
        path: The file or folder, for errors that do not name it.
    """
    where = error.filename or path
    words = f"{where}: {error.strerror or error}" if where else error.strerror or error
    return RunError(f"{words}; fix it and run the same command again")


def ended_as_failed(error: Exception) -> bool:
    """Whether the job server reports that the job failed and ended."""
    return _JOB_FAILED.search("".join(traceback.format_exception(error))) is not None


def _one_line(text: str) -> str:
    """Cuts a traceback down to its last line, and puts the text on one line."""
    before, _, trace = text.partition("Traceback (most recent call last)")
    last = trace.strip().rpartition("\n")[2]
    return " ".join(f"{before} {last}".split())
