"""A long array of a JSON file, decoded in blocks.

A decoder holds the interpreter until it is done: a signal, and all other threads, wait for it.
"""

from __future__ import annotations

import itertools
import re
from array import array

import msgspec

# Decoded in some 20 ms.
_BLOCK_BYTES = 4_000_000
# How far the next entry is looked for, and how much of it is decoded to know it.
_MAX_CANDIDATES = 1000
_MAX_ENTRY_BYTES = 1 << 16

_SEPARATORS = re.compile(rb"[\s,]*")
_BETWEEN_OBJECTS = re.compile(rb"\}\s*(,)\s*(?=\{)")
# How msgspec says that a value ends before the text does. It counts bytes from 1.
_BEHIND = re.compile(r"trailing characters \(byte (\d+)\)$")

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class JsonArray:
    """The entries of an array: their text, which stays where it is in the file's.

    Args:
        data: The file.
        start: Where the first entry begins.
    """

    def __init__(self, data: bytes, *, start: int) -> None:
        self._data = data
        self._end = start
        # Begin and end of each entry.
        self._bounds = array("q")

    def __len__(self) -> int:
        """Says how many entries there are."""
        return len(self._bounds) // 2

    def __getitem__(self, index: int) -> bytes:
        """Returns an entry's text."""
        return self._data[self._bounds[2 * index] : self._bounds[2 * index + 1]]

    def add(self, entries: list[msgspec.Raw]) -> None:
        """Adds the entries that come next."""
        for entry in entries:
            start = _SEPARATORS.match(self._data, self._end).end()  # type: ignore[union-attr]  # It matches anything.
            self._end = start + len(memoryview(entry))
            self._bounds.extend((start, self._end))


def cut_array(
    data: bytes, *, key: str, entry_type: type[msgspec.Struct]
) -> tuple[bytes, JsonArray] | None:
    """Cuts an array of objects out of the object that a JSON file is.

    A part of a JSON text that, with a closing bracket behind it, is valid JSON ends between two
    values of the outermost level: that tells where the array begins, and whether a cut is right.

    Args:
        data: The file.
        key: The array's key.
        entry_type: What its entries look like, and nothing within them does.

    Returns:
        The file with an empty array in its place, and the array's entries; None where anything
        about it is not as expected, which is then to be found by decoding the file as a whole.
    """
    name = re.escape(b'"%b"' % key.encode())
    # A quote behind a backslash begins no text.
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
        msgspec.DecodeError: It is not valid, or was cut at a wrong place.
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
    """Finds the first comma behind `start` that an entry follows; the file's end where none does.

    It may be wrong, where a text looks like that.
    """
    for between in itertools.islice(_BETWEEN_OBJECTS.finditer(data, start), _MAX_CANDIDATES):
        try:
            decoder.decode(memoryview(data)[between.end() :][:_MAX_ENTRY_BYTES])
        except msgspec.ValidationError:
            # An object within an entry.
            continue
        except msgspec.DecodeError:
            # What follows it.
            return between.start(1)
    return len(data)
