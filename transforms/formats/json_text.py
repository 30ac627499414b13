"""The text of a JSON file, in memory or on disk, and places in it."""

from __future__ import annotations

import abc
import codecs
from collections.abc import Iterable

from shardbeam.transforms.storage.disk_file import DiskFile

_STEP_BYTES = 1 << 20


class JsonText(abc.ABC):
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
