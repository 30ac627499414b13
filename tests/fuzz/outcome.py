"""Code that the fuzzers of formats share: writes files and checks errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError

T = TypeVar("T")

# Most runs write to memory, not to a disk.
FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None


def read_or_refuse(read: Callable[[], T], *, uri: str, place: str = "") -> T | None:
    """Reads an input; None where that ends in a `Problem` or in an `InputError`.

    Args:
        read: Reads it.
        uri: The file, or the folder that it is in.
        place: What an error's place in the file begins with.
    """
    try:
        return read()
    except InputError as error:
        _check(error, uri=uri, place=place)
        return None
    except Problem:
        # A key of the config has to decide.
        return None


def _check(error: InputError, *, uri: str, place: str) -> None:
    assert error.uri.startswith(uri), error
    assert error.place.startswith(place)
    assert error.problem, error
    assert "\n" not in str(error), error
