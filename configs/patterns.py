"""Regular expressions that users write."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex


@functools.cache
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compiles a regular expression of Python's `re`, for searches that may be given a time.

    Raises:
        ValueError: It is none.
    """
    # Imported here: what only prints help does without it.
    import regex

    try:
        re.compile(pattern)
        return regex.compile(pattern)
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
