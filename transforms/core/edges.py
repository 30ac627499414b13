"""Both ends of every edge of the graph: the elements that a step sends and the next one receives.

An edge is what a runner may carry to another worker: what crosses a shuffle or a Flatten. Runners
have lost elements without an error (Beam's `multi_threading` does), so each step counts what it
sends and what it receives, and a difference ends the run.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError

# The names of edges, as messages have them.
ROOTS = "folders to list"
ARCHIVES = "archives of a pattern"
LISTING_PARTS = "parts of listings"
ANNOTATION_FILES = "annotation files"
FILE_PARTS = "parts of annotation files"
LISTED_FILES = "listed annotation files"
IMAGES = "images"
MASKS = "masks"
ENTRIES = "annotation entries"
POINTS = "points of exact splits"
CLASSES = "classes of exact splits"
PLACES = "places in the sample"
RECORDS = "records"
SHARDS = "shards"
REJECTS = "rejects"
STATISTICS = "statistics"
INDEXES = "indexes of shards"
ROWS = "rows of indexes"
MOVES = "moves"

# What the passes over the join's keys add to the names of edges that end there.
TO_CUT_SPLITS = ", to cut splits"
TO_SAMPLE = ", to choose a sample"

# What a part of the graph sends on to the next one.
SENT_BY_LISTING = frozenset({LISTED_FILES, IMAGES, MASKS, REJECTS})
SENT_BY_JOIN = frozenset({RECORDS, REJECTS})

# What messages say of a difference.
LOST_ELEMENTS = "the runner lost or doubled elements"
REPEAT = "run the same command again, and on another runner if that happens again"

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class Tally(msgspec.Struct):
    """Elements at one end of an edge.

    Attributes:
        number: How many there are.
        crc: The sum of their CRC-32s, by which one lost and one doubled element are noticed.
    """

    number: int = 0
    crc: int = 0


class Edges(msgspec.Struct):
    """What was counted at both ends of some edges; the counts of several bundles can be added.

    Attributes:
        sent: `{edge: what was sent}`.
        received: `{edge: what has arrived}`.
    """

    sent: dict[str, Tally] = {}
    received: dict[str, Tally] = {}

    def send(self, edge: str, element: bytes, *more: bytes) -> None:
        """Counts an element that is sent, by its bytes, which may come in pieces."""
        _count(self.sent, edge, element, more)

    def receive(self, edge: str, element: bytes, *more: bytes, times: int = 1) -> None:
        """Counts an element that has arrived, by the same bytes, once or several times."""
        _count(self.received, edge, element, more, times)

    def repeat(self, edges: Iterable[str], purpose: str) -> None:
        """Says that what is sent on some edges is sent once more, for another purpose."""
        for edge in edges:
            if edge in self.sent:
                self.sent[edge + purpose] = self.sent[edge]

    def add(self, other: Edges) -> None:
        """Adds other counts, and leaves those as they are."""
        for tallies, others in ((self.sent, other.sent), (self.received, other.received)):
            for edge, tally in others.items():
                total = tallies.setdefault(edge, Tally())
                total.number += tally.number
                total.crc += tally.crc

    def lost(self, *, but: Collection[str] = ()) -> list[str]:
        """Describes each edge whose ends differ.

        Args:
            but: Edges that end in a later part of the graph (`SENT_BY_LISTING`).
        """
        none = Tally()
        ends = {
            edge: (self.sent.get(edge, none), self.received.get(edge, none))
            for edge in {**self.sent, **self.received}
            if edge not in but
        }
        return [
            _describe(edge, *tallies) for edge, tallies in ends.items() if tallies[0] != tallies[1]
        ]


def encode_element(element: object) -> bytes:
    """Encodes an element that travels as structs or tuples, to count it."""
    return _encoder.encode(element)


def lost_error(lost: Sequence[str]) -> InputError:
    """Returns the error of a run whose runner lost or doubled elements, by `Edges.lost`."""
    return InputError(
        uri="pipeline",
        problem=f"{LOST_ELEMENTS}, nothing was committed: {'; '.join(lost)}; {REPEAT}",
    )


def _count(
    tallies: dict[str, Tally], edge: str, element: bytes, more: tuple[bytes, ...], times: int = 1
) -> None:
    tally = tallies.get(edge)
    if tally is None:
        tally = tallies[edge] = Tally()
    crc = zlib.crc32(element)
    for piece in more:
        crc = zlib.crc32(piece, crc)
    tally.number += times
    tally.crc += crc * times


def _describe(edge: str, sent: Tally, received: Tally) -> str:
    if sent.number == received.number:
        return f"{edge}: {sent.number:,} were sent and as many arrived, but not the same ones"
    return f"{edge}: {sent.number:,} were sent and {received.number:,} arrived"
