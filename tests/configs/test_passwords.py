"""In any text, passwords in URIs are hidden, and nothing else."""

from __future__ import annotations

import html
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.load import ConfigError
from shardbeam.configs.placeholders import hide_passwords
from shardbeam.transforms.core.errors import InputError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:s3cret@host/a@2x.jpg", "https://user:***@host/a@2x.jpg"),
        ("ftp://u:s3cret@more@h/x: no such file", "ftp://u:***@h/x: no such file"),
        ("zip://*.jpg::ftp://u:s3cret@h/a.zip", "zip://*.jpg::ftp://u:***@h/a.zip"),
        ("filecache::s3://key:s3cret@bucket/x", "filecache::s3://key:***@bucket/x"),
        ("ftp://a:s3cret@h/x, ftp://b:s3cret@h/y", "ftp://a:***@h/x, ftp://b:***@h/y"),
        ("redis://:s3cret@h", "redis://:***@h"),
        ("ftp://u:it's s3cret@h/", "ftp://u:***@h/"),
        ("ftp://u:1234@h", "ftp://u:***@h"),
        (r"ftp://u:s3cret\@h", "ftp://u:***@h"),
        # As a `pathlib.Path` has it.
        ("ftp:/u:s3cret@h/x", "ftp:/u:***@h/x"),
        # No password is in these.
        *(
            (text, text)
            for text in (
                "abfs://container@account.dfs.core.windows.net/x",
                "sftp://user@host/x",
                "http://localhost:8081, or ask a@b.org",
                "http://host:80/x y:z@q",
                "a: b@c",
                "",
            )
        ),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert hide_passwords(text) == shown
    assert str(InputError(uri=text, problem="no")) == f"{shown}: no"
    assert str(ConfigError(origin=text, problem="no")).endswith(f"{shown}: no" if text else "no")


# Texts that a URI's user and password may hold; none of them ends the URI's host.
PASSWORDS = st.text(st.characters(exclude_characters="/?#\n", exclude_categories=["Cs"]))
HIDDEN = "ftp://u:***@h/x"


@given(before=PASSWORDS, after=PASSWORDS)
def test_no_part_of_a_password_is_left(before: str, after: str) -> None:
    uri = f"ftp://u:p{before}s3cret{after}@h/x"
    document = json.dumps([uri, "http://h:80", "x@y"])
    for text, shown in (
        (document, json.dumps([HIDDEN, "http://h:80", "x@y"])),
        (html.escape(uri), HIDDEN),
    ):
        assert hide_passwords(text) == shown


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).map("x://a:".__add__)))
def test_json_stays_json(texts: list[str]) -> None:
    shown = json.loads(hide_passwords(json.dumps(texts)))
    assert len(shown) == len(texts)
