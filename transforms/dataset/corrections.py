"""The files of corrections: JSON Lines, the first 200 of each kind in each split."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from shardbeam.transforms.core.corrections import MOST_NAMED, Corrections
from shardbeam.transforms.core.records import Corrected, Record

CORRECTIONS_FOLDER = "corrections"

_by_kind = operator.attrgetter("what", "source", "key")


class CorrectionsCollector:
    """Collects the first corrections of each kind in a shard; images may come in any order."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._lines: list[Corrected] = []
        self._room = 0

    def add(self, record: Record, corrections: Corrections) -> None:
        """Adds the corrections of an image."""
        if not corrections:
            return
        self._lines += self._lines_of(record, corrections)
        if len(self._lines) > self._room:
            self._lines = list(self.first())
            # Sort again only after the list has doubled, so that sorting stays cheap.
            self._room = 2 * len(self._lines) + MOST_NAMED

    def _lines_of(self, record: Record, corrections: Corrections) -> Iterator[Corrected]:
        for what, count in corrections.items():
            changes = corrections.changes.get(what, [])
            for number in range(min(count, MOST_NAMED)):
                before, after = changes[number] if number < len(changes) else (None, None)
                yield Corrected(
                    split=self._split,
                    source=record.source,
                    key=record.key,
                    what=what,
                    before=before,
                    after=after,
                )

    def first(self) -> tuple[Corrected, ...]:
        """Returns the first corrections of each kind."""
        return first_corrections(self._lines)


def first_corrections(lines: Iterable[Corrected]) -> tuple[Corrected, ...]:
    """Chooses the first corrections of each kind, by source and key, whatever their order is.

    The corrections of one image keep their order: they all come from one shard.
    """
    kinds: Counter[str] = Counter()
    first = []
    for line in sorted(lines, key=_by_kind):
        kinds[line.what] += 1
        if kinds[line.what] <= MOST_NAMED:
            first.append(line)
    return tuple(first)


def corrections_path(split: str) -> str:
    """Names the file of a split's corrections, below the dataset's folder."""
    return f"{CORRECTIONS_FOLDER}/{split}.jsonl"


def encode_corrections(lines: Iterable[Corrected]) -> bytes:
    """Renders the file of a split's corrections."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
