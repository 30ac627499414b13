"""Searching with regular expressions that users write, some of which would never end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbeam.configs.patterns import compile_pattern
from shardbeam.transforms.core.errors import InputError

if TYPE_CHECKING:
    import regex

# Of the process's CPU time. A search takes microseconds.
_TIMEOUT_S = 1.0


def search(pattern: str, text: str, *, setting: str) -> regex.Match[str] | None:
    """Searches a text, as `re.search` does; docs/limits.md says what differs.

    Args:
        pattern: A valid regular expression.
        text: Where it is searched: a key.
        setting: What sets the pattern, for the error.

    Raises:
        InputError: The search takes more than a second of CPU time.
    """
    try:
        return compile_pattern(pattern).search(text, timeout=_TIMEOUT_S)
    except TimeoutError:
        raise InputError(
            uri=text,
            problem=f"searching it for {setting} ({pattern}) takes more than {_TIMEOUT_S:.0f} s; "
            "write the pattern so that a text fits it in one way only, for instance a+ for (a|aa)+",
        ) from None
