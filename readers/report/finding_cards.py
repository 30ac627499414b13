"""Describes the findings in an image, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from shardbeam.transforms.core.text import NO_NAME
from shardbeam.transforms.dataset.example_findings import (
    BOX_OFF_MASK,
    DUPLICATE_BOX,
    LARGE_BOX,
    MANY_OBJECTS,
    SAME_BOX,
    SPARSE_MASK,
    THIN_BOX,
    TINY_BOX,
    Finding,
)
from shardbeam.transforms.dataset.findings import KINDS, SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.images.measures import BRIGHT_PICTURE, DARK_PICTURE, LOW_CONTRAST

# {kind: its strength in words}; strengths are described in docs/reference/statistics.md.
_STRENGTHS: Mapping[str, Callable[[int], str]] = {
    DUPLICATE_BOX: lambda strength: f"{strength / 10_000:.1f} % in common",
    SAME_BOX: lambda strength: f"{strength / 10_000:.1f} % in common",
    LARGE_BOX: lambda strength: f"{strength / 10_000:.1f} % of the image",
    TINY_BOX: lambda strength: f"{16_000 / max(1, strength):.2g} px²",
    THIN_BOX: lambda strength: f"{strength / 1000:,.0f} to 1",
    SPARSE_MASK: lambda strength: f"{100_000 / max(1, strength):.2g} % of the box",
    BOX_OFF_MASK: lambda strength: f"{(1_000_000 - strength) / 10_000:.1f} % in common",
    SAME_PICTURE: lambda strength: f"{strength} of 64 bits agree",
    UNEQUAL_OBJECTS: lambda strength: f"{strength / 10_000:.1f} % of the objects differ",
    MANY_OBJECTS: lambda strength: f"{strength:,} objects",
    DARK_PICTURE: lambda strength: f"99 of 100 pixels at most at gray level {255 - strength}",
    BRIGHT_PICTURE: lambda strength: f"99 of 100 pixels at least at gray level {strength}",
    LOW_CONTRAST: lambda strength: f"a contrast of {255 - strength} of 255 gray levels",
}


def describe_strength(kind: str, strength: int) -> str:
    """Says how far a finding is from usual; empty for kinds that are there or not."""
    describe = _STRENGTHS.get(kind)
    return describe(strength) if describe else ""


class Note(NamedTuple):
    """The findings of one kind in a picture.

    Attributes:
        kind: The kind.
        text: The strongest one: its classes and how far it is from usual; may be empty.
        objects: The numbers of the objects of all of them.
        strength: The greatest strength (`dataset.example_findings.Finding`).
    """

    kind: str
    text: str
    objects: tuple[int, ...] = ()
    strength: int = 0

    @property
    def title(self) -> str:
        """What is found."""
        return KINDS.get(self.kind, self.kind)


def make_notes(of_objects: Iterable[Finding], of_index: Iterable[tuple[str, int]]) -> list[Note]:
    """Describes the findings of an image.

    Args:
        of_objects: The findings of its Example.
        of_index: `(kind, strength)` of its findings in the index, which has more kinds.
    """
    by_kind: dict[str, list[Finding]] = {}
    for each in of_objects:
        by_kind.setdefault(each.kind, []).append(each)
    for kind, strength in of_index:
        by_kind.setdefault(kind, [Finding(kind, strength)])
    return [_note(by_kind[kind]) for kind in KINDS if kind in by_kind]


def _note(found: Sequence[Finding]) -> Note:
    first = min(found, key=lambda each: (-each.strength, each.objects))
    names = [first.name, *([first.other] if first.other else [])] if first.objects else []
    parts = [
        " + ".join(name.decode(errors="replace") or NO_NAME for name in names),
        describe_strength(first.kind, first.strength),
        f"and {len(found) - 1:,} more" if len(found) > 1 else "",
    ]
    objects = dict.fromkeys(number for each in found for number in each.objects)
    return Note(first.kind, ", ".join(filter(None, parts)), tuple(objects), first.strength)
