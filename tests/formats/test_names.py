from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.formats.names import (
    escape_key,
    foreign_name,
    key_problem,
    listing_exclusion,
    normalize_for_match,
    normalize_key,
)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a/b.jpg", "a/b.jpg"),
        ("./a/b.jpg", "a/b.jpg"),
        ("././a//./b.jpg", "a/b.jpg"),
        ("a/", "a"),
        ("/a//b.jpg", "/a/b.jpg"),
        ("//a.jpg", "/a.jpg"),
        ("../a.jpg", "../a.jpg"),
        ("a/../b.jpg", "a/../b.jpg"),
        (".a.jpg", ".a.jpg"),
        ("a\\b.jpg", "a\\b.jpg"),
        ("e\u0301.jpg", "é.jpg"),
        ("", ""),
        (".", ""),
    ],
)
def test_normalize_key(name: str, key: str) -> None:
    assert normalize_key(name) == key


@pytest.mark.parametrize(
    ("name", "suffix", "bare"),
    [
        ("/data/A/b.JPG", "a/b", "b"),
        ("gs://bucket/a/b.c.png", "a/b.c", "b.c"),
        ("C:\\a\\b.jpg", "a/b", "b"),
        ("b.001", "b.001", "b.001"),
        ("./b.jpg", "b", "b"),
    ],
)
def test_names_are_normalized_for_match(name: str, suffix: str, bare: str) -> None:
    assert [normalize_for_match(name, match) for match in ("path", "suffix", "name")] == [
        name,
        suffix,
        bare,
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("https:/host/a.jpg?x=1", "a URL (https) and no path: download the images"),
        ("gs://bucket/a.jpg", "a URL (gs) and no path"),
        (
            "my%20a.jpg",
            "%20 stands for ' ' in URLs, but not in paths: write the name as 'my a.jpg'",
        ),
        ("data:image/png;base64," + "iVBORw0KGgo" + 40 * "A", "a PNG as base64 and no name"),
        ("data:image/png;base64,?", "a data URI and no name"),
        ("/9j/" + 40 * "A" + "==", "a JPEG as base64 and no name"),
        ("eJ" + 40 * "A", "zlib-compressed data as base64 and no name"),
        ("C:/a.jpg", ""),
        ("/9j/a.jpg", ""),
        ("100%.jpg", ""),
        ("a/b.jpg", ""),
    ],
)
def test_what_is_no_path_is_described(name: str, said: str) -> None:
    assert said in foreign_name(name)
    assert bool(said) == bool(foreign_name(name))


@given(name=st.text(st.sampled_from("a.é/\u0301")))
def test_a_normalized_key_stays_as_it_is(name: str) -> None:
    key = normalize_key(name)

    assert normalize_key(key) == key
    assert unicodedata.is_normalized("NFC", key)
    assert "//" not in key


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("a/é 臉.jpg", None),
        ("", "empty"),
        ("a\0.jpg", "NUL"),
        ("a\ud800.jpg", "not valid Unicode"),
        # How Python lists a file whose name is not UTF-8.
        (b"a\xff.jpg".decode("utf-8", "surrogateescape"), "not valid Unicode"),
    ],
)
def test_key_problem(key: str, problem: str | None) -> None:
    found = key_problem(key)

    assert (found is None) == (problem is None)
    assert (problem or "") in (found or "")


@given(text=st.text(st.characters() | st.sampled_from("\0\ud800\udfff"), min_size=1))
def test_an_escaped_key_can_be_a_key(text: str) -> None:
    escaped = escape_key(text)

    assert key_problem(escaped) is None
    assert (escaped == text) == (key_problem(text) is None)


@pytest.mark.parametrize(
    ("exclusion", "keys"),
    [
        (None, ["a.jpg", "cat.d/a.jPeG", "a.TIFF", "cat/a.b.jpg", "__macosx2/a.jpg"]),
        (
            Exclusion.HIDDEN_FILE,
            [
                *(
                    ".DS_Store",
                    "cat/.a.jpg",
                    "cat/.a.txt",
                    ".cache/cat/a.jpg",
                    "__MACOSX/cat/a.jpg",
                ),
                *("cat/Thumbs.db", "cat/thumbs.db", "Desktop.ini", "cat/@eaDir/a.jpg"),
            ],
        ),
        (
            Exclusion.NOT_AN_IMAGE_NAME,
            ["a.jpg.txt", "cat.jpg/a", "jpg", "a.json", "a.mp4", "a.jpg ", "cat/a.txt"],
        ),
    ],
)
def test_what_a_listing_leaves_out(exclusion: Exclusion | None, keys: list[str]) -> None:
    assert {key: listing_exclusion(key) for key in keys} == dict.fromkeys(keys, exclusion)
