"""Counts of the elements that a step sends and the next step receives.

An edge is a shuffle or a Flatten: elements that cross it may move to another worker. Runners have
lost elements there without an error (Beam's `multi_threading` does), so each step counts what it
sends and what it receives, and a difference ends the run.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError

# The names of edges, as messages show them.
ROOTS = "folders to list"
ARCHIVES = "archives of a pattern"
LISTING_PARTS = "parts of listings"
ANNOTATION_FILES = "annotation files"
FILE_PARTS = "parts of annotation files"
LISTED_FILES = "listed annotation files"
GIVEN = "given records"
IMAGES = "images"
MASKS = "masks"
ENTRIES = "annotation entries"
POINTS = "points of exact splits"
END_POINTS = "points where exact splits end"
CLASSES = "classes of exact splits"
PLACES = "places in the sample"
RECORDS = "records"
SHARDS = "shards"
REJECTS = "rejects"
STATISTICS = "statistics"
INDEXES = "indexes of shards"
ROWS = "rows of indexes"
OLD_FILES = "files of the old dataset"
MOVES = "moves"

# Suffixes for edges that end a second time, in another pass over the join's keys.
TO_CUT_SPLITS = ", to cut splits"
TO_SAMPLE = ", to choose a sample"

# Edges that begin in one part of the graph and end in the next.
SENT_BY_LISTING = frozenset({LISTED_FILES, IMAGES, MASKS, REJECTS})
SENT_BY_JOIN = frozenset({RECORDS, REJECTS})

# Parts of the message about a difference.
LOST_ELEMENTS = "the runner lost or doubled elements"
REPEAT = "run the same command again, and on another runner if that happens again"

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class Tally(msgspec.Struct):
    """Elements at one end of an edge.

    Attributes:
        number: How many elements there are.
        crc: The sum of their CRC-32s, which shows when one element is lost and another doubled.
    """

    number: int = 0
    crc: int = 0


class Edges(msgspec.Struct):
    """Counts at both ends of some edges; the counts of several bundles can be added.

    Attributes:
        sent: `{edge: elements sent}`.
        received: `{edge: elements received}`.
    """

    sent: dict[str, Tally] = {}
    received: dict[str, Tally] = {}

    def send(self, edge: str, element: bytes, *more: bytes) -> None:
        """Counts a sent element by its bytes, which may come in pieces."""
        _count(self.sent, edge, element, more)

    def receive(self, edge: str, element: bytes, *more: bytes, times: int = 1) -> None:
        """Counts a received element by the same bytes, once or several times."""
        _count(self.received, edge, element, more, times)

    def repeat(self, edges: Iterable[str], purpose: str) -> None:
        """Copies the sent counts of some edges to edges with a suffix, for another pass.

        Args:
            edges: The edges that another pass reads, too.
            purpose: The suffix of that pass, such as `TO_SAMPLE`.
        """
        for edge in edges:
            if edge in self.sent:
                self.sent[edge + purpose] = self.sent[edge]

    def add(self, other: Edges) -> None:
        """Adds other counts to these; `other` stays as it is."""
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
    """Encodes an element made of structs or tuples, so that it can be counted."""
    return _encoder.encode(element)


def lost_error(lost: Sequence[str]) -> InputError:
    """Makes the error for what `Edges.lost` found."""
    return InputError(
        uri="pipeline",
        problem=f"{LOST_ELEMENTS}, nothing was committed: {'; '.join(lost)}; {REPEAT}",
    )


def check_arrived(edge: str, *, sent: int, received: int) -> None:
    """Compares the numbers at the two ends of an edge.

    Raises:
        InputError: They differ.
    """
    if sent != received:
        raise lost_error([_describe(edge, Tally(sent), Tally(received))])


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
