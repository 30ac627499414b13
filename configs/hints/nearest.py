"""Finds the known name that a wrong one was probably meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A shorter word begins too many names.
_BEGINNING = 3


def nearest_name(name: str, known: Iterable[str], *, part: int = 3) -> str | None:
    """Returns the known name that is nearest to a wrong one, or None if none is near.

    A known name is near if the wrong one is at a distance of 1, or of at most a third of the longer
    name's length; or if it begins with the wrong one (3 letters or more), or has it as its first or
    last words, divided by `-` or `_`. Upper and lower case, and `-` and `_`, count as the same.

    Args:
        name: The wrong name.
        known: The known names.
        part: The distance is at most this part of the longer name: 3 is a third.
    """
    ranks = ((_rank(name, other, part=part), other) for other in known)
    return min(((rank, other) for rank, other in ranks if rank), default=(None, None))[1]


def _rank(name: str, other: str, *, part: int) -> tuple[int, int] | None:
    """Returns how far a known name is: the smaller, the nearer. None if it is not near."""
    one, two = _plain(name), _plain(other)
    longest = max(len(one), len(two))
    distance = edit_distance(one, two, most=max(1, longest // part))
    # Two names of one character have nothing in common at a distance of 1.
    if distance is not None and distance <= 1 and distance < longest:
        return (0, distance)
    starts = len(one) >= _BEGINNING and two.startswith(one)
    if one and (starts or two.startswith(f"{one}-") or two.endswith(f"-{one}")):
        return (1, len(two) - len(one))
    return None if distance is None or distance == longest else (2, distance)


def _plain(name: str) -> str:
    return re.sub("_", "-", name.casefold()).lstrip("-")


def edit_distance(one: str, two: str, *, most: int) -> int | None:
    """Returns how many characters are to insert, delete, replace or swap with the next one.

    This is the optimal string alignment distance: no character is changed twice.

    Args:
        one: A text.
        two: The other one.
        most: The largest distance that is of interest.

    Returns:
        The distance; None if it is larger than `most`.
    """
    if abs(len(one) - len(two)) > most:
        return None
    above: list[int] = []
    row = [*range(len(two) + 1)]
    for i, letter in enumerate(one, start=1):
        before, above, row = above, row, [i]
        for j, other in enumerate(two, start=1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and (letter, other) == (two[j - 2], one[i - 2]):
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        # A swap goes back to the row before the last.
        if min(*row, *above) > most:
            return None
    return row[-1] if row[-1] <= most else None
