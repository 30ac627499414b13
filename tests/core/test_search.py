"""Users' patterns find what `re` finds, and end with an error instead of running forever."""

from __future__ import annotations

import re

import pytest

from shardbeam.configs.patterns import compile_pattern
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.search import search

KEYS = [
    "",
    "train/v12_f003_red rose.jpg",
    "Ärzte/straße_ß.PNG",
    "日本/猫_10.jpeg",
    "a\nb/c d.tar.gz",
    "v1/v2/x.y_z.jpg",
]
PATTERNS = [
    r"_(?P<label>[^_/]+)\.[^._/]+$",
    r"^(video|v)(\d+)[_/]",
    r"(?i)STRASSE|[a-zß]+",
    r"(?P<a>\w+)\W(?P<b>\w*)",
    r"(?<=/)[^/.]*?(?=\.)|^$",
    r"\b(\w)\1*|(\d{2,})",
    r"(?ms)^b.c",
    r"(?x) v \d  # the video",
    r"(?a)\w+[_ ]\w+",
    r"(x)?(?(1)\.y|z)",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_found_is_what_re_finds(pattern: str) -> None:
    for key in KEYS:
        found, expected = search(pattern, key, setting=""), re.search(pattern, key)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert (found.span(), found.groups()) == (expected.span(), expected.groups())
            assert found.groupdict(default="") == expected.groupdict(default="")


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", r"\p{L}", "a++b(?i)", "(" * 5000])
def test_what_re_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compile_pattern(pattern)


def test_a_search_that_would_never_end_is_an_error() -> None:
    key = "a" * 80 + "!"
    with pytest.raises(InputError) as caught:
        search("(a|aa)+$", key, setting="group_by")
    assert caught.value.uri == key
    assert "searching it for group_by ((a|aa)+$) takes more than 1 s" in caught.value.problem
