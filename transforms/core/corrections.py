"""The corrections of one image: their counts, and the values before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from shardbeam.transforms.core.reasons import Correction

# The values before and after a correction, shortened for a person: None, numbers, texts, or lists
# of these. None stands for an unknown value, or for nothing left.
Change: TypeAlias = tuple[Any, Any]

# At most this many corrections of a kind keep their values, in each image, shard or file.
MOST_NAMED = 200

_MOST_CHARACTERS = 80
_MOST_VALUES = 8
_DIGITS = 6
# The integers that MessagePack can hold.
_INTEGERS = range(-(1 << 63), 1 << 64)


class Corrections(Counter[str]):
    """Counts the corrections of one image, `{correction: count}`, and keeps the changed values.

    Args:
        counts: Counts to start from.
        changes: The known changes of these corrections.
        lost: The known objects without a box, which are counted already.

    Attributes:
        changes: `{correction: its changes}`, the first 200 of each kind.
        lost: `{class: {shape: objects}}` of the objects that have a class and no box
            (`note_lost`).
    """

    def __init__(
        self,
        counts: Mapping[str, int] | None = None,
        changes: Mapping[str, Sequence[Change]] = {},
        lost: Mapping[str, Mapping[str, int]] = {},
    ) -> None:
        super().__init__(counts)
        self.changes = {what: list(each) for what, each in changes.items()}
        self.lost = {label: dict(shapes) for label, shapes in lost.items()}

    def note(self, what: Correction, before: object = None, after: object = None) -> None:
        """Counts a correction and keeps the values before and after it."""
        self[what.value] += 1
        changes = self.changes.setdefault(what.value, [])
        if len(changes) < MOST_NAMED:
            changes.append((_shorten(before), _shorten(after)))

    def note_lost(self, label: str, shape: str) -> None:
        """Counts an object that has no box, with its class and the shape that it has instead."""
        self.note(Correction.OBJECT_WITHOUT_BOX_DROPPED, f"{label} ({shape})")
        self.include_lost({label: {shape: 1}})

    def include(self, counts: Mapping[str, int], changes: Mapping[str, Sequence[Change]]) -> None:
        """Adds other counts and changes."""
        self.update(counts)
        for what, more in changes.items():
            known = self.changes.setdefault(what, [])
            known += more[: MOST_NAMED - len(known)]

    def include_lost(self, lost: Mapping[str, Mapping[str, int]]) -> None:
        """Adds objects without a box to `lost`; they are counted already."""
        for label, shapes in lost.items():
            known = self.lost.setdefault(label, {})
            for shape, count in shapes.items():
                known[shape] = known.get(shape, 0) + count

    def counts(self) -> dict[str, int]:
        """Returns the counts, sorted by code, without zeros."""
        return dict(sorted((+self).items())) if self else {}

    def fields(self) -> dict[str, Any]:
        """Returns the fields of `ImageAnnotations` that hold the corrections."""
        return {"corrections": self.counts(), "changes": self.changes, "lost": self.lost}


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
