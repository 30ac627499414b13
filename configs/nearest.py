"""Suggests the known name that is nearest to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


def did_you_mean(name: str, known: Iterable[str], *, show: Callable[[str], str] = repr) -> str:
    """Returns `; did you mean 'x'?` with the known name nearest to `name`; empty if none is near.

    Args:
        name: The wrong name.
        known: The known names.
        show: Formats the name: `repr` for names from data, `str` for names that Shardbeam defines.
    """
    # Sorted, so that two equally near names always give the same suggestion.
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {show(nearest[0])}?" if nearest else ""
