"""Finds a long array in a JSON file that stays on disk, and reads its entries from there."""

from __future__ import annotations

import bisect
import contextlib
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import (
    TRUNCATED,
    decode_json,
    foreign_content,
    replace_surrogates,
)
from shardbeam.transforms.formats.json_text import Excerpt, JsonText, whole
from shardbeam.transforms.formats.parsing import json_array

_SCAN_BYTES = 1 << 18
_HEAD_BYTES = 64
# Text behind the last valid entry in which an error is looked for first.
_ERROR_BYTES = 1 << 16

_WHITESPACE = b" \t\n\r"
_QUOTE, _BACKSLASH, _COMMA, _OPEN = b'"'[0], b"\\"[0], b","[0], b"["[0]
# Without these bits, brackets of all kinds are equal, and few other characters are.
_BRACKET_BITS = 0b11011001
_BRACKET = _OPEN & _BRACKET_BITS
# How a character changes the depth.
_DEPTH_CHANGES = np.zeros(256, np.int8)
_DEPTH_CHANGES[np.frombuffer(b"[{", np.uint8)] = 1
_DEPTH_CHANGES[np.frombuffer(b"]}", np.uint8)] = -1

# The members of the root have depth 1, the entries of an array in the root depth 2.
_ROOT, _ARRAY = 1, 2

_object_decoder = JsonDecoder(dict[str, msgspec.Raw])
_array_decoder = JsonDecoder(list[msgspec.Raw])


class ArrayOnDisk:
    """The entries of an array, as text that is read when it is needed.

    Args:
        text: The file.
    """

    def __init__(self, text: JsonText) -> None:
        self._text = text
        # Positions of the brackets around the entries and of the commas between them.
        self._bounds = array("q")
        self._length = 0
        # Number of entries that were decoded once.
        self._checked = 0
        self._has_surrogates = False

    def __len__(self) -> int:
        """Returns the number of entries."""
        return self._length

    def __getitem__(self, index: int) -> bytes:
        """Returns an entry's text, perhaps with whitespace around it."""
        return self.texts((index,))[0]

    def texts(self, positions: Sequence[int]) -> list[bytes]:
        """Returns the texts of several entries; lone surrogates are replaced."""
        bounds = self._bounds
        ranges = [(bounds[at] + 1, bounds[at + 1]) for at in positions]
        texts = self._text.read_many(ranges)
        return [*map(replace_surrogates, texts)] if self._has_surrogates else texts

    def blocks(self) -> Iterator[tuple[range, bytes]]:
        """Yields each block as the positions of its entries, and a JSON array of them."""
        first = 0
        while first < self._length:
            block = self._block(first)
            text = self._read(block)
            yield block, replace_surrogates(text) if self._has_surrogates else text
            first = block.stop

    def _block(self, first: int) -> range:
        """Returns the positions of the entries of the next block, which has at least one."""
        last = self._bounds[first] + json_array.BLOCK_BYTES
        end = bisect.bisect_right(self._bounds, last, lo=first) - 1
        return range(first, max(end, first + 1))

    def _read(self, positions: range) -> bytes:
        begin, end = self._bounds[positions.start] + 1, self._bounds[positions.stop]
        return b"".join((b"[", self._text.read(begin, end), b"]"))

    def add(self, bounds: npt.NDArray[np.int64], *, is_end: bool) -> None:
        """Adds entries, and checks that they are JSON.

        Args:
            bounds: Positions of the opening bracket, of the commas and of the closing bracket, or
                the next of these.
            is_end: Whether the closing bracket is the last one.

        Raises:
            msgspec.DecodeError: One of the entries is not JSON.
            RecursionError: One is nested too deeply.
        """
        self._bounds.frombytes(bounds.tobytes())
        self._length = len(self._bounds) - 1
        if is_end and self._length == 1 and not self._read(range(1))[1:-1].strip(_WHITESPACE):
            self._length = 0
        while self._checked < self._length:
            block = self._block(self._checked)
            if block.stop == self._length and not is_end:
                # It may become longer.
                break
            self._check(block)
            self._checked = block.stop
        if is_end and self._text.read(self._bounds[-1], self._bounds[-1] + 1) != b"]":
            raise msgspec.DecodeError("another bracket closes the array")

    def _check(self, positions: range) -> None:
        text = self._read(positions)
        try:
            number = len(_array_decoder.decode(text))
        except msgspec.DecodeError:
            replaced = replace_surrogates(text)
            if replaced == text:
                raise
            number = len(_array_decoder.decode(replaced))
            self._has_surrogates = True
        if number != len(positions):
            raise msgspec.DecodeError("an entry is empty")

    def excerpt(self) -> Excerpt:
        """Returns the file with an empty array in place of this one."""
        begin, end = self._bounds[0] + 1, self._bounds[-1]
        return Excerpt(self._text, begin=begin, end=end, until=self._text.size_bytes)

    def find_error(self, *, uri: str) -> None:
        """Raises the error that decoding the whole file would raise, with its place in the file.

        Entries that are valid are left out, so that the rest fits into memory.

        Raises:
            InputError: The file is not JSON.
        """
        if not self._bounds:
            return
        # What follows a comma may make it an error, so the last valid entry is decoded, too.
        begin, end = self._bounds[0] + 1, self._bounds[max(0, self._checked - 1)] + 1
        size_bytes = _ERROR_BYTES
        last = ""
        while True:
            until = min(end + size_bytes, self._text.size_bytes)
            is_whole = until == self._text.size_bytes
            excerpt = Excerpt(self._text, begin=begin, end=end, until=until)
            try:
                decode_json(excerpt.data, decoder=_object_decoder, uri=uri, places=excerpt)
            except InputError as error:
                # A number that is cut in two is an error, too, but goes away with more of the text.
                if is_whole or (error.problem != TRUNCATED and str(error) == last):
                    raise
                last = str(error)
            if is_whole:
                return
            size_bytes *= 4


def scan_array(text: JsonText, *, key: str, uri: str) -> tuple[Excerpt, ArrayOnDisk | None]:
    """Cuts an array out of a JSON file whose root is an object, while it reads the file once.

    Args:
        text: The file.
        key: The array's key, which the file writes without escapes.
        uri: The file, for errors.

    Returns:
        The file with an empty array in place of the first one that has the key, and its entries,
        which are JSON; the whole file and None if the root has no such array.

    Raises:
        InputError: The file is not JSON, and that is found before the array ends.
    """
    head = text.read(0, min(_HEAD_BYTES, text.size_bytes))
    if foreign_content(head) is not None:
        decode_json(head, decoder=_object_decoder, uri=uri)
    found = ArrayOnDisk(text)
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        for bounds, is_end in _find_bounds(text, key=key.encode()):
            found.add(bounds, is_end=is_end)
            if is_end:
                return found.excerpt(), found
    found.find_error(uri=uri)
    return whole(text), None


def _find_bounds(text: JsonText, *, key: bytes) -> Iterator[tuple[npt.NDArray[np.int64], bool]]:
    """Yields the positions of an array's brackets, and of the commas between its entries.

    Yields:
        The next of these positions, and whether the closing bracket is the last one.
    """
    scanner = _Scanner()
    # Positions of the quotes around the last text between members of the root.
    quotes = (0, 0)
    is_inside = False
    counters.scanned_bytes.expect(text.size_bytes)
    for begin in range(0, text.size_bytes, _SCAN_BYTES):
        end = min(begin + _SCAN_BYTES, text.size_bytes)
        chunk = np.frombuffer(text.read(begin, end), np.uint8)
        marks = scanner.scan(chunk)
        counters.scanned_bytes.add(end - begin)
        first = 0
        bounds = []
        if not is_inside:
            for mark, position in marks.of_root():
                if chunk[position] == _QUOTE:
                    quotes = quotes[1], begin + position
                elif (
                    chunk[position] == _OPEN
                    and quotes[1] - quotes[0] == len(key) + 1
                    and text.read(quotes[0], quotes[1] + 1) == b'"%b"' % key
                ):
                    is_inside = True
                    first = mark
                    bounds.append(np.array([begin + position]))
                    break
            else:
                continue
        commas, close = marks.commas(chunk, first=first)
        bounds.append(commas + begin)
        if close is not None:
            bounds.append(np.array([begin + close]))
        yield np.concatenate(bounds), close is not None
        if close is not None:
            return


class _Marks(NamedTuple):
    """The quotes and brackets of a piece of JSON, and perhaps other characters.

    The first one is before the piece, and has the state at its beginning.

    Attributes:
        positions: Their positions in the piece.
        depths: The depth behind each.
        in_text: Whether a text goes on behind each.
        is_quote: Whether it is a quote that begins or ends a text.
    """

    positions: npt.NDArray[np.int64]
    depths: npt.NDArray[np.int64]
    in_text: npt.NDArray[np.bool_]
    is_quote: npt.NDArray[np.bool_]

    def of_root(self) -> Iterator[tuple[int, int]]:
        """Yields quotes between the root's members and brackets that begin the members' values.

        Yields:
            The number of the mark, and its position.
        """
        opens = (self.depths[1:] == _ARRAY) & (self.depths[:-1] == _ROOT)
        quotes = self.is_quote[1:] & (self.depths[1:] == _ROOT)
        for mark in np.flatnonzero(opens | quotes).tolist():
            yield mark + 1, int(self.positions[mark + 1])

    def commas(
        self, piece: npt.NDArray[np.uint8], *, first: int
    ) -> tuple[npt.NDArray[np.int64], int | None]:
        """Finds the commas between an array's entries.

        Args:
            piece: The piece of JSON.
            first: The number of the mark behind which the array begins or goes on.

        Returns:
            Their positions, and that of the bracket that closes the array, if it is in the piece.
        """
        is_outside = self.depths[first:] < _ARRAY
        end = first + int(np.argmax(is_outside)) if is_outside.any() else len(self.positions)
        ends = np.append(self.positions, len(piece))[first + 1 : end + 1]
        # Between such marks and the next are only commas and whitespace, and rarely numbers.
        is_between = (self.depths[first:end] == _ARRAY) & ~self.in_text[first:end]
        begins = self.positions[first:end][is_between] + 1
        lengths = ends[is_between] - begins
        # The positions in all of these parts.
        positions = np.arange(lengths.sum())
        positions += np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
        close = int(self.positions[end]) if end < len(self.positions) else None
        return positions[piece[positions] == _COMMA], close


class _Scanner:
    """Finds the brackets of a JSON file, piece by piece."""

    def __init__(self) -> None:
        # At the end of the last piece: the depth, whether a text goes on, and whether the next
        # character is escaped.
        self._depth = 0
        self._in_text = False
        self._is_escaped = False

    def scan(self, piece: npt.NDArray[np.uint8]) -> _Marks:
        """Scans the next piece, which is not empty."""
        is_mark = (piece & _BRACKET_BITS) == _BRACKET
        is_quote = piece == _QUOTE
        is_mark |= is_quote
        positions = np.flatnonzero(is_mark)
        characters = piece[positions]
        is_quote = is_quote[positions] & ~self._find_escaped(piece, positions)
        in_text = (np.cumsum(is_quote) + self._in_text) % 2 == 1
        changes = _DEPTH_CHANGES[characters]
        changes[in_text] = 0
        depths = np.cumsum(changes, dtype=np.int64) + self._depth
        marks = _Marks(
            positions=np.concatenate(([-1], positions)),
            depths=np.concatenate(([self._depth], depths)),
            in_text=np.concatenate(([self._in_text], in_text)),
            is_quote=np.concatenate(([False], is_quote)),
        )
        self._depth, self._in_text = int(marks.depths[-1]), bool(marks.in_text[-1])
        return marks

    def _find_escaped(
        self, piece: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Returns which of some characters are behind an odd number of backslashes."""
        slashes = np.flatnonzero(piece == _BACKSLASH)
        if not len(slashes) and not self._is_escaped:
            return np.zeros(len(positions), np.bool_)
        is_first = np.diff(slashes, prepend=-2) > 1
        firsts, lasts = slashes[is_first], slashes[np.roll(is_first, -1)]
        is_odd = (lasts - firsts) % 2 == 0
        # The character behind the piece is part of it here.
        is_escaped = np.zeros(len(piece) + 1, np.bool_)
        if self._is_escaped:
            if len(firsts) and firsts[0] == 0:
                is_odd[0] = not is_odd[0]
            else:
                is_escaped[0] = True
        is_escaped[lasts[is_odd] + 1] = True
        self._is_escaped = bool(is_escaped[-1])
        return is_escaped[positions]
