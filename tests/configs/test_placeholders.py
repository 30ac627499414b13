"""Placeholders in paths."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.load import ConfigError
from shardbeam.configs.passwords import hide_passwords
from shardbeam.configs.placeholders import (
    TemplateError,
    fill_template,
    parse_template,
    placeholders,
)
from shardbeam.transforms.core.errors import InputError
from tests.support.config_making import make_config
from tests.support.screens import check_screen

CONFIG = {"name": "d", "splits": {"train": {"format": "image-folder", "images": "x"}}}
VALUES = {"version": "1.0.0", "date": "20250131"}


def make(output: dict[str, Any], *overrides: str) -> None:
    make_config({**CONFIG, "output": output}, overrides=overrides, origin="d.yaml")


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("d", "d"),
        ("d/{version}", "d/1.0.0"),
        ("{date}{version}", "202501311.0.0"),
        ("{date}/{date}", "20250131/20250131"),
        ("{{date}}", "{date}"),
        ("{{{date}}}", "{20250131}"),
        ("}}{{", "}{"),
    ],
)
def test_filling(template: str, filled: str) -> None:
    assert fill_template(template, VALUES) == filled


@given(st.lists(st.tuples(st.text(), st.sampled_from(sorted(VALUES)))))
def test_taking_apart_is_the_reverse_of_putting_together(parts: list[tuple[str, str]]) -> None:
    template = "".join(
        text.replace("{", "{{").replace("}", "}}") + f"{{{name}}}" for text, name in parts
    )
    assert fill_template(template, VALUES) == "".join(text + VALUES[name] for text, name in parts)
    assert placeholders(template) == {name for _, name in parts}


@given(st.text(alphabet="{}ab"))
def test_any_braces_are_matched_or_refused(template: str) -> None:
    try:
        parts = list(parse_template(template))
    except TemplateError:
        return
    assert not any(set(part.text) & set("{}") for part in parts if part.is_placeholder)
    written = "".join(
        f"{{{part.text}}}" if part.is_placeholder else part.text * (1 + (part.text in "{}"))
        for part in parts
        if part.text or part.is_placeholder
    )
    assert written == template


REFUSED = [
    {"path": "d/{dat}"},
    {"path": "d/{}"},
    {"path": "d/{date"},
    {"path": "d}"},
    {"path": "d", "latest": "{date}"},
    {"path": "d", "latest": "l}"},
    {"path": "d\n", "latest": "l"},
]


def test_errors_name_key_and_fix() -> None:
    shown = ""
    for output in REFUSED:
        with pytest.raises(ConfigError) as caught:
            make(output)
        shown += f"{output}\n    {caught.value}\n"
    check_screen("placeholder_refusals", shown)


def test_an_override_is_to_blame_where_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^--set: output\.latest: expected no placeholder, got"):
        make({"path": "d/{date}"}, "output.latest='{date}'")


def test_what_may_stand_there() -> None:
    make({"path": "gs://b/{version}/{date}-{fingerprint}{{}}", "latest": "gs://b/latest"})


# In any text, passwords in URIs are hidden, and nothing else


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
