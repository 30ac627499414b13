from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.formats.parsing.root_files import TableRoots, short_names


@pytest.mark.parametrize(
    ("roots", "name", "key"),
    [
        (["/d/i"], "/d/i/a.jpg", "a.jpg"),
        (["/d/i/"], "/d//i/./b/../a.jpg", "a.jpg"),
        (["/d/i"], "a.jpg", "a.jpg"),
        (["/d/i"], "./x/a.jpg", "x/a.jpg"),
        (["/d/i"], "../i/a.jpg", "a.jpg"),
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
        (["/d/i"], "/d/i", None),
        (["/d/i"], "/d/i/../j/a.jpg", None),
        (["/d/i"], "../a.jpg", None),
        (["/d/i"], "../../../../d/i/a.jpg", "a.jpg"),
        (["/d/i"], "gs://d/i/a.jpg", None),
        (["/d/i"], "s3://d/i/a.jpg", None),
        (["gs://b/i"], "/b/i/a.jpg", None),
        (["gs://b/i"], "gs://b/i/../../c/i/a.jpg", None),
        (["/d/a", "/d/b"], "/d/c/x.jpg", None),
        (["/d/a", "/d/b"], "x.jpg", None),
        (["/d/i"], "", None),
        (["/d/i"], "..", None),
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


@pytest.mark.parametrize(
    ("roots", "problem"),
    [
        (["/d", "/d/a"], "one folder lies below another"),
        (["/d/a", "/d/a/"], "one folder lies below another"),
        (["/d", "gs://d"], "one file system"),
    ],
)
def test_roots_that_overlap_are_refused(roots: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TableRoots(roots)


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
