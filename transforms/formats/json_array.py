"""Decodes a long array of a JSON file in blocks.

A decoder holds the interpreter until it is done; meanwhile signals and all other threads wait.
"""

from __future__ import annotations

import itertools
import re
from array import array

import msgspec

# Takes about 20 ms to decode.
_BLOCK_BYTES = 4_000_000
# Places where the next entry may begin, and how much text is decoded to check each.
_MAX_CANDIDATES = 1000
_MAX_ENTRY_BYTES = 1 << 16

_SEPARATORS = re.compile(rb"[\s,]*")
_BETWEEN_OBJECTS = re.compile(rb"\}\s*(,)\s*(?=\{)")
# msgspec's message when a value ends before the text does. It counts bytes from 1.
_BEHIND = re.compile(r"trailing characters \(byte (\d+)\)$")

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class JsonArray:
    """The entries of an array, as text that is cut out of the file when it is read.

    Args:
        data: The file.
        start: Position of the first entry.
    """

    def __init__(self, data: bytes, *, start: int) -> None:
        self._data = data
        self._end = start
        # Start and end of each entry.
        self._bounds = array("q")

    def __len__(self) -> int:
        """Returns the number of entries."""
        return len(self._bounds) // 2

    def __getitem__(self, index: int) -> bytes:
        """Returns an entry's text."""
        return self._data[self._bounds[2 * index] : self._bounds[2 * index + 1]]

    def add(self, entries: list[msgspec.Raw]) -> None:
        """Adds the next entries of the file."""
        for entry in entries:
            start = _SEPARATORS.match(self._data, self._end).end()  # type: ignore[union-attr]  # It matches anything.
            self._end = start + len(memoryview(entry))
            self._bounds.extend((start, self._end))


def cut_array(
    data: bytes, *, key: str, entry_type: type[msgspec.Struct]
) -> tuple[bytes, JsonArray] | None:
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
    before = data[: found.end()]
    try:
        _object_decoder.decode(before + b"]}")
        entries, end = _decode_in_blocks(
            data, start=found.end(), decoder=msgspec.json.Decoder(entry_type)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return before + b"]" + data[end:], entries


def _decode_in_blocks(
    data: bytes, *, start: int, decoder: msgspec.json.Decoder[msgspec.Struct]
) -> tuple[JsonArray, int]:
    """Decodes the array whose first entry begins at `start`; returns its entries and its end.

    Raises:
        msgspec.DecodeError: The array is not valid, or was cut at a wrong place.
    """
    entries = JsonArray(data, start=start)
    while start < len(data):
        cut = _find_cut(data, start + _BLOCK_BYTES, decoder=decoder)
        block = b"".join((b"[", memoryview(data)[start:cut], b"]"))
        try:
            entries.add(_array_decoder.decode(block))
        except msgspec.DecodeError as error:
            behind = _BEHIND.search(str(error))
            if behind is None:
                raise
            length = int(behind[1]) - 1
            entries.add(_array_decoder.decode(memoryview(block)[:length]))
            return entries, start + length - 1
        start = cut + 1
    raise msgspec.DecodeError("the array does not end")


def _find_cut(data: bytes, start: int, *, decoder: msgspec.json.Decoder[msgspec.Struct]) -> int:
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
