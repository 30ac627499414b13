"""Finding the name that a person meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


def did_you_mean(name: str, known: Iterable[str], *, show: Callable[[str], str] = repr) -> str:
    """Words `; did you mean 'x'?` with the known name nearest to `name`; empty if none is near.

    Args:
        name: What was given.
        known: What there is.
        show: Writes the name: names out of data are quoted, those of a vocabulary (`str`) are not.
    """
    # Sorted, so that of two equally near names it is always the same one.
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {show(nearest[0])}?" if nearest else ""
