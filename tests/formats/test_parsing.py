"""Lines of text files, and the names that tables give."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.parsing import lines as line_chunks
from shardbeam.transforms.formats.parsing.lines import read_lines
from shardbeam.transforms.formats.parsing.root_files import TableRoots, short_names
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


# Names in tables, and the roots below which they lie


@pytest.mark.parametrize(
    ("roots", "name", "key"),
    [
        (["/d/i"], "/d/i/a.jpg", "a.jpg"),
        (["/d/i"], "file:///d/i/a.jpg", "a.jpg"),
        (["/d/i"], "/d/i/cafe\u0301.jpg", "café.jpg"),
        (["gs://b/i"], "gs://b/i/a.jpg", "a.jpg"),
        (["gs://b/i"], "GS://b/i/a.jpg", "a.jpg"),
        (["gs://b/i"], "x/a.jpg", "x/a.jpg"),
        (["gs://b"], "gs://b/a.jpg", "a.jpg"),
        (["/d/t.zip"], "/d/t.zip/a.jpg", "a.jpg"),
        (["/d/a", "/d/b/c"], "/d/b/c/x.jpg", "b/c/x.jpg"),
        (["/d/a", "/d/b/c"], "a/x.jpg", "a/x.jpg"),
        (["gs://a/i", "gs://b/i"], "gs://b/i/x.jpg", "b/i/x.jpg"),
        # Outside.
        (["/d/i"], "/d/j/a.jpg", None),
        (["/d/i"], "/d/ij/a.jpg", None),
        (["/d/i"], "gs://d/i/a.jpg", None),
        (["gs://b/i"], "/b/i/a.jpg", None),
        (["gs://b/i"], "gs://b/i/../../c/i/a.jpg", None),
        (["/d/a", "/d/b"], "/d/c/x.jpg", None),
        (["/d/a", "/d/b"], "x.jpg", None),
        (["/d/i"], "", None),
    ],
)
def test_keys_of_names(roots: list[str], name: str, key: str | None) -> None:
    assert TableRoots(roots).key_of(name) == key


def test_listed_files_have_the_keys_of_their_names() -> None:
    roots = TableRoots(["/d/a", "/d/b/c"])
    assert roots.key_below("x//y.jpg", root=0) == "a/x/y.jpg"
    assert roots.key_below("x.jpg", root=1) == roots.key_of("/d/b/c/x.jpg") == "b/c/x.jpg"
    assert TableRoots(["/d/a"]).key_below("x.jpg", root=0) == "x.jpg"


@given(st.lists(st.sampled_from(["..", ".", "", "d", "i", "a.jpg"]), max_size=7))
def test_paths_are_resolved_as_the_standard_library_does(parts: list[str]) -> None:
    roots = TableRoots(["/d/i"])
    for name in ("/" + "/".join(parts), "/".join(["d", *parts])):
        resolved = posixpath.normpath(posixpath.join("/d/i", name))
        inside = resolved.startswith("/d/i/")
        assert roots.key_of(name) == (resolved.removeprefix("/d/i/") if inside else None)


def test_roots_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="one folder lies below another"):
        TableRoots(["/d", "/d/a"])
    with pytest.raises(ValueError, match="one folder lies below another"):
        TableRoots(["/d/a", "/d/a/"])
    with pytest.raises(ValueError, match="one file system"):
        TableRoots(["/d", "gs://d"])


@pytest.mark.parametrize(
    ("uris", "names"),
    [
        (["/x/a.csv"], ["a.csv"]),
        (["/x/a.csv", "/y/b.csv"], ["a.csv", "b.csv"]),
        (["/x/1/a.csv", "/x/2/a.csv"], ["1/a.csv", "2/a.csv"]),
        (["/x/a.csv", "/x/a.csv"], ["0/a.csv", "1/a.csv"]),
    ],
)
def test_short_names_tell_files_apart(uris: list[str], names: list[str]) -> None:
    assert short_names(uris) == names
    assert len(set(names)) == len(names)
