"""Reads a part of a text file: the lines that begin in a range of bytes."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator

from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import foreign_content, read_part
from shardbeam.transforms.storage.base import Storage

# Size of a request; asking costs about as much time as reading this many bytes.
_BLOCK_BYTES = 8 << 20
# Size of a request beyond the range, for the line that crosses its end.
_TAIL_BYTES = 64 << 10
# UTF-16 text has at least this share of NULs among its even or its odd bytes.
_UTF16_SHARE = 0.8
MAX_LINE_BYTES = 16 << 20


def read_lines(
    uri: str, *, storage: Storage, begin: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[int, bytes]]:
    r"""Yields `(position of its first byte, line)` of each line that begins in a range.

    All ranges of a file together give each of its lines once. Lines come without their end (`\n` or
    `\r\n`), and the first one without the file's UTF-8 byte order mark.

    Args:
        uri: The file.
        storage: Reads it.
        begin: First byte of the range.
        end: The byte after the range's last; by default the file's end.

    Raises:
        InputError: The file cannot be read, is not text, or has a line of more than 16 MB.
    """
    # The byte before `begin` shows whether a line starts there.
    lines = _split(uri, storage=storage, begin=max(0, begin - 1), end=end)
    if begin > 0:
        next(lines, None)
    for position, line in lines:
        if position >= end:
            return
        if position == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        yield position, line.removesuffix(b"\r")


def binary_problem(line: bytes) -> str | None:
    """Describes a file whose first line holds NULs; returns None where it holds none."""
    if b"\0" not in line:
        return None
    halves = line[::2], line[1::2]
    if max(half.count(0) / max(1, len(half)) for half in halves) > _UTF16_SHARE:
        return "the file is UTF-16 text: save it as UTF-8"
    return "the file is not text"


def _split(uri: str, *, storage: Storage, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields the texts between line ends, from `begin` to the end of the range's last line."""
    offset = position = begin
    pending = b""
    while position < end:
        if offset < end:
            # The first request is never short, because the beginning shows what the file is.
            wanted = min(_BLOCK_BYTES, max(end - offset, 0 if offset else _TAIL_BYTES))
        else:
            wanted = max(_TAIL_BYTES, len(pending))
        # Object stores refuse ranges that begin at the file's end, so one more byte is read.
        before = min(offset, 1)
        block = read_part(uri, storage=storage, offset=offset - before, size_bytes=wanted + before)[
            before:
        ]
        if offset == 0:
            foreign = foreign_content(block)
            if foreign is not None:
                raise InputError(uri=uri, problem=foreign)
        offset += len(block)
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            yield position, line
            position += len(line) + 1
        counters.annotation_bytes.add(len(block))
        if len(block) < wanted:
            if pending:
                yield position, pending
            return
        if len(pending) > MAX_LINE_BYTES:
            raise InputError(
                uri=uri,
                place=f"byte {position}",
                problem=f"a line of more than {MAX_LINE_BYTES >> 20} MB; is this a file of lines?",
            )
