"""Text for people and pipes: stdout that may be gone, names that may hold anything."""

from __future__ import annotations

import os
import sys


def escape(text: str) -> str:
    r"""Writes what a terminal would obey, or cannot show, as `\x1b` or `\udcff`."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def write_stdout(text: str) -> bool:
    """Writes to stdout, whatever its encoding.

    Returns:
        Whether somebody reads it; a reader that has left is no error.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
