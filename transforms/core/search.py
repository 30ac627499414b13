"""Searches texts with users' regular expressions, for a limited time: some would run forever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbeam.configs.patterns import compile_pattern
from shardbeam.transforms.core.errors import InputError

if TYPE_CHECKING:
    import regex


# CPU time of the process. A usual search takes microseconds.
_TIMEOUT_S = 1.0


def search(pattern: str, text: str, *, setting: str) -> regex.Match[str] | None:
    """Searches a text, as `re.search` does; docs/reference/limits.md says what differs.

    Args:
        pattern: A valid regular expression.
        text: The text to search, such as a key.
        setting: The setting that holds the pattern, for the error.

    Raises:
        InputError: The search takes more than a second of CPU time.
    """
    try:
        return compile_pattern(pattern).search(text, timeout=_TIMEOUT_S)
    except TimeoutError:
        raise InputError(
            uri=text,
            problem=f"searching it for {setting} ({pattern}) takes more than {_TIMEOUT_S:.0f} s; "
            "write the pattern so that it matches a text in one way only: a+ instead of (a|aa)+",
        ) from None
