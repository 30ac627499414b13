"""The errors of a build and of the commands, and what to raise for a run without an outcome."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import traceback
from collections.abc import Iterator

from shardbeam.configs.problem import ShardbeamError
from shardbeam.transforms.core.errors import describe_os_error
from shardbeam.transforms.core.memory import address_space_limit, is_shortage

_log = logging.getLogger(__name__)

# Errors of ours that workers raise; the command reports each in one line.
WORKER_ERRORS = (
    *("InputError", "DamagedError", "SpecialFileError", "UnreadableError", "WriteFailedError"),
    "NoImagesError",
    "UndecidedTableError",
)

# Finds such an error in a runner's text, because runners change an error's type.
_WORKER_ERROR = re.compile(rf"\b(?:{'|'.join(WORKER_ERRORS)}): (?P<message>[^\n]+)")
# A failed job in the words of Flink's job server, as Beam passes them on.
_JOB_FAILED = re.compile(r"Pipeline \S+ failed in state (?P<state>\w+): (?P<cause>[^\n]+)")
# Flink's error of a job that somebody has cancelled, whose state is FAILED.
_CANCELLED = "JobCancellationException"
# The causes of an exception of Java, in its stack trace.
_CAUSED_BY = re.compile(r"^Caused by: ([^\n]+)", re.MULTILINE)
_INTERRUPTED = re.compile(r"^KeyboardInterrupt\b", re.MULTILINE)
_WHILE_RUNNING = re.compile(r" \[while running '[^\n]*$")

# An OSError in such a text: `OSError: [Errno 28] No space left on device: 'a/b'`.
_OS_ERROR = re.compile(r"\b\w+Error: \[Errno (?P<number>\d+)\] (?P<words>[^\n]+)")
_NAMED = re.compile(r"(?P<words>.*?): (?P<quote>['\"])(?P<path>.*)(?P=quote)")

# What a full or failing disk answers.
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})

_NO_MEMORY = os.strerror(errno.ENOMEM)

OWN_LOGGER = "shardbeam"
# Beam warns when it starts or ends a server.
_NOISE = ("Really starting service", "Really destroying service")
# Importing Beam warns, through the root logger, that a package for BigQuery is missing.
_IMPORT_NOISE = "apitools not found"
# They log why credentials cannot be renewed; the error of the next request says it, too.
_S3_LOGGERS = ("aiobotocore.", "botocore.")
# Errors whose traceback in a worker does not help users.
_OUR_ERRORS = (*WORKER_ERRORS, "GateError")
# Begins the text of an OSError.
_OS_ERROR_WORDS = "Error: [Errno "


class UsageError(ShardbeamError):
    """A build or a command cannot be done as asked; the message is one line."""

    exit_code = 2


class RunError(ShardbeamError):
    """A run failed; the message is one line that names the file, the place and the fix."""


class NotStartedError(RunError):
    """The runner does not answer, so no job was started."""


@contextlib.contextmanager
def blaming(named: str) -> Iterator[None]:
    """Makes a system's error one of usage: the file or folder that a flag names cannot be used.

    A disk that is full or fails is no such error: the same command may succeed later.

    Args:
        named: The flag and its value, which begin the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _DISK:
            raise machine_error(OSError(error.errno, error.strerror), path=named) from error
        raise UsageError(f"{named}: {error.strerror or error}") from error


def explain_failure(error: Exception | None) -> Exception:
    """Returns what to raise for a run that could not record its outcome.

    That is a `RunError` if a user can do something about it; the traceback is then logged as DEBUG.
    Otherwise it is `error` itself, so that its whole traceback is shown.
    """
    if error is None:
        return RuntimeError("the run ended without an error and without an outcome")
    return _logged(_explain_text(error) or error, raised=error)


def _explain_text(error: Exception) -> RunError | None:
    """Finds the cause of an error in its text, because runners change the types of errors."""
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
    os_error = _OS_ERROR.search(text)
    if os_error is not None:
        words = _WHILE_RUNNING.sub("", os_error["words"])
        named = _NAMED.fullmatch(words)
        strerror, path = (named["words"], named["path"]) if named else (words, "")
        return machine_error(OSError(int(os_error["number"]), strerror), path=path)
    failed = _JOB_FAILED.search(text)
    if failed is not None and (failed["state"] == "CANCELLED" or _CANCELLED in failed["cause"]):
        return RunError(
            "the job was cancelled on its cluster; run the same command again, a build keeps its "
            "finished shards"
        )
    if failed is not None:
        return RunError(f"the job ended as {failed['state']}: {failed['cause']}")
    return None


def find_cause(trace: str) -> str:
    """Finds the cause in a stack trace of Java, perhaps with one of Python inside, as one line."""
    found = _WORKER_ERROR.search(trace)
    if found is not None:
        return _WHILE_RUNNING.sub("", found["message"])
    causes = _CAUSED_BY.findall(trace) or trace.strip().splitlines()[:1] or ["no reason given"]
    return " ".join(causes[-1].split())


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes, the deepest last.

    It yields each of them once: an error may be its own cause, directly or through others.
    """
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        yield behind
        behind = behind.__cause__ or behind.__context__


def find_shortage(error: BaseException) -> RunError | None:
    """Returns the error to show if a lack of memory caused an error; otherwise None."""
    # The deepest cause has the most useful message.
    *_, found = (None, *filter(is_shortage, list_causes(error)))
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
    """Returns our error if the machine fails or memory is short; otherwise `error` itself.

    The traceback of an error that is replaced is logged as DEBUG.
    """
    if isinstance(error, ShardbeamError):
        return error
    explained: Exception | None = find_shortage(error)
    if explained is None and isinstance(error, OSError):
        explained = machine_error(error)
    return _logged(explained or error, raised=error)


def _logged(explained: Exception, *, raised: Exception) -> Exception:
    if explained is not raised:
        _log.debug("%s", explained, exc_info=raised)
    return explained


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
    words = describe_os_error(error, path=path)
    return RunError(f"{words}; fix it and run the same command again")


def ended_as_failed(error: Exception) -> bool:
    """Whether the job server reports that the job failed and ended."""
    return _JOB_FAILED.search("".join(traceback.format_exception(error))) is not None


def _one_line(text: str) -> str:
    """Cuts a traceback down to its last line, and puts the text on one line."""
    before, _, trace = text.partition("Traceback (most recent call last)")
    last = trace.strip().rpartition("\n")[2]
    return " ".join(f"{before} {last}".split())


def is_news(record: logging.LogRecord) -> bool:
    """Whether a log record says more than the error that a command or a call ends with.

    The noise of Beam and of its imports does not, nor do the tracebacks of the libraries of S3.
    """
    if record.name.startswith(_S3_LOGGERS) and record.exc_info:
        return False
    if not record.name.startswith("apache_beam"):
        return record.name != "root" or not record.getMessage().startswith(_IMPORT_NOISE)
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, OSError) or (
        error is not None and (type(error).__name__ in _OUR_ERRORS or is_shortage(error))
    ):
        return False
    message = record.getMessage()
    return not any(text in message for text in (*_OUR_ERRORS, _OS_ERROR_WORDS, *_NOISE))
