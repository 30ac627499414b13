"""Decodes a long array of a JSON file in blocks.

A decoder holds the interpreter until it is done; meanwhile signals and all other threads wait.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterator, Sequence

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.formats.json_text import Excerpt, TextInMemory

# Decoded entries take several times as much.
BLOCK_BYTES = 64_000
# Places where the next entry may begin, and how much text is decoded to check each.
_MAX_CANDIDATES = 1000
_MAX_ENTRY_BYTES = 1 << 16

_SEPARATORS = re.compile(rb"[\s,]*")
_BETWEEN_OBJECTS = re.compile(rb"\}\s*(,)\s*(?=\{)")
# msgspec's message when a value ends before the text does. It counts bytes from 1.
_BEHIND = re.compile(r"trailing characters \(byte (\d+)\)$")

_object_decoder = JsonDecoder(dict[str, msgspec.Raw])
_array_decoder = JsonDecoder(list[msgspec.Raw])


class JsonArray:
    """The entries of an array, as text that is cut out of the file when it is read.

    Args:
        data: The file.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        # {start and end of a block of entries: their positions}
        self._blocks: dict[tuple[int, int], range] = {}
        self._length = 0
        # Start and end of each entry; empty until an entry is read by itself.
        self._bounds = array("q")

    def __len__(self) -> int:
        """Returns the number of entries."""
        return self._length

    def __getitem__(self, index: int) -> bytes:
        """Returns an entry's text."""
        if not self._bounds:
            self._find_bounds()
        return self._data[self._bounds[2 * index] : self._bounds[2 * index + 1]]

    def texts(self, positions: Sequence[int]) -> list[bytes]:
        """Returns the texts of several entries."""
        return [self[index] for index in positions]

    def add(self, start: int, end: int) -> None:
        """Adds a block: the next entries, between two positions in the file.

        Raises:
            msgspec.DecodeError: The text between them is not a list of JSON values.
        """
        first = self._length
        self._length += len(_array_decoder.decode(self._text(start, end)))
        self._blocks[start, end] = range(first, self._length)

    def blocks(self) -> Iterator[tuple[range, bytes]]:
        """Yields each block as the positions of its entries, and a JSON array of them."""
        for (start, end), positions in self._blocks.items():
            yield positions, self._text(start, end)

    def _text(self, start: int, end: int) -> bytes:
        return b"".join((b"[", memoryview(self._data)[start:end], b"]"))

    def _find_bounds(self) -> None:
        for start, end in self._blocks:
            for entry in _array_decoder.decode(self._text(start, end)):
                start = _SEPARATORS.match(self._data, start).end()  # type: ignore[union-attr]  # It matches anything.
                self._bounds.extend((start, start + len(memoryview(entry))))
                start = self._bounds[-1]


def array_of(entries: Sequence[msgspec.Raw]) -> JsonArray:
    """Makes an array of entries that were decoded one by one."""
    texts = [*map(bytes, entries)]
    made = JsonArray(b",".join(texts))
    start = end = 0
    for text in texts:
        end += len(text)
        if end - start > BLOCK_BYTES:
            made.add(start, end)
            start = end + 1
        end += 1
    if start < end:
        made.add(start, end - 1)
    return made


def cut_array(
    data: bytes, *, key: str, entry_type: type[msgspec.Struct]
) -> tuple[Excerpt, JsonArray] | None:
    """Cuts an array of objects out of a JSON file whose root is an object.

    If the text up to a cut is valid JSON once a closing bracket is added, the cut is between two
    values of the outermost level. This check finds the array, and shows whether a cut is right.

    Args:
        data: The file.
        key: The array's key.
        entry_type: A type that the array's entries have and objects inside them do not have.

    Returns:
        The file with an empty array in its place, and the array's entries; None where the file
        has an unexpected form, so that the caller decodes it as a whole and finds the error.
    """
    name = re.escape(b'"%b"' % key.encode())
    # A quote after a backslash does not begin a text.
    found = re.search(rb"%b(?<!\\%b)\s*:\s*\[" % (name, name), data)
    if found is None:
        return None
    try:
        _object_decoder.decode(data[: found.end()] + b"]}")
        entries, end = _decode_in_blocks(
            data, start=found.end(), decoder=JsonDecoder(entry_type, strict=False)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    text = TextInMemory(data)
    return Excerpt(text, begin=found.end(), end=end, until=len(data)), entries


def _decode_in_blocks(
    data: bytes, *, start: int, decoder: JsonDecoder[msgspec.Struct]
) -> tuple[JsonArray, int]:
    """Decodes the array whose first entry begins at `start`; returns its entries and where it ends.

    Raises:
        msgspec.DecodeError: The array is not valid, or was cut at a wrong place.
    """
    entries = JsonArray(data)
    while start < len(data):
        cut = _find_cut(data, start + BLOCK_BYTES, decoder=decoder)
        try:
            entries.add(start, cut)
        except msgspec.DecodeError as error:
            behind = _BEHIND.search(str(error))
            if behind is None:
                raise
            # The array ends before the cut. The block has a bracket in front, which is byte 1.
            end = data.rindex(b"]", start, start + int(behind[1]) - 2)
            entries.add(start, end)
            return entries, end
        start = cut + 1
    raise msgspec.DecodeError("the array does not end")


def _find_cut(data: bytes, start: int, *, decoder: JsonDecoder[msgspec.Struct]) -> int:
    """Finds the first comma after `start` that an entry follows; the file's end if none does.

    The comma may be inside a text that looks like an entry.
    """
    for between in itertools.islice(_BETWEEN_OBJECTS.finditer(data, start), _MAX_CANDIDATES):
        try:
            decoder.decode(memoryview(data)[between.end() :][:_MAX_ENTRY_BYTES])
        except msgspec.ValidationError:
            # This object is inside an entry.
            continue
        except msgspec.DecodeError:
            # The entry is valid, and more text follows it.
            return between.start(1)
    return len(data)
