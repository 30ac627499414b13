"""Texts from data, as a terminal or a page may show them."""

from __future__ import annotations

import pytest

from shardbeam.transforms.core.text import escape

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
