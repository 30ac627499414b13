"""Errors that name the file, the place and the fix."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import msgspec

from shardbeam.configs.passwords import hide_passwords
from shardbeam.configs.problem import ShardbeamError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.temporary_files import temporary_folder_of

# What decoders raise.
DECODING_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class InputError(ShardbeamError):
    """The run stops because its input as a whole cannot be used.

    Attributes:
        uri: The file or folder that the error is about.
        place: Where in it, such as `$.annotations[3].bbox` or `line 4, column 17`; may be empty.
        problem: What is wrong, what was expected, and how to fix it.
    """

    def __init__(self, *, uri: str, place: str = "", problem: str) -> None:
        self.uri = uri
        self.place = place
        self.problem = problem
        super().__init__(
            hide_passwords(f"{uri}: {place}: {problem}" if place else f"{uri}: {problem}")
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive BaseException's own pickling.
        return (_rebuild, (type(self), self.uri, self.place, self.problem))


def unreadable(uri: str, error: OSError) -> InputError:
    """Makes the error for a file or folder that the system cannot read."""
    return InputError(uri=uri, problem=f"cannot be read: {error.strerror or error}")


@contextlib.contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turns the system's errors inside the context into an `InputError` that names the file."""
    try:
        yield
    except OSError as error:
        raise unreadable(uri, error) from error


@contextlib.contextmanager
def decoding(uri: str, what: str, *, place: str = "", fix: str = "") -> Iterator[None]:
    """Turns errors of decoding inside the context into an `InputError` that names the file.

    Args:
        uri: The file.
        what: What its content should be, such as "a manifest of Shardbeam".
        place: Where in the file the content is.
        fix: Ends the message, after the decoder's words.
    """
    try:
        yield
    except DECODING_ERRORS as error:
        raise InputError(uri=uri, place=place, problem=f"not {what}: {error}{fix}") from error


class DamagedError(InputError):
    """A file was read, but its content is not what it should be."""


class UnreadableError(InputError):
    """An open file cannot be read any more: it has changed, or its disk has failed."""


def _rebuild(kind: type[InputError], uri: str, place: str, problem: str) -> InputError:
    return kind(uri=uri, place=place, problem=problem)


class RejectedError(Exception):
    """One image cannot be used: it becomes a reject, and the run goes on.

    Attributes:
        reason: The stable reason code.
        detail: The cause in words.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason.value}: {detail}")


def describe_os_error(error: OSError, *, path: str = "") -> str:
    """Describes an error of the system: the file, the words of the system, and their code.

    Args:
        error: The error.
        path: The file or folder, for errors that do not name it.
    """
    where = str(error.filename or path)
    what = error.strerror or str(error) or type(error).__name__
    if error.errno is not None and error.errno in errno.errorcode:
        what += f" ({errno.errorcode[error.errno]})"
    words = f"{where}: {what}" if where else what
    folder = temporary_folder_of(where) if error.errno in _FULL else ""
    if not folder:
        return words
    return (
        f"the folder of temporary files, {folder}, has no room left; free some, or set TMPDIR to a "
        f"folder that has room ({words})"
    )


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Gives the OSErrors inside the context the name of their file.

    Those of an open file have none: Python knows only its number.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise
