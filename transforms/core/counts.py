"""Counts of what each step sends and of what the next one receives.

Runners have lost elements without an error on the way from one worker to another (Beam's
`multi_threading` does), so both ends are counted, and a difference ends the run.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError

# What is counted, as messages name it.
FOLDERS = "folders and archives to list"
FILES = "annotation files and their parts"
GIVEN = "given records"
IMAGES = "images"
MASKS = "masks"
ENTRIES = "annotation entries"
CUT = "records to cut exact splits"
SAMPLED = "records to choose a sample from"
RECORDS = "records"
REJECTS = "rejects"

# Parts of the message about a difference.
LOST_ELEMENTS = "the runner lost or doubled elements"
REPEAT = "run the same command again, and on another runner if that happens again"

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class Count(msgspec.Struct):
    """The number of some elements, and a sum that tells them from as many others.

    Attributes:
        number: How many elements there are.
        crc: The sum of their CRC-32s, which shows when one element is lost and another doubled.
    """

    number: int = 0
    crc: int = 0

    def add(self, *pieces: bytes, times: int = 1) -> None:
        """Counts an element by its bytes, which may come in pieces, once or several times."""
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        self.number += times
        self.crc += crc * times

    def merge(self, other: Count) -> None:
        """Adds another count."""
        self.number += other.number
        self.crc += other.crc


def count_all(elements: Iterable[bytes]) -> Count:
    """Counts elements by their bytes."""
    count = Count()
    for element in elements:
        count.add(element)
    return count


def sum_counts(counts: Iterable[Count]) -> Count:
    """Adds counts up."""
    total = Count()
    for count in counts:
        total.merge(count)
    return total


class Counts(msgspec.Struct):
    """What some bundles sent and received; the counts of several bundles can be added.

    Attributes:
        sent: `{what: how much was sent}`.
        received: `{what: how much was received}`.
    """

    sent: dict[str, Count] = {}
    received: dict[str, Count] = {}

    def send(self, what: str, *pieces: bytes) -> None:
        """Counts a sent element by its bytes, which may come in pieces."""
        _find(self.sent, what).add(*pieces)

    def receive(self, what: str, *pieces: bytes) -> None:
        """Counts a received element by the same bytes."""
        _find(self.received, what).add(*pieces)

    def add(self, other: Counts) -> None:
        """Adds other counts to these; `other` stays as it is."""
        for counts, others in ((self.sent, other.sent), (self.received, other.received)):
            for what, count in others.items():
                _find(counts, what).merge(count)

    def lost(self, *, but: Collection[str] = ()) -> list[str]:
        """Describes what was lost or doubled.

        Args:
            but: What is received in a later part of the graph.
        """
        return [
            line
            for what in {**self.sent, **self.received}
            if what not in but
            for line in compare(
                what,
                sent=self.sent.get(what, Count()),
                received=self.received.get(what, Count()),
            )
        ]


def _find(counts: dict[str, Count], what: str) -> Count:
    count = counts.get(what)
    if count is None:
        count = counts[what] = Count()
    return count


def encode_element(element: object) -> bytes:
    """Encodes an element made of structs or tuples, so that it can be counted."""
    return _encoder.encode(element)


def compare(what: str, *, sent: Count, received: Count) -> list[str]:
    """Describes the difference between what was sent and what arrived, if there is one."""
    if sent == received:
        return []
    if sent.number == received.number:
        return [f"{what}: {sent.number:,} were sent and as many arrived, but not the same ones"]
    return [f"{what}: {sent.number:,} were sent and {received.number:,} arrived"]


def lost_error(lost: Sequence[str]) -> InputError:
    """Makes the error for what was lost or doubled (`Counts.lost`, `compare`)."""
    return InputError(
        uri="pipeline",
        problem=f"{LOST_ELEMENTS}, nothing was committed: {'; '.join(lost)}; {REPEAT}",
    )


def check_arrived(what: str, *, sent: Count, received: Count) -> None:
    """Compares what was sent with what arrived.

    Raises:
        InputError: They differ.
    """
    if lost := compare(what, sent=sent, received=received):
        raise lost_error(lost)
