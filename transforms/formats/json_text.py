"""The text of a JSON file, in memory or on disk, and places in it."""

from __future__ import annotations

import abc
import codecs
from collections.abc import Iterable

from shardbeam.transforms.storage.disk_file import DiskFile

_STEP_BYTES = 1 << 20


class Places(abc.ABC):
    """Finds lines and columns in a text."""

    @abc.abstractmethod
    def at(self, position: int) -> str:
        """Returns the place at a number of bytes from the beginning: `line 4, column 17`."""

    @abc.abstractmethod
    def first_undecodable(self) -> str:
        """Returns the place of the first byte that is not UTF-8."""


class JsonText(Places):
    """A text without its byte order mark.

    Attributes:
        size_bytes: Its length.
    """

    size_bytes: int

    @abc.abstractmethod
    def read(self, begin: int, end: int) -> bytes:
        """Reads the bytes between two positions, which lie in the text.

        Raises:
            UnreadableError: The file has changed since it was opened, or its disk has failed.
        """

    def read_many(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes between each two positions."""
        return [self.read(begin, end) for begin, end in ranges]

    def at(self, position: int) -> str:
        """Returns a place, after counting the lines before it."""
        lines, line_begin = 1, -1
        for begin in range(0, position, _STEP_BYTES):
            step = self.read(begin, min(begin + _STEP_BYTES, position, self.size_bytes))
            lines += step.count(b"\n")
            last = step.rfind(b"\n")
            line_begin = begin + last if last >= 0 else line_begin
        return f"line {lines}, column {position - line_begin}"

    def first_undecodable(self) -> str:
        """Returns the place of the first byte that is not UTF-8; of the first byte if all are."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        for begin in range(0, self.size_bytes, _STEP_BYTES):
            end = min(begin + _STEP_BYTES, self.size_bytes)
            waiting, _ = decoder.getstate()
            try:
                decoder.decode(self.read(begin, end), final=end == self.size_bytes)
            except UnicodeDecodeError as error:
                return self.at(begin - len(waiting) + error.start)
        return self.at(0)


class TextInMemory(JsonText):
    """A text in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def read(self, begin: int, end: int) -> bytes:
        """Reads the bytes between two positions."""
        return self._data[begin:end]


class TextOnDisk(JsonText):
    """A text that stays on disk."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        head = file.read(0, min(len(codecs.BOM_UTF8), file.size_bytes))
        self._begin = len(head) if head == codecs.BOM_UTF8 else 0
        self.size_bytes = file.size_bytes - self._begin

    def read(self, begin: int, end: int) -> bytes:
        """Reads the bytes between two positions."""
        return self.read_many([(begin, end)])[0]

    def read_many(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes between each two positions."""
        data = [self._file.read(self._begin + begin, self._begin + end) for begin, end in ranges]
        self._file.check()
        return data


class Excerpt(Places):
    """A text without a part in its middle, so that it fits into memory.

    Args:
        text: The text.
        begin: Where the part that is left out begins.
        end: Where it ends.
        until: Where the excerpt ends.

    Attributes:
        data: The excerpt.
    """

    def __init__(self, text: JsonText, *, begin: int, end: int, until: int) -> None:
        self._text = text
        self._begin = begin
        self._left_out = end - begin
        self.data = b"".join((text.read(0, begin), text.read(end, until)))

    def at(self, position: int) -> str:
        """Returns the place in the whole text of a position in the excerpt."""
        return self._text.at(position if position < self._begin else position + self._left_out)

    def first_undecodable(self) -> str:
        """Returns the place of the first byte of the whole text that is not UTF-8."""
        return self._text.first_undecodable()


def whole(text: JsonText) -> Excerpt:
    """Returns all of a text."""
    end = text.size_bytes
    return Excerpt(text, begin=end, end=end, until=end)
