"""Opens a JSON file, and finds its sections and the entries of its long arrays.

A file in memory is decoded as a whole. One on disk is walked through once, in pieces; what is kept
of an entry is its position, and its text is read when it is needed.
"""

from __future__ import annotations

import abc
import bisect
import codecs
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import (
    TRUNCATED,
    decode_json,
    explain_errors,
    read_annotation_file,
    replace_surrogates,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import Storage, StoredFile, too_large
from shardbeam.transforms.storage.gzip_file import GZIP_MAGIC

if TYPE_CHECKING:
    from shardbeam.transforms.storage.disk_file import DiskFile

_PIECE_BYTES = 1 << 20
# An error this close to the end of a piece may go away with more of the text.
_TOKEN_BYTES = 64

_SPACE = re.compile(rb"[ \t\n\r]*")
_BETWEEN = b", \t\n\r"
# msgspec's message when a value ends before the text does. It counts bytes from 1.
_BEHIND = re.compile(r"trailing characters \(byte (\d+)\)$")
_BYTE = re.compile(r"\(byte (\d+)\)$")

_value_decoder = JsonDecoder(msgspec.Raw)
_key_decoder = JsonDecoder(str)
_object_decoder = JsonDecoder(dict[str, msgspec.Raw])
_array_decoder = JsonDecoder(list[msgspec.Raw] | None)
_root_decoder = JsonDecoder(list[msgspec.Raw])


_STEP_BYTES = 1 << 20


class JsonText(abc.ABC):
    """A text without its byte order mark.

    Attributes:
        size_bytes: Its length.
    """

    size_bytes: int

    @abc.abstractmethod
    def read_many(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes between each two positions, which lie in the text.

        Raises:
            UnreadableError: The file has changed since it was opened, or its disk has failed.
        """

    def read(self, begin: int, end: int) -> bytes:
        """Reads the bytes between two positions."""
        return self.read_many([(begin, end)])[0]

    def at(self, position: int) -> str:
        """Returns the place at a number of bytes from the beginning: `line 4, column 17`."""
        lines, line_begin = 1, -1
        for begin in range(0, position, _STEP_BYTES):
            step = self.read(begin, min(begin + _STEP_BYTES, position, self.size_bytes))
            lines += step.count(b"\n")
            last = step.rfind(b"\n")
            line_begin = begin + last if last >= 0 else line_begin
        return f"line {lines}, column {position - line_begin}"


class TextInMemory(JsonText):
    """A text in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def read_many(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes between each two positions."""
        return [self._data[begin:end] for begin, end in ranges]


class TextOnDisk(JsonText):
    """A text that stays on disk."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        head = file.read(0, min(len(codecs.BOM_UTF8), file.size_bytes))
        self._begin = len(head) if head == codecs.BOM_UTF8 else 0
        self.size_bytes = file.size_bytes - self._begin

    def read_many(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes between each two positions."""
        data = [self._file.read(self._begin + begin, self._begin + end) for begin, end in ranges]
        self._file.check()
        return data


def open_json(uri: str, *, storage: Storage) -> JsonText:
    """Reads a JSON file of annotations, without its mark; a long one is opened and stays on disk.

    Raises:
        InputError: The file is missing, cannot be read, or is too large; or it is on a remote
            storage, and the folder of temporary files has no room for it.
    """
    with explain_errors(uri):
        stored = storage.stat(uri)
        if stored is None or not _stays_on_disk(stored, storage=storage):
            return TextInMemory(read_annotation_file(uri, storage=storage))
        if stored.size_bytes > limits.ANNOTATION_BYTES:
            raise too_large(uri, max_bytes=limits.ANNOTATION_BYTES)
        # Imported here: most files are read as a whole.
        from shardbeam.transforms.storage.disk_file import open_on_disk

        return TextOnDisk(open_on_disk(stored, storage=storage))


def _stays_on_disk(stored: StoredFile, *, storage: Storage) -> bool:
    if stored.size_bytes <= limits.WHOLE_ANNOTATION_BYTES:
        return False
    # Remote storage may unpack an object, which is possible only if it is read whole.
    return not storage.is_remote or not storage.read(
        stored.uri, size_bytes=len(GZIP_MAGIC), version=stored.version
    ).startswith(GZIP_MAGIC)


class Entries:
    """The entries of an array, as the texts that the decoder has found in memory.

    Attributes:
        size_bytes: The length of the array's text.
    """

    def __init__(self, texts: Sequence[msgspec.Raw] = (), *, size_bytes: int = 0) -> None:
        self._texts = texts
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        """Returns the number of entries."""
        return len(self._texts)

    def __iter__(self) -> Iterator[bytes | msgspec.Raw]:
        """Yields the text of each entry; lone surrogates may have been replaced."""
        return iter(self._texts)

    def texts(self, positions: Iterable[int]) -> Sequence[bytes | msgspec.Raw]:
        """Returns the texts of several entries, given by their positions in the array."""
        return [self._texts[at] for at in positions]


class EntriesOnDisk(Entries):
    """The entries of an array, as text that is read when it is needed.

    Args:
        text: The file.
        begins: The position of each entry, and that of the closing bracket.
        has_surrogates: Whether there may be lone surrogates, which are then replaced.
    """

    def __init__(self, text: JsonText, begins: array[int], *, has_surrogates: bool) -> None:
        super().__init__(size_bytes=begins[-1] - begins[0])
        self._text = text
        self._begins = begins
        self._has_surrogates = has_surrogates

    def __len__(self) -> int:
        """Returns the number of entries."""
        return len(self._begins) - 1

    def __iter__(self) -> Iterator[bytes]:
        """Yields the text of each entry, and reads many at a time."""
        begins, first = self._begins, 0
        while first < len(self):
            # At least one entry.
            end = bisect.bisect_right(begins, begins[first] + _PIECE_BYTES, lo=first + 2) - 1
            piece = self._text.read(begins[first], begins[end])
            if self._has_surrogates:
                piece = replace_surrogates(piece)
            for index in range(first, end):
                entry = piece[begins[index] - begins[first] : begins[index + 1] - begins[first]]
                yield entry.rstrip(_BETWEEN)
            first = end

    def texts(self, positions: Iterable[int]) -> Sequence[bytes]:
        """Returns the texts of several entries, given by their positions in the array."""
        begins = self._begins
        texts = self._text.read_many((begins[at], begins[at + 1]) for at in positions)
        if self._has_surrogates:
            texts = [*map(replace_surrogates, texts)]
        return [text.rstrip(_BETWEEN) for text in texts]


Sections = Mapping[str, Entries | None]


def find_sections(text: JsonText, *, arrays: Collection[str], uri: str) -> Sections:
    """Finds the sections of a JSON file, which are the members of its root.

    Args:
        text: The file.
        arrays: The sections that must be arrays.
        uri: The file, for errors.

    Returns:
        `{section: entries}` of the sections that are not `null`; for sections that are not among
        `arrays`, None.

    Raises:
        InputError: The file is not a JSON object, has a section twice, or one of `arrays` is
            something else.
    """
    scanner = _Scanner(text, uri=uri)
    if scanner.peek() != b"{":
        raise scanner.error(b"")
    keys: list[str] = []
    sections: dict[str, Entries | None] = {}
    texts: dict[str, memoryview] = {}
    for before in scanner.items(b"{", b'"":""', close=b"}"):
        key = scanner.read_key(before)
        keys.append(key)
        if scanner.peek() == b"[" and key in arrays and not isinstance(text, TextInMemory):
            sections[key] = scanner.skip_array()
        elif key in arrays:
            texts[key] = scanner.skip_value(b'{"":')
        elif bytes(scanner.skip_value(b'{"":')[:5]).rstrip() != b"null":
            sections[key] = None
    if scanner.peek():
        raise scanner.error(b"{}")
    for key, count in Counter(keys).items():
        if count > 1:
            raise InputError(uri=uri, place="$", problem=f"the key {key!r} is given twice")
    for key, array_text in texts.items():
        entries = decode_json(array_text, decoder=_array_decoder, uri=uri, place=f"$.{key}")
        if entries is not None:
            sections[key] = Entries(entries, size_bytes=len(array_text))
    return sections


def find_entries(text: JsonText, *, uri: str) -> Entries:
    """Finds the entries of a JSON file whose root is an array.

    Args:
        text: The file.
        uri: The file, for errors.

    Raises:
        InputError: The file is not a JSON array.
    """
    if isinstance(text, TextInMemory):
        data = text.read(0, text.size_bytes)
        entries = decode_json(data, decoder=_root_decoder, uri=uri)
        return Entries(entries, size_bytes=text.size_bytes)
    scanner = _Scanner(text, uri=uri)
    if scanner.peek() != b"[":
        raise InputError(uri=uri, place="$", problem="expected an array")
    found = scanner.skip_array()
    if scanner.peek():
        raise scanner.error(b"{}")
    return found


class _Scanner:
    """Walks through a JSON text, of which it holds a piece."""

    def __init__(self, text: JsonText, *, uri: str) -> None:
        self._text = text
        self._uri = uri
        self._has_surrogates = False
        # Where the piece begins in the text, and how far the scanner is in the piece.
        self._begin = self._at = 0
        self._piece = memoryview(b"")
        self._piece_bytes = text.size_bytes if isinstance(text, TextInMemory) else _PIECE_BYTES
        counters.scanned_bytes.expect(text.size_bytes)

    def _read(self, size_bytes: int) -> None:
        """Reads a piece that begins where the scanner is."""
        begin, scanned = self._begin + self._at, self._begin + len(self._piece)
        end = min(begin + size_bytes, self._text.size_bytes)
        piece = self._text.read(begin, end)
        self._piece = memoryview(replace_surrogates(piece) if self._has_surrogates else piece)
        self._begin, self._at = begin, 0
        counters.scanned_bytes.add(end - scanned)

    @property
    def _is_last(self) -> bool:
        return self._begin + len(self._piece) >= self._text.size_bytes

    def place_at(self, offset: int = 0) -> Callable[[int], str]:
        """Returns what finds places of a text that begins where the scanner is, or beside it."""
        begin = self._begin + self._at + offset
        return lambda position: self._text.at(begin + position)

    def peek(self) -> bytes:
        """Moves behind whitespace; returns the next character, or nothing at the file's end."""
        self._at = _SPACE.match(self._piece, self._at).end()  # type: ignore[union-attr]  # It matches anything.
        while self._at == len(self._piece) and not self._is_last:
            self._read(self._piece_bytes)
            self._at = _SPACE.match(self._piece).end()  # type: ignore[union-attr]
        return bytes(self._piece[self._at : self._at + 1])

    def items(self, begin: bytes, item: bytes, *, close: bytes) -> Iterator[bytes]:
        """Iterates over an object or an array; the caller moves the scanner past each item.

        Args:
            begin: A short file up to the opening bracket.
            item: A short item.
            close: The closing bracket.

        Yields:
            A short file up to each item, for errors.
        """
        self._at += 1
        before = begin
        mark = self.peek()
        while mark != close:
            yield before
            mark = self.peek()
            if mark == b",":
                before = begin + item + mark
                self._at += 1
                self.peek()
            elif mark != close:
                raise self.error(begin + item)
        self._at += 1

    def skip_array(self) -> EntriesOnDisk:
        """Moves behind an array; returns its entries."""
        begins = array("q")
        for before in self.items(b'{"":[', b'""', close=b"]"):
            begins.append(self._begin + self._at)
            self.skip_value(before)
        begins.append(self._begin + self._at - 1)
        return EntriesOnDisk(self._text, begins, has_surrogates=self._has_surrogates)

    def read_key(self, before: bytes) -> str:
        """Reads a key, and moves behind its colon.

        Args:
            before: A short file up to the key, for errors.

        Raises:
            InputError: There is no key, or no colon behind it.
        """
        if self.peek() != b'"':
            raise self.error(before)
        place_at = self.place_at()
        text = self.skip_value(before)
        key: str = decode_json(text, decoder=_key_decoder, uri=self._uri, place_at=place_at)
        if self.peek() != b":":
            raise self.error(b'{""')
        self._at += 1
        return key

    def skip_value(self, before: bytes) -> memoryview:
        """Moves behind a value.

        Args:
            before: A short file up to the value, for errors.

        Returns:
            The value's text.

        Raises:
            InputError: The value is not JSON.
        """
        while True:
            rest = self._piece[self._at :]
            end = self._find_end(rest, before)
            if end is not None:
                self._at += end
                return rest[:end]
            self._read(max(self._piece_bytes, 2 * len(rest)))

    def _find_end(self, rest: memoryview, before: bytes) -> int | None:
        """Returns where a value ends; None if more text has to be read."""
        message = ""
        try:
            _value_decoder.decode(rest)
        except msgspec.DecodeError as error:
            message = str(error)
            behind = _BEHIND.search(message)
            if behind is not None:
                return int(behind[1]) - 1
        except RecursionError:
            raise self.error(before) from None
        if not message:
            # A number at the end of a piece may go on behind it.
            return len(rest) if self._is_last else None
        if not self._has_surrogates and replace_surrogates(bytes(rest)) != rest:
            self._has_surrogates = True
            return None
        byte = _BYTE.search(message)
        if self._is_last or (byte is not None and int(byte[1]) + _TOKEN_BYTES < len(rest)):
            raise self.error(before)
        return None

    def error(self, before: bytes) -> InputError:
        """Makes the error that the decoder raises where the scanner is.

        Args:
            before: A short file up to there.
        """
        while True:
            data = before + self._piece[self._at :]
            place_at = self.place_at(-len(before))
            try:
                decode_json(data, decoder=_object_decoder, uri=self._uri, place_at=place_at)
            except InputError as error:
                # More of the text may show what is wrong.
                if error.problem != TRUNCATED or self._is_last:
                    return error
                self._read(max(self._piece_bytes, 2 * len(data)))
            else:
                raise AssertionError("the text is JSON")
