from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.parsing import lines as line_chunks
from shardbeam.transforms.formats.parsing.lines import read_lines
from tests.support.stored import StoredFiles

TEXTS = st.lists(st.sampled_from([b"", b"a", b"bcd", b"e" * 40, "ö".encode(), b"\r"])).flatmap(
    lambda lines: st.sampled_from([b"\n".join(lines), b"\n".join([*lines, b""])])
)


def lines_of(text: bytes, *, chunk_bytes: int) -> list[tuple[int, bytes]]:
    storage = StoredFiles({"a.csv": text})
    return [
        line
        for begin in range(0, max(1, len(text)), chunk_bytes)
        for line in read_lines(
            "a.csv", storage=storage, begin=begin, end=min(begin + chunk_bytes, len(text))
        )
    ]


@given(
    text=TEXTS,
    chunk_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 20),
    tail_bytes=st.integers(1, 20),
)
def test_chunks_of_any_size_give_each_line_once(
    text: bytes, chunk_bytes: int, block_bytes: int, tail_bytes: int
) -> None:
    expected = []
    position = 0
    for line in text.split(b"\n"):
        expected.append((position, line.removesuffix(b"\r")))
        position += len(line) + 1
    if text.endswith(b"\n") or not text:
        expected.pop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_chunks, "_BLOCK_BYTES", block_bytes)
        patch.setattr(line_chunks, "_TAIL_BYTES", tail_bytes)
        assert lines_of(text, chunk_bytes=chunk_bytes) == expected


def test_the_byte_order_mark_is_no_text() -> None:
    assert lines_of(b"\xef\xbb\xbfa,b\r\n1,2", chunk_bytes=100) == [(0, b"a,b"), (8, b"1,2")]


def test_an_empty_file_has_no_lines() -> None:
    assert lines_of(b"", chunk_bytes=10) == []
    assert list(read_lines("a", storage=StoredFiles({"a": b""}))) == []


def test_a_part_is_read_once_and_not_the_file() -> None:
    storage = StoredFiles({"a": b"0123456\n" * 100_000})
    list(read_lines("a", storage=storage, begin=80_001, end=160_001))
    assert storage.read_bytes < 80_000 + (64 << 10) + 10


def test_a_line_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_chunks, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(line_chunks, "_TAIL_BYTES", 100)
    with pytest.raises(InputError, match="byte 2: a line of more than"):
        lines_of(b"a\n" + b"b" * 3000, chunk_bytes=50)
