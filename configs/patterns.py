"""Regular expressions that users write."""

from __future__ import annotations

import functools
import re

import regex


@functools.cache
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compiles a regular expression of Python's `re` for searches with a time limit.

    Raises:
        ValueError: It is not a valid regular expression.
    """
    try:
        re.compile(pattern)
        return regex.compile(pattern)
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
