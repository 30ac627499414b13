"""Checks what callers give to `shardbeam.open` and to the sequence that it returns."""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.storage.base import is_uri


def absolute_path(name: str, path: str | os.PathLike[str]) -> str:
    """Returns a path that is the same in another folder; a URI is returned as it is.

    Args:
        name: The argument.
        path: Its value.

    Raises:
        TypeError: It is neither a text nor a path.
        ValueError: It is empty, or no file can have this name.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected a path, got {shown(path)}")
    # An empty path would be the current folder.
    if not text or "\0" in text or not is_encodable(text, errors="surrogateescape"):
        raise ValueError(f"{name}: expected a path, got {shown(text)}")
    return text if is_uri(text) else os.path.abspath(text)


def check_flag(name: str, value: object) -> None:
    """Checks that the value of an argument is True or False.

    Raises:
        TypeError: It is not; a text such as `"no"` would count as True.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {shown(value)}")


def check_size(name: str, value: object) -> int:
    """Returns a number of bytes as an integer.

    Raises:
        TypeError: It is no integer.
        ValueError: It is below 1.
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a number of bytes, got {shown(value)}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1 byte, got {shown(value)}")
    return int(value)


def check_texts(name: str, values: object, *, what: str) -> tuple[str, ...]:
    """Returns a list of texts as a tuple.

    Args:
        name: The argument.
        values: Its value.
        what: What the texts are, for errors.

    Raises:
        TypeError: It is no list, or something in it is no text.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected a list of {what}, got {shown(values)}")
    texts = tuple(values)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name}: expected a list of {what}, got {shown(text)} in it")
    return texts


def shown(value: object) -> str:
    """Returns a short text of one line for a wrong value."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:
        # Python writes no integers of more than 4,300 digits.
        return f"{type(value).__name__} of too many digits"


def is_encodable(text: str, *, errors: str = "strict") -> bool:
    """Returns whether a text has a form in UTF-8: half of a surrogate pair has none."""
    try:
        text.encode(errors=errors)
    except UnicodeEncodeError:
        return False
    return True


def is_list(index: object) -> bool:
    """Returns whether an index of a sequence is a list, an array or a mask."""
    if isinstance(index, (str, bytes)):
        return False
    return isinstance(index, Sequence) or getattr(index, "ndim", 0) > 0


def as_number(index: object) -> int:
    """Returns the index of one item as an integer.

    Raises:
        TypeError: It is no integer. True and False are none, although Python and PyTorch count
            them as 1 and 0.
    """
    if type(index) is int:
        return index
    if hasattr(index, "dtype"):
        array = np.asarray(index)
        if array.ndim == 0 and array.dtype.kind in "iu":
            return int(array)
    elif isinstance(index, SupportsIndex) and not isinstance(index, bool):
        return operator.index(index)
    raise _no_index(index)


def as_numbers(indexes: Iterable[object], *, size: int) -> list[int]:
    """Returns the indexes of several items as integers.

    Args:
        indexes: A list or an array of integers, or a mask: an array of NumPy, PyTorch or another
            library with a boolean for each item of the sequence.
        size: The length of the sequence.

    Raises:
        TypeError: It is none of these, such as a list of booleans.
        IndexError: A mask has another length than the sequence.
    """
    if not hasattr(indexes, "dtype"):
        return [as_number(index) for index in indexes]
    array: npt.NDArray[Any] = np.asarray(indexes)
    if array.dtype == bool:
        if array.shape != (size,):
            raise IndexError(f"a mask of the shape {array.shape} for a sequence of {size:,} items")
        return np.flatnonzero(array).tolist()
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise _no_index(indexes)
    return array.tolist()


def _no_index(index: object) -> TypeError:
    return TypeError(
        "expected an integer, a slice, a list of integers, or an array of integers or of a boolean "
        f"for each item (a mask), got {shown(index)}"
    )
