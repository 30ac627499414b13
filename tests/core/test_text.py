"""Texts from data, as a terminal or a page may show them."""

from __future__ import annotations

import re

import pytest

from shardbeam.configs.problem import compile_pattern
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import escape, search

JOINER, NON_JOINER = "\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"


@pytest.mark.parametrize(
    "text",
    [
        # A family, a flag with its variation selector, and a Persian word ("books").
        f"\N{MAN}{JOINER}\N{WOMAN}{JOINER}\N{GIRL}",
        f"\N{WAVING WHITE FLAG}\ufe0f{JOINER}\N{RAINBOW}",
        f"\u06a9\u062a\u0627\u0628{NON_JOINER}\u0647\u0627",
    ],
)
def test_joiners_of_letters_and_emoji_stay(text: str) -> None:
    assert escape(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"a{JOINER}b", r"a\u200db"),
        (f"{JOINER}\N{MAN}", "\\u200d\N{MAN}"),
        (f"\N{MAN}{JOINER}", "\N{MAN}\\u200d"),
        (f"\N{MAN}{JOINER}{JOINER}\N{WOMAN}", "\N{MAN}\\u200d\\u200d\N{WOMAN}"),
        (f"\N{MAN}{JOINER}\u202e", "\N{MAN}\\u200d\\u202e"),
        ("\x1b[2J\n\udcff", r"\x1b[2J\n\udcff"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown


# Users' patterns find what `re` finds, and end with an error instead of running forever


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
