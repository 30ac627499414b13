"""What was corrected in one image: how often, and the values before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from shardbeam.transforms.core.reasons import Correction

# The values before and after a correction, as short as a person wants to see them: None, numbers,
# texts, or lists of these. None where a value is not known, or nothing is left.
Change: TypeAlias = tuple[Any, Any]

# Of each kind of correction so many are named: in one image, one shard and one file.
MOST_NAMED = 200

_MOST_CHARACTERS = 80
_MOST_VALUES = 8
_DIGITS = 6
# MessagePack has no larger integers.
_INTEGERS = range(-(1 << 63), 1 << 64)


class Corrections(Counter[str]):
    """Counts what is corrected in one image, `{correction: count}`, and keeps what it changes.

    Args:
        counts: What was counted already.
        changes: What is known of that.

    Attributes:
        changes: `{correction: the change of each}`, of the first 200 of each kind.
    """

    def __init__(
        self, counts: Mapping[str, int] | None = None, changes: Mapping[str, Sequence[Change]] = {}
    ) -> None:
        super().__init__(counts)
        self.changes = {what: list(each) for what, each in changes.items()}

    def note(self, what: Correction, before: object = None, after: object = None) -> None:
        """Counts a correction, and keeps the values before and after it."""
        self[what.value] += 1
        changes = self.changes.setdefault(what.value, [])
        if len(changes) < MOST_NAMED:
            changes.append((_shorten(before), _shorten(after)))

    def include(self, counts: Mapping[str, int], changes: Mapping[str, Sequence[Change]]) -> None:
        """Adds what was counted and kept elsewhere."""
        self.update(counts)
        for what, more in changes.items():
            known = self.changes.setdefault(what, [])
            known += more[: MOST_NAMED - len(known)]

    def counts(self) -> dict[str, int]:
        """Returns what was counted, sorted, without zeros."""
        return dict(sorted((+self).items()))


def _shorten(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= _MOST_CHARACTERS else f"{value[:_MOST_CHARACTERS]}…"
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, int):
        return value if value in _INTEGERS else _shorten(str(value))
    if isinstance(value, (list, tuple)):
        return [_shorten(each) for each in value[:_MOST_VALUES]]
    return None
